"""Random schemas and a model that knows nothing: what leaves as a strict call is valid.

SCHEMAS=5000 tries as many, and others each time; else a few, the same each time.
"""

from __future__ import annotations

import json
import os
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from schemas import schemas
from tiny import TOKEN_MARKERS, tiny_model
from told import WithTemplate, told

from server.dialects.table import HERMES
from server.engine.load import load_engine
from server.engine.scripted import TEMPLATE
from server.errors import ContextOverflow, InvalidSchema
from server.runner.model import LoadedModel, model_of
from server.schema.check import check
from server.schema.verify import decode
from server.settings import Settings
from server.turn import Message, Sampling, Tool, ToolChoice, Turn

COUNT = int(os.environ.get("SCHEMAS", "50"))
SETTINGS = settings(
    max_examples=COUNT,
    derandomize=COUNT <= 50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def model(sdist_dir: Path) -> Iterator[tuple[LoadedModel, Settings]]:
    source = sdist_dir / "vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf"
    target = tiny_model(source, TOKEN_MARKERS)
    given_settings = Settings(model=str(target), ctx=8192, slots=1, threads=1)
    engine = load_engine(given_settings, target, markers=TOKEN_MARKERS)
    loaded: Any = WithTemplate(engine, TEMPLATE)
    yield model_of(loaded, given_settings), given_settings
    engine.close()


@pytest.fixture(scope="module")
def outcomes() -> Iterator[tuple[Counter[str], list[float]]]:
    """How the answers ended, and how long each schema took to prepare in milliseconds: printed at the end."""
    counted: tuple[Counter[str], list[float]] = (Counter(), [])
    yield counted
    times = sorted(counted[1])
    p99 = times[int(len(times) * 0.99)] if times else 0.0
    print(f"\n{dict(counted[0])}; prepared in {statistics.median(times):.1f} ms, 99 % within {p99:.1f} ms")


ASK = (Message("user", "Call it."),)


def _closers(model: LoadedModel) -> tuple[tuple[int, float], ...]:
    """What makes texts and objects of chance come to an end."""
    write = model.engine.vocabulary.tokenize
    return tuple((write(each, markup=False, continued=True)[-1], 5.0) for each in '"}]')


def _of_a_parameter(schema: dict[str, Any]) -> dict[str, Any]:
    """An object that has a value of the schema."""
    parts = dict(schema)
    definitions = parts.pop("$defs", {})
    whole = {"type": "object", "properties": {"v": parts}, "required": ["v"]}
    return whole | ({"$defs": definitions} if definitions else {})


@pytest.mark.model
@pytest.mark.timeout(300 if COUNT <= 50 else 0)
@given(schema=schemas)
@SETTINGS
def test_a_strict_call_is_valid(
    model: tuple[LoadedModel, Settings], outcomes: tuple[Counter[str], list[float]], schema: Any
) -> None:
    loaded, given_settings = model
    text = json.dumps(_of_a_parameter(schema))
    try:
        checked = check(text, param="schema", as_object=True)
    except InvalidSchema:
        outcomes[0]["refused"] += 1
        return
    tools = (Tool("call", "A call", text, strict=True),)
    sampling = Sampling(seed=random.Random(text).randrange(2**31), logit_bias=_closers(loaded))
    turn = Turn(ASK, tools, ToolChoice("required", ("call",)), False, sampling=sampling, max_tokens=200)
    try:
        answer = told(loaded, given_settings, turn, 1)
    except ContextOverflow:  # references that are written out many times
        outcomes[0]["too long"] += 1
        return
    outcomes[1].append(answer.prepared_ms)
    outcomes[0][answer.code or answer.reason] += 1
    assert answer.code in ("", "schema_not_satisfied"), answer
    if answer.complete:
        ((name, arguments),) = answer.calls
        assert name == "call"
        assert checked.validator.is_valid(decode(arguments)), answer
    assert HERMES.opener not in answer.text
