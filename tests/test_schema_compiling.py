import json

from hypothesis import HealthCheck, given, settings
from llguidance import LLMatcher
from schemas import BYTES, UNIVERSE, holds, holds_some_order, schemas

from server.errors import InvalidSchema
from server.schema.cache import Cache
from server.schema.compiling import ENGINE_LIMITS, engine_text, reductions, takes


def test_what_the_engine_takes() -> None:
    assert takes({})
    assert takes({"type": "object", "additionalProperties": False})
    assert not takes({"uniqueItems": True})
    assert not takes({"type": "string", "pattern": "(?=a)"})
    assert not takes({"allOf": [False]})


def test_what_is_taken_is_bounded() -> None:
    choices = [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(40)]
    assert takes({"allOf": choices[:2]})
    assert not takes({"allOf": choices})


def test_what_is_taken_never_ends_an_answer_for_want_of_room() -> None:
    def wide(choices: int, **more: object) -> dict[str, object]:
        objects = [{"properties": {f"p{n}_{m}": {} for m in range(100)}} for n in range(choices)]
        return {"type": "object", "anyOf": objects, **more}

    assert takes(wide(40))
    assert not takes(wide(60))
    assert not takes({"type": "array", "items": {"$ref": "#/$defs/w"}, "$defs": {"w": wide(60)}})
    assert not takes(wide(8, allOf=[wide(8)]))
    start = LLMatcher(BYTES, f"start: %json {engine_text(wide(40))}", log_level=0, limits=ENGINE_LIMITS)
    assert holds(start, '{"p3_7": 1, "p3_99": 2}')


def test_no_escape_spells_a_declared_key() -> None:
    text = engine_text({"type": "object", "properties": {"a": {"type": "null"}}})
    start = LLMatcher(BYTES, f"start: %json {text}", log_level=0)
    assert holds(start, '{"a": null, "\\n": 1}')
    assert not holds(start, '{"\\u0061": 1}')


@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(schemas)
def test_a_reduction_admits_more(schema: object) -> None:
    try:
        full = Cache().prepared(json.dumps(schema), "p", False)
    except InvalidSchema:
        return
    valid = [value for value in UNIVERSE if full.verifier.failure(json.dumps(value)) is None]
    for reduced, lost in reductions(full.lowered.schema):
        assert not any(
            f'"{keyword}": [' in json.dumps(reduced) for keyword in ("allOf", "anyOf") if keyword in lost
        )
        made = LLMatcher(BYTES, f"start: %json {engine_text(reduced)}", log_level=0)
        if not made.is_error():
            assert all(holds_some_order(made, value) for value in valid)


def test_definitions_and_names_are_told_from_keywords() -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            "allOf": {"allOf": [{"type": "null"}]},
            "items": {"type": "array", "items": {"minimum": 1}},
        },
        "$defs": {"anyOf": {"type": "string"}},
    }
    *_, (reduced, lost) = reductions(schema)
    assert reduced == {"type": "object", "$defs": {"anyOf": {"type": "string"}}}
    first_without = next(each for each, gone in reductions(schema) if "allOf" in gone)
    assert first_without["properties"] == {"allOf": {}, "items": {"type": "array", "items": {"minimum": 1}}}
    assert "properties" in lost
