"""Generations for several prompts of one request, as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeVar

import msgspec

from server.errors import ToolspanError
from server.events import Timings, Usage
from server.frames import Accepted, Emitted, Finished
from server.supervisor import AnswerFrame, Generation

_Counts = TypeVar("_Counts", Usage, Timings)


class Several:
    """The frames of generations, one after the other, though they are generated beside each other: one
    ``Accepted`` once all are, one ``Finished`` at the end, counts and times summed up. Each has as many
    ``choices``, which are numbered through."""

    def __init__(self, generations: Sequence[Generation], choices: int) -> None:
        self._generations = generations
        self._choices = choices
        self._accepted: list[Accepted] = []
        self._finished: list[Finished] = []

    def __aiter__(self) -> Several:
        return self

    async def __anext__(self) -> AnswerFrame:
        while len(self._accepted) < len(self._generations):
            frame = await anext(self._generations[len(self._accepted)])
            if not isinstance(frame, Accepted):
                raise ToolspanError("the engine answered before it accepted the request")
            self._accepted.append(frame)
            if len(self._accepted) == len(self._generations):
                return Accepted(frame.id, sum(each.prompt_tokens for each in self._accepted))
        while len(self._finished) < len(self._generations):
            number = len(self._finished)
            frame = await anext(self._generations[number])
            if isinstance(frame, Emitted):
                return msgspec.structs.replace(frame, choice=frame.choice + number * self._choices)
            if isinstance(frame, Finished):
                self._finished.append(frame)
        if not self._generations:
            raise StopAsyncIteration
        return self._end()

    def close(self) -> None:
        for each in self._generations:
            each.close()

    def _end(self) -> Finished:
        ends, self._generations = self._finished, ()
        warnings = dict.fromkeys(warning for each in ends for warning in each.warnings)
        usage = reduce(_sum, (each.usage for each in ends))
        timings = reduce(_sum, (each.timings for each in ends))
        return Finished(ends[0].id, usage, timings, tuple(warnings))


def _sum(one: _Counts, other: _Counts) -> _Counts:
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return type(one)(*(mine + theirs for mine, theirs in pairs))
