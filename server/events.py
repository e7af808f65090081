"""What an answer is made of: the same events, whether streamed or folded into one object.

Per choice the order is: reasoning, text, then calls (``CallStart``, ``CallArguments`` ..., ``CallEnd``),
then one ``Finish``. Text is whole code points. Nothing announced is ever taken back.
"""

from __future__ import annotations

import enum
from itertools import chain, groupby
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls"]


class TopLogprob(msgspec.Struct, frozen=True):
    """An alternative at one position: its text, bytes and natural-log probability."""

    token: str
    data: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token of the text with the model's own probability, before any masking or biasing; None for the
    first of a prompt."""

    token: str
    data: bytes
    logprob: float | None
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
    """The choice is complete. ``stop`` is the text of the client's that ended it, if one did."""

    reason: FinishReason
    stop: str = ""


class Source(enum.Enum):
    """How a token came to be."""

    SAMPLED = "sampled"
    FORCED = "forced"
    DRAFTED = "drafted"  # sampled, as it had been guessed


class GeneratedToken(msgspec.Struct, frozen=True):
    """A token as it was generated: its id (negative where a script has none) and its bytes, which may be a
    part of a code point."""

    token: int
    data: bytes
    source: Source


class Generated(msgspec.Struct, frozen=True, tag="generated"):
    """The next tokens of a choice, for a turn with ``debug``. They stand in no order to other events: what
    they say may be held, or dropped. ``start`` is the place of the first; where it lies before the last one
    told, the answer was sampled again from there."""

    start: int
    tokens: tuple[GeneratedToken, ...]


Event = Reasoning | Text | CallStart | CallArguments | CallEnd | Finish | Generated


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request, summed over its choices; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Where the time of a request went, in milliseconds, and how its tokens came to be.

    ``sampled_tokens + forced_tokens + drafted_tokens`` is every generated token: chosen by the model, the
    only ones that the grammar left, and chosen as they had been guessed. ``rejected_tokens`` were guessed in
    vain, and are no part of the answer. ``resampled_calls`` counts values
    that failed verification and were sampled again, ``repeated_calls`` exact repeats that ended a turn.
    """

    queue_ms: float = 0.0
    prepare_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    rejected_tokens: int = 0
    resampled_calls: int = 0
    repeated_calls: int = 0


class Warning(msgspec.Struct, frozen=True):
    """Something the client should know about an answer that is otherwise complete."""

    code: str
    message: str
    param: str | None = None


def joined(events: list[Event]) -> list[Event]:
    """Neighbours of one kind as one event."""
    if len(events) < 2:
        return events
    return [event for _, run in groupby(events, _kind) for event in _as_one(list(run))]


def _kind(event: Event) -> tuple[type[Event], int]:
    return type(event), event.index if isinstance(event, CallArguments) else 0


def _as_one(events: list[Event]) -> list[Event]:
    if len(events) == 1:
        return events
    text = "".join(each.text for each in events if isinstance(each, Reasoning | Text | CallArguments))
    match events[0]:
        case Reasoning():
            return [Reasoning(text)]
        case Text():
            logprobs = (each.logprobs for each in events if isinstance(each, Text))
            return [Text(text, tuple(chain.from_iterable(logprobs)))]
        case CallArguments(index):
            return [CallArguments(index, text)]
    return events
