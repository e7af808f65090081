"""Answers that are one JSON object, errors above all. Every error of this server has the one shape.

Whatever answers with an error, in a stream too, leaves its code in the request's state as ``error_code``:
the log and the metrics take it from there.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ErrorData


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """``content`` as JSON. A float that is no number becomes null."""
    body = msgspec.json.encode(content)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def error_object(error: ErrorData) -> dict[str, Any]:
    """The body of an error, in a stream as in a reply."""
    shown = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": shown}


def messages_error(error: ErrorData) -> dict[str, Any]:
    """The same in Anthropic's shape."""
    kind = _MESSAGES_TYPES.get(error.status) or _MESSAGES_TYPES.get(error.type, error.type)
    return {"type": "error", "error": {"type": kind, "message": error.message, "code": error.code}}


_MESSAGES_TYPES: dict[int | str, str] = {
    413: "request_too_large",
    504: "timeout_error",
    "server_error": "api_error",
    "service_unavailable": "overloaded_error",
}


def error_body(error: ErrorData, path: str) -> bytes:
    """The JSON of an error in the shape of the family whose path was asked for."""
    in_messages = path.startswith(("/v1/messages", "/messages"))
    return msgspec.json.encode(messages_error(error) if in_messages else error_object(error))


def error_reply(error: ErrorData, headers: dict[str, str] | None = None) -> Response:
    extra = dict(headers or {})
    if error.retry_after is not None:
        extra["retry-after"] = str(error.retry_after)
    if error.status == 401:
        extra["www-authenticate"] = "Bearer"
    if error.futile:
        extra["x-should-retry"] = "false"
    return _ErrorReply(error, extra)


class _ErrorReply(Response):
    """An error in the shape of the family whose route was asked for."""

    media_type = "application/json"

    def __init__(self, error: ErrorData, headers: dict[str, str]) -> None:
        super().__init__(b"", error.status, headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["error_code"] = self._error.code
        self.body = error_body(self._error, scope["path"])
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)
