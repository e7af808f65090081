"""Loads a model file into an engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from server.engine.embedder import Embedder
from server.engine.llama import Llama, Options, Weights
from server.engine.llama_pooled import PooledLlama
from server.engine.protocol import Engine, Model
from server.engine.scheduler import Scheduler
from server.engine.snapshots import Snapshots, fingerprint
from server.engine.vocabulary import LlamaVocabulary
from server.settings import Settings

_log = logging.getLogger("toolspan.engine")


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
        flash_attention=settings.flash_attention,
        cache_type=settings.cache_type,
        batch=settings.batch,
        micro_batch=settings.micro_batch,
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
    snapshots = _snapshots(settings, path, llama.form)
    return Scheduler(llama, LlamaVocabulary(weights.tokens, markers), model, snapshots)


def _snapshots(settings: Settings, path: Path, form: str) -> Snapshots | None:
    if not (settings.snapshots and settings.snapshot_folder and settings.reuse_prefix):
        return None
    try:
        about = f"{fingerprint(path)} {form}"
    except OSError as error:
        _log.warning("no prefixes are kept on disk: %s", error)
        return None
    return Snapshots(Path(settings.snapshot_folder), about, settings.snapshot_space * 1024 * 1024)
