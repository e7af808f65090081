"""Short values: whatever the constraint engine can be held to, one is written that it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from schemas import holds, matcher, schemas

from server.errors import InvalidSchema
from server.schema.cache import Prepared, prepared
from server.schema.writer import LENGTH_LIMIT, NoShortValue, ValueWriter


def schema(document: object, *, as_object: bool = False) -> Prepared:
    return prepared(json.dumps(document), "", as_object=as_object)


def short(document: object) -> str:
    return ValueWriter(schema(document).lowered.text).finish()


SHORT: list[tuple[Any, str]] = [
    ({"type": "string"}, '""'),
    ({"type": "integer"}, "0"),
    ({"type": "integer", "minimum": 5}, "5"),
    ({"type": "number", "exclusiveMinimum": 0}, "1"),
    ({"type": "integer", "maximum": -3}, "-10"),
    ({"type": "boolean"}, "false"),
    ({"type": "null"}, "null"),
    ({"enum": ["kelvin", "celsius"]}, '"celsius"'),
    ({"const": 'a"b\\c'}, '"a\\"b\\\\c"'),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, "{}"),
    (
        {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        '{"b": false}',
    ),
    ({"type": "array", "items": {"type": "number"}}, "[]"),
    ({"type": "array", "items": {"type": "number"}, "minItems": 2}, "[0, 0]"),
    ({"type": "string", "minLength": 3}, '"012"'),
    ({"type": "string", "pattern": "^[a-z]+@[a-z]+\\.com$"}, '"a@b.com"'),
    ({"type": "string", "pattern": "^(a|b+c)$"}, '"a"'),
]


@pytest.mark.parametrize(("document", "text"), SHORT, ids=[text for _, text in SHORT])
def test_a_value_is_short(document: Any, text: str) -> None:
    assert short(document) == text


@pytest.mark.parametrize("pattern", ["^b+c$", "^[^@]+@.+z$", "^(xx)*y{3}$"])
def test_a_pattern_comes_to_its_end(pattern: str) -> None:
    document = {"type": "string", "pattern": pattern}
    assert schema(document).verifier.failure(short(document)) is None


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(schemas)
def test_what_is_written_is_a_value_of_the_schema(document: dict[str, object]) -> None:
    try:
        ready = schema(document)
    except InvalidSchema:
        return
    text = ValueWriter(ready.lowered.text).finish()
    assert holds(matcher(ready.lowered), text)
    assert not ready.lowered.exact or ready.verifier.failure(text) is None


def test_a_value_that_cannot_be_short_is_given_up() -> None:
    document = {"type": "array", "items": {"type": "string", "minLength": 1000}}
    fits = LENGTH_LIMIT // 1010
    assert len(short(document | {"minItems": fits})) <= LENGTH_LIMIT
    with pytest.raises(NoShortValue):
        short(document | {"minItems": fits + 1})


def test_what_a_schema_does_not_let_through_is_not_written() -> None:
    writer = ValueWriter(schema({"type": "object", "properties": {"n": {"type": "integer"}}}).lowered.text)
    assert writer.say('{"n": ')
    assert not writer.say('"x"')
    assert not writer.say_value("1, ")
    assert writer.say_value("12")
    assert writer.finish() == '{"n": 12}'


def test_a_value_is_whole() -> None:
    """A text that another could follow is not one."""
    document = {"type": "object", "properties": {"s": {"enum": ["ab", "abc"]}}, "required": ["s"]}
    writer = ValueWriter(schema(document).lowered.text)
    assert writer.say('{"s": ')
    assert not writer.say_value('"ab')
    assert writer.say_value('"abc"')


def test_one_value_of_several_is_written() -> None:
    inner = {"type": "object", "properties": {"x": {"type": "array", "minItems": 1}}, "required": ["x"]}
    document = {"type": "object", "properties": {"a": inner, "b": {"type": "string"}}, "required": ["a", "b"]}
    writer = ValueWriter(schema(document).lowered.text)
    writer.say('{"a": ')
    writer.say_short()
    assert writer.say(', "b": "x"')
    assert json.loads(writer.finish()) == {"a": {"x": [""]}, "b": "x"}
