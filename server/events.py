"""What an answer is made of: the same events, whether streamed or folded into one object.

Per choice the order is: reasoning, text, then calls (``CallStart``, ``CallArguments`` ..., ``CallEnd``),
then one ``Finish``. Text is whole code points. Nothing announced is ever taken back.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls"]


class TopLogprob(msgspec.Struct, frozen=True):
    """An alternative at one position: its text, bytes and natural-log probability."""

    token: str
    data: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token of the text with the model's own probability, before any masking or biasing."""

    token: str
    data: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    text: str


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Visible text. ``logprobs`` only if they were asked for; together they cover the text's tokens."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class CallStart(msgspec.Struct, frozen=True, tag="call_start"):
    """A call's name is complete. ``index`` counts from 0 in its choice; ``id`` is unique."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, tag="call_arguments"):
    """A fragment of the arguments' JSON text; the fragments of a call joined are one JSON object."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True, tag="call_end"):
    index: int


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """The choice is complete."""

    reason: FinishReason


Event = Reasoning | Text | CallStart | CallArguments | CallEnd | Finish


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request, summed over its choices; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Where the time of a request went, in milliseconds, and how its tokens came to be.

    ``sampled_tokens + forced_tokens`` is every generated token. ``resampled_calls`` counts values
    that failed verification and were sampled again, ``repeated_calls`` exact repeats that ended a turn.
    """

    queue_ms: float = 0.0
    prepare_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    resampled_calls: int = 0
    repeated_calls: int = 0


class Warning(msgspec.Struct, frozen=True):
    """Something the client should know about an answer that is otherwise complete."""

    code: str
    message: str
    param: str | None = None


def joined(events: list[Event]) -> list[Event]:
    """Neighbours of one kind as one event."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        match last, event:
            case Reasoning(), Reasoning():
                result[-1] = Reasoning(last.text + event.text)
            case Text(), Text():
                result[-1] = Text(last.text + event.text, last.logprobs + event.logprobs)
            case CallArguments(), CallArguments() if last.index == event.index:
                result[-1] = CallArguments(last.index, last.text + event.text)
            case _:
                result.append(event)
    return result
