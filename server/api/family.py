"""What every API family does: a body in, events or one object out.

A ``Family`` says how its bodies are read and its answers written; nothing else differs.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from server.api import debug, sse
from server.api.answer import Answer, accepted, fold, paced
from server.api.incoming import Incoming
from server.api.metrics import Metrics
from server.api.parts import Served
from server.api.replies import reply
from server.api.several import Several
from server.api.store import Store
from server.errors import ErrorData, ToolspanError
from server.frames import Accepted, Emitted, Finished, ModelFacts, Render, Rendered
from server.logs import where
from server.settings import Settings
from server.supervisor import AnswerFrame, Generation, Supervisor
from server.turn import Turn

log = logging.getLogger("toolspan.answer")

Frames = AsyncGenerator[AnswerFrame | None, None]
Json = dict[str, Any]


class Asked(Protocol):
    """A decoded request."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What to answer; the choices of several turns, which are alike but for their prompts, are numbered
        through."""
        ...

    @property
    def stream(self) -> bool: ...


class Encoder(Protocol):
    """Makes the events of one answer's stream, or the whole answer as one object."""

    def start(self, accepted: Accepted) -> Iterator[Json]: ...

    def silence(self) -> Json:
        """An event that says nothing, for clients that give up on streams where nothing moves."""
        ...

    def chunks(self, frame: Emitted) -> Iterator[Json]: ...

    def finish(self, frame: Finished) -> Iterator[Json]: ...

    def failed(self, error: ErrorData) -> Iterator[Json]:
        """The events of an answer that can't go on."""
        ...

    def whole(self, answer: Answer) -> Json: ...


@dataclass(frozen=True, slots=True)
class Family:
    """``decode`` a body, make the ``encoder`` of its answer; ``event`` writes an event, ``end`` comes last in
    every stream. Where there is a store, ``keep`` is told what was asked for, and the whole answer or a
    stream's last event, before that leaves."""

    decode: Callable[[Any, Served, str], Asked]
    encoder: Callable[[Any, ModelFacts], Encoder]
    event: Callable[[Any], bytes]
    end: bytes = b""
    keep: Callable[[Any, Json, Store], None] | None = None


class Answers:
    """The answers of one family over one runner."""

    def __init__(
        self,
        family: Family,
        settings: Settings,
        supervisor: Supervisor,
        metrics: Metrics,
        store: Store | None = None,
    ) -> None:
        self._family = family
        self._store = store if family.keep else None  # without one, bodies need not wait for a disk
        self._settings = settings
        self._supervisor = supervisor
        self._incoming = Incoming(settings, supervisor, self._store)
        self._metrics = metrics

    async def answer(self, request: Request) -> Response:
        asked, facts = await self._incoming.read(request, self._family.decode)
        if any(turn.debug for turn in asked.turns):
            debug.check_right(request)
        generation = await self._generation(asked.turns)
        frames = paced(generation, self._settings.keepalive, self._settings.generation_timeout)
        encoder = self._family.encoder(asked, facts)
        if asked.stream:
            return await self._streaming(request, asked, frames, encoder)
        async with aclosing(frames):
            return await self._whole(asked, frames, encoder)

    async def count(self, request: Request) -> Response:
        """The tokens of the prompt, whether or not it fits; nothing is generated."""
        asked, _ = await self._incoming.read(request, self._family.decode)
        prompts = [await self._supervisor.ask(Render(turn), Rendered) for turn in asked.turns]
        return reply({"input_tokens": sum(each.tokens for each in prompts)})

    async def _generation(self, turns: tuple[Turn, ...]) -> Generation | Several:
        begun: list[Generation] = []
        try:
            for turn in turns:
                begun.append(await self._supervisor.generate(turn))
        except BaseException:
            for each in begun:
                each.close()
            raise
        return begun[0] if len(begun) == 1 else Several(begun, turns[0].choices)

    async def _whole(self, asked: Asked, frames: Frames, encoder: Encoder) -> Response:
        begun = await accepted(frames)
        answer = await fold(frames, sum(each.choices for each in asked.turns))
        self._metrics.answered(answer.usage, answer.timings)
        whole = encoder.whole(answer)
        await self._keep(asked, whole)
        shown = {"debug": debug.of_answer(begun.origin, answer)} if begun.origin else {}
        return reply(whole | shown)

    async def _keep(self, asked: Asked, told: Json) -> None:
        if self._store is not None and self._family.keep is not None:
            await asyncio.to_thread(self._family.keep, asked, told, self._store)

    async def _streaming(self, request: Request, asked: Asked, frames: Frames, encoder: Encoder) -> Response:
        """Waits until the request is accepted: up to there an error is a status of its own."""
        try:
            begun = await accepted(frames)
        except BaseException:
            await frames.aclose()
            raise
        return sse.EventStream(self._events(request, asked, begun, frames, encoder))

    async def _events(
        self, request: Request, asked: Asked, begun: Accepted, frames: Frames, encoder: Encoder
    ) -> AsyncGenerator[bytes, None]:
        event = self._family.event
        async with aclosing(frames):
            try:
                for chunk in _started(begun, encoder):
                    yield event(chunk)
                async for frame in frames:
                    chunks = self._chunks(frame, encoder)
                    if isinstance(frame, Finished) and chunks:
                        await self._keep(asked, chunks[-1])
                    for chunk in chunks:
                        yield event(chunk)
            except Exception as error:
                for chunk in encoder.failed(_failure(request, error)):
                    yield event(chunk)
            if self._family.end:
                yield self._family.end

    def _chunks(self, frame: AnswerFrame | None, encoder: Encoder) -> list[Json]:
        match frame:
            case None:
                return [encoder.silence()]
            case Emitted():
                shown = debug.of_frame(frame)
                told = [encoder.silence() | {"debug": shown}] if shown else []
                return [*told, *encoder.chunks(frame)]
            case Finished():
                self._metrics.answered(frame.usage, frame.timings)
                return list(encoder.finish(frame))
        return []


def _started(begun: Accepted, encoder: Encoder) -> Iterator[Json]:
    chunks = list(encoder.start(begun))
    if begun.origin:
        first, *others = chunks or [encoder.silence()]
        chunks = [first | {"debug": debug.of_origin(begun.origin)}, *others]
    yield from chunks


def _failure(request: Request, error: Exception) -> ErrorData:
    """What a stream that has begun says of what ended it."""
    if not isinstance(error, ToolspanError):
        log.error("internal error in a stream: %s", where(error))
        error = ToolspanError("an internal error happened")
    request.state.error_code = error.code
    return error.data


def fingerprint(facts: ModelFacts) -> str:
    """Changes with the model and how it is run."""
    return "b" + hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:10]
