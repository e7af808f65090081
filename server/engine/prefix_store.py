"""Moves computed prefixes between the cache and the disk, and decides which are worth it.

Files are read, checked and written on threads of their own. What is left for the decode loop is to copy a
state (at most a quarter of the disk space, see ``snapshots``) into llama.cpp's memory when a request begins
with it, and out of it when nothing is being generated.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from server.engine.cache import Cache, Owner, Sequence
from server.engine.snapshots import Snapshot, Snapshots, State

LONG = 512
"""Tokens that a prefix must have to be worth a file."""
GROWTH = 1.5
"""How many times longer than a kept prefix one that begins with it must be: so a conversation that grows
turn by turn is written a few times and not at every turn."""
WORTH_READING = 256
"""Tokens that a file must offer beyond what the cache does."""
MOST_PENDING = 8
"""Prefixes that wait to be written; the newest count."""
QUIET_S = 1.0
"""For how long nothing may have ended before something is written: a script that asks one thing after the
other, or an agent's tool loop, is not slowed down, and only where it ends is written."""
CLOSING_S = 1.5
"""How long after the end of all work the writing of another one may begin."""
_POLL_S = 0.01


class PrefixStore:
    """What is kept of one cache. All methods are the decode loop's."""

    def __init__(self, snapshots: Snapshots, cache: Cache) -> None:
        self._snapshots = snapshots
        self._cache = cache
        self._reader = ThreadPoolExecutor(1, "prefix reader")
        self._writer = ThreadPoolExecutor(1, "prefix writer")
        self._asked: array[int] | None = None
        self._found: Snapshot | None = None
        self._read: Future[State | None] | None = None
        self._write: Future[bool] | None = None
        self._quiet_since = 0.0
        self._pending: deque[tuple[array[int], str]] = deque(maxlen=MOST_PENDING)

    def fetched(self, tokens: array[int], owner: Owner) -> bool:
        """Whether a sequence for ``tokens`` may be opened now; False while a file is read, or a state that
        was read waits for room. Ask again until it is true: nothing else is looked at meanwhile."""
        if not owner.reuse:
            return True
        if self._asked is not tokens:
            self._look_for(tokens, owner)
        if self._found is None:
            return True
        if self._read is None:
            prefix = tokens[: self._found.tokens]
            self._read = self._reader.submit(self._snapshots.read, self._found, prefix)
        return self._read.done() and self._restored(self._found, self._read, tokens, owner)

    def note(self, sequence: Sequence, boundaries: Iterable[int]) -> None:
        """Remembers prefixes of a sequence that will be closed, to be kept when there is time."""
        if not sequence.owner.reuse or not self._snapshots.writable:
            return
        self._quiet_since = time.monotonic()
        for length in boundaries:
            noted = (sequence.tokens[:length], sequence.owner.partition)
            if LONG <= length <= sequence.evaluated and noted not in self._pending:
                self._pending.append(noted)

    @property
    def pending(self) -> bool:
        """Whether ``keep_one`` has something to do."""
        quiet = time.monotonic() - self._quiet_since >= QUIET_S
        return quiet and bool(self._pending) and (self._write is None or self._write.done())

    def keep_one(self) -> None:
        """Copies the state of a noted prefix, if it still is in the cache, and has it written."""
        tokens, partition = self._pending.popleft()
        kept = self._snapshots.longest(tokens, partition, len(tokens))
        if kept is not None and len(tokens) < GROWTH * kept.tokens:
            return
        state = self._cache.state(tokens, partition, self._snapshots.largest)
        if state is not None:
            self._write = self._writer.submit(self._snapshots.write, tokens, partition, state)

    def wait(self) -> None:
        """Waits for a file that is being read, for a moment at most."""
        if self._read is not None:
            wait([self._read], _POLL_S)

    def close(self) -> None:
        """Writes what waits for it, as far as there is time. Returns when that is done."""
        end = time.monotonic() + CLOSING_S
        while self._pending and time.monotonic() < end:
            if self._write is not None:
                wait([self._write])
            self.keep_one()
        self._reader.shutdown()
        self._writer.shutdown()

    def _look_for(self, tokens: array[int], owner: Owner) -> None:
        self._asked, self._found, self._read = tokens, None, None
        found = self._snapshots.longest(tokens, owner.partition, len(tokens) - 1)
        if found is not None and found.tokens >= self._cache.offered(tokens, owner) + WORTH_READING:
            self._found = found

    def _restored(
        self, found: Snapshot, read: Future[State | None], tokens: array[int], owner: Owner
    ) -> bool:
        state = read.result()
        if state is None:
            self._look_for(tokens, owner)  # a shorter one may do
            return False
        if not self._cache.make_room(found.tokens):
            return False
        self._found = self._read = None
        with self._snapshots.restoring(found) as marked:
            taken = marked and self._cache.restore(tokens[: found.tokens], owner.partition, state)
        if marked and not taken:
            self._snapshots.forget(found, "llama.cpp does not take its state")
        return True
