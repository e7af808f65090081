"""Embeddings: the texts of all requests share batches, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.protocol import Embedding, EmbeddingJob, Load, Model, SequenceId, Vocabulary

Vector = NDArray[np.float32]


class Pooled(Protocol):
    """What is needed of ``llama_pooled.PooledLlama``."""

    context: int
    sequences: int
    width: int
    pooling: str

    def embedded(self, texts: Sequence[Sequence[int]]) -> list[Vector]: ...

    def close(self) -> None: ...


class Embedder:
    """Makes embeddings of ``width`` components: ``submit`` a job, and ``step`` gives its vectors. The
    other methods are those of ``protocol.Worker``."""

    def __init__(self, llama: Pooled, vocabulary: Vocabulary, model: Model) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.width = llama.width
        self.pooling = llama.pooling
        self._llama = llama
        self._waiting: deque[tuple[SequenceId, tuple[int, ...]]] = deque()

    def submit(self, job: EmbeddingJob) -> None:
        self._waiting += [(SequenceId(job.request, number), text) for number, text in enumerate(job.texts)]

    def cancel(self, request: int) -> None:
        self._waiting = deque(each for each in self._waiting if each[0].request != request)

    def step(self) -> list[Embedding]:
        batch = self._batch()
        vectors = self._llama.embedded([text for _, text in batch]) if batch else []
        return [
            Embedding(sequence, vector.tobytes())
            for (sequence, _), vector in zip(batch, vectors, strict=True)
        ]

    @property
    def load(self) -> Load:
        return Load(waiting=len({sequence.request for sequence, _ in self._waiting}))

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def close(self) -> None:
        self._llama.close()

    def _batch(self) -> list[tuple[SequenceId, tuple[int, ...]]]:
        """As many of the texts that wait as fit, one at least."""
        batch: list[tuple[SequenceId, tuple[int, ...]]] = []
        room = self._llama.context
        while self._waiting and len(batch) < self._llama.sequences and len(self._waiting[0][1]) <= room:
            batch.append(self._waiting.popleft())
            room -= len(batch[-1][1])
        return batch
