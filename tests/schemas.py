"""Random schemas, texts of the language a lowered schema stands for, and whether it holds a text."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from server.schema.compiling import ENGINE_LIMITS
from server.schema.lower import Lowered

BYTES = LLTokenizer("byte")
NAMES = ("a", "b", "ключ", 'q"')
_END = BYTES.eos_token
_CLOSERS = frozenset(b'"}]')
_WALK_LIMIT = 1_500

# Values that meet the random schemas below at their edges.
UNIVERSE: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 5, 10, 0.5, 1.5, -2.5, 3.25, 10**9),
    *("", "x", "xy", "abc", "aaa", "é", "a b", "2024-02-29", "2023-02-29", "12:30:00Z", "\n", '"'),
    *([], [1], [1, 1], [1, 2], ["x"], ["x", 1], [[]], [None, True, 3], [1, 2, 3, 4]),
    *({}, {"a": 1}, {"b": "x"}, {"a": 1, "b": 2}, {"a": "x", "b": "x"}, {"ключ": 1}, {'q"': None}),
    *({"z": 1}, {"a": 1, "z": "x"}, {"a": {"a": 1}}, {"a": {"b": "x"}, "b": [1]}, {"a": [], "b": {}}),
    *({"a": None, "b": None, "z": 0}, {"a": 0, "b": 0, "ключ": 0, 'q"': 0}, {"a": 3, "b": "abc"}),
)


def grammar(lowered: Lowered) -> str:
    return f"start: %json {lowered.text}"


def matcher(lowered: Lowered) -> LLMatcher:
    made = LLMatcher(BYTES, grammar(lowered), log_level=0, limits=ENGINE_LIMITS)
    assert not made.is_error(), made.get_error()
    return made


def holds(start: LLMatcher, text: str) -> bool:
    """Whether the language holds exactly this text."""
    trial = start.deep_copy()
    tokens = BYTES.tokenize_bytes(text.encode())
    return (
        trial.validate_tokens(tokens) == len(tokens) and trial.consume_tokens(tokens) and trial.is_accepting()
    )


def holds_some_order(start: LLMatcher, value: object) -> bool:
    """Whether the language holds a value with its keys in some order."""
    return any(holds(start, json.dumps(each, ensure_ascii=False)) for each in orders(value))


def orders(value: object) -> Iterator[object]:
    """A value with the keys of its objects in every order."""
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for inner in itertools.product(*(list(orders(value[name])) for name in names)):
                yield dict(zip(names, inner, strict=True))
    elif isinstance(value, list):
        yield from (list(each) for each in itertools.product(*(list(orders(item)) for item in value)))
    else:
        yield value


def walk(start: LLMatcher, seed: int, hurry: int = 150) -> str | None:
    """A random text of the language, byte by byte; after ``hurry`` bytes it closes what it can. None
    if it does not come to an end, or ends in a byte that is no text."""
    chance = random.Random(seed)
    trial = start.deep_copy()
    text = bytearray()
    while len(text) < _WALK_LIMIT:
        allowed = [token for token, bias in enumerate(trial.compute_logit_bias()) if bias]
        if trial.is_error() or not allowed:
            raise AssertionError(f"dead end after {bytes(text)!r}: {trial.get_error()}")
        chosen = _chosen(allowed, chance, len(text) >= hurry)
        if chosen == _END:
            return text.decode(errors="strict")
        trial.consume_token(chosen)
        text.append(chosen)
    return None


def _chosen(allowed: list[int], chance: random.Random, hurry: bool) -> int:
    if _END in allowed and (hurry or len(allowed) == 1 or chance.random() < 0.3):
        return _END
    closers = [token for token in allowed if token in _CLOSERS]
    if closers and (hurry or chance.random() < 0.3):
        return chance.choice(closers)
    plain = [token for token in allowed if 32 <= token < 127 and token != _END]
    return chance.choice(plain or [token for token in allowed if token != _END])


# Random schemas.

_small = st.integers(-2, 5)
_count = st.integers(0, 3)
_scalar = st.sampled_from([each for each in UNIVERSE if not isinstance(each, list | dict)])
_number = st.one_of(_small, st.sampled_from([0.5, 1.5, -2.5, 2.25, 0.1, 1e3, 1e-3]))
_pattern = st.sampled_from(["^a", "a$", "^[a-c]+$", "x", "^.{2}$", "[^a]", "\\d", "^(ab|x)?$", "^\\w+ "])
_format = st.sampled_from(["date", "time", "date-time", "email", "ipv4", "uuid", "uri", "hostname", "regex"])
_name = st.sampled_from(NAMES)
_type = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])

_ASSERTIONS: dict[str, st.SearchStrategy[object]] = {
    "type": st.one_of(_type, st.lists(_type, min_size=1, max_size=3, unique=True)),
    "const": st.sampled_from(UNIVERSE),
    "enum": st.lists(st.sampled_from(UNIVERSE), min_size=1, max_size=4, unique_by=repr),
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.1, 1.5]),
    "minLength": _count,
    "maxLength": _count,
    "pattern": _pattern,
    "format": _format,
    "minItems": _count,
    "maxItems": _count,
    "uniqueItems": st.booleans(),
    "minContains": _count,
    "maxContains": _count,
    "minProperties": _count,
    "maxProperties": _count,
    "required": st.lists(_name, max_size=2, unique=True),
    "dependentRequired": st.dictionaries(_name, st.lists(_name, max_size=2, unique=True), max_size=2),
}


def _with_parts(parts: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    named = st.dictionaries(_name, parts, max_size=3)
    some = st.lists(parts, min_size=1, max_size=3)
    keywords: dict[str, st.SearchStrategy[object]] = {
        **_ASSERTIONS,
        "properties": named,
        "patternProperties": st.dictionaries(_pattern, parts, max_size=2),
        "additionalProperties": parts,
        "propertyNames": st.one_of(parts, _pattern.map(lambda each: {"pattern": each})),
        "unevaluatedProperties": parts,
        "dependentSchemas": st.dictionaries(_name, parts, max_size=2),
        "items": parts,
        "prefixItems": some,
        "unevaluatedItems": parts,
        "contains": parts,
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "not": parts,
        "if": parts,
        "then": parts,
        "else": parts,
        "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/b"]),
    }
    chosen = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


_leaf = st.one_of(
    st.booleans(),
    st.just({}),
    st.lists(st.sampled_from(sorted(_ASSERTIONS)), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: _ASSERTIONS[name] for name in names})
    ),
)
_parts = st.recursive(_leaf, _with_parts, max_leaves=6)

schemas = st.builds(
    lambda root, a, b: root | {"$defs": {"a": a, "b": b}} if "$ref" in repr(root) else root,
    _parts.filter(lambda each: isinstance(each, dict)),
    _parts,
    _leaf,
)
"""Lawful schemas of draft 2020-12, with references that may not lead anywhere new."""
