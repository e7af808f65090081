"""Gemma's notation: bare keys, raw texts, and a schema lowered into that."""

from __future__ import annotations

import json
from typing import Any

import pytest
from languages import Model

from server.dialects.constrain import compose
from server.dialects.form import span_form
from server.dialects.gemma import gemma_extent
from server.dialects.order import ANY_ORDER_RULES
from server.dialects.table import DIALECTS
from server.schema.parameters import parameters

GEMMA = next(row for row in DIALECTS if row.name == "gemma4")
QUOTE = span_form(GEMMA).quote


def allowed(schema: Any, value: Any) -> bool:
    model = Model(GEMMA, "text", {"v": schema})
    return model.allows(model.text(json.dumps({"v": value})))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "anyOf": [{"enum": [1, "a"]}, {"type": "boolean"}]}, [1], ["a", True]),
        ({"type": "string", "enum": ["a", 1]}, ["a"], [1]),
        ({"type": "array", "items": False}, [[]], [[1]]),
        (
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
            [[], ["a"], ["a", 1]],
            [[1], ["a", "b"], ["a", 1, 2]],
        ),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "null"}, "minItems": 2},
            [["a", None], ["a", None, None]],
            [["a"], [], ["a", "b"]],
        ),
        (
            {"type": "array", "prefixItems": [{"const": "a"}, {"const": "b"}], "minItems": 1, "maxItems": 3},
            [["a"], ["a", "b"], ["a", "b", 7]],
            [[], ["b"], ["a", "b", 7, 7]],
        ),
    ],
)
def test_schemas_hold(schema: Any, good: list[Any], bad: list[Any]) -> None:
    known = parameters({"type": "object", "properties": {"v": schema}})
    assert all(allowed(schema, value) for value in good)
    assert not (gemma_extent(known).exact and any(allowed(schema, value) for value in bad))


@pytest.mark.parametrize(
    ("schema", "exact"),
    [
        ({"type": "array", "items": False}, True),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, True),
        ({"type": "string", "enum": ["a", 1]}, True),
        ({"type": "integer", "anyOf": [{"type": "integer", "minimum": 1}, {"const": 0}]}, True),
        ({"type": "integer", "anyOf": [{"type": "string"}, {"const": 0}]}, False),
    ],
)
def test_what_is_held_to(schema: Any, exact: bool) -> None:
    assert gemma_extent(parameters({"type": "object", "properties": {"v": schema}})).exact is exact


def test_nested_objects_count_for_the_order() -> None:
    """Rules double with each parameter that may come in any order, so many objects have fewer of those."""
    inner = {"type": "object", "properties": {f"p{number}": {"type": "null"} for number in range(7)}}
    few, many = (Model(GEMMA, "text", {f"o{place}": inner for place in range(count)}) for count in (3, 64))
    backwards = json.dumps({"o1": {f"p{number}": None for number in reversed(range(7))}})
    assert few.allows(few.text(backwards))
    assert not many.allows(many.text(backwards))
    assert many.allows(many.text(json.dumps({"o1": {f"p{number}": None for number in range(7)}})))
    rules = compose(many.bound, many.form).count("\n")
    assert rules < 4 * ANY_ORDER_RULES
