"""Loads a model file into an engine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from server.engine.embedder import Embedder
from server.engine.llama import Llama, Options, Weights
from server.engine.llama_pooled import PooledLlama
from server.engine.protocol import Engine, Model
from server.engine.scheduler import Scheduler
from server.engine.vocabulary import LlamaVocabulary
from server.settings import Settings


def load_engine(settings: Settings, path: Path, markers: Iterable[str]) -> Engine | Embedder:
    """What serves the GGUF at ``path``: an embedder if the file says how to pool, else an engine. ``markers``
    are the texts that dialects use, which count as control tokens where the vocabulary has them as tokens.
    Raises ``StartupFailed``."""
    options = Options(
        context=settings.ctx,
        slots=settings.slots,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        mmap=settings.mmap,
    )
    weights = Weights.opened(path, options)
    llama = PooledLlama(weights, options) if weights.pooling else Llama(weights, options)
    model = Model(
        architecture=weights.architecture,
        context=llama.context,
        context_train=weights.context_train,
        slots=settings.slots,
        template=weights.template,
        device=weights.device,
    )
    if isinstance(llama, PooledLlama):
        return Embedder(llama, LlamaVocabulary(weights.tokens, markers, constrains=False), model)
    return Scheduler(llama, LlamaVocabulary(weights.tokens, markers), model)
