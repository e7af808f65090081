"""Dialects whose arguments are no JSON object: what the constraint lets through is what the parser reads,
with the types of the schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import folded
from languages import Language, Model

from server.dialects.constrain import AnswerForm, CallableTool, compose
from server.dialects.form import Notation, span_form
from server.dialects.gemma import gemma_extent
from server.dialects.nested import nested_extent
from server.dialects.order import ANY_ORDER
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS
from server.schema.cache import prepared
from server.schema.parameters import parameters

NOTED_ROWS = [row for row in DIALECTS if span_form(row).notation is not Notation.JSON]
ROWS = pytest.mark.parametrize("row", NOTED_ROWS, ids=lambda row: row.name)
ELEMENT_ROWS = pytest.mark.parametrize(
    "row", [row for row in NOTED_ROWS if span_form(row).elements is not None], ids=lambda row: row.name
)
VOCABULARIES = ("text", "tokens", "inner")
"""Markers as text, as one token each, and as text around a token, where a row has such ones."""
BOUND = [
    pytest.param(row, kind, id=f"{row.name}-{kind}")
    for row in NOTED_ROWS
    for kind in (VOCABULARIES if row.inner else VOCABULARIES[:2])
]


TYPED = {
    "text": {"type": "string"},
    "count": {"type": "integer", "minimum": 1},
    "ratio": {"type": "number"},
    "on": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "string"}},
    "more": {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}},
}
VALUES = (
    {"text": "a word"},
    {"text": ""},
    {"text": "42"},
    {"text": "null"},
    {"text": '{"a": 1}'},
    {"text": " two  spaces "},
    {"text": "line\n\nline\n"},
    {"text": "\nfirst"},
    {"text": 'quotes " and \\ and \t'},
    {"text": "<b>é🦊</b>"},
    {"text": "<parameter=x> </parameter </functio <tool_call"},
    {"count": 42},
    {"ratio": -0.5},
    {"on": True},
    {"list": ["<a>", 'b"', ""]},
    {"list": []},
    {"more": {"x": None}},
    {"text": "x", "count": 1, "on": False, "list": ["y"]},
    {},
)


@pytest.mark.parametrize(("row", "kind"), BOUND)
def test_values_are_allowed_and_keep_their_types(row: Any, kind: str) -> None:
    model = Model(row, kind, TYPED)
    for value in VALUES:
        text = model.text(json.dumps(value, ensure_ascii=False))
        assert model.allows(text), text
        assert model.read(text) == value
        assert model.read(text, trusted=False) == value


@pytest.mark.parametrize(("row", "kind"), BOUND)
def test_digits_are_kept(row: Any, kind: str) -> None:
    model = Model(row, kind, {"n": {"type": "number"}})
    text = model.text('{"n": 12345678901234567890.10}')
    assert model.allows(text)
    parser = TurnParser(model.bound, ["f"], new_id=str, parameters={"f": model.parameters})
    ids = model.language.ids(text)
    events = [e for each in ids for e in parser.feed(each, model.language.data(each))]
    assert folded(events) == ['call f {"n": 12345678901234567890.10}']


@ROWS
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["a", "ab", "b\n"]}, ["a", "ab", "b\n"], ["b", "abc", ""]),
        ({"const": "only / this"}, ["only / this"], ["only"]),
        ({"type": "string", "pattern": "^[a-c]{2}$"}, ["ab"], ["a", "abc", "xab"]),
        ({"type": "string", "pattern": "a/b"}, ["a/b", "xxa/byy"], ["ab"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é🦊\n"], ["a", "abcd"]),
        ({"type": "string", "format": "date"}, ["2026-02-28"], ["2026-02-30", "today"]),
        ({"type": "integer", "maximum": 5}, [5], [6, "5x", 1.5]),
        ({"type": "array", "items": {"enum": [1, 2]}, "minItems": 1}, [[1, 2]], [[], [3]]),
    ],
)
def test_schemas_hold(row: Any, schema: Any, good: list[Any], bad: list[Any]) -> None:
    model = Model(row, "text", {"v": schema}, required=["v"])
    assert model.parameters.exact
    assert gemma_extent(model.parameters).exact
    assert nested_extent(model.parameters).exact
    for value in good:
        text = model.text(json.dumps({"v": value}, ensure_ascii=False))
        assert model.allows(text), text
        assert model.read(text) == {"v": value}
    for value in bad:
        assert not model.allows(model.text(json.dumps({"v": value}, ensure_ascii=False))), value


NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@ELEMENT_ROWS
@pytest.mark.parametrize(
    ("schema", "characters", "value"),
    [
        (NULLABLE, "null", None),
        (NULLABLE, "nullable", "nullable"),
        (NULLABLE, "NULL", "NULL"),
        (NULLABLE, "42", "42"),
        ({"type": ["string", "integer"]}, "42", 42),
        ({"type": ["string", "integer"]}, "42 apples", "42 apples"),
        ({"type": ["string", "integer"]}, "4.2", "4.2"),
        ({"type": ["string", "array"], "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": ["string", "array"], "items": {"type": "integer"}}, '["a"]', '["a"]'),
        ({"type": ["string", "object"]}, "{not json", "{not json"),
        ({"enum": ["a", 1, None]}, "1", 1),
        ({"enum": ["a", 1, None]}, "a", "a"),
        ({}, "true", True),
        ({}, "true story", "true story"),
        ({"description": "anything"}, "", ""),
    ],
)
def test_what_may_be_text_or_more_is_the_other_where_it_is_valid(
    row: Any, schema: Any, characters: str, value: Any
) -> None:
    model = Model(row, "text", {"v": schema})
    elements = span_form(row).elements
    assert elements is not None
    text = model.text(json.dumps({"v": characters}))
    if not elements.kinds:
        assert model.allows(text)
        assert model.read(text) == model.read(text, trusted=False) == {"v": value}
    else:  # the dialect says which of the two it is
        assert model.read(text) == {"v": characters}
        if not isinstance(value, str):
            text = model.text(json.dumps({"v": value}))
            assert model.allows(text)
            assert model.read(text) == {"v": value}


@ELEMENT_ROWS
def test_what_python_writes_is_read_where_nothing_constrains(row: Any) -> None:
    model = Model(row, "text", {"b": {"type": "boolean"}, "n": {"type": "null"}, "l": {"type": "array"}})
    text = model.text('{"b": "True", "n": "none", "l": "[\'x\', True, None]"}')
    assert not model.allows(text)
    assert model.read(text, trusted=False) == {"b": True, "n": None, "l": ["x", True, None]}
    text = model.text('{"b": "maybe", "l": "open(1)", "n": "{1}"}')
    assert model.read(text, trusted=False) == {"b": "maybe", "l": "open(1)", "n": "{1}"}


@ROWS
def test_free_form_arguments(row: Any) -> None:
    for schema in ({}, {"additionalProperties": {"type": "integer"}}):
        made = prepared(json.dumps({"type": "object"} | schema), "tools", as_object=True)
        model = Model(row, "text", {}, **schema)
        assert made.parameters.rest is not None
        value: dict[str, Any] = {"any_key": 1, "größe": 2} | ({} if schema else {"s": "text", "l": [1]})
        model.parameters = made.parameters
        tool = CallableTool("f", made.lowered.text, made.parameters)
        model.language = Language(compose(model.bound, AnswerForm((tool,), must_call=True)))
        for arguments in (value, {}):
            text = model.text(json.dumps(arguments, ensure_ascii=False))
            assert model.allows(text), text
            assert model.read(text) == arguments
        assert model.allows(model.text('{"k": "text"}')) is (not schema)


@ROWS
@pytest.mark.parametrize("count", [3, ANY_ORDER, ANY_ORDER + 2])
def test_the_order_of_parameters(row: Any, count: int) -> None:
    names = [f"p{number}" for number in range(count)]
    model = Model(row, "text", {name: {"type": "string"} for name in names}, required=names[:2])
    in_order = dict.fromkeys(names, "v")
    backwards = dict(reversed(in_order.items()))
    assert model.allows(model.text(json.dumps(in_order)))
    assert model.read(model.text(json.dumps(backwards))) == in_order
    assert model.allows(model.text(json.dumps(backwards))) is (count <= ANY_ORDER)
    assert model.allows(model.text(json.dumps({"p0": "v", "p1": "v", names[-1]: "v"})))
    assert not model.allows(model.text(json.dumps({"p0": "v", names[-1]: "v"})))
    assert not model.allows(model.text("{}"))


@pytest.mark.parametrize(("row", "kind"), BOUND)
def test_samples_are_valid_and_read(row: Any, kind: str) -> None:
    properties = {
        "s": {"type": "string", "maxLength": 6},
        "e": {"enum": ["x", "xy", None]},
        "n": {"type": ["integer", "null"]},
        "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    }
    model = Model(row, kind, properties, required=["s"])
    verifier = prepared(
        json.dumps({"type": "object", "properties": properties, "required": ["s"]}), "tools", as_object=True
    ).verifier
    hints = (model.text('{"s": "abc"}'), model.text('{"e": "xy", "s": "<"}'), *model.bound.tokens)
    read = [model.read_tokens(each) for each in model.language.samples(15, 3, hints)]
    assert read
    for arguments in read:
        assert verifier.failure(json.dumps(arguments)) is None, arguments


@ELEMENT_ROWS
def test_a_key_that_comes_twice_counts_once(row: Any) -> None:
    model = Model(row, "text", {"a": {"type": "string"}, "b": {"type": "string"}})
    twice = model.text('{"a": "1", "XX": "2"}').replace("XX", "a")
    assert not model.allows(twice)
    assert model.read(twice, trusted=False) == {"a": "1"}


def test_long_text_streams() -> None:
    row = next(each for each in DIALECTS if each.name == "qwen3-coder")
    model = Model(row, "text", {"v": NULLABLE})
    parser = TurnParser(model.bound, ["f"], new_id=str, parameters={"f": model.parameters})
    parser.feed(-1, b"<tool_call>\n<function=f>\n<parameter=v>\n")

    def sent(text: str) -> str:
        return "".join(each.text for each in parser.feed(-1, text.encode()))  # type: ignore[union-attr]

    assert sent("nul") == ""  # may still be null
    assert sent("ls and ") == '"nulls and '
    assert sent('"quotes"\n') == '\\"quotes\\"'
    assert sent("</para") == ""
    assert sent("graph>") == "\\n</paragraph>"


DEEP: dict[str, Any] = {
    "properties": {
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "n": {"type": ["integer", "null"]}},
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        "kind": {"enum": ["a", 1, None, ["x", {"y": True}]]},
        "tree": {"$ref": "#/$defs/tree"},
        "any": {},
    },
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"leaf": {"type": "boolean"}, "below": {"$ref": "#/$defs/tree"}},
            "additionalProperties": False,
        }
    },
}


@ROWS
@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_values_at_any_depth(row: Any, kind: str) -> None:
    model = Model(row, kind, **DEEP)
    for value in (
        {"items": [{"name": "a, b}"}, {"name": "", "n": 3}]},
        {"items": [{"name": "x", "n": None}]},
        {"kind": ["x", {"y": True}]},
        {"kind": None},
        {"tree": {"leaf": True, "below": {"below": {}}}},
        {"any": [1, {"k": [None, "s", -0.5e3]}]},
    ):
        text = model.text(json.dumps(value))
        assert model.allows(text), text
        assert model.read(text) == value
    for value in (
        {"items": []},
        {"items": [{"n": 3}]},
        {"items": [{"name": [1]}]},
        {"items": [{"name": "x", "m": 1}]},
        {"items": [{"name": "x"}] * 4},
        {"kind": "b"},
        {"tree": {"below": {"leaf": 1}}},
    ):
        assert not model.allows(model.text(json.dumps(value))), value


@pytest.mark.parametrize(
    ("schema", "exact"),
    [
        ({"type": "integer", "minimum": 1}, True),
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"type": "array", "uniqueItems": True}, False),
        ({"type": "object", "minProperties": 1}, False),
        ({"type": "object", "properties": {"a b": {}}}, True),
        ({"anyOf": [{"type": "integer"}, {"type": "string", "format": "hostname"}]}, False),
        ({"type": "integer", "allOf": [{"minimum": 1}, {"maximum": 5}]}, False),
    ],
)
def test_what_other_notations_can_hold_to(schema: dict[str, Any], exact: bool) -> None:
    for extent in (gemma_extent, nested_extent):
        assert extent(parameters({"type": "object", "properties": {"v": schema}})).exact is exact


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("f(a='it\\'s \"so\"')", {"a": 'it\'s "so"'}),
        ('f(a="x\\n\\u00e9", b = True)', {"a": "x\né", "b": True}),
        ("f(a=['x', {'k': None}], b=-1.5e3)", {"a": ["x", {"k": None}], "b": -1500.0}),
        ("f( )", {}),
    ],
)
def test_python_is_read(written: str, arguments: dict[str, Any]) -> None:
    model = Model(next(each for each in DIALECTS if each.name == "lfm2"), "text", {})
    text = f"<|tool_call_start|>[{written}]<|tool_call_end|>"
    assert model.read(text, trusted=False) == arguments


def test_values_may_be_pythons() -> None:
    row = next(each for each in DIALECTS if each.name == "lfm2")
    model = Model(row, "text", {"on": {"type": "boolean"}, "no": {"type": "null"}, "s": {"type": "string"}})
    for words in ("on=True, no=None, s='\"a\\\\'", 'on=false, no=null, s="\\"a\\\\"'):
        text = f"<|tool_call_start|>[f({words})]<|tool_call_end|>"
        assert model.allows(text), text
        assert model.read(text) == {"on": "True" in words, "no": None, "s": '"a\\'}


@ELEMENT_ROWS
@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_a_closing_marker_in_a_json_string_closes_nothing(row: Any, kind: str) -> None:
    elements = span_form(row).elements
    assert elements is not None
    end = elements.value_end.text
    model = Model(row, kind, {"v": {"type": "array"}, "w": {"enum": [[f"{end}"]]}})
    said = {"v": [f'a"{end}\\', {f"\\{end}": f'\\"{end}"'}], "w": [end]}
    text = model.text(json.dumps(said, ensure_ascii=False))
    if end in model.bound.tokens:  # it can't be spelled in a string
        assert not model.allows(text)
    else:
        assert model.allows(text)
        assert model.read(text) == said


@ELEMENT_ROWS
@pytest.mark.parametrize("schema", [{"type": ["string", "array"]}, {}])
@pytest.mark.parametrize("characters", ["[NaN]", "[-Infinity]", "[1e400, Infinity]"])
def test_what_is_no_json_is_text(row: Any, schema: Any, characters: str) -> None:
    model = Model(row, "text", {"v": schema})
    assert model.read(model.text(json.dumps({"v": characters})), trusted=False) == {"v": characters}


@pytest.mark.parametrize(
    ("schema", "characters"),
    [
        ({"anyOf": [{"enum": ["a"]}, {"const": True}]}, ["a", "true"]),
        ({"anyOf": [{"enum": ["a"]}, {"type": "null"}]}, ["a", "null"]),
        ({"enum": ["a", False, 1]}, ["a", "false", "1"]),
    ],
)
def test_words_beside_texts_are_those_that_are_valid(schema: Any, characters: list[str]) -> None:
    (known,) = parameters({"type": "object", "properties": {"v": schema}}).declared
    assert known.value.exact
    row = next(each for each in DIALECTS if each.name == "qwen3-coder")
    model = Model(row, "text", {"v": schema})
    for each in ("a", "true", "false", "null", "1", "b"):
        assert model.allows(model.text(json.dumps({"v": each}))) is (each in characters)


@ROWS
def test_a_parameter_that_can_have_no_value_never_comes(row: Any) -> None:
    model = Model(
        row, "text", {"a": {"type": "integer"}, "b": False}, additionalProperties={"type": "integer"}
    )
    assert model.parameters.exact
    for arguments, allowed in (({"a": 1}, True), ({"a": 1, "b": 1}, False), ({"a": 1, "c": 1}, True)):
        assert model.allows(model.text(json.dumps(arguments))) is allowed
    assert not model.allows(model.text('{"b": ""}'))
