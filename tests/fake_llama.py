"""A stand-in for ``llama.Llama`` that keeps the books llama.cpp keeps, and refuses what it would.

Its model is a hash: the logits after a token depend on exactly the tokens that its sequence holds, so a
cell too many, too few or in the wrong place changes what is generated. Its vocabulary is the bytes.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from server.engine.protocol import Job, Model, SequenceId
from server.engine.sampler import Logits
from server.engine.scheduler import Scheduler
from server.engine.snapshots import Snapshots
from server.turn import Sampling

SIZE = 262
END = 261


@dataclass(slots=True)
class _Cell:
    position: int
    token: int
    sequences: set[int]


@dataclass(slots=True)
class FakeBatch:
    capacity: int = 2048
    count: int = 0
    parts: list[tuple[int, int, list[int], bool]] = field(default_factory=list)

    def clear(self) -> None:
        self.count = 0
        self.parts = []

    def add(self, sequence: int, position: int, tokens: array[int], *, output: bool) -> int:
        assert len(tokens) > 0
        self.parts.append((sequence, position, list(tokens), output))
        self.count += len(tokens)
        assert self.count <= self.capacity
        return self.count - 1


class FakeLlama:
    """``likes`` is a text that the model continues with wherever it can; else it writes noise."""

    def __init__(
        self,
        *,
        context: int = 512,
        slots: int = 4,
        cached: int = 4,
        partial: bool = True,
        likes: bytes = b"",
    ) -> None:
        self.context = context
        self.slots = slots
        self.sequences = slots + cached
        self.spare_rows = 8
        self.partial = partial
        self.batch = FakeBatch()
        self.cells: list[_Cell] = []
        self.batches: list[list[tuple[int, int]]] = []
        self.rows: dict[int, Logits] = {}
        self.closed = False
        self.lost: dict[int, int] = {}  # sequence -> the prefix from which on its window is whole
        self.broken: float | None = None
        self._likes = likes

    # What llama.cpp does.

    def decode(self) -> bool:
        if len(self.cells) + self.batch.count > self.context:
            return False
        self.batches.append([(sequence, len(tokens)) for sequence, _, tokens, _ in self.batch.parts])
        self.rows = {}
        row = -1
        for sequence, position, tokens, output in self.batch.parts:
            assert 0 <= sequence < self.sequences
            assert position == len(self.held(sequence)), "positions of a sequence follow one another"
            self.cells += [_Cell(position + at, token, {sequence}) for at, token in enumerate(tokens)]
            row += len(tokens)
            if output:
                self.rows[row] = self.thought(self.held(sequence))
        assert len(self.rows) <= self.sequences + self.spare_rows
        return True

    def logits(self, index: int) -> Logits:
        return self.rows[index]

    def copy(self, source: int, target: int, length: int) -> None:
        assert length >= self.shortest(source), "the prefix is incomplete"
        assert not self.held(target), "a sequence that is copied to is empty"
        assert len(self.held(source)) >= length
        for cell in self.cells:
            if source in cell.sequences and cell.position < length:
                cell.sequences.add(target)

    def remove(self, sequence: int, start: int) -> bool:
        if not self.partial and start < len(self.held(sequence)):
            return False
        for cell in self.cells:
            if cell.position >= start:
                cell.sequences.discard(sequence)
        self.cells = [cell for cell in self.cells if cell.sequences]
        return True

    def drop(self, sequence: int) -> None:
        for cell in self.cells:
            cell.sequences.discard(sequence)
        self.cells = [cell for cell in self.cells if cell.sequences]

    def shortest(self, sequence: int) -> int:
        return self.lost.get(sequence, 0) if self.partial else len(self.held(sequence))

    def state(self, sequence: int, most: int) -> np.ndarray | None:
        state = np.array(self.held(sequence), np.int32).view(np.uint8)
        return state if 0 < len(state) <= most else None

    def restore(self, sequence: int, length: int, state: np.ndarray) -> bool:
        assert not self.held(sequence), "a sequence that is restored is empty"
        tokens = state.view(np.int32).tolist()
        if len(tokens) != length or len(self.cells) + length > self.context:
            return False
        self.cells += [_Cell(at, token, {sequence}) for at, token in enumerate(tokens)]
        return True

    def close(self) -> None:
        self.closed = True

    # What it thinks.

    def held(self, sequence: int) -> list[int]:
        cells = sorted((each for each in self.cells if sequence in each.sequences), key=lambda c: c.position)
        assert [cell.position for cell in cells] == list(range(len(cells)))
        return [cell.token for cell in cells]

    def thought(self, tokens: list[int]) -> Logits:
        noise = np.random.default_rng(zlib.crc32(repr(tokens).encode()))
        logits = noise.normal(size=SIZE).astype(np.float32)
        liked = self._liked(bytes(token for token in tokens if token < 256))
        if liked is not None:
            logits[liked] += 20
        if self.broken is not None:
            logits[:] = self.broken
        return logits

    def _liked(self, said: bytes) -> int | None:
        if not self._likes:
            return None
        for length in range(len(self._likes), -1, -1):
            if said.endswith(self._likes[:length]):
                return END if length == len(self._likes) else self._likes[length]
        return None


class FakeVocabulary:
    """The bytes, and one token that ends an answer."""

    size = SIZE
    bos: int | None = None
    adds_bos = False
    bos_text = ""
    eos_text = "<end>"
    ends = frozenset({END})

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer("byte")

    def tokenize(self, text: str, *, markup: bool, continued: bool = False) -> list[int]:
        return list(text.encode())

    def single_token(self, text: str) -> int | None:
        return END if text == self.eos_text else None

    def data(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b"<end>"

    def markup_texts(self) -> tuple[str, ...]:
        return (self.eos_text,)

    def keep_open(self, texts: Iterable[str]) -> None:
        pass

    def matcher(self, constraint: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(constraint), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher


ANYTHING = r"start: /(?s:.*)/"
LETTERS = r"start: /[a-z]*/"
ENDLESS = r"start: /[a-z]{2000}/"
BINARY = r"start: /[ab]{500}/"
CALL = r'start: "<call>" /[a-z]{2}/ "(" /[0-9]{1,4}/ ")</call>"'
VOCABULARY = FakeVocabulary()


def engine(llama: FakeLlama, snapshots: Snapshots | None = None) -> Scheduler:
    model = Model("fake", llama.context, llama.context, llama.slots, None)
    return Scheduler(llama, VOCABULARY, model, snapshots)


def job(
    request: int,
    prompt: str | bytes = "hello",
    constraint: str = ENDLESS,
    *,
    max_tokens: int = 16,
    choices: int = 1,
    partition: str = "",
    reuse_prefix: bool = True,
    drafts: bool = True,
    score: bool = False,
    **sampling: object,
) -> Job:
    text = prompt.encode() if isinstance(prompt, str) else prompt
    return Job(
        request=request,
        prompt=tuple(text),
        matcher=VOCABULARY.matcher(constraint),
        sampling=Sampling(**({"temperature": 0.0} | sampling)),  # type: ignore[arg-type]
        max_tokens=max_tokens,
        choices=choices,
        partition=partition,
        reuse_prefix=reuse_prefix and not score,
        drafts=drafts,
        score=score,
    )


def sequence(request: int, choice: int = 0) -> SequenceId:
    return SequenceId(request, choice)
