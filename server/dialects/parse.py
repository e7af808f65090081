"""Reads a model's answer as it is generated: reasoning, text and calls, as events.

A ``TurnParser`` is a gate around the span parser. Outside spans it looks for markers only, each in the
form it has in this vocabulary, a token or text, and holds text back only while it may still be part of
one. Whitespace beside a marker belongs to the markup. Every other character lands in exactly one event.

Where the answer is not constrained (``trusted`` False) a call is announced only once it is complete, and
text that turns out to be no call is handed back as text; where it is, calls stream from their name on.
"""

from __future__ import annotations

import codecs
import enum
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from server.dialects.arguments import arguments_reader
from server.dialects.bound import BoundDialect
from server.dialects.calls import CallReader
from server.dialects.constrain import ReasoningState
from server.dialects.dialect import Segment
from server.dialects.grammar import BARE
from server.dialects.held import SPACE, HeldText, leading
from server.dialects.interruption import Interruption
from server.dialects.landmarks import landmarks
from server.dialects.logprobs import LogprobQueue
from server.dialects.span import Lexeme, NotASpan, SpanParser
from server.dialects.unread import Unread
from server.dialects.values import Quotes
from server.events import CallStart, Event, Reasoning, Text, TokenLogprob, joined
from server.schema.parameters import Parameters

_LONGEST_START = 4096  # characters of whitespace after which nothing but text begins
FENCE = "```"


class _State(enum.Enum):
    START = "start"  # only whitespace so far: a thought or a bare call may begin
    REASONING = "reasoning"
    TEXT = "text"
    SPAN = "span"
    BARE = "bare"  # in what may be, or is, a call without markers
    STOPPED = "stopped"


class TurnParser:
    """``feed`` each generated token, ``flush`` at the end of the turn.

    ``names`` are the tools that may be called (none: no span opens), ``calls_only`` says that the answer has
    no free text, ``calls_first`` that its text has a schema, so that calls stand only in its place, ``bare``
    lets a call without markers begin the answer, ``thought_calls`` lets one end a thought, ``new_id`` gives
    the id of the call with an index. ``parameters`` are those of the tools, where the dialect's values take
    their types from them.
    """

    def __init__(
        self,
        bound: BoundDialect,
        names: Iterable[str] = (),
        *,
        reasoning: ReasoningState = ReasoningState.NONE,
        calls_only: bool = False,
        calls_first: bool = False,
        bare: bool = False,
        thought_calls: bool = True,
        stop: tuple[str, ...] = (),
        trusted: bool = True,
        new_id: Callable[[int], str],
        parameters: Mapping[str, Parameters] | None = None,
    ) -> None:
        self._names = frozenset(names)
        thoughts = reasoning is not ReasoningState.NONE
        self._marks = marks = landmarks(
            bound, calls=bool(self._names), thoughts=thoughts, thought_calls=thought_calls
        )
        self._closers = {_State.REASONING: marks.think_close, _State.START: marks.no_thought}
        self._segment: Segment | None = None
        self._calls_only = calls_only
        self._calls_first = calls_first
        self._quotes = Quotes()
        self._bare = (bare or not marks.opener) and bool(self._names)
        self._trusted = trusted
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._state = _State.REASONING if reasoning is ReasoningState.OPEN else _State.START
        self._unread = Unread()
        self._buffer = ""
        self._text = HeldText(stop)
        self._thought = HeldText()
        self._thought.skip_space = True
        self._logprobs = LogprobQueue()
        self._span: SpanParser | None = None
        self._around = _State.TEXT  # what a span is in, until something of it is announced
        self._raw: list[str] = []
        self._opened_with = ""  # the marker of a span of which nothing is announced
        new_arguments = partial(arguments_reader, self._marks.form, parameters or {}, trusted=trusted)
        ends = self._marks.form.ends_with_arguments
        self._reader = CallReader(self._names, new_id, new_arguments, ends_with_arguments=ends)

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text: ``stopped_by``."""
        return self._state is _State.STOPPED

    @property
    def stopped_by(self) -> str:
        return self._text.stopped_by

    @property
    def calls(self) -> int:
        """How many calls are complete."""
        return self._reader.completed

    @property
    def in_call(self) -> bool:
        """Whether a call has its name and is not complete."""
        return self._reader.named

    @property
    def call_begun(self) -> bool:
        """Whether what was read last can only be the beginning of a call that has no name yet."""
        if not self._trusted or self._reader.named:
            return False
        certain = self._calls_only or self._reader.completed > 0
        if self._span is not None:
            certain = certain or self._state is _State.SPAN
            return certain and self._around is _State.TEXT and not self._awaits_close
        return certain and self._state in (_State.START, _State.TEXT) and bool(self._buffer.strip(SPACE))

    @property
    def in_reasoning(self) -> bool:
        """Whether a thought is open, and no call that ends it has its name."""
        if self._span is None:
            return self._state is _State.REASONING
        return self._around is _State.REASONING and not self._reader.named

    @property
    def may_close_thought(self) -> bool:
        """Whether a thought is open, and not within a character."""
        return self.in_reasoning and not self._decoder.getstate()[0]

    def feed(self, token: int, data: bytes, logprob: TokenLogprob | None = None) -> list[Event]:
        """The events of one generated token; ``token`` is negative where there are no ids."""
        events: list[Event] = []
        marker = self._marks.tokens.get(token)
        text = self._decoder.decode(b"" if marker else data, bool(marker))
        if logprob is not None and not marker:
            self._logprobs.add(len(text), logprob)
        self._read(text, events)
        if marker:
            self._read_marker(marker, events)
        return joined(events)

    def flush(self, *, cut: bool = False) -> list[Event]:
        """The events that waited for more text, now that the turn has ended. ``cut``: it ended too early,
        so the beginning of a call is no text, but nothing."""
        events: list[Event] = []
        if cut and self.call_begun:
            self._emit_text(self._text.end_before_markup(), events)
            return events
        unfinished = self._decoder.decode(b"", True)
        if not (self._trusted and self._reader.named):  # else the rest of a character that was cut
            self._read(unfinished, events)
        if self._span is not None:
            self._flush_span(events)
        rest, self._buffer = self._buffer, ""
        if self._trusted and self._begins_marker(rest.lstrip(SPACE)):
            rest = ""
        if self._state is _State.REASONING:
            self._emit_reasoning(self._thought.push(rest) + self._thought.end_before_markup(), events)
        elif self._state in (_State.START, _State.TEXT):
            self._push_text(rest, events)
            self._emit_text(self._text.finish(), events)
        return joined(events)

    # Text. Each reader takes what it can and returns what the next state has to read.

    def _read(self, text: str, events: list[Event]) -> None:
        self._unread.add(text)
        while self._unread and not self.stopped:
            text = self._unread.take()
            match self._state:
                case _State.START:
                    text = self._read_start(text)
                case _State.REASONING:
                    text = self._read_reasoning(text, events)
                case _State.TEXT:
                    text = self._read_text(text, events)
                case _:
                    text = self._read_span(text, events)
            self._unread.put_back(text)

    def _read_start(self, text: str) -> str:
        self._buffer = text = self._buffer + text
        begun = text.lstrip(SPACE)
        if len(text) - len(begun) >= _LONGEST_START:
            return self._enter(_State.TEXT, text)
        if not begun:
            return ""
        if self._marks.segments:
            return self._read_part_start(text)
        for marker in self._marks.textual & {self._marks.think_open, self._closers[_State.START]}:
            if begun.startswith(marker):
                return self._enter(_State.REASONING, begun.removeprefix(self._marks.think_open))
            if marker.startswith(begun):
                return ""
        if self._calls_first and self._names:
            return self._read_first(text)
        if self._bare and begun[:1] in ("{", "`"):
            self._begin_span(BARE)
            return self._enter(_State.BARE, text)
        return self._enter(_State.TEXT, text)

    def _read_first(self, text: str) -> str:
        """Where text that has a schema may begin, or calls instead."""
        found = leading(text, {self._marks.opener} & self._marks.textual)
        if found is None:
            return ""
        marker, end = found
        if not marker:
            return self._enter(_State.TEXT, text)
        self._open_span(marker, [])
        return text[end:]

    def _read_part_start(self, text: str) -> str:
        """Where thoughts, text and calls each begin with their marker."""
        found = leading(text, self._marks.parts & self._marks.textual)
        if found is None:
            return ""
        marker, end = found
        self._logprobs.drop(end)
        self._begin_part(marker)
        return text[end:]

    def _begin_part(self, marker: str) -> None:
        self._segment = self._marks.segments.get(marker)
        if marker and marker in self._marks.rules:
            self._open_span(marker, [])
        else:
            self._enter(_State.REASONING if marker and marker == self._marks.think_open else _State.TEXT, "")

    def _read_reasoning(self, text: str, events: list[Event]) -> str:
        before, found, after = self._split(text, self._marks.think_close, self._marks.interrupting)
        self._emit_reasoning(self._thought.push(before), events)
        if not found:
            return ""
        if found == self._marks.think_close:
            return self._end_reasoning(after, events)
        self._interrupt(found, events)
        return after

    def _interrupt(self, marker: str, events: list[Event]) -> None:
        """Reads a call within a thought, which it ends at once where nothing else can come of it."""
        if self._trusted and self._marks.interruption is not Interruption.NAME:
            self._emit_reasoning(self._thought.end_before_markup(), events)
            self._enter(_State.TEXT, "")
        self._open_span(marker, events)

    def _end_reasoning(self, rest: str, events: list[Event]) -> str:
        self._emit_reasoning(self._thought.end_before_markup(), events)
        self._thought.skip_space = True
        self._text.skip_space = True
        return self._enter(_State.START, rest)

    def _read_text(self, text: str, events: list[Event]) -> str:
        before, found, after = self._split_text(text, *self._text_ends())
        self._push_text(before, events)
        if not found or self.stopped:
            return after
        if found in self._marks.rules:
            self._open_span(found, events)
        else:
            self._end_segment(len(found), events)
        return after

    def _text_ends(self) -> tuple[str, ...]:
        """What ends the text that is read: the opener of a call, or what closes it."""
        segment, marks = self._segment, self._marks
        if segment is None:
            calls = marks.rules if self._names and not self._calls_first else ()
            late = (marks.think_close,) if self._reader.completed else ()  # a call has ended the thought
            return (*calls, marks.turn_end, *late)
        until_call = segment.onward and not segment.close and self._names
        return (marks.opener if until_call else segment.close,)

    def _split_text(self, text: str, *markers: str) -> tuple[str, str, str]:
        """``_split``, but what looks like a marker within a string of a JSON value is a part of the value."""
        before, found, after = self._split(text, *markers)
        if self._calls_first:
            self._quotes.follow(before)
            if self._quotes.open:
                self._quotes.follow(found)
                before, found = before + found, ""
        return before, found, after

    def _end_segment(self, length: int, events: list[Event]) -> None:
        self._emit_text(self._text.end_before_markup(), events)
        self._logprobs.drop(length)
        self._segment = None
        self._text.skip_space = True
        self._enter(_State.START, "")

    def _read_span(self, text: str, events: list[Event]) -> str:
        assert self._span is not None
        self._raw.append(text)
        try:
            self._read_lexemes(self._span.feed(text), events)
        except NotASpan:
            return self._give_back(events)
        return self._leave_complete_span()

    # Markers that are tokens.

    def _read_marker(self, marker: str, events: list[Event]) -> None:
        opens_call = marker in self._marks.rules and bool(self._names)
        match self._state:
            case _State.SPAN | _State.BARE:
                self._read_span_marker(marker, events)
            case state if marker == self._closers.get(state):
                self._end_reasoning("", events)
            case _State.REASONING if marker == self._marks.interrupting:
                self._interrupt(marker, events)
            case _State.START | _State.TEXT if marker == self._marks.think_close and self._reader.completed:
                pass  # a call has ended the thought
            case _State.START if marker in self._marks.parts:
                self._begin_part(marker)
            case _State.TEXT if self._segment is not None and marker == self._segment.close:
                self._end_segment(0, events)
            case _State.START | _State.TEXT if opens_call and not (
                self._calls_first and self._state is _State.TEXT
            ):
                self._push_text(self._buffer, events)
                if not self.stopped:
                    self._open_span(marker, events)
            case _:
                self._read(marker, events)

    def _read_span_marker(self, marker: str, events: list[Event]) -> None:
        assert self._span is not None
        try:
            self._read_lexemes(self._span.flush(), events)
            self._raw.append(marker)
            self._read_lexemes(self._span.feed_marker(self._marks.terminal(marker), marker), events)
        except NotASpan:
            if self._raw[-1] is marker:
                self._raw.pop()
            self._read(self._give_back(events), events)
            self._read_marker(marker, events)
        else:
            self._leave_complete_span()

    # Spans.

    def _open_span(self, marker: str, events: list[Event]) -> None:
        span = self._begin_span(self._marks.rules[marker], marker)
        self._enter(_State.SPAN, "")
        self._read_lexemes(span.feed_marker(self._marks.terminal(marker), marker), events)

    def _begin_span(self, rule: str, marker: str = "") -> SpanParser:
        self._span = SpanParser(
            self._marks.grammar, rule, self._marks.span_tokens, lambda: self._reader.quoted
        )
        self._around = _State.REASONING if self._state is _State.REASONING else _State.TEXT
        self._opened_with, self._raw = marker, [marker]
        return self._span

    def _read_lexemes(self, lexemes: Iterable[Lexeme], events: list[Event]) -> None:
        try:
            for lexeme in lexemes:
                if self._reader.feed(lexeme):
                    self._announce(events)
        finally:
            if self._trusted:
                self._announce(events)

    def _announce(self, events: list[Event]) -> None:
        """Lets the events of a call out, and the text before it."""
        assert self._span is not None
        if not (announced := self._reader.take()):
            return
        self._opened_with = ""
        if isinstance(announced[0], CallStart):
            self._emit_reasoning(self._thought.end_before_markup(), events)
            self._emit_text(self._text.end_before_markup(), events)
            self._logprobs.clear()
        self._around = _State.TEXT
        events += announced
        self._raw = [self._span.pending]

    def _leave_complete_span(self) -> str:
        if self._span is None or not self._span.complete:
            return ""
        rest = self._span.pending
        self._span = None
        self._text.skip_space = True
        return self._enter(_State.START if self._marks.segments else _State.TEXT, rest)

    def _give_back(self, events: list[Event]) -> str:
        """What was read as a span and is none becomes text again, but for calls that were complete.
        Returns what to read as text; the marker that opened the span has already left as such."""
        if self._trusted and self._reader.named:
            raise RuntimeError("a constrained call left its grammar")
        assert self._span is not None
        rest, marker = len(self._span.pending), len(self._opened_with)
        raw = self._left_span()
        cut = marker if self._unread.may_read_again(rest) else len(raw) - rest
        self._push_back(raw[:cut], events)
        return raw[cut:]

    def _left_span(self) -> str:
        """Leaves a span that is none. Returns all of it that no call has taken."""
        self._reader.forget()
        self._span = None
        return self._enter(self._around, "".join(self._raw))

    def _push_back(self, text: str, events: list[Event]) -> None:
        """Takes what was no span for what it stands in."""
        if self._state is _State.REASONING:
            self._emit_reasoning(self._thought.push(text), events)
        else:
            self._push_text(text, events)

    def _flush_span(self, events: list[Event]) -> None:
        """A call that the turn's end has cut short is a cut call where a constraint wrote it, else text."""
        assert self._span is not None
        if self._awaits_close:
            return
        with suppress(NotASpan):
            self._read_lexemes(self._span.flush(), events)
        if self._trusted and self._reader.named:
            events += self._reader.cut(self._span.pending)
        else:
            self._push_back(self._left_span(), events)

    @property
    def _awaits_close(self) -> bool:
        """Whether only the close of a span, or a part of it, is missing after a complete call."""
        if not (self._reader.between and self._reader.completed):
            return False
        text = "".join("".join(self._raw).split())
        return any(closing.startswith(text) for closing in (self._marks.form.closing, FENCE))

    def _enter(self, state: _State, rest: str) -> str:
        self._state = state
        self._buffer = ""
        return rest

    def _begins_marker(self, text: str) -> bool:
        """Whether a text that a constraint let through can only be the beginning of a marker."""
        begins = any(each.startswith(text) for each in self._marks.textual)
        between_parts = bool(self._marks.segments) and self._state is not _State.REASONING
        return begins and (between_parts or any(each in text for each in self._marks.inner))

    def _split(self, text: str, *markers: str) -> tuple[str, str, str]:
        """Text before the first of some markers, which it is (or none), and what follows it; the buffer keeps
        what may still become one."""
        before, found, rest = self._marks.split(self._buffer + text, markers)
        self._buffer = "" if found else rest
        return before, found, rest if found else ""

    def _push_text(self, text: str, events: list[Event]) -> None:
        if self._text.skip_space:
            self._logprobs.drop(len(text) - len(text.lstrip(SPACE)))
        self._emit_text(self._text.push(text), events)
        if self._text.stopped_by:
            self._enter(_State.STOPPED, "")

    def _emit_text(self, text: str, events: list[Event]) -> None:
        if text:
            events.append(Text(text, self._logprobs.take(len(text))))

    def _emit_reasoning(self, text: str, events: list[Event]) -> None:
        self._logprobs.clear()
        if text:
            events.append(Reasoning(text))
