"""The real engine: choices of all requests move on together, one batch at a time.

Each choice of a request is scheduled by itself; choices share their prompt like any two requests with a
common prefix do (``cache``). First come, first served: a request that waits for room is not overtaken.
Answers keep half their speed while prompts are computed (``pace``), and short prompts need not wait for long
ones.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from server.engine.cache import Cache, Memory, Owner, State
from server.engine.choice import Choice
from server.engine.draft import agreement
from server.engine.llama import DecodeFailed, Logits
from server.engine.pace import Pace
from server.engine.prefix_store import PrefixStore
from server.engine.protocol import Job, Load, Model, Progress, SequenceId, Tally, Vocabulary
from server.engine.sampler import Workbench
from server.engine.snapshots import Snapshots
from server.engine.vocabulary import EngineVocabulary


class Batch(Protocol):
    """What is needed of ``llama.Batch``."""

    capacity: int
    count: int

    def clear(self) -> None: ...

    def add(self, sequence: int, position: int, tokens: array[int], *, output: bool) -> int: ...


class Computer(Memory, Protocol):
    """What is needed of ``llama.Llama``."""

    slots: int
    spare_rows: int

    @property
    def batch(self) -> Batch: ...

    def decode(self) -> bool: ...

    def logits(self, index: int) -> Logits: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Account:
    """A request's times, and those of its choices that are not finished."""

    tally: Tally
    open: set[int]
    submitted: float
    admitted: float | None = None
    answering: float | None = None


@dataclass(slots=True)
class _Part:
    """The part of a choice in a batch: ``count`` tokens. If they are its last there are rows of logits: after
    them, and after each token of the draft that follows them. The ``scored`` rows each come before a token of
    the prompt whose logprob is wanted."""

    choice: Choice
    count: int
    rows: list[int]
    draft: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)


class Scheduler:
    """See ``protocol.Engine`` for the methods. ``snapshots`` are the prefixes on disk, if any are kept."""

    def __init__(
        self,
        llama: Computer,
        vocabulary: EngineVocabulary,
        model: Model,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.model = model
        self.vocabulary: Vocabulary = vocabulary
        self._vocabulary = vocabulary
        self._llama = llama
        self._cache = Cache(llama)
        self._store = PrefixStore(snapshots, self._cache) if snapshots else None
        self._pace = Pace()
        self._bench = Workbench(vocabulary.size)
        self._waiting: deque[Choice] = deque()
        self._running: dict[SequenceId, Choice] = {}
        self._accounts: dict[int, _Account] = {}

    def submit(self, job: Job) -> bool:
        account = _Account(Tally(), set(range(job.choices)), time.monotonic())
        self._accounts[job.request] = account
        seed = secrets.randbits(32)
        for number in range(job.choices):
            self._waiting.append(
                Choice(
                    job,
                    number,
                    seed=seed,
                    context=self._llama.context,
                    vocabulary=self._vocabulary,
                    bench=self._bench,
                    tally=account.tally,
                )
            )
        return True

    def step(self) -> list[Progress]:
        self._admit()
        parts = self._batch()
        if not parts:
            self._rest()
        self._decode(parts)
        self._sample(parts)
        return self._emit()

    def rewind(self, sequence: SequenceId, kept: int) -> None:
        choice = self._running[sequence]
        if choice.sequence is not None:
            self._cache.rewind(choice.sequence, len(choice.prompt) + kept)
        choice.rewind(kept)

    def append(self, sequence: SequenceId, tokens: Iterable[int]) -> None:
        self._running[sequence].append(tokens)

    def finish(self, sequence: SequenceId) -> None:
        account = self._accounts.get(sequence.request)
        if account is None or sequence.choice not in account.open:
            return
        self._end(sequence)
        account.open.discard(sequence.choice)
        if not account.open and account.answering is not None:
            account.tally.decode_s = time.monotonic() - account.answering

    def cancel(self, request: int) -> None:
        account = self._accounts.pop(request, None)
        for choice in sorted(account.open) if account else ():
            self._end(SequenceId(request, choice))

    def tally(self, request: int) -> Tally:
        account = self._accounts[request]
        if not account.open:
            return self._accounts.pop(request).tally
        elapsed = time.monotonic() - account.answering if account.answering is not None else 0.0
        return replace(account.tally, decode_s=elapsed)

    @property
    def load(self) -> Load:
        return Load(
            active=len(self._running),
            waiting=len(self._waiting),
            used_cells=self._cache.used_cells,
            cached_tokens=self._cache.cached_tokens,
        )

    @property
    def busy(self) -> bool:
        active = any(choice.active for choice in self._running.values())
        return bool(self._waiting) or active or (self._store is not None and self._store.pending)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        for choice in (*self._running.values(), *self._waiting):
            choice.close()
        self._llama.close()

    # Admit.

    def _admit(self) -> None:
        self._put_back_orphans()
        while self._waiting and len(self._running) < self._llama.slots and self._start(self._waiting[0]):
            choice = self._waiting.popleft()
            self._running[choice.id] = choice

    def _start(self, choice: Choice) -> bool:
        """Gives a choice its place in the context. False while there is no room."""
        job = choice.job
        if choice.active:
            owner = Owner(job.request, job.partition, job.reuse_prefix)
            if self._store is not None and not self._store.fetched(choice.tokens, owner):
                return False
            stable = len(choice.prompt)
            sequence = self._cache.open(choice.tokens, choice.length, stable, owner, choice.boundaries)
            if sequence is None:
                return False
            choice.sequence = sequence
        account = self._accounts[job.request]
        if account.admitted is None:
            account.admitted = time.monotonic()
            account.tally.queue_s = account.admitted - account.submitted
            if choice.sequence is not None:
                account.tally.cached_tokens = min(choice.sequence.shared, len(choice.prompt))
        return True

    def _put_back_orphans(self) -> None:
        """Choices that waited for a prefix which nobody computes any more, or whose state could not be taken
        back, start anew, before others."""
        for choice in reversed(list(self._running.values())):
            if choice.sequence is not None and choice.sequence.state is State.ORPHANED:
                self._cache.close(choice.sequence)
                choice.sequence = None
                del self._running[choice.id]
                self._waiting.appendleft(choice)

    def _rest(self) -> None:
        """A step in which nothing is computed: time for prefixes on disk."""
        if self._store is None:
            return
        if self._waiting:
            self._store.wait()
        elif self._store.pending:
            self._store.keep_one()

    # Batch.

    def _batch(self) -> list[_Part]:
        """Fills the batch: answers first, with their drafts, then prompts as far as there is room."""
        batch = self._llama.batch
        batch.clear()
        ready = [each for each in self._running.values() if _can_go_on(each)]
        prompts = [each for each in ready if not each.answering]
        running = [each for each in ready if each.answering]
        size = min(max(self._pace.tokens(answers=bool(running)), 2 * len(self._running)), batch.capacity)
        answers = self._parts(running, size)
        rows = self._llama.spare_rows
        if self._llama.partial:
            share = rows // 2 if any(each.scoring for each in prompts) else rows
            self._add_drafts(answers, min(share, size - batch.count))
            rows -= sum(len(part.draft) for part in answers)
        if answers and self._pace.prompts_wait:
            return answers
        return answers + self._prompt_parts(prompts, size, rows)

    def _prompt_parts(self, prompts: list[Choice], size: int, rows: int) -> list[_Part]:
        """The oldest prompt has at least half of the room; those with less to do share the other half."""
        if not prompts:
            return []
        oldest = prompts[0]
        shorter = [each for each in prompts if _left(each) < _left(oldest)]
        others = [each for each in prompts if each not in shorter]
        used = self._llama.batch.count
        parts = self._parts(sorted(shorter, key=_left), used + (size - used) // 2, rows)
        rows -= sum(part.count for part in parts if part.choice.scoring)
        return parts + self._parts(others, size, rows)

    def _parts(self, choices: Iterable[Choice], size: int, rows: int = 0) -> list[_Part]:
        """The parts of some choices in a batch of ``size`` tokens, with ``rows`` of logits to spare."""
        parts = []
        for each in choices:
            room = size - self._llama.batch.count
            if each.scoring:
                room = min(room, rows)
            if room > 0:
                parts.append(self._scored_part(each, room) if each.scoring else self._part(each, room))
                rows -= parts[-1].count if each.scoring else 0
        return parts

    def _part(self, choice: Choice, room: int) -> _Part:
        sequence = choice.sequence
        assert sequence is not None
        start = sequence.evaluated
        tokens = sequence.due(room)
        last = start + len(tokens) == len(choice.tokens)
        row = self._llama.batch.add(sequence.number, start, tokens, output=last)
        return _Part(choice, len(tokens), [row] if last else [])

    def _scored_part(self, choice: Choice, room: int) -> _Part:
        """A part with a row after each of its tokens."""
        sequence = choice.sequence
        assert sequence is not None
        start = sequence.evaluated
        assert start < choice.scored, "nothing of a prompt is left out"
        tokens = sequence.due(room)
        rows = [
            self._llama.batch.add(sequence.number, position, array("i", (token,)), output=True)
            for position, token in enumerate(tokens, start)
        ]
        last = start + len(tokens) == len(choice.tokens)
        # What was computed before it was lost has been scored already.
        scored = rows[choice.scored - 1 - start : len(choice.prompt) - 1 - start]
        return _Part(choice, len(tokens), rows[-1:] if last else [], scored=scored)

    def _add_drafts(self, parts: Iterable[_Part], room: int) -> None:
        for part in parts:
            choice, sequence = part.choice, part.choice.sequence
            if not part.rows or not choice.job.drafts or sequence is None:
                continue
            part.draft = choice.draft(room)
            for position, token in enumerate(part.draft, len(choice.tokens)):
                row = self._llama.batch.add(sequence.number, position, array("i", (token,)), output=True)
                part.rows.append(row)
            room -= len(part.draft)

    # Decode.

    def _decode(self, parts: list[_Part]) -> None:
        if not parts:
            return
        started = time.monotonic()
        if not self._llama.decode():
            self._cache.clear()
            if not self._llama.decode():
                raise DecodeFailed("the context has no room for cells that were reserved")
        prompts = sum(part.count for part in parts if not part.choice.answering)
        answers = any(part.choice.answering for part in parts)
        self._pace.measured(prompts, time.monotonic() - started, answers=answers)
        for part in parts:
            if part.choice.sequence is not None:
                self._cache.advance(part.choice.sequence, part.count)

    # Sample.

    def _sample(self, parts: list[_Part]) -> None:
        for part in parts:
            for row in part.scored:
                part.choice.score(self._llama.logits(row))
            if part.rows:
                self._sample_part(part)
                self._note_first(self._accounts[part.choice.id.request])

    def _sample_part(self, part: _Part) -> None:
        """Samples behind the part, and behind each token of its draft as long as that comes true."""
        choice, draft = part.choice, part.draft
        begun, confirmed = len(choice.tokens), 0
        while choice.ended is None and confirmed == len(choice.tokens) - begun:
            guess = draft[confirmed] if confirmed < len(draft) else None
            choice.sample(self._llama.logits(part.rows[confirmed]), guess)
            confirmed += agreement(choice.tokens[begun + confirmed :], draft[confirmed:])
        if draft and choice.sequence is not None:
            self._cache.settle(choice.sequence, confirmed, len(draft))
            choice.judge(len(draft), confirmed)

    def _note_first(self, account: _Account) -> None:
        if account.answering is None and account.admitted is not None:
            account.answering = time.monotonic()
            account.tally.prefill_s = account.answering - account.admitted

    # Emit.

    def _emit(self) -> list[Progress]:
        told = [choice.progress() for choice in self._running.values() if choice.answering or choice.ended]
        return [progress for progress in told if progress is not None]

    def _end(self, sequence: SequenceId) -> None:
        """Lets a choice go; what it computed stays in the cache."""
        choice = self._running.pop(sequence, None)
        if choice is None:
            choice = next((each for each in self._waiting if each.id == sequence), None)
            if choice is None:
                return
            self._waiting.remove(choice)
        if choice.sequence is not None:
            if self._store is not None:
                self._store.note(choice.sequence, choice.boundaries)
            self._cache.close(choice.sequence)
        choice.close()


def _can_go_on(choice: Choice) -> bool:
    """Whether there is something of a choice to be evaluated."""
    sequence = choice.sequence
    return choice.active and sequence is not None and sequence.state is State.READY


def _left(choice: Choice) -> int:
    """Tokens of a choice still to be evaluated."""
    return len(choice.tokens) - (choice.sequence.evaluated if choice.sequence else 0)
