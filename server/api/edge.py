"""The outermost middleware: what is true of every answer, and of every request that gets none.

Each request has an id, one line in the log and one count in the metrics. Whatever is raised inside
becomes an error of the one shape, or, once an answer has begun, ends the connection. Nothing that is
logged holds a body, a key or an exception's own words, which may quote them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.body import ClientGone
from server.api.metrics import Metrics
from server.api.replies import error_reply
from server.errors import ToolspanError
from server.logs import where

log = logging.getLogger("toolspan.http")

PREFIX = "/v1"
"""What every path may begin with."""
CLIENT_GONE = 499
"""The status of a request whose client did not wait; only in logs and metrics."""


class Edge:
    """``routes`` are those of the application, without their prefix."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute] = ()) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = _Exchange(send, *self._route(scope))
        scope.setdefault("state", {})
        try:
            await self._app(scope, receive, exchange.send)
        except ToolspanError as error:
            await exchange.fail(error, scope, receive)
        except ClientGone:
            pass
        except Exception as error:
            log.error("%s internal error: %s", exchange.id, where(error))
            await exchange.fail(ToolspanError("an internal error happened"), scope, receive)
        finally:
            self._report(scope, exchange)

    def _report(self, scope: Scope, exchange: _Exchange) -> None:
        status = exchange.status if exchange.complete else CLIENT_GONE
        error = scope["state"].get("error_code", "")
        self._metrics.requests.labels(exchange.route, str(status), error).inc()
        took = (time.monotonic() - exchange.began) * 1000
        outcome = f"{status} {error}" if error else str(status)
        path = exchange.prefix + exchange.route
        log.info("%s %s %s %s %.0f ms", exchange.id, scope["method"], path, outcome, took)
        target = (scope.get("raw_path") or b"") + b"?" + scope["query_string"]
        log.debug("%s asked for %s", exchange.id, target.decode("latin-1"))

    def _route(self, scope: Scope) -> tuple[str, str]:
        """``/v1`` or nothing, and the pattern of the path that was asked for: what a client wrote beyond it
        may be secret."""
        path = scope["path"].removeprefix(PREFIX)
        for route in self._routes:
            if route.matches({**scope, "path": path})[0] is not Match.NONE:
                return scope["path"].removesuffix(path), str(getattr(route, "path", ""))
        return "", "none"


class _Exchange:
    """One request and what was answered so far."""

    def __init__(self, send: Send, prefix: str, route: str) -> None:
        self.prefix = prefix
        self.route = route
        self.id = f"req_{secrets.token_hex(8)}"
        self.began = time.monotonic()
        self.status = 0
        self.complete = False
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update({"x-request-id": self.id, "request-id": self.id})
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)

    async def fail(self, error: ToolspanError, scope: Scope, receive: Receive) -> None:
        if not self.status:
            await error_reply(error.data)(scope, receive, self.send)


class CancelWhenGone:
    """Middleware that cancels what is inside as soon as the client has closed its connection.

    Reading of the body stays with the application; only after its end does this listen.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = asyncio.Event()
        answered = False

        async def receiving() -> Message:
            if received.is_set():
                await asyncio.Future()  # nothing more comes; whoever waits here is cancelled
            message = await receive()
            if not message.get("more_body", False):
                received.set()
            return message

        async def sending(message: Message) -> None:
            nonlocal answered
            ends = message["type"] == "http.response.body" and not message.get("more_body", False)
            answered = answered or ends
            await send(message)

        async def gone() -> None:
            await received.wait()
            while (await receive())["type"] != "http.disconnect":
                pass

        serving = asyncio.ensure_future(self._app(scope, receiving, sending))
        listening = asyncio.ensure_future(gone())
        try:
            await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done() and not answered:
                raise ClientGone
            await serving
        finally:
            listening.cancel()
            serving.cancel()
            await asyncio.gather(serving, listening, return_exceptions=True)
