"""Frames and folded answers to completion objects of OpenAI's legacy API: chat's, with text in place of
messages.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

from server.api.answer import Choice
from server.api.chat_answer import ChatEncoder, Json, finite
from server.events import Event, Text, TokenLogprob
from server.frames import Accepted


class CompletionsEncoder(ChatEncoder):
    """Makes the objects of one answer."""

    id_prefix = "cmpl"
    chunk_object = whole_object = "text_completion"

    def __init__(self, model: str, fingerprint: str, choices: int, *, include_usage: bool, logprobs: bool):
        super().__init__(model, fingerprint, choices, include_usage=include_usage, logprobs=logprobs)
        self._offsets = [_Offsets() for _ in range(choices)]

    def start(self, accepted: Accepted) -> Iterator[Json]:
        return iter(())

    def empty(self, index: int, reason: str | None = None) -> Json:
        return _choice(index, "", None, reason)

    def delta(self, index: int, event: Event) -> Json | None:
        match event:
            case Text(text, logprobs) if text or logprobs:
                shown = self._offsets[index].logprobs(logprobs) if self._logprobs else None
                return _choice(index, text, shown)
        return None

    def whole_choice(self, index: int, choice: Choice) -> Json:
        shown = _Offsets().logprobs(choice.logprobs) if self._logprobs else None
        return _choice(index, choice.text, shown, choice.reason)


def _choice(index: int, text: str, logprobs: Json | None, reason: str | None = None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


class _Offsets:
    """Where in a choice's text each of its tokens begins, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> Json:
        return {
            "tokens": [_name(each.data) if each.data else each.token for each in tokens],
            "token_logprobs": [None if each.logprob is None else finite(each.logprob) for each in tokens],
            "top_logprobs": [None if each.logprob is None else _alternatives(each) for each in tokens],
            "text_offset": [self._next(each.data) for each in tokens],
        }

    def _next(self, data: bytes) -> int:
        begin = self._characters
        self._characters += len(self._decoder.decode(data))
        return begin


def _alternatives(token: TokenLogprob) -> dict[str, float]:
    return {_name(top.data): finite(top.logprob) for top in token.top}


def _name(data: bytes) -> str:
    """A token's text, or its bytes where they are no text by themselves."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{each:02x}" for each in data)
