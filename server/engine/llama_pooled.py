"""A model that makes embeddings: whole texts in, one vector for each out, pooled as the model's file says."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from server.engine.embedder import Vector
from server.engine.llama import Context, DecodeFailed, Options, Weights
from server.engine.llama_native import native
from server.errors import StartupFailed

CONTEXT_LIMIT = 2048
"""Tokens of a text where ``--ctx`` does not say: all of them are evaluated at once, which takes memory."""
SEQUENCES = 32
"""Texts in one batch, at most."""
POOLINGS = {1: "mean", 2: "cls", 3: "last"}


class PooledLlama(Context):
    """``width`` is the number of components of a vector, ``pooling`` what it is made of: the mean of the
    tokens, the first or the last of them. A text has ``context`` tokens at most, and so has a batch."""

    def __init__(self, weights: Weights, options: Options) -> None:
        self._options = options
        self.sequences = SEQUENCES
        super().__init__(weights)

    def _start(self) -> None:
        weights = self.weights
        self.pooling = POOLINGS.get(weights.pooling, "")
        if not self.pooling or native.llama_model_has_encoder(weights.pointer):
            raise StartupFailed(
                f"{weights.path.name} makes neither text nor embeddings that can be served "
                f"({weights.architecture}, pooling {weights.pooling})"
            )
        # Positions may be rows of a table, so there are no more than the model was made for.
        most = min(self._options.context or CONTEXT_LIMIT, weights.context_train)
        parameters = {
            "n_batch": most,
            "n_ubatch": most,
            "n_seq_max": SEQUENCES,
            "embeddings": True,
            "pooling_type": weights.pooling,
        }
        self._make(self._options, most, parameters)
        self.context = self.batch.capacity = min(self.context, most)
        self.width = int(native.llama_model_n_embd_out(weights.pointer))
        self._row_type: Any = ctypes.c_float * self.width

    def embedded(self, texts: Sequence[Sequence[int]]) -> list[Vector]:
        """The vectors of up to ``sequences`` texts, none empty, whose tokens fit into one batch; each has
        the length 1, or no number in it. Raises ``DecodeFailed``."""
        self.batch.clear()
        for number, tokens in enumerate(texts):
            self.batch.add(number, 0, tokens, output=True)
        self.batch.ask_for_all()
        if self._memory:
            native.llama_memory_clear(self._memory, False)
        if not self.decode():
            raise DecodeFailed("the context has no room for a batch")
        return [_of_length_one(self._row(number)) for number in range(len(texts))]

    def _row(self, sequence: int) -> Vector:
        pointer = native.llama_get_embeddings_seq(self._context, sequence)
        if not pointer:
            raise DecodeFailed(f"no embedding for sequence {sequence}")
        row = self._row_type.from_address(ctypes.addressof(pointer.contents))
        return np.frombuffer(row, np.float32)


def _of_length_one(vector: Vector) -> Vector:
    with np.errstate(invalid="ignore"):  # zeros, and infinities of a broken model
        return (vector / np.linalg.norm(vector.astype(np.float64))).astype("<f4")
