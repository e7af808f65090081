import json

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from schemas import UNIVERSE, schemas

from server.errors import InvalidSchema
from server.schema.algebra import complement, disjoint, scalar_key
from server.schema.check import Checked, check

QUICK = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def checked(schema: object) -> Checked | None:
    try:
        return check(json.dumps(schema), param="p")
    except InvalidSchema:
        return None


def admits(schema: object, value: object) -> bool:
    assert isinstance(schema, dict | bool)
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid(value)


@QUICK
@given(schemas)
def test_a_complement_admits_just_what_is_refused(schema: object) -> None:
    made = checked(schema)
    refused = None if made is None else complement(made.index, "", None)
    if refused is not None:
        for value in UNIVERSE:
            assert admits(refused, value) != admits(schema, value), (value, refused)


@QUICK
@given(schemas, schemas)
def test_no_value_satisfies_two_disjoint_schemas(left: dict[str, object], right: dict[str, object]) -> None:
    # References would point elsewhere in the pair.
    if "$ref" in repr((left, right)):
        return
    made = checked({"oneOf": [left, right]})
    if made is not None and disjoint(made.index, "", "/oneOf/0", "/oneOf/1"):
        assert not [value for value in UNIVERSE if admits(left, value) and admits(right, value)]


@pytest.mark.parametrize(
    ("left", "right", "apart"),
    [
        ({"type": "string"}, {"type": "integer"}, True),
        ({"type": "number"}, {"type": "integer"}, False),
        ({"enum": [1, 2]}, {"const": 3}, True),
        ({"maximum": 1, "type": "number"}, {"minimum": 2}, True),
        ({"type": "object", "required": ["a"]}, {"type": "object", "additionalProperties": False}, True),
        ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}, False),
    ],
)
def test_disjoint(left: object, right: object, apart: bool) -> None:
    made = checked({"oneOf": [left, right]})
    assert made is not None
    assert disjoint(made.index, "", "/oneOf/0", "/oneOf/1") is apart


def test_what_the_parent_says_counts() -> None:
    made = checked({"type": "object", "oneOf": [{"required": ["a"]}, {"properties": {"a": False}}]})
    assert made is not None
    assert disjoint(made.index, "", "/oneOf/0", "/oneOf/1")


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"$ref": "#"}},
        {"items": {"$dynamicRef": "#x"}, "$dynamicAnchor": "x"},
        {"properties": {f"p{n}": {"type": "null"} for n in range(400)}},
        {"allOf": [{"oneOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(12)]},
    ],
)
def test_what_cannot_be_written_out_has_no_complement(schema: object) -> None:
    made = checked(schema)
    assert made is not None
    assert complement(made.index, "", None) is None


def test_a_complement_keeps_to_the_types_and_the_order_of_properties() -> None:
    made = checked({"properties": {"z": {"const": 1}, "a": {"const": 1}}, "required": ["z", "a"]})
    assert made is not None
    refused = complement(made.index, "", "object")
    assert not admits(refused, 5)
    assert admits(refused, {"z": 1})
    assert "$ref" not in json.dumps(refused)


def test_scalar_keys_are_equal_for_equal_values() -> None:
    assert scalar_key(1) == scalar_key(1.0)
    assert scalar_key({"a": 1, "b": 2}) == scalar_key({"b": 2, "a": 1})
    assert len({scalar_key(each) for each in (1, True, "1", None, [1])}) == 5
