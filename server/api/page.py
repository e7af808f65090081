"""The page at ``/``: one static file, for people who test a model. It holds no data and asks the API like any
client, so it needs no key itself.

The headers allow it its own style and script, by their hashes, and requests to this server; nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_FILE = Path(__file__).with_name("page.html")


class Page:
    def __init__(self) -> None:
        self._body = _FILE.read_bytes()
        self._headers = {
            "content-security-policy": _policy(self._body.decode("utf-8")),
            "cache-control": "no-cache",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
        }

    async def show(self, request: Request) -> Response:
        return Response(self._body, headers=self._headers, media_type="text/html")


def _policy(page: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(page, 'script')}",
            f"style-src {_hash(page, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _hash(page: str, element: str) -> str:
    """The source expression of the one element of a kind."""
    content = page.split(f"<{element}>")[1].split(f"</{element}>")[0]
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
