"""The supervisor against a fake runner: answers, cancels, deaths of every kind, restarts, the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from serving import FAKE_RUNNER, QUICK

from server.errors import GenerationTimeout, InvalidRequest, QueueFull, Remote, StartupFailed, Unavailable
from server.events import Finish, Text
from server.frames import Accepted, Emitted, Finished, Tokenize, Tokenized
from server.settings import Settings
from server.supervisor import AnswerFrame, State, Supervisor, Timing
from server.supervisor.quarantine import Quarantine
from server.turn import Message, Turn


def turn(*steps: list[Any], choices: int = 1) -> Turn:
    content = json.dumps(list(steps)) if steps else "hello"
    return Turn(messages=(Message("user", content),), choices=choices)


@contextlib.asynccontextmanager
async def supervised(
    timing: Timing = QUICK, command: tuple[str, ...] = FAKE_RUNNER, **settings: Any
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(Settings(model="fake", **settings), command=command, timing=timing)
    try:
        await supervisor.start()
        yield supervisor
    finally:
        await supervisor.stop()


async def answer(supervisor: Supervisor, asked: Turn) -> list[AnswerFrame]:
    generation = await supervisor.generate(asked)
    with contextlib.closing(generation):
        return [frame async for frame in generation]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def starts(folder: Path, *words: str) -> str:
    """A script that says how each start of the fake runner goes."""
    path = folder / "script"
    path.write_text(json.dumps(words))
    return str(path)


def test_frames_come_in_order_and_end() -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            assert supervisor.state is State.READY
            frames = await answer(supervisor, turn(["text", "a"], ["text", "b"]))
            assert [type(each) for each in frames] == [Accepted, Emitted, Emitted, Emitted, Finished]
            events = [each.events for each in frames if isinstance(each, Emitted)]
            assert events == [(Text("a"),), (Text("b"),), (Finish("stop"),)]
            assert supervisor.in_flight == 0

    run(test)


def test_requests_at_the_same_time_do_not_mix() -> None:
    async def test() -> None:
        async with supervised(slots=32) as supervisor:
            asked = [turn(["letters", f"<{number}>" * 5]) for number in range(32)]
            answers = await asyncio.gather(*(answer(supervisor, each) for each in asked))
            texts = [
                "".join(
                    event.text
                    for frame in frames
                    if isinstance(frame, Emitted)
                    for event in frame.events
                    if isinstance(event, Text)
                )
                for frames in answers
            ]
            assert texts == [f"<{number}>" * 5 for number in range(32)]

    run(test)


@pytest.mark.parametrize("step", [["reject", "some_code"], ["fail", "some_code"]])
def test_what_the_runner_refuses_is_raised(step: list[Any]) -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            with pytest.raises(Remote) as caught:
                await answer(supervisor, turn(step))
            assert caught.value.data.code == "some_code"
            assert supervisor.in_flight == 0
            assert supervisor.restarts == 0

    run(test)


def test_closing_cancels_in_the_runner() -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            generation = await supervisor.generate(turn(["sleep", 60]))
            await until(lambda: supervisor.status.active == 1)
            generation.close()
            generation.close()
            assert supervisor.in_flight == 0
            await until(lambda: supervisor.status.active == 0)
            assert len(await answer(supervisor, turn())) == 4

    run(test)


def test_more_requests_than_slots_and_queue_are_refused_until_one_ends() -> None:
    async def test() -> None:
        async with supervised(slots=1, queue=1) as supervisor:
            held = [await supervisor.generate(turn(["sleep", 60])) for _ in range(2)]
            with pytest.raises(QueueFull) as caught:
                await supervisor.generate(turn())
            assert caught.value.retry_after
            held[0].close()
            await answer(supervisor, turn())
            held[1].close()

    run(test)


async def tokens(supervisor: Supervisor, *steps: list[Any]) -> Tokenized:
    return await supervisor.ask(Tokenize((json.dumps(list(steps)) if steps else "hello",)), Tokenized)


def test_a_question_is_replied_to_beside_answers() -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            generation = await supervisor.generate(turn(["sleep", 60]))
            assert await tokens(supervisor, ["sleep", 0.01]) == Tokenized((1,), (b'[["sleep", 0.01]]',))
            assert supervisor.in_flight == 1
            with pytest.raises(Remote) as caught:
                await tokens(supervisor, ["reject", "some_code"])
            assert caught.value.data.code == "some_code"
            generation.close()

    run(test)


def test_a_question_that_takes_too_long_is_given_up() -> None:
    async def test() -> None:
        async with supervised(generation_timeout=0.2) as supervisor:
            with pytest.raises(GenerationTimeout):
                await tokens(supervisor, ["sleep", 60])
            assert supervisor.in_flight == 0
            await until(lambda: supervisor.status.active == 0)

    run(test)


def test_a_question_that_runners_die_of_is_refused() -> None:
    async def test() -> None:
        async with supervised(Timing(first_delay=0.01, shutdown=1.0)) as supervisor:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await tokens(supervisor, ["exit", 3])
                await until(lambda: supervisor.state is State.READY)
            with pytest.raises(InvalidRequest) as caught:
                await tokens(supervisor, ["exit", 3])
            assert caught.value.code == "request_quarantined"
            await tokens(supervisor)

    run(test)


DEATHS = [
    ["signal", "SIGKILL"],
    ["signal", "SIGABRT"],
    ["signal", "SIGSEGV"],
    ["exit", 0],
    ["exit", 3],
    ["close"],
    ["garbage"],
    ["half"],
    ["huge"],
]


@pytest.mark.parametrize("step", DEATHS, ids=lambda step: "-".join(map(str, step)))
def test_a_death_fails_what_is_in_flight_and_a_new_runner_answers(step: list[Any]) -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            first = supervisor.pid
            bystander = asyncio.create_task(answer(supervisor, turn(["sleep", 60])))
            await until(lambda: supervisor.status.active == 1)
            with pytest.raises(Unavailable) as caught:
                await answer(supervisor, turn(["text", "x"], step, ["sleep", 60]))
            assert caught.value.code == "engine_restarting"
            with pytest.raises(Unavailable):
                await bystander
            with pytest.raises(Unavailable):
                await supervisor.generate(turn())
            await until(lambda: supervisor.state is State.READY)
            assert supervisor.pid != first
            assert supervisor.restarts == 1
            assert len(await answer(supervisor, turn())) == 4

    run(test)


def test_the_reason_of_a_death_is_told_while_it_lasts(tmp_path: Path) -> None:
    async def test() -> None:
        script = starts(tmp_path, "ok", "slow")
        async with supervised(replay=script) as supervisor:
            assert supervisor.pid
            os.kill(supervisor.pid, signal.SIGKILL)
            await until(lambda: "SIGKILL" in supervisor.reason)
            await until(lambda: supervisor.state is State.READY)
            assert supervisor.reason == ""

    run(test)


def test_a_stopped_runner_is_killed_by_the_watchdog() -> None:
    async def test() -> None:
        async with supervised(stall_timeout=0.6) as supervisor:
            first = supervisor.pid
            with pytest.raises(Unavailable):
                await answer(supervisor, turn(["signal", "SIGSTOP"]))
            assert "no progress" in supervisor.reason
            await until(lambda: supervisor.state is State.READY)
            assert supervisor.pid != first

    run(test)


def test_a_request_that_hangs_while_it_is_prepared_is_a_hang() -> None:
    async def test() -> None:
        async with supervised(stall_timeout=0.6) as supervisor:
            with pytest.raises(Unavailable):
                await answer(supervisor, turn(["preparing", 0.7]))

    run(test)


def test_the_watchdog_leaves_idle_and_busy_runners_alone() -> None:
    async def test() -> None:
        async with supervised(stall_timeout=0.5) as supervisor:
            assert supervisor.pid
            os.kill(supervisor.pid, signal.SIGSTOP)  # no frames, but nothing to do either
            await asyncio.sleep(1.0)
            os.kill(supervisor.pid, signal.SIGCONT)
            await answer(supervisor, turn(["sleep", 1.0]))  # long, with signs of life
            assert supervisor.restarts == 0

    run(test)


@pytest.mark.parametrize("word", ["load_failed", "crash", "hang"])
def test_a_first_load_that_fails_is_fatal(tmp_path: Path, word: str) -> None:
    async def test() -> None:
        with pytest.raises(StartupFailed) as caught:
            async with supervised(replay=starts(tmp_path, word), load_timeout=1.0):
                pass
        expected = {"load_failed": "no such model", "crash": "SIGABRT", "hang": "did not load"}
        assert expected[word] in caught.value.message
        assert "\n" not in caught.value.message

    run(test)


def test_a_runner_that_is_not_there_is_a_failed_start() -> None:
    async def test() -> None:
        with pytest.raises(StartupFailed):
            async with supervised(command=("/nonexistent/runner",)):
                pass

    run(test)


def test_a_failed_load_after_a_good_one_is_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        script = starts(tmp_path, "ok", "load_failed", "crash", "ok")
        async with supervised(replay=script) as supervisor:
            assert supervisor.pid
            os.kill(supervisor.pid, signal.SIGKILL)
            await until(lambda: supervisor.state is State.DOWN and supervisor.reason == "no such model")
            with pytest.raises(Unavailable) as caught:
                await supervisor.generate(turn())
            assert caught.value.retry_after
            await until(lambda: supervisor.state is State.READY)
            assert supervisor.restarts == 3

    run(test)


def test_delays_double_up_to_a_limit_and_start_anew_after_health() -> None:
    async def test() -> None:
        timing = Timing(first_delay=0.01, longest_delay=0.05, healthy_after=60)
        supervisor = Supervisor(Settings(), timing=timing)
        delays = []
        for health in (0, 0, 0, 0, 0, 100, 0):
            before = asyncio.get_running_loop().time()
            await supervisor._back_off(health)
            delays.append(round(supervisor._next_try - before, 2))
        assert delays == [0, 0.01, 0.02, 0.04, 0.05, 0, 0.01]

    run(test)


def test_a_request_that_runners_die_of_is_refused_in_the_end() -> None:
    async def test() -> None:
        async with supervised(timing=Timing(first_delay=0.05)) as supervisor:
            poison = turn(["exit", 1])
            for _ in range(3):
                await until(lambda: supervisor.state is State.READY)
                with pytest.raises(Unavailable):
                    await answer(supervisor, poison)
            await until(lambda: supervisor.state is State.READY)
            with pytest.raises(InvalidRequest) as caught:
                await answer(supervisor, poison)
            assert caught.value.code == "request_quarantined"
            await answer(supervisor, turn())
            assert supervisor.restarts == 3

    run(test)


def test_quarantine_forgets_old_deaths_and_clears_what_gets_answered() -> None:
    now = 0.0
    quarantine = Quarantine(window=60, clock=lambda: now)
    old, innocent = turn(["text", "old"]), turn(["text", "innocent"])
    for now in (0.0, 1.0, 61.5):  # noqa: B007 (the clock reads it)
        quarantine.blame([old, innocent])
        quarantine.clear(innocent)
    assert not quarantine.holds(old)
    now = 61.6
    quarantine.blame([old])
    assert not quarantine.holds(old)
    now = 61.7
    quarantine.blame([old, old])
    assert quarantine.holds(old)
    assert not quarantine.holds(innocent)
    now += Quarantine.REFUSED_FOR
    assert not quarantine.holds(old)


def test_draining_lets_running_answers_finish_and_refuses_new_ones() -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            running = asyncio.create_task(answer(supervisor, turn(["sleep", 0.3], ["text", "x"])))
            await until(lambda: supervisor.status.active == 1)
            draining = asyncio.create_task(supervisor.drain(30))
            await asyncio.sleep(0)
            with pytest.raises(Unavailable) as caught:
                await supervisor.generate(turn())
            assert caught.value.code == "draining"
            await draining
            assert isinstance((await running)[-1], Finished)

    run(test)


def test_draining_fails_what_takes_too_long_and_stop_ends_the_child() -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            pid = supervisor.pid
            running = asyncio.create_task(answer(supervisor, turn(["sleep", 60])))
            await until(lambda: supervisor.status.active == 1)
            await supervisor.drain(0.1)
            with pytest.raises(Unavailable):
                await running
            await supervisor.stop()
            assert pid
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    run(test)


def test_stopping_ends_a_child_that_does_not_listen(tmp_path: Path) -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            assert supervisor.pid
            os.kill(supervisor.pid, signal.SIGSTOP)
        supervisor = Supervisor(
            Settings(model="fake", replay=starts(tmp_path, "hang")), command=FAKE_RUNNER, timing=QUICK
        )
        starting = asyncio.create_task(supervisor.start())
        await until(lambda: supervisor.pid is not None)
        await supervisor.stop()
        with pytest.raises(asyncio.CancelledError):
            await starting

    run(test)
