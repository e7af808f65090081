"""Runs an engine the way the runner does, and gathers what it says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from server.engine.protocol import Ended, Engine, Job, Piece, SequenceId
from server.events import Source, TokenLogprob

STEPS = 5000


@dataclass(slots=True)
class Said:
    """What one choice said, and how that ended; the logprobs of its ``prompt``, if they were told, before."""

    pieces: list[Piece] = field(default_factory=list)
    ended: Ended | None = None
    prompt: tuple[TokenLogprob, ...] = ()

    @property
    def data(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    @property
    def tokens(self) -> list[int]:
        return [piece.token for piece in self.pieces]

    @property
    def undrafted(self) -> Said:
        """The same without a word of what had been guessed."""
        pieces = [
            replace(each, source=Source.SAMPLED) if each.source is Source.DRAFTED else each
            for each in self.pieces
        ]
        return Said(pieces, self.ended, self.prompt)

    def of(self, source: Source) -> list[Piece]:
        return [piece for piece in self.pieces if piece.source is source]


def step(engine: Engine, said: dict[SequenceId, Said]) -> list[SequenceId]:
    """One step; returns the sequences that moved. Ended ones are finished."""
    moved = engine.step()
    for progress in moved:
        entry = said.setdefault(progress.sequence, Said())
        assert not progress.prompt or (not entry.pieces and progress.sequence.choice == 0)
        entry.prompt = progress.prompt or entry.prompt
        entry.pieces += progress.pieces
        if progress.ended is not None:
            entry.ended = progress.ended
            engine.finish(progress.sequence)
    return [progress.sequence for progress in moved]


def run(engine: Engine, jobs: Iterable[Job]) -> dict[SequenceId, Said]:
    """Everything the jobs say, all submitted at once."""
    said: dict[SequenceId, Said] = {}
    for each in jobs:
        engine.submit(each)
    for _ in range(STEPS):
        if not engine.busy:
            return said
        step(engine, said)
    raise AssertionError("the engine does not come to an end")


def answer(engine: Engine, job: Job) -> Said:
    return run(engine, [job])[SequenceId(job.request, 0)]
