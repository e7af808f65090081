"""Frames and folded answers to chat completion objects, in OpenAI's exact shapes.

A stream is: one chunk with the role for each choice; text, reasoning and call deltas; one chunk with the
finish reason for each choice; a usage chunk if asked for. A call's first delta has index, id, type, name
and empty arguments; later ones only index and arguments. ``timings`` and ``warnings`` are ours and stand
in the last chunk.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator
from typing import Any

from server.api.answer import Answer, Call, Choice
from server.api.replies import error_object
from server.errors import ErrorData
from server.events import (
    CallArguments,
    CallStart,
    Event,
    Finish,
    Reasoning,
    Text,
    Timings,
    TokenLogprob,
    TopLogprob,
    Usage,
    Warning,
)
from server.frames import Accepted, Emitted, Finished

Json = dict[str, Any]
LEAST_LOGPROB = -9999.0


class ChatEncoder:
    """Makes the objects of one answer; all of them share id, time, model and fingerprint."""

    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def __init__(
        self, model: str, fingerprint: str, choices: int, *, include_usage: bool, logprobs: bool
    ) -> None:
        self._common = {
            "id": f"{self.id_prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._choices = choices
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._finishes: list[Json] = []

    def start(self, accepted: Accepted) -> Iterator[Json]:
        """The first chunk of each choice."""
        for index in range(self._choices):
            yield self._chunk([_choice(index, {"role": "assistant", "content": None})])

    def silence(self) -> Json:
        return self._chunk([self.empty(0)])

    def chunks(self, frame: Emitted) -> Iterator[Json]:
        """The chunks of some events. Finish reasons wait for ``finish``: until then the answer may
        still fail."""
        for event in frame.events:
            if isinstance(event, Finish):
                self._finishes.append(self.empty(frame.choice, event.reason))
            elif (choice := self.delta(frame.choice, event)) is not None:
                yield self._chunk([choice])

    def finish(self, frame: Finished) -> Iterator[Json]:
        """The last chunks."""
        chunks = [self._chunk([choice]) for choice in self._finishes]
        if self._include_usage:
            chunks.append(self._chunk([]) | {"usage": _usage(frame.usage)})
        if chunks:
            chunks[-1] |= _extras(frame.timings, frame.warnings)
        yield from chunks

    def failed(self, error: ErrorData) -> Iterator[Json]:
        yield error_object(error)

    def whole(self, answer: Answer) -> Json:
        choices = [self.whole_choice(index, choice) for index, choice in enumerate(answer.choices)]
        completion = {"object": self.whole_object, **self._common, "choices": choices}
        return completion | {"usage": _usage(answer.usage)} | _extras(answer.timings, answer.warnings)

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = {"object": self.chunk_object, **self._common, "choices": choices}
        return chunk | {"usage": None} if self._include_usage else chunk

    # Choices: what differs between chat completions and others.

    def empty(self, index: int, reason: str | None = None) -> Json:
        """The choice of a chunk that says nothing, or only why the choice ended."""
        return _choice(index, {}, reason=reason)

    def delta(self, index: int, event: Event) -> Json | None:
        """The choice of a chunk; None for events that need none."""
        match event:
            case Reasoning(text) if text:
                return _choice(index, {"reasoning_content": text})
            case Text(text, logprobs) if text or logprobs:
                return _choice(
                    index, {"content": text} if text else {}, _logprobs(logprobs) if logprobs else None
                )
            case CallStart(number, identifier, name):
                call = {"index": number, **_call(Call(identifier, name))}
                return _choice(index, {"tool_calls": [call]})
            case CallArguments(number, text) if text:
                return _choice(index, {"tool_calls": [{"index": number, "function": {"arguments": text}}]})
        return None

    def whole_choice(self, index: int, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": choice.text or (None if choice.calls else "")}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["tool_calls"] = [_call(each) for each in choice.calls]
        shown = _logprobs(choice.logprobs) if self._logprobs else None
        return {"index": index, "message": message, "logprobs": shown, "finish_reason": choice.reason}


def _choice(index: int, delta: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _call(call: Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(tokens: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> Json:
    content = [_token(each) | {"top_logprobs": [_token(top) for top in each.top]} for each in tokens]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob | TopLogprob) -> Json:
    return {"token": token.token, "logprob": finite(token.logprob), "bytes": list(token.data)}


def finite(logprob: float | None) -> float:
    return logprob if logprob is not None and math.isfinite(logprob) else LEAST_LOGPROB


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _extras(timings: Timings, warnings: tuple[Warning, ...]) -> Json:
    extras: Json = {"timings": timings}
    if warnings:
        extras["warnings"] = warnings
    return extras
