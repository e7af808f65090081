"""The spine: what happens to one choice's pieces on their way to events.

Pieces go through the dialect's parser; calls go through the gate, which holds what has to be valid or
different before it leaves; what comes out is emitted. An answer says after each step whether to go on,
to end, or to sample again from an earlier piece.
"""

from __future__ import annotations

import enum
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, field

from server.dialects.parse import TurnParser
from server.engine.protocol import Ended, Piece, Progress
from server.errors import ConstraintDeadEnd, SchemaNotSatisfied, ToolspanError
from server.events import CallArguments, CallEnd, CallStart, Event, Finish, FinishReason, Text, Warning
from server.runner.plan import AnswerPlan, HeldValue
from server.schema.verify import Failure

MAX_SAMPLES = 4
_ID_LETTERS = string.ascii_letters + string.digits


class Next(enum.Enum):
    """What the engine has to do with the sequence after a step."""

    GO_ON = "go on"
    END = "end"
    REWIND = "rewind"
    CLOSE_THOUGHT = "close thought"


@dataclass(slots=True)
class Step:
    """The outcome of a step: events to send, and what follows. ``kept`` belongs to ``REWIND``."""

    events: list[Event] = field(default_factory=list)
    next: Next = Next.GO_ON
    kept: int = 0
    error: ToolspanError | None = None


@dataclass(slots=True)
class _Call:
    """The call being read: where its arguments begin, and what it holds back. ``alike`` are the arguments of
    earlier calls that begin like its own, ``length`` is how many characters its own have so far."""

    start: CallStart
    kept: int
    held: HeldValue
    must_hold: bool
    alike: list[str]
    length: int = 0
    parts: list[str] = field(default_factory=list)
    waiting: list[Event] = field(default_factory=list)

    @property
    def repeats(self) -> bool:
        """Whether all of the arguments are those of an earlier call."""
        return any(len(each) == self.length for each in self.alike)


class Answer:
    """One choice. ``feed`` what the engine made; the counts are for the request's timings."""

    def __init__(self, plan: AnswerPlan, *, trusted: bool) -> None:
        self._plan = plan
        self._trusted = trusted
        self._ids: list[str] = []
        self._parser = self._new_parser()
        self._pieces: list[Piece] = []
        self._call: _Call | None = None
        self._finished_calls: list[tuple[str, str]] = []
        self._response: list[Event] = []
        self._response_parts: list[str] = []
        self._samples = 1
        self.reasoning_tokens = 0
        self.resampled = 0
        self.repeated = 0
        self.warnings: list[Warning] = []

    @property
    def written(self) -> bytes:
        """What the model wrote, as it wrote it."""
        return b"".join(piece.data for piece in self._pieces)

    def feed(self, progress: Progress) -> Step:
        """Reads a step's pieces, and the end of the turn if it has come."""
        step = Step()
        for piece in progress.pieces:
            self._read_piece(piece, step)
            if step.next is not Next.GO_ON:
                return step
        if progress.ended is not None:
            self._end(progress.ended, step)
        elif self._parser.stopped:
            self._finish("stop", step)
        elif self._over_budget:
            step.next = Next.CLOSE_THOUGHT
        return step

    @property
    def _over_budget(self) -> bool:
        limit = self._plan.thoughts
        return limit is not None and self._parser.may_close_thought and self.reasoning_tokens >= limit.tokens

    def _read_piece(self, piece: Piece, step: Step) -> None:
        self._pieces.append(piece)
        self.reasoning_tokens += self._parser.in_reasoning
        self._through_gate(self._parser.feed(piece.token, piece.data, piece.logprob), step)

    def _end(self, ended: Ended, step: Step) -> None:
        if ended is Ended.DEAD_END:
            step.error = ConstraintDeadEnd(
                "no token is left that the answer's grammar and the sampling allow"
            )
            step.next = Next.END
            return
        begun = self._parser.call_begun
        self._through_gate(self._parser.flush(cut=ended is Ended.LENGTH), step)
        if step.next is not Next.GO_ON:
            return
        if self._call is not None and self._end_cut_call(self._call, step):
            return
        cut = ended is Ended.LENGTH and (begun or self._parser.in_call or not self._parser.calls)
        reason: FinishReason = "tool_calls" if self._parser.calls else "stop"
        self._finish("length" if cut else reason, step)

    def _finish(self, reason: FinishReason, step: Step) -> None:
        if self._plan.response is not None and reason == "stop":
            self._check_response(self._plan.response, step)
        if step.next is Next.GO_ON:
            step.events += [*self._response, Finish(reason, self._parser.stopped_by)]
            step.next = Next.END

    # The gate.

    def _through_gate(self, events: Iterable[Event], step: Step) -> None:
        for event in events:
            match event:
                case CallStart():
                    self._start_call(event, step)
                case CallArguments():
                    self._read_arguments(event, step)
                case CallEnd():
                    self._end_call(event, step)
                case Text() if self._plan.response is not None:
                    self._read_response(self._plan.response, event, step)
                case _:
                    step.events.append(event)
            if step.next is not Next.GO_ON:
                return

    def _start_call(self, event: CallStart, step: Step) -> None:
        held = self._plan.tools[event.name]
        earlier = [] if self._plan.repeats else self._finished_calls
        alike = [arguments for name, arguments in earlier if name == event.name]
        self._call = _Call(event, len(self._pieces), held, self._holds(held), alike)
        self._call.waiting.append(event)
        self._let_go(self._call, step)

    def _read_arguments(self, event: CallArguments, step: Step) -> None:
        call = self._call
        assert call is not None
        call.alike = [each for each in call.alike if each.startswith(event.text, call.length)]
        call.length += len(event.text)
        call.parts.append(event.text)
        call.waiting.append(event)
        self._let_go(call, step)

    def _end_call(self, event: CallEnd, step: Step) -> None:
        call = self._call
        assert call is not None
        if self._ends_as_repeat(call, step):
            return
        arguments = "".join(call.parts)
        failure = call.held.verifier.failure(arguments)
        if failure is not None and not self._tolerated(call.held, failure, step, call.start.name, call.kept):
            return
        step.events += [*call.waiting, event]
        self._finished_calls.append((call.start.name, arguments))
        self._call = None
        self._samples = 1

    def _let_go(self, call: _Call, step: Step) -> None:
        """Sends what the call holds back, unless it has to be valid or may still repeat another."""
        if not call.must_hold and not call.alike:
            step.events += call.waiting
            call.waiting.clear()

    def _ends_as_repeat(self, call: _Call, step: Step) -> bool:
        """Ends the turn where a call's whole arguments are those of an earlier one."""
        if not call.repeats:
            return False
        self.repeated += 1
        self._call = None
        self._finish("tool_calls", step)
        return True

    def _end_cut_call(self, call: _Call, step: Step) -> bool:
        """Sends a call that was cut short as far as it came, but for what may repeat another. Returns
        whether it certainly did, so that the turn has ended as it would have without the cut."""
        if self._ends_as_repeat(call, step):
            return True
        if not call.alike:
            step.events += call.waiting
            call.waiting.clear()
        return False

    # Values that fail.

    def _tolerated(self, held: HeldValue, failure: Failure, step: Step, name: str, kept: int) -> bool:
        """Whether an invalid value may leave (with a warning); else says what follows instead."""
        what = f"the arguments of {name}" if name else "the answer"
        if not held.must_be_valid:
            self.warnings.append(Warning("schema_not_satisfied", f"{what}: {failure.message}", name or None))
            return True
        separable = kept < len(self._pieces)  # else one piece holds the whole value
        if separable and self._samples < MAX_SAMPLES and self._holds(held):
            self._samples += 1
            self.resampled += 1
            step.next, step.kept = Next.REWIND, kept
            self._rewind(kept)
        else:
            step.next = Next.END
            step.error = SchemaNotSatisfied(
                f"{what} did not satisfy the schema: {failure.message}", param=name or None
            )
        return False

    def _holds(self, held: HeldValue) -> bool:
        """Whether nothing of a value leaves before it is verified."""
        return held.must_be_valid and not (held.exact and self._trusted)

    def _rewind(self, kept: int) -> None:
        """Goes back to the state after ``kept`` pieces, whose events have all been sent or are held."""
        pieces = self._pieces[:kept]
        self._parser = self._new_parser()
        self._pieces = []
        self._response = []
        self._response_parts = []
        call, self._call = self._call, None
        for piece in pieces:
            self._pieces.append(piece)
            events = self._parser.feed(piece.token, piece.data, piece.logprob)
        if call is None or not pieces:
            return
        begun = next(place for place, event in enumerate(events) if isinstance(event, CallStart))
        self._through_gate(events[begun:], Step())

    def _read_response(self, held: HeldValue, event: Text, step: Step) -> None:
        self._response_parts.append(event.text)
        if self._holds(held):
            self._response.append(event)
        else:
            step.events.append(event)

    def _check_response(self, held: HeldValue, step: Step) -> None:
        failure = held.verifier.failure("".join(self._response_parts))
        if failure is not None:
            self._tolerated(held, failure, step, "", 0)

    # The parser.

    def _new_parser(self) -> TurnParser:
        plan = self._plan
        # Without markers, an answer of a schema may begin like a call.
        certain = bool(plan.bound.dialect.opener) or plan.response is None
        return TurnParser(
            plan.bound,
            plan.tools,
            reasoning=plan.reasoning,
            calls_only=plan.must_call,
            calls_first=plan.response is not None,
            bare=plan.bare,
            thought_calls=plan.thought_calls,
            stop=plan.stop,
            trusted=self._trusted and certain,
            new_id=self._call_id,
            parameters={name: each.parameters for name, each in plan.tools.items()},
        )

    def _call_id(self, index: int) -> str:
        """The id of a call: drawn once, so that sampling it again doesn't change it."""
        while len(self._ids) <= index:
            self._ids.append("".join(secrets.choice(_ID_LETTERS) for _ in range(9)))
        return self._ids[index]
