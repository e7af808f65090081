"""The body of a completion request (OpenAI's legacy API) to ``Turn``s with raw prompts. Form only, as in
``chat_request``.

The prompt is what the client wrote in place of a chat template, so control tokens in its text are control
tokens, unless ``parse_special`` is false. With a ``suffix`` both texts are data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from server.api import chat_request, limits
from server.api.fields import Field
from server.api.parts import (
    Served,
    check_model,
    check_schemas,
    flag,
    integer,
    refuse_promises,
    response_format,
    stops,
    texts_or_tokens,
)
from server.api.sampling import sampling
from server.turn import RawPrompt, Turn

MAX_TOKENS = 16
"""OpenAI's default."""
REFUSED = chat_request.REFUSED | {"tools": "use chat completions", "messages": "use chat completions"}


@dataclass(frozen=True, slots=True)
class CompletionsRequest:
    """``turns`` differ in their prompts alone."""

    turns: tuple[Turn, ...]
    stream: bool
    include_usage: bool


def decode(body: Any, served: Served, partition: str = "") -> CompletionsRequest:
    """Raises ``InvalidRequest`` or ``NotFound``, naming the field as ``param``."""
    root = Field(body)
    root.object()
    check_model(root, served)
    refuse_promises(root, REFUSED)
    form = response_format(root.get("response_format"), "json_schema")
    check_schemas((), form)
    choices = integer(root, "n", 1, 1, limits.CHOICES)
    turn = Turn(
        messages=(),
        place="prompt",
        response_format=form,
        sampling=sampling(root, served.vocabulary, _logprobs(root)),
        stop=stops(root.get("stop")),
        max_tokens=min(limits.TOKENS, integer(root, "max_tokens", MAX_TOKENS, 0)),
        choices=choices,
        partition=partition,
        reuse_prefix=flag(root, "reuse_prefix", True),
        debug=flag(root, "debug", False),
    )
    _check_best_of(root, choices)
    prompts = _prompts(root, served)
    if turn.debug and len(prompts) > 1:
        raise root.need("debug").wrong("is about one prompt, and there are several", "unsupported_parameter")
    turns = tuple(msgspec.structs.replace(turn, raw=each) for each in prompts)
    options = root.get("stream_options")
    include_usage = options is not None and flag(options, "include_usage", False)
    return CompletionsRequest(turns, flag(root, "stream", False), include_usage)


def _logprobs(root: Field) -> int | None:
    """How many alternatives are told for each token. Not with what would leave tokens without any."""
    wanted = root.get("logprobs")
    if wanted is None:
        return None
    suffix = root.get("suffix")
    if flag(root, "echo", False) and suffix and suffix.value:
        raise wanted.wrong("is not supported with echo and a suffix", "unsupported_parameter")
    if root.get("response_format"):
        raise wanted.wrong("is not supported with response_format", "unsupported_parameter")
    return wanted.integer(0, limits.TOP_LOGPROBS)


def _check_best_of(root: Field, choices: int) -> None:
    best = root.get("best_of")
    if best is not None and best.integer(1) != choices:
        raise best.wrong("is not supported: all n choices are returned", "unsupported_parameter")


def _prompts(root: Field, served: Served) -> list[RawPrompt]:
    prompt, after = root.need("prompt"), root.get("suffix")
    contents, suffix = texts_or_tokens(prompt, limits.PROMPTS, served), after.text() if after else ""
    if suffix and not all(isinstance(each, str) for each in contents):
        raise prompt.wrong("must be text where there is a suffix")
    markup, echo = flag(root, "parse_special", True), flag(root, "echo", False)
    return [RawPrompt(each, markup, suffix or None, echo) for each in contents]
