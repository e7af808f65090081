"""Embeddings in the runner: texts to token ids, and vectors to a reply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from server.engine.embedder import Embedder
from server.engine.protocol import Embedding, EmbeddingJob, Progress
from server.errors import ContextOverflow, InvalidRequest, ToolspanError
from server.frames import Embed, Embedded, Failed, FromRunner, Told


@dataclass(frozen=True, slots=True)
class PreparedEmbedding:
    """Texts ready to be embedded."""

    job: EmbeddingJob


class EmbeddingPreparer:
    """Prepares requests for one loaded model."""

    def __init__(self, embedder: Embedder) -> None:
        self._vocabulary = embedder.vocabulary
        self._width = embedder.width
        self._context = embedder.model.context

    def prepare(self, request: int, asked: Embed) -> PreparedEmbedding:
        """Raises ``InvalidRequest`` and its kinds."""
        if asked.dimensions not in (None, self._width):
            raise InvalidRequest(
                f"dimensions is not supported: the vectors of this model have {self._width} components",
                code="unsupported_parameter",
                param="dimensions",
            )
        texts = tuple(self._tokens(number, text) for number, text in enumerate(asked.texts))
        return PreparedEmbedding(EmbeddingJob(request, texts))

    def _tokens(self, number: int, text: str | tuple[int, ...]) -> tuple[int, ...]:
        """A text is data, and gets what the vocabulary puts around one; token ids are taken as they are."""
        if isinstance(text, str):
            text = tuple(self._vocabulary.framed(self._vocabulary.tokenize(text, markup=False)))
        if not text:
            raise InvalidRequest(f"input[{number}] has no tokens", param=f"input[{number}]")
        if len(text) > self._context:
            raise ContextOverflow(
                f"This model's maximum context length is {self._context} tokens. However, input[{number}] "
                f"has {len(text)} tokens. Please reduce the length of the input.",
                param=f"input[{number}]",
            )
        return text


class EmbeddingRequest:
    """One accepted request, whose vectors are gathered. See ``request.Request`` for the methods."""

    def __init__(self, prepared: PreparedEmbedding, embedder: Embedder) -> None:
        self._job = prepared.job
        self._embedder = embedder
        self._vectors = [b""] * len(prepared.job.texts)
        self._missing = len(prepared.job.texts)
        embedder.submit(prepared.job)

    @property
    def done(self) -> bool:
        return self._missing == 0

    def begun(self) -> Iterator[FromRunner]:
        yield from ()

    def take(self, progress: Progress | Embedding) -> Iterator[FromRunner]:
        assert isinstance(progress, Embedding)
        if not np.isfinite(np.frombuffer(progress.vector, "<f4")).all():
            yield self.failed(ToolspanError("the model made a vector that holds no number"))
            return
        self._vectors[progress.sequence.choice] = progress.vector
        self._missing -= 1
        if self.done:
            tokens = sum(map(len, self._job.texts))
            yield Told(self._job.request, Embedded(tuple(self._vectors), tokens))

    def failed(self, error: ToolspanError) -> Failed:
        """Gives the request up."""
        self.cancel()
        return Failed(self._job.request, error.data)

    def cancel(self) -> None:
        self._embedder.cancel(self._job.request)
        self._missing = 0
