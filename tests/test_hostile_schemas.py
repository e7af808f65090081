"""Schemas that took other servers down, or made them answer without their constraint, under the numbers of
our list of such faults, with what is right: refused in time with place and reason, or held to; and the next
request goes on as ever.
"""

from __future__ import annotations

import itertools
import json

import pytest
from conformance import answered
from reported import Calls, Requests, inside, tool

from server.api import body, limits
from server.api.chat_request import Served, decode
from server.errors import InvalidRequest, InvalidSchema
from server.schema.cache import Cache, Prepared
from server.schema.check import ENUM_LIMIT, PATTERN_NESTING_LIMIT, PROPERTY_LIMIT
from server.schema.document import DEPTH_LIMIT, TEXT_LIMIT
from server.schema.problem import Problem

FIELD = "tools[0].function.parameters"


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Requests:
    return Requests(tmp_path_factory.mktemp("requests"))


def taken(schema: object) -> Prepared:
    made = answered(schema)
    assert isinstance(made, Prepared), made
    return made


def refused(schema: object) -> Problem:
    made = answered(schema)
    assert isinstance(made, Problem)
    return made


def wide(name: str, count: int) -> dict[str, object]:
    """An object with many optional properties."""
    return {"type": "object", "properties": {f"{name}_{n}": {"type": "null"} for n in range(count)}}


def asked(**fields: object) -> InvalidRequest:
    """How a body with these fields is refused."""
    with pytest.raises(InvalidRequest) as caught:
        decode(
            {"messages": [{"role": "user", "content": "hi"}], **fields}, Served(("tiny",), vocabulary=1000)
        )
    return caught.value


def offered(count: int) -> list[object]:
    return [{"type": "function", "function": {"name": f"f{number}"}} for number in range(count)]


# Malformed.


@pytest.mark.parametrize("name", ["something", "dict", "any"])
def test_j1_an_unknown_type(requests: Requests, name: str) -> None:
    error = requests.refusal(inside({"type": name}))
    assert (error.status, error.param) == (400, f"{FIELD}.properties.a.type")


@pytest.mark.parametrize("pattern", ["{{ x }}", "(", "[", "a**", "a)", "(?<n", "\\", "[z-a]", "a{3,2}"])
def test_j1_a_broken_pattern(requests: Requests, pattern: str) -> None:
    error = requests.refusal(inside({"type": "string", "pattern": pattern}))
    assert (error.status, error.param) == (400, f"{FIELD}.properties.a.pattern")


@pytest.mark.parametrize("schema", [123, None, [], "x"])
def test_j2_what_is_no_schema(schema: object) -> None:
    error = asked(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    assert (error.status, error.param) == (400, "response_format.json_schema.schema")


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"type": 123}, "", "type"),
        ({"type": "hiccup"}, "", "type"),
        ({"properties": {"foo": "bar"}}, "/properties", "foo"),
        (inside({"type": "string", "pattern": "("}), "/properties/a", "pattern"),
    ],
)
def test_j2_a_malformed_response_format(schema: object, pointer: str, keyword: str) -> None:
    problem = refused(schema)
    assert (problem.code, problem.pointer, problem.keyword) == ("invalid_schema", pointer, keyword)


def test_j3_no_request_depends_on_those_before_it(requests: Requests) -> None:
    good = [inside({"type": "string"}), inside({"pattern": "^x$"})]
    bad = [inside({"pattern": "("}), inside({"$ref": "#/none"})]
    for order in itertools.permutations([*good, *bad]):
        for parameters in order:
            if parameters in bad:
                assert requests.refusal(parameters).code == "invalid_schema"
            else:
                assert requests.calls(parameters).allow({"a": "x"})


# Deep.

DEPTHS = (50, 64, 65, 500, 1_000, 3_000, 100_000)


@pytest.mark.parametrize("depth", DEPTHS)
def test_j4_lists_in_a_body(depth: int) -> None:
    text = b'{"tools": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    if depth <= limits.JSON_DEPTH:
        assert body.parse(text)
    else:
        with pytest.raises(InvalidRequest, match=str(limits.JSON_DEPTH)):
            body.parse(text)


WRAPPED: dict[str, tuple[str, int]] = {
    "objects": ('{"type": "object", "properties": {"a": #}}', 2),
    "choices": ('{"anyOf": [#]}', 2),
    "items": ('{"items": #}', 1),
    "all": ('{"allOf": [{"type": "object"}, #]}', 2),
}


@pytest.mark.parametrize("shape", WRAPPED)
@pytest.mark.parametrize("depth", DEPTHS)
def test_j4_schemas_in_schemas(shape: str, depth: int) -> None:
    outer, levels = WRAPPED[shape]
    before, after = outer.split("#")
    count = depth // levels
    text = before * count + "{}" + after * count
    if count * levels < DEPTH_LIMIT:
        assert Cache().prepared(text, "p", False)
        return
    with pytest.raises(InvalidSchema) as caught:
        Cache().prepared(text, "p", False)
    assert caught.value.code == "schema_too_large"


@pytest.mark.parametrize("depth", DEPTHS)
def test_j4_groups_in_groups(depth: int) -> None:
    made = answered({"type": "string", "pattern": "(" * depth + "a" + ")" * depth})
    assert isinstance(made, Problem)
    assert (made.code, made.keyword) == ("schema_too_large", "pattern")
    assert isinstance(
        answered({"pattern": "(" * PATTERN_NESTING_LIMIT + ")" * PATTERN_NESTING_LIMIT}), Prepared
    )


# Without end.


@pytest.mark.parametrize(
    ("schema", "within", "outside"),
    [
        ({"type": "string", "pattern": "^((a*)*)*$"}, "aaa", "b"),
        ({"type": "string", "pattern": "^(|a)*$"}, "aa", "b"),
        ({"type": "string", "pattern": "^((a+)+)+$"}, "aaa", ""),
        ({"type": "string", "pattern": "^(a?){30}a{30}$"}, "a" * 45, "a" * 29),
        ({"type": "array", "items": {"type": "string", "pattern": "^(a*)*$"}}, ["", "a"], ["b"]),
        ({"type": "array", "items": {"type": "array", "items": {"type": "array"}}}, [[], [[]]], [[1]]),
    ],
)
def test_j5_repetitions_of_what_may_be_empty(
    requests: Requests, schema: object, within: object, outside: object
) -> None:
    calls = requests.calls(inside(schema))
    assert calls.allow({"a": within})
    assert not calls.allow({"a": outside})


ENDLESS: dict[str, object] = {
    "itself": {"$ref": "#"},
    "each other": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "all of itself": {"allOf": [{"$ref": "#"}]},
    "beside itself": {"properties": {"a": {"$ref": "#/properties/a"}}},
    "a long chain": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1_000)} | {"d1000": {}},
    },
    "twice each": {
        "$ref": "#/$defs/d0",
        "$defs": {
            f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
            for n in range(20)
        }
        | {"d20": {"type": "null"}},
    },
}


@pytest.mark.parametrize("name", ENDLESS)
def test_j6_references_without_progress(requests: Requests, name: str) -> None:
    assert refused(ENDLESS[name]).keyword == "$ref"
    assert requests.refusal(ENDLESS[name]).status == 400


def test_j6_references_that_progress(requests: Requests) -> None:
    chain = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["v", "next"],
    }
    calls = requests.calls(chain)
    assert calls.allow({"v": 1, "next": {"v": 2, "next": None}})
    assert not calls.allow({"v": 1, "next": {"v": "2", "next": None}})


# Large.


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"minLength": 10**6}, "minLength"),
        ({"minItems": 2**63}, "minItems"),
        ({"minProperties": 10**6}, "minProperties"),
        ({"pattern": "a{1000}{1000}{1000}"}, "pattern"),
        ({"pattern": "(a{1000}){1000}"}, "pattern"),
        ({"pattern": "a{0,60000}b{0,60000}"}, "pattern"),
    ],
)
def test_j7_least_counts_beyond_the_limit(requests: Requests, schema: object, keyword: str) -> None:
    error = requests.refusal(inside(schema))
    assert (error.code, error.param) == ("schema_too_large", f"{FIELD}.properties.a.{keyword}")


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "maxLength": 10**9}, "maxLength"),
        ({"type": "array", "maxItems": 10**6}, "maxItems"),
    ],
)
def test_j7_most_counts_beyond_the_limit_are_verified(schema: object, keyword: str) -> None:
    assert [each.keyword for each in taken(schema).lowered.loosened] == [keyword]


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": list(range(100_000))},
        {"enum": [f"v{n}" for n in range(ENUM_LIMIT + 1)]},
        {"type": "object", "properties": {f"p{n}": {} for n in range(5_000)}},
        {"const": "x" * TEXT_LIMIT},
    ],
)
def test_j8_large_sets_are_refused(schema: object) -> None:
    assert refused(schema).code == "schema_too_large"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": [f"v{n}" for n in range(ENUM_LIMIT)]}, f"v{ENUM_LIMIT - 1}"),
        (
            {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(PROPERTY_LIMIT)}},
            {"p9": None},
        ),
        ({"anyOf": [wide(f"q{n}", 100) for n in range(32)]}, {"q31_9": None}),
        ({"const": "x" * 30_000}, "x" * 30_000),
    ],
)
def test_j8_large_sets_within_the_limit_are_held_to(
    requests: Requests, schema: object, value: object
) -> None:
    calls = requests.calls(inside(schema))
    assert calls.exact
    assert calls.allow({"a": value})


def test_j8_many_tools(requests: Requests) -> None:
    tools = [tool(f"f{n}", wide(f"p{n}", 20)) for n in range(limits.TOOLS - 2)]
    calls = Calls(requests.prepared(*tools, tool("f", wide("p", 20))))
    assert calls.allow({"p_0": None, "p_19": None})
    assert not calls.allow({"p1_0": None})
    assert asked(tools=offered(limits.TOOLS + 1)).param == "tools"
    assert asked(tools=offered(1_024)).param == "tools"


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 5, "maximum": 4},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"enum": []},
        {"not": {}},
        {"type": "object", "properties": {"b": False}, "required": ["b"]},
        {"const": "b", "pattern": "^a"},
        {"type": "string", "enum": [1, 2]},
        {"allOf": [{"type": "string"}, {"type": "null"}]},
        False,
    ],
)
def test_j9_what_no_value_satisfies(requests: Requests, schema: object) -> None:
    error = requests.refusal(inside(schema))
    assert (error.status, error.code) == (400, "schema_unsatisfiable")
    assert (error.param or "").startswith(f"{FIELD}.properties.a")


def test_j9_no_types() -> None:
    assert refused({"type": []}).keyword == "type"


def test_j10_many_schemas_are_kept_within_bounds() -> None:
    cache = Cache(bytes_held=400_000)
    for number in range(1_000):
        cache.prepared(json.dumps({"const": number}), "p", False)
        assert len(cache) <= 256
        assert cache.size <= 400_000
    assert cache.prepared('{"const": 7}', "p", False).verifier.failure("8") is not None


# Text and addresses.


@pytest.mark.parametrize(
    "schema", [{"const": "\ud800"}, {"properties": {"\udfff": {}}}, {"enum": ["a", "x\ud800"]}]
)
def test_j11_half_of_a_surrogate_pair(schema: object) -> None:
    assert "surrogate" in refused(schema).reason


@pytest.mark.parametrize("name", ["a b", "a;b", "f\n", "ключ", "", "a" * 65, '"', "../x"])
def test_j11_names_of_tools(name: str) -> None:
    error = asked(tools=[{"type": "function", "function": {"name": name}}])
    assert error.param == "tools[0].function.name"


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1/s.json",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "other.json",
        "../x.json#/a",
        "//host/x",
        "data:application/json,{}",
        "http://json-schema.org/draft-07/schema#",
    ],
)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_j13_addresses_outside(requests: Requests, keyword: str, address: str) -> None:
    error = requests.refusal(inside({keyword: address}))
    assert (error.status, error.code, error.param) == (
        400,
        "unsupported_ref",
        f"{FIELD}.properties.a.{keyword}",
    )
