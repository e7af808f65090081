"""What a model is told of its tools."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from server.dialects.detect import reads
from server.dialects.dialect import Dialect
from server.dialects.form import Notation, span_form
from server.dialects.table import DIALECTS
from server.prompt.history import mapped
from server.prompt.tools import EXPANDED_NODES, expanded, format_text, shown_tools, tools_text
from server.turn import ResponseFormat, Tool, ToolCall


def shown(parameters: Any, **options: bool) -> Any:
    tool = Tool("f", parameters=json.dumps(parameters) if parameters is not None else None)
    (rendered,) = shown_tools([tool], str, **options)
    return rendered["function"]["parameters"]


def test_a_tool_is_shown_whole_and_in_order() -> None:
    schema = '{"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": [1, "é"]}}}'
    (rendered,) = shown_tools([Tool("f", "does", schema)], str)
    assert rendered["type"] == "function"
    assert rendered["function"]["description"] == "does"
    assert json.dumps(rendered["function"]["parameters"], ensure_ascii=False) == schema


@pytest.mark.parametrize("parameters", [None, {}, True, {"type": ["object", "null"]}, {"type": "object"}])
def test_parameters_are_an_object_schema_at_least(parameters: Any) -> None:
    found = shown(parameters)
    assert (found["type"], found["properties"]) == ("object", {})
    assert shown_tools([Tool("f")], str)[0]["function"]["description"] == ""


def test_every_text_of_a_tool_is_hidden() -> None:
    schema = {"type": "object", "properties": {"k": {"enum": ["v"], "description": "d"}}}
    (rendered,) = shown_tools([Tool("f", "d", json.dumps(schema))], lambda text: f"({text})")
    function = {"name": "f", "description": "d", "parameters": schema}
    assert rendered == {"type": "function", "function": mapped(function, lambda text: f"({text})")}


def test_references_are_followed() -> None:
    schema = {
        "properties": {
            "a": {"$ref": "#/$defs/x~1y", "description": "own"},
            "b": {"items": [{"$ref": "#/$defs/x~1y"}]},
        },
        "$defs": {"x/y": {"type": "string", "description": "general"}},
    }
    assert expanded(schema)["properties"]["a"] == {"type": "string", "description": "own"}
    whole = {"properties": {"a": {"items": [{"const": 1}]}, "b": {"$ref": "#/properties/a/items/0"}}}
    assert expanded(whole)["properties"]["b"] == {"const": 1}


def test_a_schema_inside_itself_is_shown_some_levels_deep() -> None:
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}}
    text = json.dumps(expanded(schema))
    assert text.count("next") == 3
    assert "$ref" not in text


UNFOLLOWED = {
    "elsewhere": {"$ref": "https://example.com/schema"},
    "missing": {"$ref": "#/$defs/none"},
    "no schema": {"$ref": "#/title", "title": "x"},
    "too wide": {
        "properties": {str(n): {"$ref": "#/$defs/a"} for n in range(50)},
        "$defs": {"a": {"enum": list(range(EXPANDED_NODES // 40))}},
    },
    "too deep": {
        "$ref": "#/$defs/0",
        "$defs": {str(n): {"items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(300)} | {"300": {}},
    },
}


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_references_that_cannot_be_followed_stay(name: str) -> None:
    assert expanded(UNFOLLOWED[name]) == UNFOLLOWED[name]


def test_null_is_left_out_where_a_template_trips_over_it() -> None:
    schema = {
        "properties": {
            "a": {"type": ["string", "null"]},
            "b": {"type": ["string", "integer", "null"]},
            "c": {"type": "null"},
            "d": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "description": "own"},
            "e": {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
        }
    }
    assert shown(schema)["properties"] == schema["properties"]
    assert shown(schema, null_types=False)["properties"] == {
        "a": {"type": "string"},
        "b": {"type": ["string", "integer"]},
        "c": {"type": "string"},
        "d": {"type": "integer", "minimum": 1, "description": "own"},
        "e": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    }


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda row: row.name)
def test_the_described_form_of_a_call_is_what_the_parser_reads(dialect: Dialect) -> None:
    tools = shown_tools([Tool("get", "gets"), Tool("put")], str)
    text = tools_text(tools, dialect)
    offered = text.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in offered] == tools
    form = text.split("</tools>")[1].split(":\n", 1)[1]
    example = form.split("\nSeveral calls")[0].split("\nThe result")[0]
    value = '"word"' if span_form(dialect).notation is Notation.JSON else "word"
    call = example.replace("FUNCTION", "get").replace("PARAMETER", "x").replace("VALUE", value)
    row = dataclasses.replace(dialect, in_history=None)
    assert reads(row, call, (ToolCall("", "get", '{"x": "word"}'),))


def test_the_form_of_an_answer() -> None:
    assert format_text(ResponseFormat(), str, calls=True) is None
    plain = format_text(ResponseFormat("json_object"), str, calls=False)
    assert plain == "Answer with one JSON object and nothing else."
    form = ResponseFormat("json_schema", "n", '{"type": "é"}')
    asked = format_text(form, lambda text: f"({text})", calls=True)
    assert asked is not None
    assert asked.startswith("If you do not call a function, answer")
    assert asked.endswith('{"(type)":"(é)"}')
