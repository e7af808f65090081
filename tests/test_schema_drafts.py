import jsonschema_rs
import pytest

from server.schema import drafts
from server.schema.drafts import Draft
from server.schema.verify import compiled


@pytest.mark.parametrize("draft", Draft)
def test_a_draft_is_declared_by_its_address(draft: Draft) -> None:
    assert Draft.declared(draft.uri) is draft
    assert Draft.declared(draft.uri.rstrip("#").replace("http://", "https://")) is draft
    assert jsonschema_rs.meta.is_valid({"$schema": draft.uri})


@pytest.mark.parametrize(
    "uri", [None, 3, "", "http://json-schema.org/schema", "https://example.org/draft-07/schema"]
)
def test_other_addresses_declare_none(uri: object) -> None:
    assert Draft.declared(uri) is None


# A schema for each keyword that refuses the value beside it wherever the keyword is known.
REFUSING: dict[str, tuple[dict[str, object], object]] = {
    "const": ({"const": 1}, 2),
    "contains": ({"contains": {"type": "null"}}, [1]),
    "propertyNames": ({"propertyNames": {"pattern": "^a"}}, {"b": 1}),
    "if": ({"if": {}, "then": {"type": "null"}}, 1),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
    "dependentSchemas": ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}),
    "unevaluatedItems": ({"unevaluatedItems": False}, [1]),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, {"a": 1}),
    "prefixItems": ({"prefixItems": [{"type": "null"}]}, [1]),
}


@pytest.mark.parametrize("draft", Draft)
@pytest.mark.parametrize("keyword", drafts.SINCE)
def test_a_keyword_is_known_where_the_validator_knows_it(draft: Draft, keyword: str) -> None:
    schema, value = REFUSING[keyword]
    assert draft.knows(keyword) is not compiled(schema, draft).is_valid(value)
