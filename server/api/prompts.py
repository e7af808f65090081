"""``POST /tokenize``, ``/detokenize`` and ``/apply-template``: what the model's vocabulary and chat template
make of text and messages, in the shapes of llama-server. Nothing is generated.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api import chat_request, limits
from server.api.fields import Field
from server.api.incoming import Incoming
from server.api.parts import Served, check_model, flag, token_id, token_ids
from server.api.replies import reply
from server.frames import Detokenize, Detokenized, Render, Rendered, Tokenize, Tokenized
from server.settings import Settings
from server.supervisor import Supervisor

Json = dict[str, Any]


class Prompts:
    def __init__(self, settings: Settings, supervisor: Supervisor) -> None:
        self._incoming = Incoming(settings, supervisor)
        self._supervisor = supervisor

    async def tokenize(self, request: Request) -> Response:
        (asked, with_pieces), _ = await self._incoming.read(request, _tokenize)
        found = await self._supervisor.ask(asked, Tokenized)
        if not with_pieces:
            return reply({"tokens": found.tokens})
        return reply({"tokens": [_piece(*each) for each in zip(found.tokens, found.pieces, strict=True)]})

    async def detokenize(self, request: Request) -> Response:
        asked, _ = await self._incoming.read(request, _detokenize)
        return reply({"content": (await self._supervisor.ask(asked, Detokenized)).text})

    async def apply_template(self, request: Request) -> Response:
        """Takes a chat completion's body; what is about sampling changes nothing."""
        asked, _ = await self._incoming.read(request, chat_request.decode)
        return reply({"prompt": (await self._supervisor.ask(Render(asked.turn), Rendered)).text})


def _tokenize(body: Any, served: Served, partition: str) -> tuple[Tokenize, bool]:
    """What to tokenize, and whether the text of each token is wanted, too."""
    root = Field(body)
    root.object()
    check_model(root, served)
    asked = Tokenize(
        _parts(root.need("content"), served),
        add_special=flag(root, "add_special", False),
        parse_special=flag(root, "parse_special", True),
    )
    return asked, flag(root, "with_pieces", False)


def _parts(content: Field, served: Served) -> tuple[str | int, ...]:
    """A text, or texts and token ids that are one text together."""
    given = content.items(limits.TEXT_PARTS) if isinstance(content.value, list) else None
    parts = tuple(_part(each, served) for each in given) if given is not None else (content.text(),)
    length = sum(len(each) for each in parts if isinstance(each, str))
    if length > limits.TEXT_LENGTH:
        raise content.wrong(f"has {length} characters, at most {limits.TEXT_LENGTH} are allowed")
    return parts


def _part(field: Field, served: Served) -> str | int:
    return field.text() if isinstance(field.value, str) else token_id(field, served)


def _detokenize(body: Any, served: Served, partition: str) -> Detokenize:
    root = Field(body)
    root.object()
    check_model(root, served)
    return Detokenize(token_ids(root.need("tokens"), served))


def _piece(token: int, data: bytes) -> Json:
    """A token with its text, or its bytes where they are no text by themselves."""
    try:
        return {"id": token, "piece": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}
