"""What cannot be said to the constraint engine directly, by set algebra on schemas: complements, and
whether two schemas exclude each other.

The algebra is jsonschema-rs's canonical form. It multiplies alternatives out, so whatever is given to it
is written out without references first and bounded before it runs. Answers are one-sided: no complement,
or "may overlap", means undecided.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import jsonschema_rs

from server.schema.drafts import ONE_SCHEMA
from server.schema.emptiness import canonical_draft
from server.schema.references import Index, Schema, children

NODE_LIMIT = 300
ALTERNATIVE_LIMIT = 64
_SHAPE_DEPTH = 4

# What a shape keeps: each of them only ever narrows, so the shape admits all that the schema admits.
_SHAPE_KEYWORDS = frozenset(
    {
        "const",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "pattern",
        "required",
        "type",
    }
)


class _TooLarge(Exception):
    """A schema is recursive, or has too many parts to be written out."""


class _Inexact(Exception):
    """A number has more digits than the engine's."""


def complement(index: Index, at: str, types: object) -> Schema | None:
    """A schema without references that admits exactly the values of these types (any, if None) that
    the schema at ``at`` refuses. None if undecided."""
    try:
        written = _written_out(index, at, [NODE_LIMIT], ())
    except _TooLarge:
        return None
    if any(_alternatives(written, negated=turned) > ALTERNATIVE_LIMIT for turned in (True, False)):
        return None
    negation: dict[str, object] = {"not": written}
    if types is not None:
        negation["type"] = types
    try:
        canonical = jsonschema_rs.canonicalize(
            negation, draft=canonical_draft(index.draft), validate_formats=True, offline=True
        )
    except ValueError:  # ValidationError and CanonicalizationError alike
        return None
    order = {name: place for place, name in enumerate(_property_names(written))}
    try:
        return _plain(canonical.to_json_schema(), order)
    except _Inexact:
        return None


def disjoint(index: Index, parent: str, left: str, right: str) -> bool:
    """Whether no value satisfies both schemas, given what their parent says beside its combinations.
    False also means undecided."""
    try:
        shapes = [_shape(index, at, [NODE_LIMIT], _SHAPE_DEPTH) for at in (left, right)]
        shapes.append(_shape(index, parent, [NODE_LIMIT], _SHAPE_DEPTH, combined=False))
    except _TooLarge:
        return False
    both: dict[str, object] = {"allOf": shapes}
    if _alternatives(both, negated=False) > ALTERNATIVE_LIMIT:
        return False
    try:
        canonical = jsonschema_rs.canonicalize(both, draft=canonical_draft(index.draft), offline=True)
    except ValueError:
        return False
    return canonical.satisfiability() == jsonschema_rs.canonical.Satisfiability.NO


def _spend(budget: list[int]) -> None:
    budget[0] -= 1
    if budget[0] < 0:
        raise _TooLarge


def _written_out(index: Index, at: str, budget: list[int], path: tuple[str, ...]) -> Schema:
    """The schema with every reference replaced by what it refers to."""
    _spend(budget)
    schema = index.schemas[at]
    if isinstance(schema, bool):
        return schema
    if at in path or "$dynamicRef" in schema or "$recursiveRef" in schema:
        raise _TooLarge
    path = (*path, at)
    if "$ref" in schema and index.draft.ref_stands_alone:
        return _written_out(index, index.targets[at, "$ref"], budget, path)
    written: dict[str, object] = {
        keyword: value
        for keyword, value in schema.items()
        if keyword
        not in ("$ref", "$defs", "definitions", "$schema", "$id", "id", "$anchor", "$dynamicAnchor")
    }
    for keyword, below, _ in children(schema):
        if keyword in written:
            _replace(written, keyword, below, _written_out(index, at + below, budget, path))
    if "$ref" in schema:
        target = _written_out(index, index.targets[at, "$ref"], budget, path)
        listed = written.get("allOf")
        written["allOf"] = [*(listed if isinstance(listed, list) else []), target]
    return written


def _replace(written: dict[str, object], keyword: str, below: str, child: Schema) -> None:
    """Puts a child in its place, in a copy of the list or map that holds it."""
    value = written[keyword]
    step = below.removeprefix(f"/{keyword}").removeprefix("/").replace("~1", "/").replace("~0", "~")
    if keyword in ONE_SCHEMA and not isinstance(value, list):
        written[keyword] = child
    elif isinstance(value, list):
        written[keyword] = [child if place == int(step) else each for place, each in enumerate(value)]
    elif isinstance(value, dict):
        written[keyword] = value | {step: child}


def _shape(index: Index, at: str, budget: list[int], depth: int, *, combined: bool = True) -> Schema:
    """A schema without references that admits at least what the one at ``at`` admits."""
    _spend(budget)
    schema = index.schemas[at]
    if isinstance(schema, bool):
        return schema
    if depth == 0:
        return True
    shape = {keyword: schema[keyword] for keyword in _SHAPE_KEYWORDS if keyword in schema}
    parts: list[Schema] = []
    if "$ref" in schema and combined:
        target = _shape(index, index.targets[at, "$ref"], budget, depth - 1)
        if index.draft.ref_stands_alone:
            return target
        parts.append(target)
    choices: dict[str, list[Schema]] = {}
    properties: dict[str, Schema] = {}
    for keyword, below, _ in children(schema):
        if keyword == "properties":
            name = below.removeprefix("/properties/").replace("~1", "/").replace("~0", "~")
            properties[name] = _shape(index, at + below, budget, depth - 1)
        elif not combined:
            continue
        elif keyword == "allOf":
            parts.append(_shape(index, at + below, budget, depth - 1))
        elif keyword in ("anyOf", "oneOf"):
            choices.setdefault(keyword, []).append(_shape(index, at + below, budget, depth - 1))
    if properties:
        shape["properties"] = properties
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        shape["additionalProperties"] = False
    parts += [{"anyOf": branches} for branches in choices.values()]
    if parts:
        shape["allOf"] = parts
    return shape


def _alternatives(schema: Schema, *, negated: bool) -> int:
    """About how many alternatives the schema, or its complement, multiplies out to."""
    if isinstance(schema, bool):
        return 1
    total = 0 if negated else 1
    branches: dict[str, list[int]] = {}
    for keyword, _, below in children(schema):
        turned = negated != (keyword == "not")
        inner = _alternatives(below, negated=turned)
        if keyword in ("anyOf", "oneOf"):
            branches.setdefault(keyword, []).append(inner)
        elif keyword in ("if", "then", "else"):
            inner = max(inner, _alternatives(below, negated=not negated))
            total = (total or 1) * (inner + 1)
        elif negated:
            total += inner
        elif keyword in ("allOf", "not", "dependencies", "dependentSchemas"):
            total *= inner + (keyword not in ("allOf", "not"))
    for listed in branches.values():
        together = _product(listed) if negated else sum(listed)
        total = total + together if negated else total * together
    if negated:
        total += sum(keyword not in ("anyOf", "oneOf", "properties", "allOf") for keyword in schema)
    return max(total, 1)


def _product(numbers: list[int]) -> int:
    product = 1
    for number in numbers:
        product = min(product * number, ALTERNATIVE_LIMIT + 1)
    return product


def _property_names(schema: Schema) -> Iterator[str]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for _, _, below in children(schema):
            yield from _property_names(below)


def _plain(schema: object, order: dict[str, int]) -> Schema:
    """A canonical schema with the order of properties restored and decimals as floats."""
    plain = _value(schema, order)
    return plain if isinstance(plain, dict | bool) else True


def _value(value: object, order: dict[str, int]) -> object:
    if isinstance(value, Decimal):
        number = float(value)
        if Decimal(repr(number)) != value:
            raise _Inexact
        return number
    if isinstance(value, list):
        return [_value(each, order) for each in value]
    if isinstance(value, dict):
        return {
            keyword: {
                name: _value(each[name], order)
                for name in sorted(each, key=lambda name: order.get(name, len(order)))
            }
            if keyword == "properties" and isinstance(each, dict)
            else _value(each, order)
            for keyword, each in value.items()
            if keyword != "$schema"
        }
    return value


def scalar_key(value: object) -> str:
    """Equal for equal JSON values: 1 and 1.0 are one value, 1 and true are two. A number that is no double
    may seem equal to its text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)
