import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.schema.drafts import Draft
from server.schema.references import Index, Schema, children, escaped

NEW, OLD = Draft.DRAFT202012, Draft.DRAFT7


def index(root: Schema, draft: Draft = NEW) -> tuple[Index, list[tuple[str, str, str]]]:
    made = Index(root, draft)
    return made, list(made.resolve())


@pytest.mark.parametrize(
    ("root", "target"),
    [
        ({"$ref": "#"}, ""),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, "/$defs/a"),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {}}}, "/$defs/a~1b c"),
        ({"$ref": "#/allOf/0", "allOf": [{}]}, "/allOf/0"),
        ({"$ref": "#x", "$defs": {"a": {"$anchor": "x"}}}, "/$defs/a"),
        ({"$id": "https://a.b/c", "$ref": "#/$defs/a", "$defs": {"a": {}}}, "/$defs/a"),
        ({"$id": "https://a.b/c", "$ref": "c#/$defs/a", "$defs": {"a": {}}}, "/$defs/a"),
        ({"$id": "https://a.b/c", "$ref": "d", "$defs": {"a": {"$id": "https://a.b/d"}}}, "/$defs/a"),
        (
            {"$id": "https://a.b/c", "$ref": "d#/items", "$defs": {"a": {"$id": "d", "items": {}}}},
            "/$defs/a/items",
        ),
        ({"$id": "urn:x:y", "$ref": "urn:x:y#/$defs/a", "$defs": {"a": {}}}, "/$defs/a"),
        ({"$ref": "#/components/a", "components": {"a": {"type": "null"}}}, "/components/a"),
        ({"$ref": "#/properties/$ref", "properties": {"$ref": {}}}, "/properties/$ref"),
    ],
)
def test_references_inside_the_document(root: Schema, target: str) -> None:
    made, unresolved = index(root)
    assert unresolved == []
    assert made.targets["", "$ref"] == target
    assert target in made.schemas


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("#/$defs/x", "dangling"),
        ("#/$defs/a/title", "dangling"),
        ("#/allOf/1", "dangling"),
        ("#/allOf/-1", "dangling"),
        ("#/allOf/٠", "dangling"),
        ("#x", "dangling"),
        ("other", "remote"),
        ("http://h/x", "remote"),
        ("http://[", "remote"),
        ("file:///etc/passwd", "remote"),
    ],
)
def test_references_that_cannot_be_followed(reference: str, reason: str) -> None:
    _, unresolved = index({"items": {"$ref": reference}, "$defs": {"a": {"title": "t"}}, "allOf": [{}]})
    assert unresolved == [("/items", "$ref", reason)]


def test_references_inside_what_is_referred_to_are_followed() -> None:
    made, unresolved = index(
        {"$ref": "#/x/a", "x": {"a": {"items": {"$ref": "#/x/b"}}, "b": {"$ref": "#/x/c"}}}
    )
    assert unresolved == [("/x/b", "$ref", "dangling")]
    assert made.outside == ["/x/a", "/x/b"]


def test_identifiers_beside_a_reference_mean_nothing_in_older_drafts() -> None:
    root: Schema = {"allOf": [{"$id": "http://a/b", "$ref": "#/definitions/a"}], "definitions": {"a": {}}}
    made, unresolved = index(root, OLD)
    assert unresolved == []
    assert made.targets["/allOf/0", "$ref"] == "/definitions/a"
    _, unresolved = index(root, NEW)
    assert unresolved == [("/allOf/0", "$ref", "dangling")]


def test_names_are_never_keywords() -> None:
    schema: dict[str, object] = {
        "properties": {"items": {"type": "null"}, "properties": {}},
        "dependencies": {"a": ["b"], "c": {}},
        "items": [{}, True],
        "enum": [{"items": {}}],
        "const": {"properties": {"x": {}}},
    }
    assert [below for _, below, _ in children(schema)] == [
        "/properties/items",
        "/properties/properties",
        "/dependencies/c",
        "/items/0",
        "/items/1",
    ]


@given(st.text(max_size=5))
def test_any_name_can_be_pointed_at(name: str) -> None:
    made, _ = index({"properties": {name: {}}})
    assert f"/properties/{escaped(name)}" in made.schemas
