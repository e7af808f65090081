import json

import pytest
from hypothesis import HealthCheck, given, settings
from llguidance import LLMatcher
from schemas import BYTES, NAMES, UNIVERSE, holds, holds_some_order, matcher, schemas, walk

from server.errors import InvalidSchema
from server.schema.cache import Cache, Prepared
from server.schema.lower import Lowered

COMPLETE = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def prepared(schema: object, *, as_object: bool = False) -> Prepared:
    return Cache().prepared(json.dumps(schema), "p", as_object)


def lowered(schema: object, *, as_object: bool = False) -> Lowered:
    return prepared(schema, as_object=as_object).lowered


def samples(made: Prepared, count: int = 3) -> list[str]:
    start = matcher(made.lowered)
    texts = (walk(start, seed) for seed in range(count))
    return [text for text in texts if text is not None]


def unsatisfiable(error: InvalidSchema) -> None:
    assert error.code == "schema_unsatisfiable"


# Properties.


@COMPLETE
@given(schemas)
def test_exact_is_exact_and_valid_values_can_be_generated(schema: object) -> None:
    try:
        made = prepared(schema)
    except InvalidSchema as error:
        unsatisfiable(error)
        return
    for text in samples(made):
        failure = made.verifier.failure(text)
        assert failure is None or (not made.lowered.exact and failure.keyword != "json"), text
    start = matcher(made.lowered)
    for value in UNIVERSE:
        valid = made.verifier.failure(json.dumps(value)) is None
        generable = holds_some_order(start, value)
        assert generable or not valid, f"{value!r} is valid and cannot be generated"
        assert valid or not generable or not made.lowered.exact, f"{value!r} can be generated"


@COMPLETE
@given(schemas)
def test_arguments_are_objects_and_exact_ones_valid(schema: object) -> None:
    try:
        made = prepared(schema, as_object=True)
    except InvalidSchema as error:
        unsatisfiable(error)
        return
    for text in samples(made, 2):
        assert text.startswith("{")
        assert made.verifier.failure(text) is None or not made.lowered.exact, text


# What is exact, by keyword: (schema, canonical texts within, texts not within).

EXACT = {
    "type": ({"type": ["string", "null"]}, ['"x"', "null"], ["1", "true"]),
    "integer": ({"type": "integer"}, ["0", "-3", "1234567890123456789012"], ["1.0", "1.5", "1e2", "01"]),
    "number": ({"type": "number"}, ["0", "-1.5", "1e9", "1.5E-3"], ['"1"', ".5", "1."]),
    "bounds": ({"type": "integer", "minimum": 3, "maximum": 12}, ["3", "12"], ["2", "13", "-3"]),
    "exclusive": ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "5"], ["0", "0.0", "-1"]),
    "fractions": ({"type": "number", "minimum": 0.5, "maximum": 1.5}, ["0.5", "1", "1.5"], ["0.4", "1.6"]),
    "multiple": ({"type": "number", "multipleOf": 0.1}, ["0.3", "1"], ["0.33"]),
    "largest": ({"type": "integer", "maximum": 2**63 - 1}, ["0", str(2**63 - 1)], [str(2**63)]),
    "doubles": (
        {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1},
        ["0"],
        [str(2**53), str(-(2**53))],
    ),
    "const": ({"const": {"a": [1, None, "é"]}}, ['{"a": [1, null, "é"]}'], ["{}"]),
    "enum": ({"enum": ["a", 1, None, [1]]}, ['"a"', "1", "null", "[1]"], ['"b"', "2"]),
    "enum beside type": ({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    "length": ({"type": "string", "minLength": 2, "maxLength": 3}, ['"éé"', '"𝄞𝄞"'], ['"a"', '"abcd"']),
    "pattern": ({"type": "string", "pattern": '^[^"]+$'}, ['"a"', '"a\\nb"'], ['"\\""', '""']),
    "unanchored": ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
    "date": ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"x"']),
    "items": (
        {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        ["[]", "[1, 2]"],
        ["[1, 2, 3]"],
    ),
    "prefix": (
        {"prefixItems": [{"const": 1}], "items": False, "type": "array"},
        ["[]", "[1]"],
        ["[2]", "[1, 1]"],
    ),
    "open": ({"properties": {"a": {"type": "null"}}, "type": "object"}, ['{"b": 1}'], ['{"a": 1}']),
    "shut": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        ["{}", '{"a": 1}'],
        ['{"b": 1}'],
    ),
    "required": ({"type": "object", "required": ["a"]}, ['{"a": 1, "b": 2}'], ["{}", '{"b": 1}']),
    "keys by pattern": (
        {"type": "object", "patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
        ['{"xy": null}'],
        ['{"y": null}', '{"x": 1}'],
    ),
    "any key": ({"type": "object", "patternProperties": {"^.*$": {}}}, ['{"é": [1]}'], []),
    "names": ({"type": "object", "propertyNames": {"enum": ["a"]}}, ['{"a": 1}'], ['{"b": 1}']),
    "dependent": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b": 1}', '{"a": 1, "b": 2}'],
        ['{"a": 1}'],
    ),
    "if": (
        {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "integer"}},
        ['"a"', "1"],
        ['"ab"', "null"],
    ),
    "not": (
        {"type": "string", "not": {"enum": ["a", '"', "\\"]}},
        ['"b"', '"aa"', '""'],
        ['"a"', '"\\""', '"\\\\"'],
    ),
    "oneOf": (
        {"type": "integer", "oneOf": [{"minimum": 5}, {"maximum": 7}]},
        ["4", "8"],
        ["5", "7"],
    ),
    "allOf": ({"allOf": [{"minimum": 2}, {"maximum": 3}], "type": "integer"}, ["2", "3"], ["1", "4"]),
    "nullable": ({"type": "string", "nullable": True}, ["null", '"x"'], ["1"]),
    "recursion": (
        {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"},
        ["[]", "[[], [[]]]"],
        ["[1]"],
    ),
    "draft 4": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "minimum": 1,
            "exclusiveMinimum": True,
            "const": 5,
        },
        ["2"],
        ["1"],
    ),
    "draft 7 siblings": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"type": "null"}}}
        | {"properties": {"x": {"$ref": "#/definitions/a", "type": "string"}}},
        ['{"x": null}'],
        ['{"x": "s"}'],
    ),
    "false property": (
        {"type": "object", "properties": {"a": False, "b": {}}},
        ['{"b": 1}', "{}"],
        ['{"a": 1}'],
    ),
    "names like keywords": (
        {"type": "object", "properties": {"$ref": {"type": "string"}, "enum": {"type": "null"}}},
        ['{"$ref": "x", "enum": null}'],
        ['{"$ref": 1}'],
    ),
    "names alike": (
        {
            "type": "object",
            "properties": {"a-b": {"type": "null"}, "a.b": {"type": "string"}, "名": {"const": 1}},
        },
        ['{"a-b": null, "a.b": "", "名": 1}'],
        ['{"a-b": ""}', '{"a.b": null}', '{"名": 2}'],
    ),
    "anything": ({}, ["1", '{"a": [null]}', '"x"'], ["[1,2]", "nul"]),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_keywords(name: str) -> None:
    schema, within, outside = EXACT[name]
    made = prepared(schema)
    assert made.lowered.exact, made.lowered.loosened
    start = matcher(made.lowered)
    for text in within:
        assert holds(start, text), text
        assert made.verifier.failure(text) is None, text
    for text in outside:
        assert not holds(start, text), text


# What is left to the verifier: (schema, keyword, a valid text, an invalid text that can be generated).

LOOSENED = {
    "unique": ({"type": "array", "uniqueItems": True}, "uniqueItems", "[1, 2]", "[1, 1]"),
    "contains": ({"type": "array", "contains": {"const": 1}}, "contains", "[0, 1]", "[0]"),
    "look-around": ({"type": "string", "pattern": "^(?!a)"}, "pattern", '"b"', '"a"'),
    "long": ({"type": "string", "maxLength": 100_000}, "maxLength", '"b"', None),
    "many": ({"type": "array", "maxItems": 10_000}, "maxItems", "[1]", None),
    "far bound": ({"type": "integer", "maximum": 2**70}, "maximum", "3", str(2**71)),
    "far lower bound": ({"type": "integer", "minimum": -(2**63)}, "minimum", "3", str(-(2**63) - 1)),
    "control character": ({"const": "a\x01"}, "const", None, '"x"'),
    "huge const": ({"const": 2**70}, "const", str(2**70), "1"),
    "const of 64 bits": ({"const": 2**63}, "const", str(2**63), "1"),
    "enum of 64 bits": ({"enum": [12345678901234567890]}, "enum", "12345678901234567890", "1"),
    "digits": ({"type": "number", "multipleOf": 0.0000001}, "multipleOf", "1", None),
    "next to a fraction": (
        {"type": "number", "exclusiveMinimum": 1, "maximum": 1.5},
        "exclusiveMinimum",
        "1.2",
        "1",
    ),
    "next to a fraction elsewhere": (
        {"allOf": [{"exclusiveMaximum": 0}, {"type": "number", "minimum": -0.5}]},
        "exclusiveMaximum",
        "-0.2",
        "0",
    ),
    "format": ({"type": "string", "format": "iri"}, "format", '"http://é"', '"{"'),
    "content": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "string",
            "contentMediaType": "application/json",
        },
        "contentMediaType",
        '"{}"',
        '"{"',
    ),
    "counted keys": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2},
        "minProperties",
        '{"a": 1, "b": 2}',
        '{"a": 1}',
    ),
    "patterns that meet": (
        {"type": "object", "patternProperties": {"a": {"type": "null"}, "b": {"type": "null"}}},
        "patternProperties",
        '{"ab": null}',
        '{"ab": 1}',
    ),
    "unevaluated": (
        {"type": "object", "anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        "unevaluatedProperties",
        '{"a": 1}',
        '{"b": 1}',
    ),
    "dynamic": (
        {"$dynamicAnchor": "x", "type": ["array", "null"], "items": {"$dynamicRef": "#x"}},
        "$dynamicRef",
        "[null]",
        "[1]",
    ),
}


@pytest.mark.parametrize("name", LOOSENED)
def test_loosened_keywords(name: str) -> None:
    schema, keyword, valid, invalid = LOOSENED[name]
    made = prepared(schema)
    assert not made.lowered.exact
    assert keyword in {each.keyword for each in made.lowered.loosened}
    assert all(each.reason for each in made.lowered.loosened)
    start = matcher(made.lowered)
    if valid is not None:
        assert holds(start, valid)
        assert made.verifier.failure(valid) is None
    if invalid is not None:
        assert holds(start, invalid)
        assert made.verifier.failure(invalid) is not None


def test_a_whole_bound_next_to_no_fraction_stays_exact() -> None:
    schema = {"type": "object", "properties": {"a": {"exclusiveMinimum": 0}, "b": {"maximum": 0.5}}}
    assert lowered(schema).exact
    assert not lowered(schema | {"allOf": [True]}).exact


@pytest.mark.parametrize(
    ("schema", "loosened"),
    [
        (
            {
                "oneOf": [
                    {
                        "properties": {f"p{n}": {"enum": ["a", "b", "c"]} for n in range(k, k + 8)},
                        "minProperties": 1,
                    }
                    for k in range(8)
                ],
                "type": "object",
                "additionalProperties": {"$ref": "#"},
            },
            "oneOf",
        ),
        ({"type": "string", "pattern": "^(?:(?:a{1,30}b?){1,30}c){1,30}$"}, "pattern"),
        (
            {
                "type": "object",
                "allOf": [{"patternProperties": {f"{n}.*{n}": {"type": "null"}}} for n in range(40)],
            },
            "allOf",
        ),
    ],
)
def test_what_is_too_much_for_the_engine_is_given_up(schema: object, loosened: str) -> None:
    made = lowered(schema, as_object=isinstance(schema, dict) and schema["type"] == "object")
    assert matcher(made)
    assert made.exact or loosened in {each.keyword for each in made.loosened}


# Form.


def test_json_is_written_as_models_write_it() -> None:
    start = matcher(lowered({"type": "object"}))
    assert holds(start, '{"a": 1, "b": [1, 2]}')
    for text in ('{"a":1}', '{"a": 1,"b": 2}', '{ "a": 1}', '{"a": 1}\n'):
        assert not holds(start, text)


def test_keys_come_in_the_order_of_properties_then_others() -> None:
    start = matcher(lowered({"type": "object", "properties": {"b": {}, "a": {}}, "required": ["z"]}))
    assert holds(start, '{"b": 1, "a": 1, "z": 1, "q": 1}')
    assert not holds(start, '{"a": 1, "b": 1, "z": 1}')
    assert not holds(start, '{"b": 1, "b": 1, "z": 1}')


@pytest.mark.parametrize("name", NAMES)
def test_a_declared_key_cannot_be_spelled_in_another_way(name: str) -> None:
    start = matcher(lowered({"type": "object", "properties": {name: {"type": "null"}}}))
    escaped = "".join(f"\\u{ord(each):04x}" for each in name)
    assert holds(start, json.dumps({name: None}, ensure_ascii=False))
    assert not holds(start, f'{{"{escaped}": 1}}')


# Tool arguments.

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "text", "admitted"),
    [
        (POINT, '{"x": 1}', True),
        (POINT, '{"y": 1}', False),
        ({"type": "object"}, '{"y": 1}', True),
        ({"type": "object", "properties": {}}, '{"y": 1}', False),
        ({"type": "object", "properties": {}}, "{}", True),
        ({"properties": {"a": {"type": "object", "properties": {}}}}, '{"a": {"y": 1}}', True),
        (POINT | {"additionalProperties": {"type": "integer"}}, '{"y": 1}', True),
        (POINT | {"patternProperties": {"^y": {}}}, '{"y": 1}', True),
        (POINT | {"required": ["y"]}, '{"y": 1}', True),
        (POINT | {"minProperties": 1}, '{"y": 1}', True),
        ({"properties": {"a": POINT}}, '{"a": {"y": 1}}', False),
        ({"properties": {"a": {"items": POINT, "type": "array"}}}, '{"a": [{"y": 1}]}', False),
        ({"properties": {"a": {"$ref": "#/$defs/p"}}, "$defs": {"p": POINT}}, '{"a": {"y": 1}}', False),
        ({"properties": {"a": {"anyOf": [POINT, {"type": "null"}]}}}, '{"a": {"y": 1}}', False),
        ({"allOf": [POINT, {"properties": {"y": {"type": "null"}}}]}, '{"x": 1, "y": null}', True),
        (POINT | {"anyOf": [{"required": ["y"]}, {"required": ["x"]}]}, '{"y": 1}', True),
        (
            {"oneOf": [POINT, {"properties": {"y": {"type": "null"}}, "type": "object"}]},
            '{"x": 1, "y": 1}',
            True,
        ),
    ],
)
def test_declared_arguments_get_no_undeclared_ones(schema: object, text: str, admitted: bool) -> None:
    made = prepared(schema, as_object=True)
    assert holds(matcher(made.lowered), text) is admitted
    assert made.verifier.failure(text) is None


def test_a_response_keeps_the_keys_its_schema_leaves_open() -> None:
    assert holds(matcher(lowered(POINT)), '{"y": 1}')


def test_boolean_and_empty_schemas_of_tools_are_any_object() -> None:
    for schema in (True, {}, {"type": ["object", "null"]}):
        start = matcher(lowered(schema, as_object=True))
        assert holds(start, '{"a": {}}')
        assert not holds(start, "null")


def test_literals_are_what_a_model_may_be_made_to_write() -> None:
    schema = {
        "type": "object",
        "properties": {"<a>": {"const": "<b>"}, "p": {"pattern": "^<\\|e\\|>$"}},
        "required": ["<c>"],
        "additionalProperties": {"enum": [["<d>"], {"<f>": 1}]},
        "patternProperties": {"^<\\|g\\|>": {}},
        "description": "<not this>",
    }
    literals = lowered(schema).literals
    for marker in ("<a>", "<b>", "<c>", "<d>", "<|e|>", "<f>", "<|g|>"):
        assert any(marker in each for each in literals), marker
    assert not any("<not this>" in each for each in literals)


def test_sixty_four_tools_compile_together() -> None:
    tools = [
        lowered(
            {"type": "object", "properties": {f"p{n}_{m}": {"type": "string"} for m in range(10)}},
            as_object=True,
        )
        for n in range(64)
    ]
    assert all(tool.exact for tool in tools)
    rules = [f"a{n}: %json {tool.text}" for n, tool in enumerate(tools)]
    text = "\n".join([f"start: {' | '.join(f'a{n}' for n in range(64))}", *rules])
    assert not LLMatcher(BYTES, text, log_level=0).is_error()
