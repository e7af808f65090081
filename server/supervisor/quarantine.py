"""Which requests runners die of. Times are seconds of the clock given."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from server.frames import Question
from server.turn import Turn

log = logging.getLogger("toolspan.supervisor")

Work = Turn | Question


class Quarantine:
    """Requests that runners die of. ``deaths`` runners dead within ``window`` seconds, the same request
    in flight each time, and it is refused for an hour; one that gets its answer is cleared."""

    REFUSED_FOR = 3600.0
    REMEMBERED = 1024

    def __init__(self, window: float, deaths: int = 3, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window
        self._deaths = deaths
        self._clock = clock
        self._seen: dict[bytes, list[float]] = {}
        self._refused: dict[bytes, float] = {}

    def blame(self, requests: Iterable[Work]) -> None:
        """A runner died while it had these."""
        now = self._clock()
        for digest in {_digest(each) for each in requests}:
            times = [each for each in self._seen.pop(digest, []) if now - each < self._window]
            self._seen[digest] = [*times, now]
            if len(times) + 1 >= self._deaths:
                self._refused[digest] = now
                log.error("a request is refused from now on: %d runners died of it", len(times) + 1)
        for table in (self._seen, self._refused):
            for digest in list(table)[: -self.REMEMBERED]:
                del table[digest]

    def clear(self, work: Work) -> None:
        """A runner answered this."""
        if self._seen:
            self._seen.pop(_digest(work), None)

    def holds(self, work: Work) -> bool:
        if not self._refused:
            return False
        since = self._refused.get(_digest(work))
        return since is not None and self._clock() - since < self.REFUSED_FOR


def _digest(work: Work) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(work)).digest()
