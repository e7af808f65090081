"""Loads a model file into an engine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from server.engine.llama import Llama, Options
from server.engine.protocol import Engine, Model
from server.engine.scheduler import Scheduler
from server.engine.vocabulary import LlamaVocabulary
from server.settings import Settings


def load_engine(settings: Settings, path: Path, markers: Iterable[str]) -> Engine:
    """An engine for the GGUF at ``path``. ``markers`` are the texts that dialects use, which count as
    control tokens where the vocabulary has them as tokens. Raises ``StartupFailed``."""
    llama = Llama(
        path,
        Options(
            context=settings.ctx,
            slots=settings.slots,
            threads=settings.threads,
            gpu_layers=settings.gpu_layers,
            mmap=settings.mmap,
            flash_attention=settings.flash_attention,
            cache_type=settings.cache_type,
            batch=settings.batch,
            micro_batch=settings.micro_batch,
        ),
    )
    weights = llama.weights
    model = Model(
        architecture=weights.architecture,
        context=llama.context,
        context_train=weights.context_train,
        slots=settings.slots,
        template=weights.template,
        device=llama.device,
    )
    return Scheduler(llama, LlamaVocabulary(weights.tokens, markers), model)
