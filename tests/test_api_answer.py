"""Frames against the clock: silence, the time limit, and that a generation is always closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from server.api.answer import accepted, fold, paced
from server.errors import GenerationTimeout, Remote, ToolspanError, Unavailable
from server.events import Finish, Text, Timings, Usage
from server.frames import Accepted, Emitted, Finished
from server.supervisor import AnswerFrame, Generation
from server.turn import Turn

ACCEPTED = Accepted(1, 3)
TEXT = Emitted(1, 0, (Text("a"),))
END = Finished(1, Usage(3, 1), Timings())


class Counted:
    """A generation that counts how often it was released."""

    def __init__(self, *frames: AnswerFrame | ToolspanError) -> None:
        self.released = 0
        self.generation = Generation(Turn(()), self._release)
        for each in frames:
            self.generation.put(each)

    def _release(self) -> None:
        self.released += 1


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))  # type: ignore[arg-type]


def test_frames_pass_in_order_and_the_generation_is_closed() -> None:
    async def test() -> None:
        counted = Counted(ACCEPTED, TEXT, END)
        assert [each async for each in paced(counted.generation, 9, 9)] == [ACCEPTED, TEXT, END]
        assert counted.released == 1

    run(test)


def test_silence_is_told_and_loses_nothing() -> None:
    async def test() -> None:
        counted = Counted(ACCEPTED)
        frames = paced(counted.generation, 0.01, 9)
        assert await anext(frames) == ACCEPTED
        for _ in range(3):
            assert await anext(frames) is None
        counted.generation.put(END)
        assert [each async for each in frames if each] == [END]

    run(test)


def test_the_time_limit_holds_however_much_is_said() -> None:
    async def test() -> None:
        counted = Counted()

        async def talk() -> None:
            while not counted.released:
                counted.generation.put(TEXT)
                await asyncio.sleep(0.005)

        talking = asyncio.create_task(talk())
        with pytest.raises(GenerationTimeout):
            async for _ in paced(counted.generation, 0.02, 0.1):
                pass
        await talking

    run(test)


@pytest.mark.parametrize("error", [Unavailable("gone"), Remote(ToolspanError("broke").data)])
def test_an_error_is_raised_and_the_generation_closed(error: ToolspanError) -> None:
    async def test() -> None:
        counted = Counted(ACCEPTED, error)
        with pytest.raises(type(error)):
            await fold(paced(counted.generation, 9, 9), 1)
        assert counted.released == 1

    run(test)


def test_a_consumer_that_stops_closes_the_generation() -> None:
    async def test() -> None:
        counted = Counted(ACCEPTED, TEXT)
        frames = paced(counted.generation, 9, 9)
        assert await accepted(frames) == ACCEPTED
        await frames.aclose()
        assert counted.released == 1

    run(test)


@pytest.mark.parametrize("frames", [[TEXT], [END]])
def test_an_answer_starts_with_its_acceptance(frames: list[AnswerFrame]) -> None:
    async def test() -> None:
        with pytest.raises(ToolspanError):
            await accepted(paced(Counted(*frames).generation, 9, 9))

    run(test)


def test_folding_collects_by_choice() -> None:
    async def test() -> None:
        said = [Emitted(1, choice, (Text(text),)) for choice, text in ((0, "a"), (1, "b"), (0, "c"))]
        ends = [Emitted(1, choice, (Finish("stop"),)) for choice in (1, 0)]
        answer = await fold(paced(Counted(*said, *ends, END).generation, 9, 9), 2)
        assert [each.text for each in answer.choices] == ["ac", "b"]
        assert [each.reason for each in answer.choices] == ["stop", "stop"]
        assert answer.usage == END.usage

    run(test)
