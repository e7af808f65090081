"""Server-sent events: a stream of ``data:`` lines, sent one by one as they are made."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """One event. JSON has no raw line break, so one line always suffices."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def typed_event(content: Any) -> bytes:
    """An event that is named after its ``type``."""
    return f"event: {content['type']}\n".encode() + event(content)


class EventStream(Response):
    """Sends what ``source`` yields and closes it, whatever happens.

    No task of its own: a client that goes away is noticed outside (``disconnect``), which cancels this.
    """

    media_type = "text/event-stream"

    def __init__(self, source: AsyncGenerator[bytes, None]) -> None:
        self._source = source
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source) as source:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for data in source:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
