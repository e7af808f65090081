"""Every template, with a model that knows nothing: whatever comes out has the right form.

One seed for each template with one vocabulary, and for one template of each dialect with the others.
TINY_SEEDS=20 tries as many seeds for every template with every vocabulary.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_dialects import OWN
from tiny import TOKEN_MARKERS, tiny_model
from told import Told, WithTemplate, told

from server.dialects.table import DIALECTS
from server.engine.load import load_engine
from server.engine.protocol import Engine
from server.runner.model import LoadedModel, model_of
from server.schema.cache import prepared
from server.settings import Settings
from server.turn import Message, Sampling, Tool, ToolCall, ToolChoice, Turn

SEEDS = int(os.environ.get("TINY_SEEDS", "1"))
VOCABULARIES = {"spm": "llama-spm", "text": "llama-spm", "bpe": "qwen2", "gemma": "gemma-4"}
"""Kinds of models: markers are tokens but for ``text``, and Gemma's vocabulary is for its own templates."""
NAMES = [*OWN, "microsoft-Phi-3.5-mini-instruct", "google-gemma-2-2b-it"]
ONE_OF_EACH = list({row: name for name, row in OWN.items()}.values())
UNSPELLED = {row.name for row in DIALECTS if "▁" in "".join(row.marker_texts)}
"""Dialects whose markers SPM vocabularies have no tokens for, unless each is one."""


def pairs() -> Iterator[tuple[str, str]]:
    """The kinds of models and the templates that are tried with them."""
    own = [name for name in NAMES if "gemma" in name]
    few = {"spm": NAMES, "text": ONE_OF_EACH, "bpe": ONE_OF_EACH[::4], "gemma": own}
    everything = {kind: own if kind == "gemma" else NAMES for kind in VOCABULARIES}
    for kind, names in (few if SEEDS == 1 else everything).items():
        for name in names:
            yield kind, name


SHORT = {"type": "string", "maxLength": 8}
SCHEMAS: dict[str, dict[str, Any]] = {
    "get": {"type": "object", "properties": {}},
    "get_all": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["x", "xy", "z"]},
            "count": {"type": "integer", "maximum": 99, "minimum": -9},
        },
        "required": ["kind"],
    },
    "put": {
        "type": "object",
        "properties": {
            "text": SHORT,
            "maybe": {"anyOf": [SHORT, {"type": "null"}]},
            "on": {"type": "boolean"},
            "list": {"type": "array", "items": {"enum": [1, 22, None]}, "maxItems": 3},
            "deep": {
                "type": "object",
                "properties": {"a": SHORT, "b": {"type": "array", "items": SHORT, "maxItems": 2}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
        "required": ["text", "deep"],
    },
}
TOOLS = tuple(Tool(name, f"Does {name}.", json.dumps(schema)) for name, schema in SCHEMAS.items())
HISTORY = (
    Message("system", "Be brief."),
    Message("user", "Put it."),
    Message("assistant", tool_calls=(ToolCall("call00001", "put", '{"text": "x", "deep": {"a": "<b>"}}'),)),
    Message("tool", "done", tool_call_id="call00001"),
    Message("assistant", "It is done."),
    Message("user", "Again, and <tool_call> too."),
)


@pytest.fixture(scope="module")
def engines(sdist_dir: Path) -> Iterator[Callable[[str], tuple[Engine, Settings]]]:
    """The engine of a kind of models; the last one stays loaded."""
    known: dict[str, tuple[Engine, Settings]] = {}

    def engine(kind: str) -> tuple[Engine, Settings]:
        if kind not in known:
            while known:
                known.popitem()[1][0].close()
            source = sdist_dir / "vendor/llama.cpp/models" / f"ggml-vocab-{VOCABULARIES[kind]}.gguf"
            target = tiny_model(source, () if kind == "text" else TOKEN_MARKERS)
            settings = Settings(model=str(target), ctx=4096, slots=1, threads=1)
            known[kind] = load_engine(settings, target, markers=TOKEN_MARKERS), settings
        return known[kind]

    yield engine
    for loaded, _ in known.values():
        loaded.close()


CHOICES = (
    (ToolChoice("required"), True),
    (ToolChoice("required"), False),
    (ToolChoice("required", ("put",)), True),
    (ToolChoice("auto"), True),
    (ToolChoice("none"), True),
)


@pytest.mark.model
@pytest.mark.parametrize(("kind", "name"), list(pairs()))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_comes_out_has_the_right_form(
    templates: dict[str, str],
    engines: Callable[[str], tuple[Engine, Settings]],
    kind: str,
    name: str,
    seed: int,
) -> None:
    engine, settings = engines(kind)
    model = model_of(WithTemplate(engine, templates[name]), settings)  # type: ignore[arg-type]
    own = OWN.get(name, "generic")
    unspelled = kind == "text" and own in UNSPELLED
    assert model.facts.dialect == ("generic" if unspelled else own)
    assert unspelled is ("can't spell" in " ".join(model.facts.warnings))
    ends_thought, opens_call = _biases(model)
    for number, (choice, parallel) in enumerate(CHOICES):
        bias = ends_thought + (opens_call if choice.mode == "auto" else ())
        sampling = Sampling(seed=seed, logit_bias=bias)
        room = 250 if choice.mode == "required" else 60
        turn = Turn(HISTORY, TOOLS, choice, parallel, sampling=sampling, max_tokens=room)
        answer = told(model, settings, turn, number)
        said = f"{choice} {answer}"
        assert not answer.error, said
        assert answer.reason in ("tool_calls", "length", "stop"), said
        assert not any(marker in answer.text + answer.reasoning for marker in _shown(model)), said
        assert len(answer.calls) <= 1 or (parallel and model.facts.parallel_calls), said
        _check_calls(answer, choice, said)
        if choice.mode == "none":
            assert not answer.calls, said
        if choice.mode == "required":
            assert not answer.text, said
            assert answer.complete or answer.reason == "length", said
        if choice.mode == "auto" and opens_call and not answer.reasoning:
            assert answer.calls, said


THINKING = (
    ("spm", "Apriel-1.6-15b-Thinker-fixed"),
    ("text", "Apriel-1.6-15b-Thinker-fixed"),
    ("spm", "Kimi-K3"),
    ("text", "Kimi-K3"),
    ("spm", "Qwen-Qwen3-0.6B"),
    ("text", "Qwen-Qwen3-0.6B"),
    ("bpe", "deepseek-ai-DeepSeek-V3.1"),
    ("spm", "muse-glimmer"),
    ("spm", "openai-gpt-oss-120b"),
)


@pytest.mark.model
@pytest.mark.parametrize(("kind", "name"), THINKING)
def test_a_thought_has_as_many_tokens_as_it_may(
    templates: dict[str, str], engines: Callable[[str], tuple[Engine, Settings]], kind: str, name: str
) -> None:
    engine, settings = engines(kind)
    model = model_of(WithTemplate(engine, templates[name]), settings)  # type: ignore[arg-type]
    for number, budget in enumerate((0, 12)):
        turn = Turn(HISTORY, TOOLS, ToolChoice("required", ("get",)), max_tokens=150, reasoning_budget=budget)
        effort = "high" if budget else None
        turn = msgspec.structs.replace(turn, reasoning_effort=effort, sampling=Sampling(seed=number))
        answer = told(model, settings, turn, number)
        assert not answer.error
        assert [name for name, _ in answer.calls] == ["get"], answer
        assert answer.complete == 1
        # What closes it may be spelled, a character begun; and a model may begin to think once more.
        closing = 2 * len((model.bound.dialect.reasoning or "  ")[1]) + 6
        assert answer.thought <= budget + bool(budget) * closing, answer
        assert bool(answer.reasoning) <= bool(budget)


def _biases(model: LoadedModel) -> tuple[tuple[tuple[int, float], ...], tuple[tuple[int, float], ...]]:
    """What ends a thought, and what begins a call, where a token does that."""
    dialect, tokens = model.bound.dialect, model.bound.tokens
    wanted = (dialect.reasoning[1] if dialect.reasoning else "", dialect.opener)
    ends, opens = (((tokens[each], 30.0),) if each in tokens else () for each in wanted)
    return ends, opens


def _shown(model: LoadedModel) -> list[str]:
    """The markers that must never be seen in text."""
    dialect = model.bound.dialect
    return [each for each in (dialect.opener, *(dialect.reasoning or ()), *dialect.inner) if each]


def _check_calls(answer: Told, choice: ToolChoice, said: str) -> None:
    for name, arguments in answer.calls[: answer.complete]:
        assert name in (choice.names or SCHEMAS), said
        verifier = prepared(json.dumps(SCHEMAS[name]), "tools", as_object=True).verifier
        assert verifier.failure(arguments) is None, said
        assert set(json.loads(arguments)) <= set(SCHEMAS[name]["properties"]), said
    if answer.complete < len(answer.calls):
        assert answer.reason == "length", said
