"""Nested elements: what of a schema the constraint holds to, and that values are read with its types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import folded
from hypothesis import given, settings
from hypothesis import strategies as st
from languages import Model
from schemas import UNIVERSE, schemas
from test_dialects import OWN

from server.dialects.detect import detect
from server.dialects.form import span_form
from server.dialects.nested import nested_extent
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS
from server.errors import InvalidSchema
from server.schema.cache import prepared
from server.schema.parameters import parameters

M3 = next(row for row in DIALECTS if row.name == "minimax-m3")
TAG = span_form(M3).tag
KINDS = pytest.mark.parametrize("kind", ["text", "inner"])


def call(written: str) -> str:
    """A call with these arguments; ``@`` stands for what begins a tag."""
    text = f'@tool_call>\n@invoke name="f">{written}@/invoke>\n@/tool_call>'
    return text.replace("@", TAG)


def value(schema: Any, written: str, *, trusted: bool = True, kind: str = "text", **more: Any) -> Any:
    """The parameter ``v`` of a schema as it is read; constrained answers must be allowed."""
    model = Model(M3, kind, {"v": schema}, **more)
    text = call(f"@v>{written}@/v>")
    assert not trusted or model.allows(text), text
    return model.read(text, trusted=trusted)["v"]


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
NULLABLE_POINT = {"anyOf": [POINT, {"type": "null"}]}
SHAPES = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "text"}, "v": {"type": "string"}},
            "required": ["kind", "v"],
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "number"}, "v": {"type": "integer"}},
            "required": ["kind", "v"],
        },
    ]
}
STRINGS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
MAP = {"type": "object", "additionalProperties": {"type": "string"}}
TREE = {"$ref": "#/$defs/node"}
DEFINED = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "below": {"type": "array", "items": TREE}},
            "required": ["name"],
        }
    }
}
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
PAIR_OR_NUMBER = {
    "anyOf": [
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]},
        {"type": "object", "properties": {"a": NUMBER}},
    ]
}
WORDS_OR_NUMBER = {
    "anyOf": [{"type": "array", "items": TEXT, "minItems": 2}, {"type": "array", "items": NUMBER}]
}
LEAF = "@item>@name>2@/name>@below>@/below>@/item>"
READ = [
    (STRINGS, "plain", "plain"),
    (STRINGS, "42", "42"),
    (STRINGS, "", ""),
    (STRINGS, '["a"]', ["a"]),
    (STRINGS, "@item>a@/item>@item>1@/item>", ["a", "1"]),
    (NULLABLE_POINT, "null", None),
    (NULLABLE_POINT, "@x>-3@/x>", {"x": -3}),
    (SHAPES, "@kind>text@/kind>@v>42@/v>", {"kind": "text", "v": "42"}),
    (SHAPES, "@kind>number@/kind>@v>42@/v>", {"kind": "number", "v": 42}),
    (SHAPES, "@v>42@/v>@kind>text@/kind>", {"v": "42", "kind": "text"}),
    (MAP, "@a/b.py>1@/a/b.py>@two words>@/two words>", {"a/b.py": "1", "two words": ""}),
    (MAP, "@item>1@/item>", {"item": "1"}),
    (MAP, "", {}),
    ({"type": "array", "items": {"type": ["integer", "null"]}}, "@item>1@/item>@item>null@/item>", [1, None]),
    ({"type": "array"}, "", []),
    ({"type": "array", "items": {"type": "array", "items": MAP}}, "@item>@item>@/item>@/item>", [[{}]]),
    ({"type": "array", "prefixItems": [{"type": "string"}]}, "@item>1@/item>@item>1@/item>", ["1", 1]),
    ({"enum": ["1", 1, ["1"], [1], {"a": True}, {}]}, "@item>1@/item>", ["1"]),
    ({"enum": ["1", 1, [True], {"a": True}]}, "@a>true@/a>", {"a": True}),
    ({"enum": ["x", 1, [True], {}]}, "", {}),
    ({"enum": ["x", 1, [True], {}]}, "1", 1),
    (PAIR_OR_NUMBER, "@a>1@/a>@b>2@/b>", {"a": "1", "b": "2"}),
    (WORDS_OR_NUMBER, "@item>1@/item>@item>2@/item>", ["1", "2"]),
    ({"type": "object", "anyOf": [{"properties": {"item": True}}]}, "@item>1@/item>", {"item": 1}),
    ({}, "@item>1@/item>@item>a@/item>", [1, "a"]),
    ({}, "@a>1@/a>@item>true@/item>", {"a": 1, "item": True}),
    ({}, "@a>@b>@item>null@/item>@/b>@/a>", {"a": {"b": [None]}}),
    ({}, "3.10", 3.10),
    ({}, "", ""),
    (TREE, f"@name>1@/name>@below>{LEAF}@/below>", {"name": "1", "below": [{"name": "2", "below": []}]}),
    ({"type": ["string", "object"]}, "<b>]<]minimax</b>", "<b>]<]minimax</b>"),
    ({"type": ["string", "object"]}, "]", "]"),
    ({"type": "string"}, "<v>\n</v> & ]<]minimax[>", "<v>\n</v> & ]<]minimax[>"),
]  # fmt: skip


@KINDS
@pytest.mark.parametrize(("schema", "written", "expected"), READ)
def test_values_have_the_types_of_the_schema(kind: str, schema: Any, written: str, expected: Any) -> None:
    for trusted in (True, False):
        found = value(schema, written, trusted=trusted, kind=kind, **DEFINED)
        assert json.dumps(found) == json.dumps(expected)


@pytest.mark.parametrize(
    ("schema", "written", "expected"),
    [(PAIR_OR_NUMBER, "@a>1@/a>", {"a": 1}), (WORDS_OR_NUMBER, "@item>1@/item>", [1])],
)
def test_the_branch_of_a_union_that_fits_counts(schema: Any, written: str, expected: Any) -> None:
    """Where the marker is text, what may be text in one branch is no number in another: see ``nested``."""
    assert value(schema, written, kind="inner") == expected
    assert value(schema, written, trusted=False) == expected


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (POINT, ["@x>1@/x>"], ["", "1", "@x>a@/x>", "@y>1@/y>", "@x>1@/y>", "@x>1@/x>@x>1@/x>", "@x>@/x>"]),
        (MAP, ["@a>@/a>"], ["x", "@/a>x@//a>", "@>x@/>", '@a"b>x@/a"b>']),
        (STRINGS, ["x", "", "@item>@/item>"], ["@a>x@/a>", "x@item>@/item>", "@item>x@/item>y"]),
        ({"type": "array", "minItems": 1}, ["@item>x@/item>"], ["", "x", "@entry>x@/entry>"]),
        ({"type": "integer", "maximum": 5}, ["5", "-7"], ["6", "05", " 5", ""]),
        ({"type": "boolean"}, ["true", "false"], ["True", "1", ""]),
        ({"type": ["integer", "null"]}, ["null", "3"], ["", "none"]),
        ({"enum": ["a", "a]", "a]<"]}, ["a", "a]", "a]<"], ["a]<]", ""]),
        ({"enum": [["a", 1], {"k": []}]}, ["@item>a@/item>@item>1@/item>", "@k>@/k>"], ["@item>a@/item>"]),
        ({"type": ["string", "array"], "minLength": 1, "minItems": 1}, ["x", "@item>@/item>"], [""]),
        (TREE, [f"@name>a@/name>@below>{LEAF}@/below>"], ["@name>a@/name>@below>@item>@/item>@/below>"]),
    ],
)  # fmt: skip
@KINDS
def test_schemas_hold(kind: str, schema: Any, good: list[str], bad: list[str]) -> None:
    model = Model(M3, kind, {"v": schema}, required=["v"], **DEFINED)
    assert nested_extent(model.parameters).exact
    assert [each for each in good if not model.allows(call(f"@v>{each}@/v>"))] == []
    assert [each for each in bad if model.allows(call(f"@v>{each}@/v>"))] == []


@KINDS
@pytest.mark.parametrize("schema", [STRINGS, NULLABLE_POINT, SHAPES, TREE, {}, {"enum": ["", [], [[1]], 2]}])
def test_whatever_is_let_through_is_read_and_valid(kind: str, schema: Any) -> None:
    model = Model(M3, kind, {"v": schema}, required=["v"], **DEFINED)
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"]} | DEFINED
    verifier = prepared(json.dumps(whole), "tools", as_object=True).verifier
    assert nested_extent(model.parameters).exact
    written = ("item", "x", "name", "below", "kind>text", "kind>number", "v>42", "null")
    hints = [f"{TAG}{each}" for each in written] + [
        TAG,
        f"{TAG}/item>",
        f"42{TAG}/v>",
        "null",
        f"{TAG}k>1{TAG}/k>{TAG}/v>",
    ]
    read = [model.read_tokens(each) for each in model.language.samples(40, 7, hints)]
    assert len(read) > 1
    for arguments in read:
        assert verifier.failure(json.dumps(arguments)) is None, arguments


@pytest.mark.parametrize(
    ("schema", "written", "expected"),
    [
        (POINT, '{"x": 1}', {"x": 1}),
        (POINT, "\n  @x>\n1\n@/x>\n", {"x": 1}),
        (POINT, "@y>1@/y>", {"y": 1}),
        (POINT, " \n", {}),
        ({"type": "array", "items": {"type": "string"}}, "@tag>1@/tag>@tag>2@/tag>", ["1", "2"]),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "array"}, "", []),
        ({"type": "string"}, "a @b>c@/b> d", f"a {TAG}b>c{TAG}/b> d"),
        ({"type": "string"}, "@b>@c>@/c>@/b>", f"{TAG}b>{TAG}c>{TAG}/c>{TAG}/b>"),
        ({"type": "integer"}, "@b>1@/b>", {"b": 1}),
        ({"type": "boolean"}, "True", True),
        ({"type": "null"}, "", None),
        ({}, "a @b>c@/b>", f"a {TAG}b>c{TAG}/b>"),
        (False, "@b>@/b>", {"b": ""}),
        (SHAPES, "@kind>none@/kind>@v>x@/v>", {"kind": "none", "v": "x"}),
        ({"enum": [[1]]}, "@item>2@/item>", [2]),
    ],
)
def test_nothing_is_lost_where_nothing_constrains(schema: Any, written: str, expected: Any) -> None:
    assert value(schema, written, trusted=False) == expected


def test_a_key_that_comes_twice_counts_once() -> None:
    assert value(MAP, "@a>1@/a>@b>2@/b>@a>@c>3@/c>@/a>", trusted=False) == {"a": "1", "b": "2"}
    assert value(MAP, "@a>1@/a>@a>2@/a>") == {"a": "1"}
    assert value({"anyOf": [MAP, {"type": "null"}]}, "@a>1@/a>@a>2@/a>") == {"a": "1"}


def test_a_free_key_closes_with_any_where_the_constraint_wrote_it() -> None:
    """No grammar without memory can repeat it. What opened the element is its name."""
    assert value(MAP, "@a>1@/b>") == {"a": "1"}
    with pytest.raises(AssertionError):
        value(MAP, "@a>1@/b>", trusted=False)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("schema", [{}, TREE, {"type": "array"}])
def test_no_depth_is_too_deep(schema: Any, trusted: bool) -> None:
    model = Model(M3, "text", {"v": schema}, **DEFINED)
    keys = ["below", "item"] if schema is TREE else ["item"]
    depth = 3000
    tags = [TAG + key + ">" for key in keys], [TAG + "/" + key + ">" for key in reversed(keys)]
    text = call(f"@v>{''.join(tags[0]) * depth}{''.join(tags[1]) * depth}@/v>")
    parser = TurnParser(model.bound, ["f"], trusted=trusted, new_id=str, parameters={"f": model.parameters})
    (line,) = folded(parser.feed(-1, text.encode()) + parser.flush())
    assert line.startswith('call f {"v": ')
    assert line.count("[") >= depth - 1


def test_texts_stream_at_any_depth() -> None:
    items = {"type": "object", "properties": {"old": {"type": "string"}, "n": {"type": "integer"}}}
    model = Model(M3, "text", {"edits": {"type": "array", "items": items}, "any": {}, "more": {}})
    parser = TurnParser(model.bound, ["f"], new_id=str, parameters={"f": model.parameters})

    def sent(written: str) -> str:
        events = parser.feed(-1, written.replace("@", TAG).encode())
        return "".join(getattr(each, "text", "") for each in events)

    assert sent('@tool_call>\n@invoke name="f">@edits>') == '{"edits": '
    assert sent("@item>@old>def ") == '[{"old": "def '
    assert sent("f(): ]<]mini") == "f(): "
    assert sent("mum@/old>") == ']<]minimum"'
    assert sent("@n>4@/n>@/item>@/edits>") == ', "n": 4}]'
    assert sent("@any>some ") == ', "any": "some '
    assert sent("text@/any>@more>@a>") == 'text", "more": '
    assert sent("x@/a>@/more>") == '{"a": "x"}'


@pytest.mark.parametrize(
    ("schema", "exact"),
    [
        (SHAPES, True),
        (STRINGS, True),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, False),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "minProperties": 1}, False),
        ({"type": "array", "contains": {"const": 1}}, False),
        ({"type": "string", "anyOf": [POINT, {"type": "string"}]}, False),
    ],
)
def test_what_is_held_to(schema: Any, exact: bool) -> None:
    assert nested_extent(parameters({"type": "object", "properties": {"v": schema}})).exact is exact


def test_what_is_not_held_to_is_read_all_the_same() -> None:
    assert value({"type": "string", "anyOf": [POINT, {"minLength": 1}]}, "x") == "x"


@pytest.mark.parametrize(
    ("key", "said"), [("a/b", True), ("a b", True), ("/a", False), ("a>", False), ("", False)]
)
def test_keys_that_can_be_written(key: str, said: bool) -> None:
    made = prepared(
        json.dumps({"type": "object", "properties": {"v": {"type": "object", "required": [key]}}}),
        "tools",
        as_object=True,
    )
    assert (nested_extent(made.parameters).unwritable == ()) is said
    if said:
        model = Model(M3, "text", {key: {"type": "integer"}}, required=[key])
        assert model.read(model.text(json.dumps({key: 1}))) == {key: 1}
        assert model.allows(model.text(json.dumps({key: 1})))


def test_the_template_is_known() -> None:
    assert OWN["MiniMax-M3"] == "minimax-m3"
    assert detect("{{ tools }}]<]minimax[>[ <invoke name=").name == "minimax-m3"


@settings(max_examples=25, deadline=None)
@given(schemas, st.integers(0, 1000))
def test_exact_tools_get_valid_values_only(schema: dict[str, Any], seed: int) -> None:
    """Of random schemas: what is written of any value, and random answers."""
    definitions = schema.pop("$defs", {})
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": definitions}
    try:
        made = prepared(json.dumps(whole), "tools", as_object=True)
        model = Model(M3, "text", {"v": schema}, required=["v"], **{"$defs": definitions})
    except InvalidSchema:
        return
    extent = nested_extent(made.parameters)
    if not made.lowered.exact or not extent.exact or extent.unwritable:
        return
    universe = (json.dumps({"v": value}, ensure_ascii=False) for value in UNIVERSE)
    written = [model.text(each) for each in universe]
    answers = [model.language.ids(each) for each in written if model.allows(each)]
    answers += model.language.samples(3, seed, [TAG, f"{TAG}item>", f"{TAG}/v>"])
    for answer in answers:
        found = json.dumps(model.read_tokens(answer))
        assert made.verifier.failure(found) is None, found
        model.read_tokens(answer, trusted=False)
