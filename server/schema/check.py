"""Whether a schema can be held to: well formed, self-contained, satisfiable, and within bounds.

Reads a schema once. Refuses it with the place and the reason, or returns what the later steps need.
Every lawful keyword is accepted here: what cannot be enforced while generating is verified afterwards
(``lower`` says which). No socket is ever opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import jsonschema_rs

from server.errors import InvalidSchema, quoted
from server.schema.document import malformed, read, unfit
from server.schema.drafts import Draft
from server.schema.emptiness import empty_schemas
from server.schema.expansion import NODE_LIMIT, expansion
from server.schema.patterns import extent
from server.schema.problem import Problem, Refused
from server.schema.references import Index, Schema
from server.schema.verify import compiled, pointer

ENUM_LIMIT = 8_192
PROPERTY_LIMIT = 1_024
PATTERN_LIMIT = 2_000
PATTERN_NESTING_LIMIT = 32
REPEAT_LIMIT = 2_000
WRITTEN_OUT_LIMIT = 64_000
"""Characters of all patterns of a document, repetitions written out. The validator's compiled form takes
about 2 KB and 25 microseconds for each."""

# The validator recurses natively over value and schema, and a stack overflow there ends the process
# (600 levels of a value at 200 steps each overflow 8 MiB; 10 such levels fit into 512 KiB).
NESTING_STACK = 2_000
NESTING_MOST = 128
NESTING_LEAST = 8

_PARAM_LIMIT = 200
_NAMED_PROBLEMS = 8

_LOWER_BOUNDS = ("minContains", "minItems", "minLength", "minProperties")
_OPPOSED = (
    ("minContains", "maxContains"),
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
)


@dataclass(frozen=True, slots=True)
class Checked:
    """A schema that can be held to. ``schema`` is the client's, with ``nullable`` and boolean
    exclusive bounds written in today's form at their own place; ``empty`` are pointers of subschemas
    known to admit no value; ``nesting`` is how deep a value may nest to be verified."""

    schema: Schema
    draft: Draft
    index: Index
    empty: frozenset[str]
    nesting: int
    validator: jsonschema_rs.Validator = field(repr=False)


def check(schema_text: str, *, param: str, as_object: bool = False) -> Checked:
    """Checks one schema. ``param`` is the request field it came from; ``as_object`` also refuses
    schemas no object satisfies. Raises ``InvalidSchema``."""
    try:
        return examined(schema_text, as_object=as_object)
    except Refused as refused:
        problem = refused.problem
        raise InvalidSchema(str(problem), code=problem.code, param=_field(param, problem)) from None


def check_all(items: Iterable[tuple[str, str, str]], *, as_object: bool = True) -> list[Checked]:
    """Checks (tool name, schema text, param) triples and names all bad ones at once: one
    ``InvalidSchema`` whose message lists tool, place, keyword and reason, at the first one's field."""
    good: list[Checked] = []
    bad: list[tuple[str, str, Problem]] = []
    for name, schema_text, param in items:
        try:
            good.append(examined(schema_text, as_object=as_object))
        except Refused as refused:
            bad.append((name, param, refused.problem))
    if bad:
        _refuse_all(bad)
    return good


def _refuse_all(bad: list[tuple[str, str, Problem]]) -> NoReturn:
    shown = [f"tool {quoted(name)}: {problem}" for name, _, problem in bad[:_NAMED_PROBLEMS]]
    rest = len(bad) - len(shown)
    message = "; ".join(shown) + (f"; and {rest} more" if rest else "")
    _, param, first = bad[0]
    raise InvalidSchema(message, code=first.code, param=_field(param, first))


def _field(param: str, problem: Problem) -> str:
    steps = (problem.pointer + (f"/{problem.keyword}" if problem.keyword else "")).split("/")[1:]
    path = ".".join([param, *(step.replace("~1", "/").replace("~0", "~") for step in steps)])
    return path.encode("unicode_escape").decode("ascii")[:_PARAM_LIMIT]


def examined(text: str, *, as_object: bool) -> Checked:
    """Checks one schema. Raises ``Refused``."""
    document, draft = read(text)
    index = Index(document, draft)
    _resolve(index)
    _bounds(index)
    expanded = expansion(index)
    validator = _validator(document, draft)
    empty = empty_schemas(index, list(expanded.sizes), as_object=as_object)
    nesting = max(NESTING_LEAST, min(NESTING_MOST, NESTING_STACK // max(expanded.heights.values())))
    return Checked(document, draft, index, empty, nesting, validator)


def _validator(document: Schema, draft: Draft) -> jsonschema_rs.Validator:
    try:
        return compiled(document, draft)
    except jsonschema_rs.ValidationError as error:
        at = error.instance_path
        raise Refused(pointer(at[:-1]), str(at[-1]) if at else "", unfit(error)) from None
    except jsonschema_rs.ReferencingError:
        raise Refused("", "$ref", "a reference cannot be resolved") from None


def _resolve(index: Index) -> None:
    for at, keyword, reason in index.resolve():
        schema = index.schemas[at]
        shown = quoted(str(schema[keyword])) if isinstance(schema, dict) else ""
        if reason == "remote":
            reason = f"{shown} is outside this document; only references inside it are followed"
            raise Refused(at, keyword, reason, "unsupported_ref")
        raise Refused(at, keyword, f"{shown} points at no schema")
    for at in index.outside:
        refusal = malformed(index.schemas[at], index.draft)
        if refusal is not None:
            raise Refused(at + refusal.problem.pointer, refusal.problem.keyword, refusal.problem.reason)


def _bounds(index: Index) -> None:
    if len(index.schemas) > NODE_LIMIT:
        raise Refused("", "", f"more than {NODE_LIMIT} subschemas", "schema_too_large")
    written_out = 0
    for at, schema in index.schemas.items():
        if isinstance(schema, dict):
            for keyword, limit in _excesses(schema):
                raise Refused(at, keyword, f"more than {limit}", "schema_too_large")
            _contradictions(at, schema)
            for keyword, pattern in _patterns(schema):
                written_out += extent(pattern).size
                if written_out > WRITTEN_OUT_LIMIT:
                    limit = f"{WRITTEN_OUT_LIMIT} characters in all patterns, repetitions written out"
                    raise Refused(at, keyword, f"more than {limit}", "schema_too_large")


def _excesses(schema: dict[str, object]) -> Iterator[tuple[str, str]]:
    """The keywords of a schema that are over a limit, each with the limit in words."""
    values = schema.get("enum")
    if isinstance(values, list) and len(values) > ENUM_LIMIT:
        yield "enum", f"{ENUM_LIMIT} values"
    for keyword in ("properties", "patternProperties"):
        named = schema.get(keyword)
        if isinstance(named, dict) and len(named) > PROPERTY_LIMIT:
            yield keyword, f"{PROPERTY_LIMIT} properties"
    for keyword in _LOWER_BOUNDS:
        least = schema.get(keyword)
        if isinstance(least, int | float) and least > REPEAT_LIMIT:
            yield keyword, str(REPEAT_LIMIT)
    for keyword, pattern in _patterns(schema):
        measured = extent(pattern)
        if len(pattern) > PATTERN_LIMIT:
            yield keyword, f"{PATTERN_LIMIT} characters"
        if measured.nesting > PATTERN_NESTING_LIMIT:
            yield keyword, f"{PATTERN_NESTING_LIMIT} nested groups"
        if measured.repeats > REPEAT_LIMIT:
            yield keyword, f"{REPEAT_LIMIT} repetitions"


def _patterns(schema: dict[str, object]) -> Iterator[tuple[str, str]]:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        yield "pattern", pattern
    named = schema.get("patternProperties")
    if isinstance(named, dict):
        for each in named:
            yield "patternProperties", each


def _contradictions(at: str, schema: dict[str, object]) -> None:
    """A schema no value satisfies may be meant (``not: {}`` in a branch); these never are."""
    if schema.get("enum") == []:
        raise Refused(at, "enum", "an empty list admits no value", "schema_unsatisfiable")
    for low, high in _OPPOSED:
        least, most = schema.get(low), schema.get(high)
        if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
            raise Refused(at, low, f"{low} is above {high}", "schema_unsatisfiable")
