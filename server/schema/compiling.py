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
from server.schema.references import Schema, children

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

ENGINE_LIMITS = LLParserLimits(max_items_in_row=20_000, step_max_items=500_000, step_lexer_fuel=10_000_000)
"""For matchers that generate. Where a key may begin, the engine keeps four items for each optional property,
those of all alternatives together; its own limit of 2,000 ended answers with 500 of them. At 20,000 such a
step takes about a second. Where text may turn into a call of any of many tools, its own limit of what a step
of the lexer may make ended answers, too; with 128 tools such a step takes 30 ms, once."""

WIDTH_LIMIT = 4_900
"""Properties that fit into such a row."""

_TOKENIZER = LLTokenizer("byte")
_LIMITS = LLParserLimits(initial_lexer_fuel=200_000, max_grammar_size=100_000, verbose_errors=False)


def engine_text(schema: dict[str, object]) -> str:
    """A lowered schema as the engine is given it."""
    return json.dumps({**schema, "x-guidance": _FORM}, ensure_ascii=False)


def takes(schema: dict[str, object]) -> bool:
    """Whether the engine compiles a schema, and then has room for all that may come next anywhere."""
    if _Widths(schema).most() > WIDTH_LIMIT:
        return False
    grammar = f"start: %json {engine_text(schema)}"
    return not LLMatcher(_TOKENIZER, grammar, log_level=0, limits=_LIMITS).is_error()


class _Widths:
    """How many properties the alternatives of any one value have together, when written out."""

    def __init__(self, schema: dict[str, object]) -> None:
        self._root = schema
        self._known: dict[int, tuple[int, int]] = {}

    def most(self) -> int:
        places: list[Schema] = [self._root]
        widest = 0
        while places:
            place = places.pop()
            if isinstance(place, dict):
                widest = max(widest, self._measured(place)[1])
                places += [below for _, _, below in children(place)]
        return widest

    def _measured(self, schema: object) -> tuple[int, int]:
        """The number of alternatives, and of their properties."""
        if not isinstance(schema, dict):
            return 1, 0
        if id(schema) not in self._known:
            self._known[id(schema)] = 1, 0  # for what leads back here
            self._known[id(schema)] = self._written_out(schema)
        return self._known[id(schema)]

    def _written_out(self, schema: dict[str, object]) -> tuple[int, int]:
        count, width = 1, len(_listed(schema, "properties")) + len(_listed(schema, "patternProperties"))
        parts = [self._measured(each) for each in (*_listed(schema, "allOf"), self._target(schema))]
        if "anyOf" in schema:
            branches = [self._measured(each) for each in _listed(schema, "anyOf")]
            parts.append((sum(each for each, _ in branches), sum(each for _, each in branches)))
        for alternatives, properties in parts:
            count, width = count * alternatives, width * alternatives + properties * count
            count, width = min(count, WIDTH_LIMIT + 1), min(width, WIDTH_LIMIT + 1)
        return count, width

    def _target(self, schema: dict[str, object]) -> object:
        definitions = self._root.get("$defs")
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        return definitions.get(name) if isinstance(definitions, dict) else None


def _listed(schema: dict[str, object], keyword: str) -> list[object]:
    value = schema.get(keyword)
    return list(value) if isinstance(value, list | dict) else []


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
