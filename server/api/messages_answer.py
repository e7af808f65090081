"""Frames and folded answers to Anthropic's message objects and events.

A stream is: ``message_start``; for each thought, text and call a ``content_block_start``, its deltas and a
``content_block_stop``; ``message_delta`` with the stop reason and the usage; ``message_stop``. ``timings``
and ``warnings`` are ours and stand in ``message_delta``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic_core import from_json

from server.api.answer import Answer, Choice
from server.api.replies import messages_error
from server.errors import ErrorData
from server.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Finish,
    FinishReason,
    Reasoning,
    Text,
    Usage,
)
from server.frames import Accepted, Emitted, Finished

Json = dict[str, Any]
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesEncoder:
    """Makes the objects of one answer."""

    def __init__(self, model: str) -> None:
        self._common: Json = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._index = -1
        self._open = ""
        self._finish = Finish("stop")

    def start(self, accepted: Accepted) -> Iterator[Json]:
        usage = {"input_tokens": accepted.prompt_tokens, "output_tokens": 0}
        message = {**self._common, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": message}

    def silence(self) -> Json:
        return {"type": "ping"}

    def chunks(self, frame: Emitted) -> Iterator[Json]:
        for event in frame.events:
            yield from self._event(event)

    def finish(self, frame: Finished) -> Iterator[Json]:
        yield from self._stop()
        delta = _ending(self._finish.reason, self._finish.stop)
        extras = {"warnings": frame.warnings} if frame.warnings else {}
        yield {
            "type": "message_delta",
            "delta": delta,
            "usage": _usage(frame.usage),
            "timings": frame.timings,
            **extras,
        }
        yield {"type": "message_stop"}

    def failed(self, error: ErrorData) -> Iterator[Json]:
        yield from self._stop()
        yield messages_error(error)

    def whole(self, answer: Answer) -> Json:
        (choice,) = answer.choices
        extras = {"warnings": answer.warnings} if answer.warnings else {}
        return {
            **self._common,
            "content": list(_blocks(choice)),
            **_ending(choice.reason or "stop", choice.stop),
            "usage": _usage(answer.usage),
            "timings": answer.timings,
            **extras,
        }

    def _event(self, event: Event) -> Iterator[Json]:
        match event:
            case Reasoning(text) if text:
                yield from self._part("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case Text(text) if text:
                yield from self._part("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case CallStart(_, identifier, name):
                yield from self._stop()
                yield from self._part("tool_use", _call(identifier, name))
            case CallArguments(_, text) if text:
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case CallEnd():
                yield from self._stop()
            case Finish():
                self._finish = event

    def _part(self, kind: str, block: Json) -> Iterator[Json]:
        """Begins a block of a kind, unless one is open."""
        if self._open == kind:
            return
        yield from self._stop()
        self._open = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> Iterator[Json]:
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": self._index}


def _ending(reason: FinishReason, stop: str) -> Json:
    """Why a message ended, and the stop sequence that did it."""
    return {"stop_reason": "stop_sequence" if stop else _STOP_REASONS[reason], "stop_sequence": stop or None}


def _blocks(choice: Choice) -> Iterator[Json]:
    if choice.reasoning:
        yield {"type": "thinking", "thinking": choice.reasoning, "signature": ""}
    if choice.text:
        yield {"type": "text", "text": choice.text}
    for each in choice.calls:
        yield _call(each.id, each.name) | {"input": _input(each.arguments)}


def _call(identifier: str, name: str) -> Json:
    return {"type": "tool_use", "id": f"toolu_{identifier}", "name": name, "input": {}}


def _input(arguments: str) -> Any:
    """The arguments, their digits as they are; of a call that was cut short as far as it came, as clients
    read it from a stream."""
    try:
        json.loads(arguments)
    except ValueError:
        return from_json(arguments or "{}", allow_partial=True)
    return msgspec.Raw(arguments.encode())


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
