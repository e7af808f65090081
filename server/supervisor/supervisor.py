"""Keeps a runner alive and shares it among requests: states, restarts, watchdog, admission."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from server.errors import (
    GenerationTimeout,
    InvalidRequest,
    QueueFull,
    Remote,
    StartupFailed,
    TooLarge,
    ToolspanError,
    Unavailable,
)
from server.frames import (
    Accepted,
    Ask,
    BrokenFrame,
    Cancel,
    Emitted,
    Failed,
    Finished,
    FromRunner,
    Generate,
    LoadFailed,
    ModelFacts,
    Question,
    Ready,
    Rejected,
    Reply,
    Shutdown,
    Status,
    Told,
    ToRunner,
    encode,
)
from server.programs import program
from server.settings import Settings
from server.supervisor.child import Child
from server.supervisor.generation import Generation
from server.supervisor.quarantine import Quarantine, Work
from server.turn import Turn

log = logging.getLogger("toolspan.supervisor")

RUNNER = program("server.runner")

_Reply = TypeVar("_Reply", bound=Reply)


class State(enum.Enum):
    """What can be expected of the runner. ``DOWN`` waits for the next try, ``STOPPING`` is for good."""

    LOADING = "loading"
    READY = "ready"
    DOWN = "down"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the restart policy. The first restart is immediate; the next waits ``first_delay``,
    then twice as long each time, until a runner was healthy for ``healthy_after``."""

    first_delay: float = 1.0
    longest_delay: float = 60.0
    healthy_after: float = 60.0
    blame_window: float = 60.0
    shutdown: float = 5.0


class Supervisor:
    """Keeps one runner alive and shares it among requests.

    ``state`` and ``reason`` say how things stand, ``facts`` what the model is (None before the first
    load), ``status`` the runner's last sign of life.
    """

    def __init__(
        self, settings: Settings, *, command: Sequence[str] = RUNNER, timing: Timing | None = None
    ) -> None:
        self._settings = settings
        self._command = tuple(command)
        self._timing = timing or Timing()
        self.state = State.LOADING
        self.reason = ""
        self.facts: ModelFacts | None = None
        self.status = Status(active=0, waiting=0)
        self.restarts = 0
        self._child: Child | None = None
        self._requests: dict[int, Generation] = {}
        self._ids = itertools.count(1)
        self._quarantine = Quarantine(self._timing.blame_window)
        self._deaths = 0
        self._next_try = 0.0
        self._mean_duration = 1.0
        self._heard = 0
        self._loaded = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._first: asyncio.Future[ModelFacts] | None = None

    @property
    def pid(self) -> int | None:
        """The runner's process id."""
        return self._child.pid if self._child else None

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    async def start(self) -> ModelFacts:
        """Returns once the model is loaded. Raises ``StartupFailed`` if this first load fails."""
        self._first = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._keep_running())
        return await asyncio.shield(self._first)

    async def generate(self, turn: Turn) -> Generation:
        """Hands a turn to the runner. Raises ``Unavailable``, ``QueueFull`` or ``InvalidRequest``."""
        return await self._handed_over(turn, lambda number: Generate(number, turn))

    async def ask(self, question: Question, kind: type[_Reply]) -> _Reply:
        """The reply to a question, which is of that kind. Raises what ``generate`` does, what the runner
        refuses it with, and ``GenerationTimeout``."""
        asked = await self._handed_over(question, lambda number: Ask(number, question))
        limit = self._settings.generation_timeout
        try:
            async with asyncio.timeout(limit):
                frame = await anext(asked)
        except TimeoutError:
            raise GenerationTimeout(f"the answer was not complete after {limit:g} s") from None
        finally:
            asked.close()
        if not isinstance(frame, Told) or not isinstance(frame.reply, kind):
            raise ToolspanError("the engine answered something else than it was asked")
        return frame.reply

    async def _handed_over(self, work: Work, frame: Callable[[int], ToRunner]) -> Generation:
        child = self._admitting(work)
        number = next(self._ids)
        try:
            data = encode(frame(number))
        except BrokenFrame as error:
            raise TooLarge("the request is too large for the engine") from error
        generation = Generation(work, lambda: self._abandon(number))
        self._requests[number] = generation
        self._idle.clear()
        try:
            await child.write(data)
        except BaseException:
            generation.close()
            raise
        return generation

    async def ended(self) -> None:
        """Returns, or raises, only when there will be no further runner."""
        if self._running:
            await asyncio.shield(self._running)

    async def drain(self, grace: float) -> None:
        """Refuses new requests for good and gives running ones ``grace`` seconds to finish."""
        self._refuse()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        self._fail_all(Unavailable("the server is shutting down", code="draining"))

    async def stop(self) -> None:
        """Ends the runner: asks first, if it has a model loaded, then kills."""
        ask = self._loaded
        self._refuse()
        self._fail_all(Unavailable("the server is shutting down", code="draining"))
        if self._child and ask:
            self._child.post(encode(Shutdown()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.shutdown):
                    await self._child.ended()
        self.kill()
        if self._running:
            await asyncio.wait({self._running})

    def _refuse(self) -> None:
        self.state = State.STOPPING
        self._stopping.set()

    def kill(self) -> None:
        """Ends the runner at once."""
        if self._child:
            self._child.kill()

    def _admitting(self, work: Work) -> Child:
        if self.state is State.STOPPING:
            raise Unavailable("the server is shutting down", code="draining", retry_after=10)
        if self.state is State.LOADING and not self._deaths:
            raise Unavailable("the model is loading", code="loading", retry_after=5)
        if self.state is not State.READY or self._child is None or self.facts is None:
            raise self._restarting()
        if len(self._requests) >= self.facts.slots + self._settings.queue:
            raise QueueFull("too many requests are waiting", retry_after=self._until_a_slot())
        if self._quarantine.holds(work):
            raise InvalidRequest(
                "this request ended the engine several times and is refused", code="request_quarantined"
            )
        return self._child

    def _restarting(self) -> Unavailable:
        wait = max(1, round(self._next_try - time.monotonic()) + 1)
        return Unavailable("the engine is restarting", code="engine_restarting", retry_after=wait)

    def _until_a_slot(self) -> int:
        """About the seconds until a slot is free, from the mean time of recent answers."""
        slots = self.facts.slots if self.facts else 1
        return min(60, max(1, round(self._mean_duration / slots)))

    def _abandon(self, number: int) -> None:
        if self._forget(number) and self._child:
            self._child.post(encode(Cancel(number)))

    def _forget(self, number: int) -> Generation | None:
        generation = self._requests.pop(number, None)
        if not self._requests:
            self._idle.set()
        return generation

    def _fail_all(self, error: ToolspanError) -> None:
        for number, generation in list(self._requests.items()):
            self._abandon(number)
            generation.put(error)

    async def _keep_running(self) -> None:
        while not self._stopping.is_set():
            self.state = State.LOADING
            health = await self._one_life()
            if self._stopping.is_set():
                break
            if self._first and not self._first.done():
                self._first.set_exception(StartupFailed(self.reason))
                return
            self.restarts += 1
            await self._back_off(health)
        if self._first:
            self._first.cancel()

    async def _back_off(self, health: float) -> None:
        timing = self._timing
        if health >= timing.healthy_after:
            self._deaths = 0
        doubled = timing.first_delay * 2 ** min(self._deaths - 1, 16)
        delay = min(timing.longest_delay, doubled) if self._deaths else 0.0
        self._deaths += 1
        self._next_try = time.monotonic() + delay
        log.warning("restarting the runner in %.0f s: %s", delay, self.reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()

    async def _one_life(self) -> float:
        """One runner from start to end; returns how many seconds it was ready. Sets ``reason``."""
        try:
            child = await Child.start(self._command, self._settings)
        except OSError as error:
            self._bury(f"the runner cannot be started: {error.strerror}")
            return 0.0
        self._child = child
        if self.state is State.STOPPING:
            child.kill()
        watch = asyncio.create_task(self._watch(child))
        ready_at: float | None = None
        try:
            async with contextlib.aclosing(child.frames()) as frames:
                async for frame in frames:
                    self._heard += 1
                    if isinstance(frame, LoadFailed):
                        child.blame(frame.error.message)
                        break
                    if isinstance(frame, Ready):
                        ready_at = time.monotonic()
                        log.info("the runner is ready, process %d", child.pid)
                    self._take(frame)
        except BrokenFrame as error:
            child.blame(f"the runner sent what is no frame ({error})")
        finally:
            watch.cancel()
            self._bury(child.verdict or "the runner ended")
            await child.close()
        if not child.verdict:
            loading = "" if ready_at else " while loading the model"
            self.reason = f"the runner {child.fate}{loading}"
        return time.monotonic() - ready_at if ready_at else 0.0

    def _bury(self, reason: str) -> None:
        self.reason = reason
        self._child = None
        self._loaded = False
        self.status = Status(active=0, waiting=0)
        if self.state is not State.STOPPING:
            self.state = State.DOWN
            self._quarantine.blame(each.work for each in self._requests.values())
        self._fail_all(Unavailable("the engine stopped during this request", retry_after=1))

    def _take(self, frame: FromRunner) -> None:
        match frame:
            case Ready(facts):
                self.facts = facts
                self._loaded = True
                if self.state is not State.STOPPING:
                    self.state, self.reason = State.READY, ""
                if self._first and not self._first.done():
                    self._first.set_result(facts)
            case Status():
                self.status = frame
            case Accepted(number) | Emitted(number):
                if generation := self._requests.get(number):
                    generation.put(frame)
            case Finished(number) | Told(number):
                if generation := self._forget(number):
                    self._quarantine.clear(generation.work)
                    generation.put(frame)
                    if isinstance(frame, Finished):
                        self._learn(generation)
            case Rejected(number, error) | Failed(number, error):
                if generation := self._forget(number):
                    generation.put(Remote(error))
            case LoadFailed():
                raise BrokenFrame("a failed load after a good one")

    def _learn(self, generation: Generation) -> None:
        self._mean_duration += 0.2 * (time.monotonic() - generation.started - self._mean_duration)

    async def _watch(self, child: Child) -> None:
        """Kills a runner that loads for too long, or that is busy and shows no sign of life.

        Silence is counted in own ticks, not by the clock: when this process itself was stopped for a
        while, its child is not to blame.
        """
        settings = self._settings
        tick = min(1.0, settings.stall_timeout / 4)
        loading = quiet = 0.0
        heard = self._heard
        while True:
            await asyncio.sleep(tick)
            loading += tick if self.state is State.LOADING else 0.0
            busy = self.state is not State.LOADING and bool(self._requests)
            quiet = quiet + tick if busy and heard == self._heard else 0.0
            heard = self._heard
            if loading >= settings.load_timeout:
                child.blame(f"the model did not load within {settings.load_timeout:.0f} s")
            elif quiet >= settings.stall_timeout or self.status.preparing_s >= settings.stall_timeout:
                child.blame(f"the runner showed no progress for {settings.stall_timeout:.0f} s")
            else:
                continue
            log.error("killing the runner: %s", child.verdict)
            child.kill()
            return
