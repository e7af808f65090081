import json

import pytest

from server.errors import InvalidSchema
from server.schema import check as checking
from server.schema.check import check, check_all
from server.schema.document import DEPTH_LIMIT, TEXT_LIMIT
from server.schema.drafts import Draft
from server.schema.emptiness import CASE_LIMIT
from server.schema.expansion import HEIGHT_LIMIT, REFERENCE_CHAIN_LIMIT

FIELD = "tools[0].function.parameters"


def refusal(schema: object, *, as_object: bool = True) -> InvalidSchema:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(InvalidSchema) as caught:
        check(text, param=FIELD, as_object=as_object)
    return caught.value


def inside(schema: object) -> dict[str, object]:
    return {"type": "object", "properties": {"a": schema}}


MALFORMED = [
    ([], ""),
    (None, ""),
    ("3", ""),
    ("{", ""),
    ('{"minimum": NaN}', ""),
    ('{"minimum": 1e999}', ""),
    ('{"title": "\\ud800"}', ""),
    ({"type": "strng"}, "type"),
    ({"type": "dict"}, "type"),
    ({"type": []}, "type"),
    ({"type": 3}, "type"),
    (inside("string"), "properties.a"),
    (inside({"type": "dict"}), "properties.a.type"),
    (inside({"type": "float"}), "properties.a.type"),
    (inside({"minimum": "5"}), "properties.a.minimum"),
    (inside({"maximum": None}), "properties.a.maximum"),
    (inside({"multipleOf": 0}), "properties.a.multipleOf"),
    (inside({"maxLength": -1}), "properties.a.maxLength"),
    (inside({"minLength": 1.5}), "properties.a.minLength"),
    (inside({"enum": "x"}), "properties.a.enum"),
    (inside({"enum": []}), "properties.a.enum"),
    (inside({"pattern": "("}), "properties.a.pattern"),
    (inside({"pattern": "[z-a]"}), "properties.a.pattern"),
    (inside({"pattern": 5}), "properties.a.pattern"),
    (inside({"patternProperties": {"*": {}}}), "properties.a.patternProperties.*"),
    (inside({"allOf": []}), "properties.a.allOf"),
    (inside({"anyOf": {}}), "properties.a.anyOf"),
    (inside({"items": 3}), "properties.a.items"),
    (inside({"uniqueItems": "yes"}), "properties.a.uniqueItems"),
    (inside({"additionalProperties": "no"}), "properties.a.additionalProperties"),
    ({"type": "object", "required": "a"}, "required"),
    ({"type": "object", "required": [1]}, "required.0"),
    ({"type": "object", "required": True}, "required"),
    ({"type": "object", "properties": []}, "properties"),
    (inside({"$ref": "#/$defs/x"}), "properties.a.$ref"),
    (inside({"$ref": "#x"}), "properties.a.$ref"),
    (inside({"$ref": 1}), "properties.a.$ref"),
    (inside({"properties": {"ü/~": {"type": 1}}}), "properties.a.properties.\\xfc/~.type"),
]


@pytest.mark.parametrize(("schema", "path"), MALFORMED, ids=lambda value: str(value)[:40])
def test_a_malformed_schema_is_refused_at_its_place(schema: object, path: str) -> None:
    text = schema if isinstance(schema, str) and schema[:1] in "{3" else json.dumps(schema)
    error = refusal(text)
    assert error.status == 400
    assert error.code in ("invalid_schema", "schema_unsatisfiable")
    assert error.param == ".".join([FIELD, path]).rstrip(".")
    assert len(error.message) > 10


def test_an_older_draft_with_required_in_the_property_says_so() -> None:
    assert refusal(inside({"type": "string", "required": True})).param == f"{FIELD}.properties.a.required"


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:1/x.json",
        "https://json-schema.org/draft/2020-12/schema",
        "file:///etc/passwd",
        "other.json",
        "//host/x",
        "urn:x:y",
    ],
)
def test_no_address_outside_is_followed(address: str) -> None:
    error = refusal(inside({"$ref": address}))
    assert (error.code, error.param) == ("unsupported_ref", f"{FIELD}.properties.a.$ref")
    assert refusal({"$defs": {"unused": {"$dynamicRef": address}}}).code == "unsupported_ref"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"allOf": [{"not": {"$ref": "#"}}]},
        {"if": {"$ref": "#"}, "then": {}},
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(schema: object) -> None:
    assert refusal(schema).code == "schema_unsatisfiable"


def test_recursion_through_a_value_is_fine() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "list": {"items": {"$ref": "#"}}}}
    assert check(json.dumps(tree), param=FIELD).draft is Draft.DRAFT202012


def nested(keyword: str, levels: int) -> object:
    schema: object = {}
    for _ in range(levels):
        schema = {keyword: [schema]} if keyword == "allOf" else {keyword: schema}
    return schema


def chained(length: int) -> object:
    definitions: dict[str, object] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"$defs": definitions | {f"d{length}": {}}, "$ref": "#/$defs/d0"}


def doubled(levels: int) -> object:
    definitions: dict[str, object] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(levels)
    }
    return {"$defs": definitions | {f"d{levels}": {}}, "$ref": "#/$defs/d0"}


TOO_LARGE = {
    "text": {"description": "x" * TEXT_LIMIT},
    "depth": nested("items", DEPTH_LIMIT),
    "depth of what is no schema": {"default": json.loads("[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT)},
    "enum": {"enum": list(range(checking.ENUM_LIMIT + 1))},
    "properties": {"properties": {f"p{n}": {} for n in range(checking.PROPERTY_LIMIT + 1)}},
    "minLength": {"minLength": checking.REPEAT_LIMIT + 1},
    "minItems": {"minItems": 2**63},
    "minProperties": {"minProperties": 1_000_000},
    "minContains": {"contains": {}, "minContains": 1_000_000},
    "pattern": {"pattern": "x" * (checking.PATTERN_LIMIT + 1)},
    "groups": {"pattern": "(" * 33 + ")" * 33},
    "repeats": {"pattern": "((a{1000}){1000}){1000}"},
    "patterns together": {"properties": {f"p{n}": {"pattern": "^.{0,1000}$"} for n in range(65)}},
    "repeated keys": {"patternProperties": {"a{5000}": {}}},
    "chain": chained(REFERENCE_CHAIN_LIMIT),
    "multiplying": doubled(17),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_over_a_limit_is_refused(name: str) -> None:
    assert refusal(TOO_LARGE[name], as_object=False).code == "schema_too_large"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"items":' * 100_000, '{"not":' * 5_000 + "{}" + "}" * 5_000]
)
def test_deep_text_is_refused(text: str) -> None:
    assert refusal(text).status == 400


AT_THE_LIMIT = {
    "depth": nested("items", DEPTH_LIMIT - 1),
    "enum": {"enum": list(range(checking.ENUM_LIMIT))},
    "properties": {"properties": {f"p{n}": {} for n in range(checking.PROPERTY_LIMIT)}},
    "minLength": {"minLength": checking.REPEAT_LIMIT},
    "large upper bounds": {"maxLength": 10**9, "maxItems": 2**63, "maxProperties": 10**9},
    "groups": {"pattern": "(" * 32 + ")" * 32},
    "chain": chained(REFERENCE_CHAIN_LIMIT - 1),
    "choices": {"allOf": [{"anyOf": [{"minLength": n}, {"maxLength": n}]} for n in range(CASE_LIMIT // 8)]},
    "boolean": True,
    "empty": {},
    "unknown keywords": {"type": "object", "x-any": 1, "strict": True, "example": {"type": "dict"}},
    "names like keywords": {
        "properties": {"$ref": {"type": "string"}, "type": {}, "enum": {}, "required": {}}
    },
    "unknown draft": {"$schema": "https://example.org/schema", "type": "object"},
    "dynamic": {"$dynamicAnchor": "x", "properties": {"a": {"$dynamicRef": "#x"}}},
}


@pytest.mark.parametrize("name", AT_THE_LIMIT)
def test_what_is_lawful_and_within_bounds_is_taken(name: str) -> None:
    checked = check(json.dumps(AT_THE_LIMIT[name]), param=FIELD)
    assert 8 <= checked.nesting <= 128


def test_schemas_that_apply_inside_each_other_are_bounded() -> None:
    links = {f"d{n}": {"allOf": [{"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}]}]} for n in range(90)}
    assert HEIGHT_LIMIT < 90 * 3
    error = refusal({"$defs": links | {"d90": {}}, "$ref": "#/$defs/d0"})
    assert error.code == "schema_too_large"


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        (False, ""),
        ({"not": {}}, "not"),
        ({"minimum": 5, "maximum": 4}, "minimum"),
        (inside({"minLength": 3, "maxLength": 2}), "properties.a.minLength"),
        ({"type": "string", "enum": [1, 2]}, "enum"),
        ({"const": 1, "enum": [2]}, "const"),
        ({"type": "array"}, "type"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "properties"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "additionalProperties"),
        ({"allOf": [{"type": "object"}, {"type": "string"}]}, ""),
    ],
)
def test_a_schema_no_arguments_satisfy_is_refused(schema: object, keyword: str) -> None:
    error = refusal(schema)
    assert error.code == "schema_unsatisfiable"
    assert error.param is not None
    assert error.param.startswith(FIELD)
    assert keyword.split(".")[-1] in error.param + error.message


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "integer", "enum": ["1", "2"]}, "properties.b.enum"),
        (False, "properties.b"),
        (
            {"type": "object", "required": ["c"], "properties": {"c": {"type": "array", "const": "x"}}},
            "properties.b.properties.c.const",
        ),
    ],
)
def test_a_required_property_no_value_satisfies_is_named(schema: object, path: str) -> None:
    whole = {"type": "object", "required": ["a", "b"], "properties": {"a": {}, "b": schema}}
    assert refusal(whole).param == f"{FIELD}.{path}"


def test_only_a_response_may_be_no_object() -> None:
    assert check('{"type": "array"}', param=FIELD).empty == frozenset()
    assert refusal({"type": "array"}).param == f"{FIELD}.type"


def test_part_of_a_schema_may_admit_nothing() -> None:
    schema = {"anyOf": [{"type": "string", "enum": [1]}, {"type": "object"}]}
    assert check(json.dumps(schema), param=FIELD).empty == {"/anyOf/0"}


@pytest.mark.parametrize(
    ("schema", "draft"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, Draft.DRAFT4),
        ({"$schema": "http://json-schema.org/draft-06/schema"}, Draft.DRAFT6),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema"}, Draft.DRAFT201909),
        ({}, Draft.DRAFT202012),
        ({"items": [{"type": "string"}]}, Draft.DRAFT201909),
        ({"dependencies": {"a": ["b"]}}, Draft.DRAFT7),
        # Declared as one draft, written as another: read in the first that takes it.
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "minimum": 1, "exclusiveMinimum": True},
            None,
        ),
    ],
)
def test_the_draft_is_the_declared_one_else_the_newest_that_fits(schema: object, draft: Draft | None) -> None:
    checked = check(json.dumps(schema), param=FIELD)
    assert checked.draft is (draft or Draft.DRAFT7)


def test_older_forms_are_written_in_todays() -> None:
    schema = {
        "properties": {
            "a": {"type": "string", "nullable": True, "enum": ["x"]},
            "b": {"type": "number", "minimum": 1, "exclusiveMinimum": True},
            "c": {"maximum": 1, "exclusiveMaximum": False},
        }
    }
    assert check(json.dumps(schema), param=FIELD).schema == {
        "properties": {
            "a": {"type": ["string", "null"], "nullable": True, "enum": ["x", None]},
            "b": {"type": "number", "exclusiveMinimum": 1},
            "c": {"maximum": 1},
        }
    }


def test_all_bad_tools_are_named_at_once() -> None:
    items = [
        ("good", '{"type": "object"}', "tools[0].function.parameters"),
        ("first", '{"type": "objekt"}', "tools[1].function.parameters"),
        (
            "second",
            '{"type": "object", "properties": {"x": {"minimum": "1"}}}',
            "tools[2].function.parameters",
        ),
    ]
    with pytest.raises(InvalidSchema) as caught:
        check_all(items)
    assert caught.value.param == "tools[1].function.parameters.type"
    for part in ("'first'", "objekt", "'second'", "'/properties/x'", "minimum"):
        assert part in caught.value.message
    assert "good" not in caught.value.message
    assert len(check_all(items[:1])) == 1


def test_messages_hold_no_raw_client_text() -> None:
    error = refusal({"type": "object", "properties": {"a\n\x1b[31m": {"type": "\x1b[0m" * 200}}})
    assert error.message.isprintable()
    assert error.param is not None
    assert error.param.isprintable()


def test_many_choices_are_left_undecided() -> None:
    schema = {"allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(30)]}
    assert check(json.dumps(schema), param=FIELD, as_object=True).empty == frozenset()


def test_wide_choices_are_left_undecided() -> None:
    def choice(count: int) -> object:
        wide = [{"properties": {f"p{n}_{m}": {} for m in range(count)}} for n in range(2)]
        return {"type": "object", "anyOf": wide, "properties": {"a": {"type": "null", "enum": [1]}}}

    assert check(json.dumps(choice(10)), param=FIELD).empty
    assert not check(json.dumps(choice(800)), param=FIELD).empty
