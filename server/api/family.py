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

from server.api import body, debug, sse
from server.api.answer import Answer, accepted, fold, paced
from server.api.metrics import Metrics
from server.api.parts import Served
from server.api.replies import reply
from server.errors import ErrorData, ToolspanError, Unavailable
from server.frames import Accepted, Emitted, Finished, ModelFacts
from server.logs import where
from server.settings import Settings
from server.supervisor import AnswerFrame, Supervisor
from server.turn import Turn

log = logging.getLogger("toolspan.answer")

INLINE_BODY = 256 * 1024
"""Bytes up to which a body is decoded at once; larger ones leave the event loop to the others."""

Frames = AsyncGenerator[AnswerFrame | None, None]
Json = dict[str, Any]


class Asked(Protocol):
    """A decoded request."""

    @property
    def turn(self) -> Turn: ...

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
    every stream."""

    decode: Callable[[Any, Served, str], Asked]
    encoder: Callable[[Any, ModelFacts], Encoder]
    event: Callable[[Any], bytes]
    end: bytes = b""


class Answers:
    """The answers of one family over one runner."""

    def __init__(self, family: Family, settings: Settings, supervisor: Supervisor, metrics: Metrics) -> None:
        self._family = family
        self._settings = settings
        self._supervisor = supervisor
        self._metrics = metrics

    async def answer(self, request: Request) -> Response:
        asked, facts, frames = await self._begun(request)
        encoder = self._family.encoder(asked, facts)
        if asked.stream:
            return await self._streaming(request, frames, encoder)
        async with aclosing(frames):
            return await self._whole(frames, encoder, asked.turn.choices)

    async def count(self, request: Request) -> Response:
        """The tokens of the prompt; nothing is generated."""
        _, _, frames = await self._begun(request)
        async with aclosing(frames):
            return reply({"input_tokens": (await accepted(frames)).prompt_tokens})

    async def _begun(self, request: Request) -> tuple[Asked, ModelFacts, Frames]:
        settings = self._settings
        raw = await body.read(request, settings.max_body, settings.receive_timeout)
        facts = self._supervisor.facts
        if facts is None:
            raise Unavailable("the model is loading", code="loading", retry_after=5)
        asked = await self._decoded(raw, served(facts, settings), request.state.partition)
        if asked.turn.debug:
            debug.check_right(request)
        generation = await self._supervisor.generate(asked.turn)
        return asked, facts, paced(generation, settings.keepalive, settings.generation_timeout)

    async def _decoded(self, raw: bytes, known: Served, partition: str) -> Asked:
        def decoding() -> Asked:
            return self._family.decode(body.parse(raw), known, partition)

        return decoding() if len(raw) <= INLINE_BODY else await asyncio.to_thread(decoding)

    async def _whole(self, frames: Frames, encoder: Encoder, choices: int) -> Response:
        begun = await accepted(frames)
        answer = await fold(frames, choices)
        self._metrics.answered(answer.usage, answer.timings)
        shown = {"debug": debug.of_answer(begun.origin, answer)} if begun.origin else {}
        return reply(encoder.whole(answer) | shown)

    async def _streaming(self, request: Request, frames: Frames, encoder: Encoder) -> Response:
        """Waits until the request is accepted: up to there an error is a status of its own."""
        try:
            begun = await accepted(frames)
        except BaseException:
            await frames.aclose()
            raise
        return sse.EventStream(self._events(request, begun, frames, encoder))

    async def _events(
        self, request: Request, begun: Accepted, frames: Frames, encoder: Encoder
    ) -> AsyncGenerator[bytes, None]:
        event = self._family.event
        async with aclosing(frames):
            try:
                for chunk in _started(begun, encoder):
                    yield event(chunk)
                async for frame in frames:
                    for chunk in self._chunks(frame, encoder):
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
    first, *others = encoder.start(begun)
    yield first | {"debug": debug.of_origin(begun.origin)} if begun.origin else first
    yield from others


def _failure(request: Request, error: Exception) -> ErrorData:
    """What a stream that has begun says of what ended it."""
    if not isinstance(error, ToolspanError):
        log.error("internal error in a stream: %s", where(error))
        error = ToolspanError("an internal error happened")
    request.state.error_code = error.code
    return error.data


def served(facts: ModelFacts, settings: Settings) -> Served:
    return Served((facts.name, *settings.alias), facts.vocabulary)


def fingerprint(facts: ModelFacts) -> str:
    """Changes with the model and how it is run."""
    return "b" + hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:10]
