"""``POST /v1/embeddings``: texts to vectors of length 1, in OpenAI's shapes."""

from __future__ import annotations

import base64
import struct
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api import limits
from server.api.fields import Field
from server.api.incoming import Incoming
from server.api.parts import Served, check_model, texts_or_tokens
from server.api.replies import reply
from server.frames import Embed, Embedded
from server.settings import Settings
from server.supervisor import Supervisor


class Embeddings:
    def __init__(self, settings: Settings, supervisor: Supervisor) -> None:
        self._incoming = Incoming(settings, supervisor)
        self._supervisor = supervisor

    async def create(self, request: Request) -> Response:
        (asked, as_base64), facts = await self._incoming.read(request, decode)
        found = await self._supervisor.ask(asked, Embedded)
        data = [
            {"object": "embedding", "index": index, "embedding": _shown(vector, as_base64)}
            for index, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        return reply({"object": "list", "data": data, "model": facts.name, "usage": usage})


def decode(body: Any, served: Served, partition: str = "") -> tuple[Embed, bool]:
    """What to embed, and whether as base64. Raises ``InvalidRequest`` or ``NotFound``."""
    root = Field(body)
    root.object()
    check_model(root, served)
    form, dimensions = root.get("encoding_format"), root.get("dimensions")
    asked = Embed(
        tuple(texts_or_tokens(root.need("input"), limits.EMBEDDINGS, served)),
        dimensions.integer(1) if dimensions else None,
    )
    return asked, form is not None and form.word(("float", "base64")) == "base64"


def _shown(vector: bytes, as_base64: bool) -> str | tuple[float, ...]:
    if as_base64:
        return base64.b64encode(vector).decode()
    return struct.unpack(f"<{len(vector) // 4}f", vector)
