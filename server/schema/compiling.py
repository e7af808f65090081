"""Whether the constraint engine takes a schema, and what has to go until it does.

Compiles against a vocabulary of single bytes, which costs a millisecond and needs no model: what the
engine refuses does not depend on the vocabulary. Its limits are set below its own, so that a schema costs
at most some tenths of a second, and what is taken here is taken beside other schemas too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from server.schema.drafts import LIST_OF_SCHEMAS, MAP_OF_SCHEMAS, ONE_SCHEMA

# The order in which keywords are given up where a schema is refused. Each entry goes as a whole: the
# rest would else refuse what the first of them allows.
_GIVEN_UP = (
    ("minProperties", "maxProperties"),
    ("allOf", "$ref"),
    ("anyOf",),
    ("patternProperties", "additionalProperties"),
    ("pattern", "format", "multipleOf"),
    ("minLength", "maxLength", "minItems", "maxItems"),
    ("enum", "const"),
    ("items", "prefixItems"),
    ("properties", "required"),
)

# How models write JSON. Escapes of code points (\u0061) would let an undeclared key be a declared one.
_FORM = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}

ENGINE_LIMITS = LLParserLimits(max_items_in_row=20_000, step_max_items=500_000)
"""For matchers that generate. Where a key may begin, the engine keeps four items for each optional property,
those of all alternatives together; its own limit of 2,000 ended answers with 500 of them. At 20,000 such a
step takes about a second."""

_TOKENIZER = LLTokenizer("byte")
_LIMITS = LLParserLimits(initial_lexer_fuel=200_000, max_grammar_size=100_000, verbose_errors=False)


def engine_text(schema: dict[str, object]) -> str:
    """A lowered schema as the engine is given it."""
    return json.dumps({**schema, "x-guidance": _FORM}, ensure_ascii=False)


def takes(schema: dict[str, object]) -> bool:
    """Whether the engine compiles a schema."""
    grammar = f"start: %json {engine_text(schema)}"
    return not LLMatcher(_TOKENIZER, grammar, log_level=0, limits=_LIMITS).is_error()


def reductions(schema: dict[str, object]) -> Iterator[tuple[dict[str, object], list[str]]]:
    """The schema with ever more keywords taken out of all its parts, and which those are. Each
    admits all that the ones before it admit."""
    gone: list[str] = []
    for keywords in _GIVEN_UP:
        gone += keywords
        yield _without(schema, frozenset(gone)), gone


def _without(schema: dict[str, object], gone: frozenset[str]) -> dict[str, object]:
    return {
        keyword: _thinned(keyword, value, gone) for keyword, value in schema.items() if keyword not in gone
    }


def _thinned(keyword: str, value: object, gone: frozenset[str]) -> object:
    if keyword in MAP_OF_SCHEMAS and isinstance(value, dict):
        return {name: _thinned("items", each, gone) for name, each in value.items()}
    if keyword in LIST_OF_SCHEMAS and isinstance(value, list):
        return [_thinned("items", each, gone) for each in value]
    return _without(value, gone) if keyword in ONE_SCHEMA and isinstance(value, dict) else value
