"""A request in the runner: its answers, and the frames they make."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec

from server.engine.protocol import Embedding, Engine, Progress, SequenceId, Tally
from server.errors import ToolspanError
from server.events import Text, Timings, TokenLogprob, Usage
from server.frames import Accepted, Emitted, Failed, Finished, FromRunner
from server.runner.answer import Answer, Next, Step
from server.runner.origin import Told
from server.runner.prepare import PreparedTurn
from server.runner.recorder import Recorder, Recording

_log = logging.getLogger("toolspan.runner")


LOGPROBS_A_FRAME = 512
"""Tokens of a prompt that are told at a time with their logprobs."""


class Request:
    """One accepted request, with an answer for each of its choices. A recorder, if any, hears of it."""

    def __init__(self, prepared: PreparedTurn, engine: Engine, recorder: Recorder | None = None) -> None:
        self._prepared = prepared
        self._engine = engine
        self._id = prepared.job.request
        self._recording = Recording(prepared, recorder) if recorder else None
        trusted = engine.submit(prepared.job)
        self._answers = [Answer(prepared.plan, trusted=trusted) for _ in range(prepared.job.choices)]
        self._unfinished = set(range(prepared.job.choices))
        self._origin = prepared.origin if prepared.turn.debug else None
        self._told = Told(prepared.job.choices) if prepared.turn.debug else None
        self._echoes = bool(prepared.echo)

    def begun(self) -> Iterator[FromRunner]:
        """The frames of a request before anything is generated."""
        yield Accepted(self._id, len(self._prepared.job.prompt), self._origin)
        if not self._prepared.job.score:
            yield from self._echo(())

    @property
    def done(self) -> bool:
        return not self._unfinished

    def take(self, progress: Progress | Embedding) -> Iterator[FromRunner]:
        """The frames of one step of one choice; tells the engine how that sequence goes on."""
        assert isinstance(progress, Progress)
        sequence = progress.sequence
        if sequence.choice not in self._unfinished:
            return
        if self._recording:
            self._recording.add(progress, self._engine.tally(self._id))
        yield from self._echo(progress.prompt)
        answer = self._answers[sequence.choice]
        step = answer.feed(progress)
        if step.next is Next.END and _log.isEnabledFor(logging.DEBUG):
            _log.debug("request %d wrote %r", self._id, answer.written.decode("utf-8", "replace"))
        events = (*(self._told.events(progress) if self._told else ()), *step.events)
        if events:
            yield Emitted(self._id, sequence.choice, events)
        if step.error is not None:
            yield self.failed(step.error)
            return
        self._go_on(sequence, step)
        if self.done:
            yield self._finished()

    def _echo(self, scores: Sequence[TokenLogprob]) -> Iterator[FromRunner]:
        """The prompt, once, before anything else that any choice says."""
        if not self._echoes:
            return
        self._echoes = False
        text, within = self._prepared.echo, in_text(scores, self._prepared.echo)
        for choice in range(self._prepared.job.choices):
            yield Emitted(self._id, choice, (Text(text, tuple(within[:LOGPROBS_A_FRAME])),))
            for start in range(LOGPROBS_A_FRAME, len(within), LOGPROBS_A_FRAME):
                yield Emitted(self._id, choice, (Text("", tuple(within[start : start + LOGPROBS_A_FRAME])),))

    def _go_on(self, sequence: SequenceId, step: Step) -> None:
        match step.next:
            case Next.REWIND:
                self._engine.rewind(sequence, step.kept)
                if self._told:
                    self._told.rewound(sequence, step.kept)
                if self._recording:
                    self._recording.rewound(sequence, step.kept)
            case Next.CLOSE_THOUGHT:
                limit = self._prepared.plan.thoughts
                assert limit is not None
                self._engine.append(sequence, limit.closing)
            case Next.END:
                self._engine.finish(sequence)
                self._unfinished.discard(sequence.choice)
                if self._recording:
                    self._recording.ended(sequence)
            case Next.GO_ON:
                pass

    def failed(self, error: ToolspanError) -> Failed:
        """Gives the request up."""
        self.cancel()
        return Failed(self._id, error.data)

    def cancel(self) -> None:
        """Ends the request, of which nobody hears any more."""
        self._engine.cancel(self._id)
        self._unfinished.clear()
        if self._recording:
            self._recording.write()

    def _finished(self) -> Finished:
        if self._recording:
            self._recording.write()
        tally = self._engine.tally(self._id)
        answers = (warning for answer in self._answers for warning in answer.warnings)
        cut = self._told.warnings if self._told else ()
        warnings = (*self._prepared.warnings, *answers, *cut)
        return Finished(self._id, self._usage(tally), self._timings(tally), warnings)

    def _usage(self, tally: Tally) -> Usage:
        return Usage(
            prompt_tokens=len(self._prepared.job.prompt),
            completion_tokens=tally.completion_tokens,
            cached_tokens=tally.cached_tokens,
            reasoning_tokens=sum(answer.reasoning_tokens for answer in self._answers),
        )

    def _timings(self, tally: Tally) -> Timings:
        return Timings(
            queue_ms=round(tally.queue_s * 1000, 3),
            prepare_ms=round(self._prepared.prepare_s * 1000, 3),
            prefill_ms=round(tally.prefill_s * 1000, 3),
            decode_ms=round(tally.decode_s * 1000, 3),
            sampled_tokens=tally.sampled_tokens,
            forced_tokens=tally.forced_tokens,
            drafted_tokens=tally.drafted_tokens,
            rejected_tokens=tally.rejected_tokens,
            resampled_calls=sum(answer.resampled for answer in self._answers),
            repeated_calls=sum(answer.repeated for answer in self._answers),
        )


def in_text(scores: Sequence[TokenLogprob], text: str) -> list[TokenLogprob]:
    """A prompt's tokens with those bytes that stand in its text: what a vocabulary puts before a text (a BOS,
    a blank) does not."""
    over = sum(len(each.data) for each in scores) - len(text.encode())
    found = []
    for each in scores:
        cut = max(0, min(over, len(each.data)))
        over -= cut
        found.append(msgspec.structs.replace(each, data=each.data[cut:]) if cut else each)
    return found
