"""An answer as every API family needs it: frames paced against the clock, and folded into one object.

The stream and the whole answer of a family are made from the same frames, so they say the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from server.api.several import Several
from server.errors import GenerationTimeout, ToolspanError
from server.events import (
    CallArguments,
    CallStart,
    Event,
    Finish,
    FinishReason,
    Generated,
    Reasoning,
    Text,
    Timings,
    TokenLogprob,
    Usage,
    Warning,
)
from server.frames import Accepted, Emitted, Finished
from server.supervisor import AnswerFrame, Generation


async def paced(
    generation: Generation | Several, silence: float, timeout: float
) -> AsyncGenerator[AnswerFrame | None, None]:
    """The frames of a generation, which is closed at the end; None after every ``silence`` seconds
    without one. Raises ``GenerationTimeout`` when ``timeout`` seconds have passed."""
    deadline = time.monotonic() + timeout
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise GenerationTimeout(f"the answer was not complete after {timeout:g} s")
            frame = await _next(generation, min(silence, left))
            yield frame
            if isinstance(frame, Finished):
                return
    finally:
        generation.close()


async def _next(generation: Generation | Several, timeout: float) -> AnswerFrame | None:
    try:
        async with asyncio.timeout(timeout):
            return await anext(generation)
    except TimeoutError:
        return None


async def accepted(frames: AsyncIterator[AnswerFrame | None]) -> Accepted:
    """Waits for the runner to take the request. Raises what it says instead."""
    async for frame in frames:
        if isinstance(frame, Accepted):
            return frame
        if frame is not None:
            break
    raise ToolspanError("the engine answered before it accepted the request")


@dataclass(slots=True)
class Call:
    """A finished or cut call; ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """What one choice said."""

    reasoning: str = ""
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    generated: list[Generated] = field(default_factory=list)
    reason: FinishReason | None = None
    stop: str = ""

    def add(self, event: Event) -> None:
        match event:
            case Reasoning(text):
                self.reasoning += text
            case Text(text, logprobs):
                self.text += text
                self.logprobs.extend(logprobs)
            case CallStart(_, identifier, name):
                self.calls.append(Call(identifier, name))
            case CallArguments(index, text):
                self.calls[index].arguments += text
            case Finish(reason, stop):
                self.reason, self.stop = reason, stop
            case Generated():
                self.generated.append(event)


@dataclass(slots=True)
class Answer:
    """A whole answer."""

    choices: list[Choice]
    usage: Usage
    timings: Timings
    warnings: tuple[Warning, ...]


async def fold(frames: AsyncIterator[AnswerFrame | None], choices: int) -> Answer:
    """All frames after ``Accepted`` as one object."""
    made = [Choice() for _ in range(choices)]
    async for frame in frames:
        if isinstance(frame, Emitted):
            for event in frame.events:
                made[frame.choice].add(event)
        elif isinstance(frame, Finished):
            return Answer(made, frame.usage, frame.timings, frame.warnings)
    raise ToolspanError("the answer ended early")
