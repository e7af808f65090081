"""One client connection below HTTP requests: what uvicorn's own protocol class leaves unbounded.

A request must arrive within a time limit, header or body, however slowly it drips; open connections are
capped, and idle ones make room for new ones; a client that does not read what it asked for is dropped;
what is no HTTP gets an error of the one shape.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from server.api import limits
from server.api.replies import error_body
from server.errors import HeadersTooLarge, InvalidRequest, RequestTimeout, ToolspanError, Unavailable


@dataclass(slots=True)
class Connections:
    """All open connections, oldest first, and their bounds: how many there may be, how many seconds a
    request may take to arrive, how many a client may leave an answer unread, and after how many of silence
    one may be closed to make room."""

    most: int
    receive_timeout: float
    write_stall: float = limits.WRITE_STALL
    fresh: float = limits.FRESH
    open: dict[Connection, None] = field(default_factory=dict)

    def protocol(self, **arguments: Any) -> Connection:
        """Makes the protocol of a new connection, in place of uvicorn's class."""
        return Connection(self, **arguments)

    def admit(self, connection: Connection) -> bool:
        """Whether there is room; the oldest connection that waits for no answer is closed to make it."""
        if len(self.open) >= self.most:
            before = time.monotonic() - self.fresh
            idle = next((each for each in self.open if each.idle and each.heard < before), None)
            if idle is None:
                return False
            idle.drop()
        self.open[connection] = None
        return True


class _Timer:
    """One call later, at most."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, callback: Callable[[], object]) -> None:
        """Does nothing while it runs already."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(seconds, self._ring, callback)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self, callback: Callable[[], object]) -> None:
        self._handle = None
        callback()


class Connection(H11Protocol):
    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._all = connections
        self._receipt = _Timer()
        self._stall = _Timer()
        self._receiving = False
        self._refused = False
        self._begun = b""
        self.heard = 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is being answered; one may be arriving."""
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        self._all.open.pop(self, None)
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.heard = time.monotonic()
        if self._all.admit(self):
            self._watch_receipt()
        else:
            code = "too_many_connections"
            self._refuse(Unavailable("too many connections are open", code=code, retry_after=5))

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.open.pop(self, None)
        self._receipt.cancel()
        self._stall.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self.heard = time.monotonic()
        if not self._receiving:  # the clock of a request starts with its first byte
            self._receiving = True
            self._receipt.cancel()
            self._begun = b""
        self._begun += data[: limits.REQUEST_LINE - len(self._begun)]
        super().data_received(data)
        self._watch_receipt()

    def on_response_complete(self) -> None:
        self._receiving = False
        super().on_response_complete()
        self._watch_receipt()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.start(self._all.write_stall, self.transport.abort)

    def resume_writing(self) -> None:
        self._stall.cancel()
        super().resume_writing()

    def shutdown(self) -> None:
        with contextlib.suppress(h11.LocalProtocolError):
            super().shutdown()
            return
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Called while the parser's error is being handled; it says whether the headers were too long."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse(HeadersTooLarge(f"the headers may have at most {limits.HEADER_BYTES} bytes"))
        else:
            self._refuse(InvalidRequest("this is not a valid HTTP request", code="invalid_http"))

    @property
    def _path(self) -> str:
        """The path that is asked for, as far as that can be told: what arrives may be no HTTP."""
        words = self._begun.partition(b"\r\n")[0].split(b" ")
        return words[1].decode("latin-1") if len(words) > 1 else ""

    def _watch_receipt(self) -> None:
        """Runs the clock whenever it is the client's turn to send: a request, the rest of one that was
        answered early, or, between requests, nothing."""
        awaited = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if awaited and not self._refused and not self.transport.is_closing():
            self._receipt.start(self._all.receive_timeout, self._overdue)
        else:
            self._receipt.cancel()

    def _overdue(self) -> None:
        if not self.idle:  # the application is reading the body, and has the same limit
            self._receipt.start(1.0, self._overdue)
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(RequestTimeout("the request did not arrive in time"))
        else:
            self.transport.close()

    def _refuse(self, error: ToolspanError) -> None:
        """Answers without a request and closes, once the client had a moment to read why."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        self._refused = True
        self._receipt.cancel()
        body = error_body(error.data, self._path)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if error.retry_after is not None:
            headers.append((b"retry-after", str(error.retry_after).encode()))
        reason = STATUS_PHRASES[error.status]
        response = h11.Response(status_code=error.status, headers=headers, reason=reason)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(limits.LINGER, self.transport.abort)
