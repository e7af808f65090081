import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schemas import holds, matcher

from server.schema.cache import Cache
from server.schema.check import check
from server.schema.verify import Failure, Verifier, asserts_format, decode, nests_deeper


def verifier(schema: object) -> Verifier:
    checked = check(json.dumps(schema), param="p")
    return Verifier(checked.validator, checked.nesting)


def failure(schema: object, text: str) -> Failure | None:
    return verifier(schema).failure(text)


@given(st.text())
def test_any_text_gets_an_answer(text: str) -> None:
    found = failure({"type": "integer", "multipleOf": 3}, text)
    assert found is None or found.message


@given(st.text("0123456789eE.+-", max_size=30))
def test_any_number_gets_an_answer(text: str) -> None:
    found = failure({"type": "number", "maximum": 10}, text)
    assert found is None or found.keyword in ("json", "maximum")


@pytest.mark.parametrize(
    "text", ["", "{", "nul", "NaN", "Infinity", "1 2", '"\\ud800"', "[" * 200_000, "1" * 5_000]
)
def test_what_is_no_json_fails(text: str) -> None:
    found = failure({}, text)
    assert found is not None
    assert found.keyword == "json"
    assert len(found.message) <= 200


def test_a_failure_says_where() -> None:
    schema = {"properties": {"a/b": {"items": {"type": "string"}}}}
    found = failure(schema, '{"a/b": ["x", 1]}')
    assert found is not None
    assert (found.keyword, found.instance) == ("type", "/a~1b/1")
    assert found.schema == "/properties/a~1b/items/type"


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "integer"}, ["1.0", "1e2", str(2**80)], ["1.5", '"1"', "true"]),
        ({"const": 0.1}, ["0.1", "0.10", "1e-1"], ["0.1000000000000000055511151231257827"]),
        ({"multipleOf": 0.1}, ["0.3", "1e300"], ["0.35"]),
        ({"maximum": 2**53}, [str(2**53)], [str(2**53 + 1), "1e999999999999999999999"]),
        ({"minimum": 0}, ["1e-999999999999999999999", "0e99"], ["-1e999999999999999999999"]),
        ({"enum": [1, "a"]}, ["1", "1.0", '"\\u0061"'], ["true"]),
        ({"maxLength": 1}, ['"é"', '"𝄞"'], ['"ab"']),
        ({"format": "date"}, ['"2024-02-29"', "1"], ['"2023-02-29"']),
        ({"format": "unknown"}, ['"x"'], []),
        ({"uniqueItems": True}, ["[1, true]"], ["[1, 1.0]"]),
        ({"properties": {"a": {"type": "null"}}}, ['{"a": 1, "a": null}'], ['{"\\u0061": 1}']),
    ],
)
def test_values(schema: object, valid: list[str], invalid: list[str]) -> None:
    for text in valid:
        assert failure(schema, text) is None, text
    for text in invalid:
        assert failure(schema, text) is not None, text


LONG = "0.30000000000000001665"


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (f'{{"maximum": {LONG}}}', [LONG, "0.3"], [f"{LONG}1"]),
        (f'{{"exclusiveMinimum": {LONG}}}', [f"{LONG}1"], [LONG, "0.3"]),
        (f'{{"const": {LONG}}}', [LONG, f"{LONG}0"], ["0.3", f"{LONG}1"]),
        (f'{{"enum": [1, [{LONG}]]}}', [f"[{LONG}]", "1"], ["[0.3]"]),
        (f'{{"not": {{"const": {LONG}}}}}', ["0.3", f"{LONG}1"], [LONG]),
        (f'{{"minimum": 0.3, "exclusiveMaximum": {LONG}}}', ["0.3"], [LONG, "0.2"]),
        ('{"maximum": 12345678901234567890.0}', ["12345678901234567890"], ["12345678901234567891"]),
    ],
)
def test_numbers_of_a_schema_are_exact(schema: str, valid: list[str], invalid: list[str]) -> None:
    made = Cache().prepared(schema, "p", False)
    start = matcher(made.lowered)
    for text in valid:
        assert made.verifier.failure(text) is None, text
        assert holds(start, text), text
    for text in invalid:
        assert made.verifier.failure(text) is not None, text
        assert not made.lowered.exact or not holds(start, text), text


def test_formats_count_in_every_draft() -> None:
    for draft in ("draft-04", "draft-06", "draft-07"):
        schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "format": "uuid"}
        assert failure(schema, '"x"') is not None
    assert asserts_format("uuid")
    assert not asserts_format("color")


def test_depth_is_bounded_by_what_the_schema_costs() -> None:
    nesting = check('{"items": {"$ref": "#"}}', param="p").nesting
    deep = "[" * nesting + "]" * nesting
    assert failure({"items": {"$ref": "#"}}, deep) is None
    found = failure({"items": {"$ref": "#"}}, f"[{deep}]")
    assert found is not None
    assert found.keyword == "json"


@given(
    st.recursive(
        st.none(), lambda below: st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=1), below)
    )
)
def test_nesting_is_the_number_of_levels(value: object) -> None:
    def levels(each: object) -> int:
        below = each.values() if isinstance(each, dict) else each if isinstance(each, list) else None
        return 0 if below is None else 1 + max(map(levels, below), default=0)

    assert all(nests_deeper(value, limit) == (levels(value) > limit) for limit in range(6))


def test_numbers_are_exact() -> None:
    assert decode("0.1000000000000000055511151231257827") == Decimal("0.1000000000000000055511151231257827")
    assert decode(str(2**200)) == 2**200
    assert decode("1e9999999999") == Decimal("1e400")
    assert decode("-0e9999999999") == 0
