"""Who holds which cells of the context: sequences being generated, and finished ones kept for reuse.

A sequence that starts takes over the longest prefix that any other one has in common with it (a copy of
metadata, no computing), and reserves every cell it may need, so that it never fails for room later. When
it is closed its tokens stay, until others need the cells or the sequence number: least recently used
first. Prefixes are only shared within a partition.

The text-book structure for this is a radix tree. With at most a few dozen sequences, comparing token
arrays is as fast and keeps no structure that could go wrong.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

CellNumbers = NDArray[np.int32]
WORTH_WAITING = 32
"""Tokens that a sequence must save by waiting until another one has computed them."""

NOBODY = -1
"""The request of sequences that none has asked for."""


class Memory(Protocol):
    """What is needed of ``llama.Llama``."""

    context: int
    sequences: int
    partial: bool

    def copy(self, source: int, target: int, length: int) -> None: ...

    def remove(self, sequence: int, start: int) -> bool: ...

    def drop(self, sequence: int) -> None: ...

    def shortest(self, sequence: int) -> int: ...

    def state(self, sequence: int, most: int) -> NDArray[np.uint8] | None: ...

    def restore(self, sequence: int, length: int, state: NDArray[np.uint8]) -> bool: ...


class Cells:
    """The accounts of the context's cells: how many sequences hold each. Numbers are not llama.cpp's
    own; only how many are in use agrees."""

    def __init__(self, capacity: int) -> None:
        self._holders = np.zeros(capacity, np.int32)

    @property
    def free(self) -> int:
        return len(self._holders) - int(np.count_nonzero(self._holders))

    def take(self, count: int) -> CellNumbers:
        """``count`` free cells, now held once."""
        cells = np.flatnonzero(self._holders == 0)[:count].astype(np.int32)
        self._holders[cells] = 1
        return cells

    def share(self, cells: CellNumbers) -> None:
        self._holders[cells] += 1

    def release(self, cells: CellNumbers) -> None:
        self._holders[cells] -= 1


@dataclass(frozen=True, slots=True)
class Owner:
    """On whose behalf a sequence is computed. Choices of one request always share their prompt."""

    request: int
    partition: str = ""
    reuse: bool = True

    def may_read(self, other: Owner) -> bool:
        return other.request == self.request or (self.reuse and other.partition == self.partition)


class State(enum.Enum):
    READY = "ready"
    FOLLOWING = "following"  # waits until its leader has computed the prefix they share
    ORPHANED = "orphaned"  # has lost its leader, or what it had computed: it has to be opened again
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence of the context. ``tokens`` grow at the end, the first ``evaluated`` are computed and the
    first ``stable`` will not be taken back. ``cells`` are reserved for all it may come to hold. At its
    ``stops`` its state is kept for others, where a state is only had whole."""

    number: int
    tokens: array[int]
    cells: CellNumbers
    stable: int
    owner: Owner
    evaluated: int = 0
    state: State = State.READY
    leader: Sequence | None = None
    shared: int = 0
    stops: tuple[int, ...] = ()

    def due(self, most: int) -> array[int]:
        """What is to be computed next: at most so many tokens, and none beyond the next stop."""
        end = min((stop for stop in self.stops if stop > self.evaluated), default=len(self.tokens))
        return self.tokens[self.evaluated : min(self.evaluated + most, end)]


class Cache:
    """The sequences of one context."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._cells = Cells(memory.context)
        self._free_numbers = list(range(memory.sequences))
        self._open: list[Sequence] = []
        self._closed: list[Sequence] = []  # the least recently used first

    @property
    def used_cells(self) -> int:
        """Cells reserved by open sequences."""
        held = np.zeros(self._memory.context, np.bool_)
        for sequence in self._open:
            held[sequence.cells] = True
        return int(np.count_nonzero(held))

    @property
    def cached_tokens(self) -> int:
        """Tokens of closed sequences; shared ones count for each."""
        return sum(sequence.evaluated for sequence in self._closed)

    def open(
        self, tokens: array[int], length: int, stable: int, owner: Owner, boundaries: tuple[int, ...] = ()
    ) -> Sequence | None:
        """A sequence for ``tokens`` that may grow to ``length``, the common prefix already taken over;
        None while there is no room. The last token is always left to be computed. Others are expected to
        begin with the tokens before one of the ``boundaries``."""
        source, shared = self._source(tokens, owner)
        if not self.make_room(length - shared, source, shared):
            return None
        number = self._number(source)
        reused = self._none if source is None else source.cells[:shared]
        cells = np.concatenate([reused, self._cells.take(length - shared)])
        self._cells.share(reused)
        stops = () if self._memory.partial else boundaries
        sequence = Sequence(number, tokens, cells, stable, owner, shared=shared, stops=stops)
        self._open.append(sequence)
        if source is not None:
            sequence.state, sequence.leader = State.FOLLOWING, source
            self._catch_up(sequence)
        return sequence

    def advance(self, sequence: Sequence, count: int) -> None:
        """``count`` more tokens of a sequence have been computed."""
        sequence.evaluated += count
        for follower in self._followers(sequence):
            self._catch_up(follower)
        if sequence.evaluated in sequence.stops:
            self._keep(self._copy(sequence))

    def settle(self, sequence: Sequence, confirmed: int, drafted: int) -> None:
        """Behind a sequence's tokens ``drafted`` others have been computed, of which the first ``confirmed``
        are its own by now. The rest is taken back."""
        self.advance(sequence, confirmed)
        if confirmed < drafted:
            self._memory.remove(sequence.number, sequence.evaluated)

    def rewind(self, sequence: Sequence, length: int) -> None:
        """Goes back to the first ``length`` tokens, of which the last is to be computed again. A sequence
        whose state cannot be taken back so far has to be opened again."""
        del sequence.tokens[length:]
        kept = min(sequence.evaluated, length - 1)
        if self._ready(sequence, kept) == kept and self._memory.remove(sequence.number, kept):
            sequence.evaluated = kept
        else:
            self._memory.drop(sequence.number)
            sequence.evaluated, sequence.state = 0, State.ORPHANED

    def close(self, sequence: Sequence) -> None:
        """Ends a sequence; what it has computed is kept for others."""
        self._open.remove(sequence)
        for follower in self._followers(sequence):
            follower.state, follower.leader = State.ORPHANED, None
        sequence.tokens = sequence.tokens[: sequence.evaluated]  # a copy: the choice may start anew
        self._cells.release(sequence.cells[sequence.evaluated :])
        sequence.cells = sequence.cells[: sequence.evaluated]
        sequence.stable, sequence.state, sequence.leader = sequence.evaluated, State.CLOSED, None
        self._keep(sequence)

    def clear(self) -> None:
        """Forgets everything that is only kept for reuse."""
        while self._evict():
            pass

    # States from and for elsewhere.

    def offered(self, tokens: array[int], owner: Owner) -> int:
        """How many tokens a sequence for ``tokens`` would take over."""
        return self._source(tokens, owner)[1]

    def state(self, tokens: array[int], partition: str, most: int) -> NDArray[np.uint8] | None:
        """The state after ``tokens``; None if no sequence has it, or it has more than ``most`` bytes."""
        length = len(tokens)
        readable = self._readable(Owner(NOBODY, partition))
        holders = (each for each in readable if _common(each.tokens, tokens, length) == length)
        source = next((each for each in holders if self._ready(each, length) == length), None)
        if source is None or source.evaluated == length:
            return None if source is None else self._memory.state(source.number, most)
        number = self._number(source)
        self._memory.copy(source.number, number, length)
        state = self._memory.state(number, most)
        self._memory.drop(number)
        self._free_numbers.append(number)
        return state

    def restore(self, tokens: array[int], partition: str, state: NDArray[np.uint8]) -> bool:
        """Takes a state in that was saved after ``tokens``, for which there is room, as a closed sequence.
        False where llama.cpp refuses it."""
        number, cells = self._number(None), self._cells.take(len(tokens))
        owner = Owner(NOBODY, partition)
        restored = Sequence(number, tokens, cells, len(tokens), owner, len(tokens), State.CLOSED)
        taken = self._memory.restore(number, len(tokens), state)
        if taken:
            self._closed.append(restored)
        else:
            self._drop(restored)
        return taken

    # What is kept.

    def _keep(self, sequence: Sequence) -> None:
        alike = [each for each in self._closed if each.owner.partition == sequence.owner.partition]
        longer = next((each for each in alike if self._holds(each, sequence)), None)
        if longer is not None:
            self._touch(longer)
        if longer is not None or not sequence.evaluated:
            self._drop(sequence)
            return
        for each in alike:
            if self._holds(sequence, each):
                self._closed.remove(each)
                self._drop(each)
        self._closed.append(sequence)

    def _copy(self, sequence: Sequence) -> Sequence:
        """A closed sequence that holds what this one does now, in the same cells."""
        number, length = self._number(None), sequence.evaluated
        self._memory.copy(sequence.number, number, length)
        cells = sequence.cells[:length]
        self._cells.share(cells)
        tokens = sequence.tokens[:length]
        return Sequence(number, tokens, cells, length, sequence.owner, length, State.CLOSED)

    def _holds(self, longer: Sequence, shorter: Sequence) -> bool:
        """Whether all that a sequence has computed can be taken over from another one as well."""
        length = shorter.evaluated
        return self._ready(longer, _common(longer.tokens, shorter.tokens, length)) == length

    def _touch(self, sequence: Sequence) -> None:
        self._closed.remove(sequence)
        self._closed.append(sequence)

    def _evict(self, keep: Sequence | None = None) -> bool:
        """Forgets the least recently used sequence but ``keep``. False if there is none."""
        victim = next((each for each in self._closed if each is not keep), None)
        if victim is None:
            return False
        self._closed.remove(victim)
        self._drop(victim)
        return True

    def _drop(self, sequence: Sequence) -> None:
        self._memory.drop(sequence.number)
        self._cells.release(sequence.cells)
        self._free_numbers.append(sequence.number)

    # Room for a new sequence.

    def make_room(self, count: int, source: Sequence | None = None, shared: int = 0) -> bool:
        """Evicts until ``count`` cells are free. What ``source`` holds beyond the shared prefix goes
        last; without that a long cached sequence could keep its own successor waiting for ever."""
        while self._cells.free < count and self._evict(keep=source):
            pass
        if self._cells.free < count and source is not None and source.state is State.CLOSED:
            self._cells.release(source.cells[shared:])
            source.cells = source.cells[:shared]
            del source.tokens[shared:]
            self._memory.remove(source.number, shared)
            source.stable = source.evaluated = shared
        return self._cells.free >= count

    def _number(self, source: Sequence | None) -> int:
        """A free sequence number; there is one more than open sequences and ``source`` can have."""
        if not self._free_numbers:
            self._evict(keep=source)
        return self._free_numbers.pop()

    # Shared prefixes.

    def _source(self, tokens: array[int], owner: Owner) -> tuple[Sequence | None, int]:
        """The sequence to take a prefix over from, and how many tokens. One that has yet to compute
        them is worth waiting for if that saves enough."""
        best: tuple[Sequence | None, int] = (None, 0)
        promise: tuple[Sequence | None, int] = (None, 0)
        for each in self._readable(owner):
            common = _common(each.tokens, tokens, min(each.stable, len(tokens) - 1))
            ready = self._ready(each, common)
            if ready > best[1]:
                best = (each, ready)
            promised = self._promised(each, common)
            if promised > max(promise[1], each.evaluated):
                promise = (each, promised)
        chosen = promise if promise[1] - best[1] >= WORTH_WAITING else best
        if chosen[0] is not None and chosen[0].state is State.CLOSED:
            self._touch(chosen[0])
        return chosen

    def _ready(self, sequence: Sequence, common: int) -> int:
        """How many of the first ``common`` tokens of a sequence can be taken over now."""
        ready = min(common, sequence.evaluated)
        return ready if ready >= self._memory.shortest(sequence.number) else 0

    def _promised(self, sequence: Sequence, common: int) -> int:
        """How many of the first ``common`` tokens of a sequence can be taken over in the end."""
        if self._memory.partial:
            return common
        return max((stop for stop in sequence.stops if stop <= common), default=0)

    def _readable(self, owner: Owner) -> Iterable[Sequence]:
        # Open ones that only follow have no promise of their own to make.
        open_ones = [each for each in self._open if each.state is State.READY]
        return [each for each in (*open_ones, *self._closed) if owner.may_read(each.owner)]

    def _followers(self, leader: Sequence) -> list[Sequence]:
        return [each for each in self._open if each.leader is leader]

    def _catch_up(self, sequence: Sequence) -> None:
        """Takes the shared prefix over once the leader has computed it."""
        leader = sequence.leader
        if leader is None or leader.evaluated < sequence.shared:
            return
        if self._ready(leader, sequence.shared) < sequence.shared:
            sequence.state, sequence.leader = State.ORPHANED, None
            return
        self._memory.copy(leader.number, sequence.number, sequence.shared)
        sequence.evaluated = sequence.shared
        sequence.state, sequence.leader = State.READY, None

    _none: CellNumbers = np.zeros(0, np.int32)


def _common(left: array[int], right: array[int], limit: int) -> int:
    """How many tokens two arrays start with in common, at most ``limit``."""
    count = min(len(left), len(right), limit)
    if count <= 0:
        return 0
    differs = np.frombuffer(left, np.int32, count) != np.frombuffer(right, np.int32, count)
    first = int(differs.argmax())
    return first if differs[first] else count
