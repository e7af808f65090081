"""The frames of one request, as the side that waits for them sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from server.errors import ToolspanError
from server.frames import Accepted, Emitted, Finished, Question, Told
from server.turn import Turn

AnswerFrame = Accepted | Emitted | Finished | Told


class Generation:
    """The frames of one request: ``Accepted``, then ``Emitted`` ..., then ``Finished``; or ``Told`` alone,
    for a question. ``work`` is what was asked for.

    Raises what the runner answered instead, or ``Unavailable`` when it is gone. ``close`` cancels the
    request unless it has ended; it may be called at any time, and it must be called.
    """

    def __init__(self, work: Turn | Question, release: Callable[[], None]) -> None:
        self.work = work
        self.started = time.monotonic()
        self._release = release
        self._inbox: asyncio.Queue[AnswerFrame | ToolspanError] = asyncio.Queue()
        self._ended = False

    def put(self, item: AnswerFrame | ToolspanError) -> None:
        self._inbox.put_nowait(item)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> AnswerFrame:
        if self._ended:
            raise StopAsyncIteration
        item = await self._inbox.get()
        if isinstance(item, ToolspanError):
            self._ended = True
            raise item
        self._ended = isinstance(item, Finished | Told)
        return item

    def close(self) -> None:
        self._ended = True
        self._release()
