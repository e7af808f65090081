"""``POST /v1/chat/completions``: a body in, chunks or one object out."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from server.api import body, sse
from server.api.answer import accepted, fold, paced
from server.api.chat_answer import ChatEncoder
from server.api.chat_request import ChatRequest, Served, decode
from server.api.metrics import Metrics
from server.api.replies import error_object, reply
from server.errors import ErrorData, ToolspanError, Unavailable
from server.frames import Emitted, Finished, ModelFacts
from server.logs import where
from server.settings import Settings
from server.supervisor import AnswerFrame, Supervisor

log = logging.getLogger("toolspan.chat")

INLINE_BODY = 256 * 1024
"""Bytes up to which a body is decoded at once; larger ones leave the event loop to the others."""

Frames = AsyncGenerator[AnswerFrame | None, None]


class Chat:
    """Chat completions over one runner."""

    def __init__(self, settings: Settings, supervisor: Supervisor, metrics: Metrics) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._metrics = metrics

    async def completions(self, request: Request) -> Response:
        settings = self._settings
        raw = await body.read(request, settings.max_body, settings.receive_timeout)
        facts = self._supervisor.facts
        if facts is None:
            raise Unavailable("the model is loading", code="loading", retry_after=5)
        chat = await _decoded(raw, served(facts, settings), request.state.partition)
        generation = await self._supervisor.generate(chat.turn)
        frames = paced(generation, settings.keepalive, settings.generation_timeout)
        encoder = ChatEncoder(facts.name, fingerprint(facts), chat.turn.choices, chat.include_usage)
        if chat.stream:
            return await self._streaming(request, frames, encoder)
        async with aclosing(frames):
            return await self._whole(frames, encoder, chat)

    async def _whole(self, frames: Frames, encoder: ChatEncoder, chat: ChatRequest) -> Response:
        await accepted(frames)
        answer = await fold(frames, chat.turn.choices)
        self._metrics.answered(answer.usage, answer.timings)
        return reply(encoder.whole(answer, chat.turn.sampling.top_logprobs is not None))

    async def _streaming(self, request: Request, frames: Frames, encoder: ChatEncoder) -> Response:
        """Waits until the request is accepted: up to there an error is a status of its own."""
        try:
            await accepted(frames)
        except BaseException:
            await frames.aclose()
            raise
        return sse.EventStream(self._events(request, frames, encoder))

    async def _events(
        self, request: Request, frames: Frames, encoder: ChatEncoder
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(frames):
            try:
                for chunk in encoder.start():
                    yield sse.event(chunk)
                async for frame in frames:
                    for chunk in self._chunks(frame, encoder):
                        yield sse.event(chunk)
            except Exception as error:
                yield sse.event(error_object(_failure(request, error)))
            yield sse.DONE

    def _chunks(self, frame: AnswerFrame | None, encoder: ChatEncoder) -> list[dict[str, Any]]:
        match frame:
            case None:
                return [encoder.silence()]
            case Emitted():
                return list(encoder.chunks(frame))
            case Finished():
                self._metrics.answered(frame.usage, frame.timings)
                return list(encoder.finish(frame))
        return []


def _failure(request: Request, error: Exception) -> ErrorData:
    """What a stream that has begun says of what ended it."""
    if not isinstance(error, ToolspanError):
        log.error("internal error in a stream: %s", where(error))
        error = ToolspanError("an internal error happened")
    request.state.error_code = error.code
    return error.data


async def _decoded(raw: bytes, served: Served, partition: str) -> ChatRequest:
    def decoding() -> ChatRequest:
        return decode(body.parse(raw), served, partition)

    return decoding() if len(raw) <= INLINE_BODY else await asyncio.to_thread(decoding)


def served(facts: ModelFacts, settings: Settings) -> Served:
    return Served((facts.name, *settings.alias), facts.vocabulary)


def fingerprint(facts: ModelFacts) -> str:
    """Changes with the model and how it is run."""
    return "b" + hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:10]
