"""Answers that are one JSON object, errors above all. Every error of this server has the one shape."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from server.errors import ErrorData


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """``content`` as JSON. A float that is no number becomes null."""
    body = msgspec.json.encode(content)
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def error_object(error: ErrorData) -> dict[str, Any]:
    """The body of an error, in a stream as in a reply."""
    shown = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": shown}


def error_reply(error: ErrorData, headers: dict[str, str] | None = None) -> Response:
    extra = dict(headers or {})
    if error.retry_after is not None:
        extra["retry-after"] = str(error.retry_after)
    if error.status == 401:
        extra["www-authenticate"] = "Bearer"
    return reply(error_object(error), error.status, extra)
