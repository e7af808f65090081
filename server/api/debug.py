"""How an answer came about, for requests with ``debug``: an object that is ours, beside what a family says.

Its parts are the same in a stream and in a whole answer: ``prompt`` and ``constraint`` stand in the first
event, ``generated`` in events that say nothing else; a whole answer has all of it in one object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from server.api.answer import Answer
from server.errors import Forbidden
from server.events import Generated, GeneratedToken
from server.frames import Emitted, Origin

Json = dict[str, Any]


def check_right(request: Request) -> None:
    """Raises ``Forbidden``: prompts show what a template adds, and they cost work to show."""
    if not request.state.admin:
        raise Forbidden(
            "debug needs an admin key (--admin-key), or a server without keys and a client on its machine",
            code="admin_key_required",
            param="debug",
        )


def of_origin(origin: Origin) -> Json:
    return {"prompt": origin.prompt, "constraint": origin.constraint}


def of_frame(frame: Emitted) -> Json | None:
    """What a frame says of its choice's tokens, if it does."""
    generated = [each for each in frame.events if isinstance(each, Generated)]
    return {"generated": list(_runs(frame.choice, generated))} if generated else None


def of_answer(origin: Origin, answer: Answer) -> Json:
    runs = [run for number, each in enumerate(answer.choices) for run in _runs(number, each.generated)]
    return of_origin(origin) | {"generated": runs}


def _runs(choice: int, generated: Iterable[Generated]) -> list[Json]:
    """Tokens that follow each other: one run, unless an answer was sampled again from an earlier place."""
    runs: list[Json] = []
    for each in generated:
        if not runs or each.start != runs[-1]["start"] + len(runs[-1]["tokens"]):
            runs.append({"choice": choice, "start": each.start, "tokens": []})
        runs[-1]["tokens"] += map(_token, each.tokens)
    return runs


def _token(token: GeneratedToken) -> Json:
    """``bytes`` where the text does not say them: a part of a code point."""
    shown: Json = {
        "id": token.token if token.token >= 0 else None,
        "text": token.data.decode("utf-8", "replace"),
        "source": token.source,
    }
    return shown if shown["text"].encode() == token.data else shown | {"bytes": list(token.data)}
