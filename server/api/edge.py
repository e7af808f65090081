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

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.body import ClientGone
from server.api.logs import where
from server.api.metrics import Metrics
from server.api.replies import error_reply
from server.errors import ToolspanError

log = logging.getLogger("toolspan.http")

CLIENT_GONE = 499
"""The status of a request whose client did not wait; only in logs and metrics."""


class Edge:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = _Exchange(send)
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
        route = getattr(scope.get("route"), "path", "none").removeprefix("/v1")
        self._metrics.requests.labels(route, str(status)).inc()
        path = (scope.get("raw_path") or b"").decode("latin-1")
        took = (time.monotonic() - exchange.began) * 1000
        log.info("%s %s %s %d %.0f ms", exchange.id, scope["method"], path, status, took)


class _Exchange:
    """One request and what was answered so far."""

    def __init__(self, send: Send) -> None:
        self.id = f"req_{secrets.token_hex(8)}"
        self.began = time.monotonic()
        self.status = 0
        self.complete = False
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self.id
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
