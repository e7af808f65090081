"""A loaded model: its engine, its dialect, its prompts, and what it says of itself."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from server.dialects.bound import BoundDialect
from server.dialects.detect import bind, detect, generic, measured, reads
from server.dialects.dialect import Dialect
from server.dialects.table import ALL_MARKERS
from server.engine.embedder import Embedder
from server.engine.protocol import Engine, Vocabulary, Worker
from server.engine.scripted import ScriptedEngine
from server.errors import StartupFailed, TemplateFailed
from server.frames import ModelFacts
from server.prompt.prompt import Prompter, probe_call
from server.runner.recorded import RecordedModel
from server.runner.replay import Replay, load_script, recorded_model
from server.settings import Settings
from server.turn import ToolCall

_log = logging.getLogger("toolspan.runner")
_SCRIPTED_CONTEXT = 262_144
"""In bytes, of which each is a token: room for the first prompt of any agent."""
_ANY_PROMPT = 1 << 30
"""The same for prompts of which is recorded whether they were too long."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    engine: Engine
    bound: BoundDialect
    prompter: Prompter
    facts: ModelFacts
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class LoadedEmbedder:
    """A loaded model that makes embeddings and no text."""

    engine: Embedder
    facts: ModelFacts


def load_model(settings: Settings) -> LoadedModel | LoadedEmbedder:
    """Loads the model of the settings (its ``model`` is a file's path here), or the replay that stands in
    for one. Raises ``StartupFailed``."""
    if settings.replay:
        return _replaying(settings)
    engine = _llama_engine(settings)
    if isinstance(engine, Embedder):
        return LoadedEmbedder(engine, _embedder_facts(engine, settings))
    return model_of(engine, settings)


def _replaying(settings: Settings) -> LoadedModel:
    script = load_script(settings.replay)
    recorded = recorded_model(script)
    if recorded is None:
        engine = ScriptedEngine(context=settings.ctx or _SCRIPTED_CONTEXT, slots=settings.slots)
        model = model_of(engine, settings)
    else:
        model = _standing_in(recorded, settings)
    replay = Replay(script, model.bound.dialect, settings.chunk, model.engine.vocabulary.single_token)
    return dataclasses.replace(model, replay=replay)


def _standing_in(recorded: RecordedModel, settings: Settings) -> LoadedModel:
    """Reads requests and answers as the model of a recording does, and says of itself what that one did."""
    engine = ScriptedEngine(
        context=settings.ctx or _ANY_PROMPT,
        slots=settings.slots,
        vocabulary=recorded.stand_in,
        template=recorded.template,
    )
    model = model_of(engine, settings)
    if model.facts.dialect != recorded.dialect:
        raise StartupFailed(
            f"the script was recorded of a model whose dialect was {recorded.dialect}, and its template is "
            f"read as {model.facts.dialect} now: record it again"
        )
    contexts = {"context": recorded.context, "context_train": recorded.context_train}
    return dataclasses.replace(
        model, facts=msgspec.structs.replace(model.facts, name=recorded.name, **contexts)
    )


def _llama_engine(settings: Settings) -> Engine | Embedder:
    # Imported here so that a replay runs without llama.cpp being loaded.
    from server.engine.load import load_engine

    return load_engine(settings, Path(settings.model), markers=ALL_MARKERS)


def model_of(engine: Engine, settings: Settings) -> LoadedModel:
    template = engine.model.template
    dialect = detect(template)
    prompter = Prompter(template, dialect, engine.vocabulary)
    warnings = list(prompter.warnings)
    found = _measured(prompter, dialect)
    if found is None:
        warnings.append(f"the template's own calls don't read as {dialect.name}: using the generic dialect")
    elif unspelled := _unspelled(dialect, engine.vocabulary):
        warnings.append(f"the vocabulary can't spell {unspelled!r}: using the generic dialect")
        found = None
    if found is None:
        found = generic(template)
    dialect = found
    prompter = Prompter(template, dialect, engine.vocabulary)
    context, own = engine.model.context, engine.model.context_train
    if context > own:
        warnings.append(f"the context has {context} tokens, the model was made for {own}")
    engine.vocabulary.keep_open(dialect.hidden_texts)
    bound = bind(dialect, engine.vocabulary.single_token)
    return LoadedModel(engine, bound, prompter, _facts(engine, dialect, settings, tuple(warnings)))


def _measured(prompter: Prompter, dialect: Dialect) -> Dialect | None:
    """The dialect with the template's own whitespace; None where the dialect does not read back what the
    template writes for a call."""
    probe, other = probe_call(0, "one", "two"), probe_call(1, "three")
    try:
        one = prompter.rendered_calls((probe,))
    except TemplateFailed as error:
        _log.warning("the template refuses a probe call: %s", error)
        return None
    two, empty = (_written(prompter, calls) for calls in ((probe, other), (probe_call(0),)))
    if not (reads(dialect, one, (probe,)) or reads(dialect, two, (probe, other))):
        return None
    return measured(dialect, one, two, empty)


def _unspelled(dialect: Dialect, vocabulary: Vocabulary) -> str:
    """The first marker that the vocabulary has no tokens for: one of SPM's has none for U+2581, which stands
    for a blank there."""
    bound = bind(dialect, vocabulary.single_token)
    for marker in dialect.marker_texts:
        tokens = bound.written(marker, lambda text: vocabulary.tokenize(text, markup=False, continued=True))
        if b"".join(map(vocabulary.data, tokens)) != marker.encode():
            return marker
    return ""


def _written(prompter: Prompter, calls: tuple[ToolCall, ...]) -> str:
    """What the template writes for some calls; nothing if it refuses them."""
    try:
        return prompter.rendered_calls(calls)
    except TemplateFailed:
        return ""


def _facts(engine: Engine, dialect: Dialect, settings: Settings, warnings: tuple[str, ...]) -> ModelFacts:
    return ModelFacts(
        **_facts_of_file(engine, settings),
        dialect=dialect.name,
        tools=True,
        parallel_calls=dialect.parallel,
        reasoning=dialect.reasoning is not None,
        warnings=warnings,
    )


def _embedder_facts(embedder: Embedder, settings: Settings) -> ModelFacts:
    return ModelFacts(
        **_facts_of_file(embedder, settings),
        dialect="none",
        tools=False,
        parallel_calls=False,
        reasoning=False,
        embedding=embedder.width,
    )


def _facts_of_file(worker: Worker, settings: Settings) -> dict[str, Any]:
    model = worker.model
    return {
        "name": "scripted" if settings.replay else Path(settings.model).stem,
        "architecture": model.architecture,
        "context": model.context,
        "context_train": model.context_train,
        "slots": model.slots,
        "vocabulary": worker.vocabulary.size,
        "device": model.device.name,
        "layers": model.device.layers,
        "offloaded_layers": model.device.offloaded,
    }
