"""What every route that needs the model does with a request: its body is read, and decoded for that model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from server.api import body
from server.api.parts import Served
from server.api.store import Store
from server.errors import Unavailable
from server.frames import ModelFacts
from server.settings import Settings
from server.supervisor import Supervisor

INLINE_BODY = 256 * 1024
"""Bytes up to which a body is decoded at once; larger ones, and where that may wait for a disk, leave the
event loop to the others."""

_Decoded = TypeVar("_Decoded")


class Incoming:
    """Requests to the model of one runner, which may go on from what is in the ``store``."""

    def __init__(self, settings: Settings, supervisor: Supervisor, store: Store | None = None) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._store = store

    async def read(
        self, request: Request, decode: Callable[[Any, Served, str], _Decoded]
    ) -> tuple[_Decoded, ModelFacts]:
        """What ``decode`` makes of the JSON body, and the model it was decoded for. Raises what it raises,
        ``Unavailable`` before the model is loaded, and what is wrong with the body."""
        settings, partition = self._settings, request.state.partition
        raw = await body.read(request, settings.max_body, settings.receive_timeout)
        facts = self._supervisor.facts
        if facts is None:
            raise Unavailable("the model is loading", code="loading", retry_after=5)
        served = Served((facts.name, *settings.alias), facts.vocabulary, self._store)

        def decoding() -> _Decoded:
            return decode(body.parse(raw), served, partition)

        inline = len(raw) <= INLINE_BODY and self._store is None
        return (decoding() if inline else await asyncio.to_thread(decoding)), facts
