"""Schemas that users of local servers reported as broken, under the numbers of our list of reports, with what
is right. Each stands in a request beside another tool, as the server prepares it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from conformance import answered
from reported import MARKED_NAMES, Requests, inside, tool
from test_prompt import prompter, user

from server.errors import InvalidSchema
from server.schema.cache import Prepared
from server.turn import Tool, Turn

NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
    "required": ["v"],
}
TREE = {"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "kids": []}]}, {"v": 4}]}
NO_TREES = [{"v": "1"}, {"v": 1, "kids": [{"v": 2, "kids": [{"v": None}]}]}, {"kids": []}]
CHOICE = {
    "type": "object",
    "properties": {
        "tree": {
            "type": "object",
            "properties": {"left": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 2}]}},
        },
        "again": {"$ref": "#/properties/tree/properties/left/anyOf/1"},
    },
    "required": ["again"],
}
UNITS = {
    "type": "object",
    "properties": {"place": {"$ref": "#/$defs/place"}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["place", "unit"],
    "$defs": {"place": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
}


def values(*each: object) -> list[object]:
    return [{"a": value} for value in each]


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}}


# (parameters, arguments that can be written and are valid, arguments that cannot be written and are not).
Case = tuple[object, list[object], list[object]]

HELD: dict[str, Case] = {
    "B71 nothing declared": ({"type": "object", "properties": {}}, [{}], []),
    "B71 nothing declared or allowed": (
        {"type": "object", "properties": {}, "additionalProperties": False},
        [{}],
        [{"a": 1}],
    ),
    **{
        f"B73 maxLength {most}": (
            inside({"type": "string", "maxLength": most}),
            values("", "x" * most),
            values("x" * (most + 1)),
        )
        for most in (0, 1, 1999, 2000)
    },
    "B74 109 optional": (optional(109), [{}, {"p0": "", "p108": ""}, {"p50": "x"}], [{"p50": 1}]),
    "B74 150 optional": (optional(150), [{}, {f"p{n}": "" for n in range(150)}], [{"p149": None}]),
    "B76 something": (inside({"type": "string", "pattern": "\\S"}), values("a", " a "), values("", "  ")),
    "B76 letters anywhere": (inside({"type": "string", "pattern": "[a-z]+"}), values("A1b"), values("A1")),
    "B76 something between": (
        inside({"type": "string", "pattern": ".*\\S.*"}),
        values("x", " x y "),
        values("", " "),
    ),
    "B77 bounds that are equal": (
        inside({"type": "string", "pattern": "^\\d{4,4}-\\d{2}$"}),
        values("2026-01"),
        values("26-1", "2026-011"),
    ),
    "B79 a needless escape": (
        inside({"type": "string", "pattern": "^well then\\!$"}),
        values("well then!"),
        values("well then", "anything"),
    ),
    "B79 a backslash": (
        inside({"type": "string", "pattern": "^well then\\\\!$"}),
        values("well then\\!"),
        values("well then!"),
    ),
    "B80 a list's item": (
        CHOICE,
        [{"again": "ab"}, {"tree": {"left": None}, "again": ""}],
        [{"again": "abc"}],
    ),
    "B82 a list behind a reference": (
        UNITS,
        [{"place": "x", "unit": "c"}],
        [{"place": "x", "unit": "k"}, {"place": "x", "unit": {}}, {}],
    ),
    "B83 a tree in a property": (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/n"}},
            "required": ["a"],
            "$defs": {"n": NODE},
        },
        values(TREE),
        values(*NO_TREES),
    ),
    "B83 a tree at the root": ({"$ref": "#/$defs/n", "$defs": {"n": NODE}}, [TREE], NO_TREES),
    "B83 the root itself": (
        {**NODE, "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}},
        [TREE],
        NO_TREES,
    ),
    "B85 nothing or a text": (
        inside({"anyOf": [{"not": {}}, {"type": "string"}]}),
        values("s"),
        values(1, None),
    ),
    "B86 a list or null": (
        inside({"anyOf": [{"enum": ["c", "f"]}, {"type": "null"}]}),
        values("c", None),
        values("k", 0),
    ),
    "B88 no others": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        [{"a": 1}, {}],
        [{"b": 1}],
    ),
    "B88 others of a kind": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
        [{"a": "x", "b": 1}],
        [{"b": "x"}],
    ),
    "B88 any others": (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": True},
        [{"a": None, "b": "x"}, {"c": []}],
        [{"a": 1}],
    ),
    "B88 above": (inside({"type": "integer", "exclusiveMinimum": 3}), values(4), values(3, -4)),
    "X1 control characters": (inside({"type": "string"}), values("a\nb", "a\tb"), []),
    "X2 bounds of integers": (
        inside({"type": "integer", "minimum": -2, "maximum": 7}),
        values(-2, 7),
        values(-3, 8),
    ),
    "X2 bounds of numbers": (
        inside({"type": "number", "minimum": 0.5, "maximum": 1.5}),
        values(0.5, 1.25, 1.5),
        values(0.4, 1.51, -1),
    ),
    "X3 multiples": (inside({"type": "integer", "multipleOf": 5}), values(0, 5, -10), values(1, 12)),
    "X3 above": (inside({"type": "number", "exclusiveMinimum": 0}), values(0.1, 3), values(0, -1)),
    "X3 a condition": (
        inside({"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "null"}}),
        values("x", None),
        values("xy", 1),
    ),
    "X3 nullable": (inside({"type": "string", "nullable": True}), values("x", None), values(1)),
    "X3 nullable list": (
        inside({"type": "string", "enum": ["x"], "nullable": True}),
        values("x", None),
        values("y"),
    ),
    "X4 keys by pattern alone": (
        {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"x_1": 1, "x_2": 2}],
        [{"y": 1}, {"x_1": "1"}],
    ),
    "X5 names": (
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}},
        [{"ab": 1}, {}],
        [{"A": 1}, {"ab": 1, "1": 2}],
    ),
    "X6 an object or null": (
        inside({"type": ["object", "null"], "properties": {"k": {"type": "integer"}}, "required": ["k"]}),
        values(None, {"k": 1}),
        values({}, {"k": "1"}, 1),
    ),
    "X7 a description only": (inside({"description": "any"}), values(1, None, {"b": []}), [{}]),
    "X7 true": (inside(True), values(1, "x"), [{}]),
    "X7 items true": (inside({"type": "array", "items": True}), values([], [1, "x"]), values(1)),
    "X8 required and not declared": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"b": 1}],
    ),
    "X9 items in a list": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            **inside({"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}),
        },
        values([], [1], [1, "x"], [1, "x", None]),
        values(["x"], [1, 2]),
    ),
    "X11 names alike": (
        {
            "type": "object",
            "properties": {"a.b": {"type": "integer"}, "a-b": {"type": "string"}, "a b": {"type": "null"}},
            "required": ["a.b", "a-b", "a b"],
        },
        [{"a.b": 1, "a-b": "x", "a b": None}],
        [{"a.b": "x", "a-b": 1, "a b": None}, {"a.b": 1, "a-b": None, "a b": "x"}],
    ),
    "X12 a long list": (
        inside({"enum": [f"v{n}" for n in range(5_000)]}),
        values("v0", "v4999"),
        values("v5000"),
    ),
}


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Requests:
    return Requests(tmp_path_factory.mktemp("requests"))


def made(parameters: object) -> Prepared:
    prepared = answered(parameters, as_object=True)
    assert isinstance(prepared, Prepared)
    return prepared


@pytest.mark.parametrize("name", HELD)
def test_what_can_be_written_is_what_is_valid(requests: Requests, name: str) -> None:
    parameters, valid, invalid = HELD[name]
    calls = requests.calls(parameters)
    prepared = made(parameters)
    assert [each for each in valid if not calls.allow(each)] == []
    assert [each for each in invalid if calls.allow(each)] == []
    assert [each for each in valid if prepared.verifier.failure(json.dumps(each))] == []
    assert [each for each in invalid if not prepared.verifier.failure(json.dumps(each))] == []


# (parameters, keyword, valid arguments, arguments that can be written and are found invalid afterwards).
FOUND: dict[str, tuple[object, str, object, object]] = {
    "B73 maxLength 2001": (
        inside({"type": "string", "maxLength": 2001}),
        "maxLength",
        {"a": "x" * 2001},
        {"a": "x" * 2002},
    ),
    "B73 maxLength 100000": (
        inside({"type": "string", "maxLength": 100_000}),
        "maxLength",
        {"a": "x" * 3_000},
        {"a": "x" * 100_001},
    ),
    "B88 no item twice": (
        inside({"type": "array", "uniqueItems": True}),
        "uniqueItems",
        {"a": [1, 2]},
        {"a": [1, 1]},
    ),
    "X3 some keys": (
        inside({"type": "object", "properties": {"b": {}, "c": {}}, "minProperties": 2}),
        "minProperties",
        {"a": {"b": 1, "c": 1}},
        {"a": {"b": 1}},
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_left_is_found_afterwards(requests: Requests, name: str) -> None:
    parameters, keyword, valid, invalid = FOUND[name]
    calls = requests.calls(parameters)
    assert calls.allow(valid)
    assert calls.allow(invalid)
    assert not calls.exact
    prepared = made(parameters)
    assert prepared.verifier.failure(json.dumps(valid)) is None
    failure = prepared.verifier.failure(json.dumps(invalid))
    assert failure is not None
    assert failure.keyword == keyword
    assert keyword in {each.keyword for each in prepared.lowered.loosened}


REFUSED: dict[str, tuple[object, str]] = {
    "B79 an open group": (inside({"type": "string", "pattern": "^(x"}), "properties.a.pattern"),
    "B79 an open class": (inside({"type": "string", "pattern": "[a-"}), "properties.a.pattern"),
    "X7 an empty list": (inside({"enum": []}), "properties.a.enum"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_to_is_refused(requests: Requests, name: str) -> None:
    parameters, place = REFUSED[name]
    error = requests.refusal(parameters)
    assert (error.status, error.param) == (400, f"tools[0].function.parameters.{place}")


def test_b71_keys_not_declared_are_valid_where_nothing_is_said_of_them() -> None:
    assert made({"type": "object", "properties": {}}).verifier.failure('{"a": 1}') is None


def test_b74_64_tools(requests: Requests) -> None:
    tools = [tool(f"t{n}", optional(10)) for n in range(64)]
    assert requests.prepared(*tools)


@pytest.mark.parametrize("count", [8, 16, 40, 150])
def test_b89_the_constraint_grows_with_the_optional_parameters(requests: Requests, count: int) -> None:
    size = len(requests.calls(optional(count)).constraint) - len(requests.calls(optional(1)).constraint)
    assert size < 40 * count
    assert requests.calls(optional(count)).allow({"p1": "x", f"p{count - 1}": ""})


GEMMA_4 = {"google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"}
"""Templates that leave out parameters named like three keywords of a schema. The calls may have them."""


def test_b91_parameters_named_like_parts_of_a_template(templates: dict[str, str], requests: Requests) -> None:
    sources = templates
    bare = {name: rendered(source, tool("f", {})) for name, source in sources.items()}
    for word in MARKED_NAMES:
        parameters = {"type": "object", "properties": {word: {"type": "null"}}}
        texts = {name: rendered(source, tool("f", parameters)) for name, source in sources.items()}
        unseen = {name for name, text in texts.items() if text.count(word) <= bare[name].count(word)}
        assert unseen == (GEMMA_4 if word in ("type", "required", "description") else set())
        assert requests.calls(parameters).allow({word: None})


def rendered(source: str, offered: Tool) -> str:
    return prompter(source, "hermes").prompt(Turn((user(),), (offered,))).text


@pytest.mark.parametrize(
    "parameters", [None, "{}", "true", '{"type": "object"}', '{"type": "object", "properties": {}}']
)
def test_b92_tools_without_parameters(templates: dict[str, str], parameters: str | None) -> None:
    for name, source in templates.items():
        assert "right_now" in rendered(source, Tool("right_now", "Does", parameters)), name


def test_b94_all_bad_tools_are_named(requests: Requests) -> None:
    bad = tool("first", inside({"type": "text"})), tool("second", inside({"pattern": "("}))
    with pytest.raises(InvalidSchema) as caught:
        requests.prepared(tool("good", {}), *bad)
    assert caught.value.param == "tools[1].function.parameters.properties.a.type"
    for part in (
        "'first'",
        "'second'",
        "type at '/properties/a'",
        "pattern at '/properties/a'",
        "regular expression",
    ):
        assert part in caught.value.message


def test_b95_references_are_shown_as_what_they_stand_for(
    templates: dict[str, str], requests: Requests
) -> None:
    shape = {"type": "object", "properties": {"latitude": {"type": "number"}}, "required": ["latitude"]}
    parameters = {**inside({"$ref": "#/$defs/p"}), "$defs": {"p": shape}}
    for name, source in templates.items():
        assert rendered(source, tool("f", parameters)) == rendered(source, tool("f", inside(shape))), name
    assert requests.calls(parameters).allow({"a": {"latitude": 1}})
    assert not requests.calls(parameters).allow({"a": "1"})


def test_x1_a_raw_line_end_is_no_json(requests: Requests) -> None:
    calls = requests.calls(inside({"type": "string"}))
    assert calls.allow_text('{"a": "b\\nc"}')
    for text in ("b\nc", "b\rc", "b\x00c", "b\x1fc"):
        assert not calls.allow_text(f'{{"a": "{text}"}}')


def test_x10_keys_come_in_the_order_of_the_schema(requests: Requests) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    calls = requests.calls(parameters)
    assert calls.allow({"a": 1, "b": 2})
    assert not calls.allow({"b": 2, "a": 1})
    assert made(parameters).verifier.failure('{"b": 2, "a": 1}') is None


def test_x12_objects_in_objects(requests: Requests) -> None:
    def nested(levels: int) -> dict[str, object]:
        return inside(nested(levels - 1)) if levels else {"type": "null"}

    value: object = None
    for _ in range(30):
        value = {"a": value}
    assert requests.calls(nested(30)).allow(value)
    assert requests.refusal(nested(200)).code == "schema_too_large"
