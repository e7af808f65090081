"""Which subschemas no value satisfies, by jsonschema-rs's set algebra, as far as that is cheap to know."""

from __future__ import annotations

import math
from collections.abc import Container

import jsonschema_rs

from server.schema.document import DEPTH_LIMIT
from server.schema.drafts import DYNAMIC_REFERENCES, SAME_INSTANCE, Draft
from server.schema.problem import Refused
from server.schema.references import Index, Schema, children, escaped

CASE_LIMIT = 256
"""Alternatives a schema may multiply out to before its satisfiability is left undecided: set algebra
on 30 two-way choices in one ``allOf`` took 12 seconds and 1.2 GB."""

PAIR_LIMIT = 500_000
"""Pairs of properties of alternatives, which the algebra compares: a million of them took a second."""


def empty_schemas(index: Index, inner_first: list[str], *, as_object: bool) -> frozenset[str]:
    """The subschemas known to admit no value. Refuses where the root is one of them."""
    if _affordable(index, inner_first):
        try:
            return _decided(index, as_object=as_object)
        except (jsonschema_rs.ValidationError, jsonschema_rs.canonical.CanonicalizationError):
            pass  # the algebra does not model this document: undecided
    return frozenset()


def _decided(index: Index, *, as_object: bool) -> frozenset[str]:
    draft = canonical_draft(index.draft)
    root = undeclared(index.root)
    canonical = jsonschema_rs.canonicalize(root, draft=draft, validate_formats=True, offline=True)
    impossible = jsonschema_rs.canonical.Satisfiability.NO
    if canonical.satisfiability() == impossible:
        raise _refused_as_empty(index, root, draft)
    if as_object:
        objects = jsonschema_rs.canonicalize({"type": "object"}, draft=draft, validate_formats=True)
        if canonical.intersect(objects).satisfiability() == impossible:
            raise Refused("", "type", "a tool's arguments are an object", "schema_unsatisfiable")
    return frozenset(_empty(root, draft))


def canonical_draft(draft: Draft) -> int:
    """The draft's number in the set algebra."""
    return {
        Draft.DRAFT4: jsonschema_rs.Draft4,
        Draft.DRAFT6: jsonschema_rs.Draft6,
        Draft.DRAFT7: jsonschema_rs.Draft7,
        Draft.DRAFT201909: jsonschema_rs.Draft201909,
        Draft.DRAFT202012: jsonschema_rs.Draft202012,
    }[draft]


def undeclared(schema: Schema) -> Schema:
    """The schema without ``$schema``, whose unknown addresses the set algebra would not model."""
    if isinstance(schema, bool):
        return schema
    return {keyword: value for keyword, value in schema.items() if keyword != "$schema"}


def _empty(root: Schema, draft: int) -> dict[str, jsonschema_rs.canonical.UnsatisfiableReason]:
    return jsonschema_rs.canonical.find_unsatisfiable(root, draft=draft, validate_formats=True, offline=True)


def _refused_as_empty(index: Index, root: Schema, draft: int) -> Refused:
    """Follows the reasons down to the keywords at fault."""
    reasons = _empty(root, draft)
    at = ""
    keywords: list[str] = []
    for _ in range(DEPTH_LIMIT):
        reason = reasons.get(at)
        if isinstance(reason, jsonschema_rs.canonical.UnsatisfiableReason.Empty):
            causes = [reason.cause]
        elif isinstance(reason, jsonschema_rs.canonical.UnsatisfiableReason.Conflict):
            causes = reason.causes
        else:
            keywords = []
            break
        keywords = sorted({keyword for cause in causes for keyword in cause.keywords})
        inner = (cause.pointer for cause in causes if cause.pointer != at and cause.pointer in reasons)
        deeper = next(inner, None) or _impossible_property(index, at, reasons)
        if deeper is None:
            at = causes[0].pointer if len(causes) == 1 else at
            break
        at = deeper
    what = f"{' and '.join(keywords)} together" if len(keywords) > 1 else "it"
    keyword = keywords[0] if keywords else ""
    return Refused(at, keyword, f"no value satisfies {what}", "schema_unsatisfiable")


def _impossible_property(index: Index, at: str, reasons: Container[str]) -> str | None:
    """The first required property that no value satisfies."""
    schema = index.schemas.get(at)
    required = schema.get("required") if isinstance(schema, dict) else None
    names = required if isinstance(required, list) else []
    places = (f"{at}/properties/{escaped(name)}" for name in names)
    return next((place for place in places if place in reasons), None)


def _affordable(index: Index, inner_first: list[str]) -> bool:
    """Whether no value's schema multiplies out to too many alternatives, or to too wide ones."""
    cases: dict[str, int] = {}
    widths: dict[str, int] = {}
    pairs = 0
    for at in inner_first:
        schema = index.schemas[at]
        if isinstance(schema, bool):
            cases[at], widths[at] = 1, 0
            continue
        cases[at] = min(_product(index, at, schema, cases), CASE_LIMIT + 1)
        widths[at] = min(_width(index, at, schema, widths), PAIR_LIMIT)
        pairs += widths[at] ** 2 if cases[at] > 1 else 0
    return max(cases.values()) <= CASE_LIMIT and pairs <= PAIR_LIMIT


def _width(index: Index, at: str, schema: dict[str, object], widths: dict[str, int]) -> int:
    """The properties that all alternatives declare together."""
    declared = schema.get("properties")
    width = len(declared) if isinstance(declared, dict) else 0
    width += sum(widths[at + below] for keyword, below, _ in children(schema) if keyword in SAME_INSTANCE)
    targets = (index.targets.get((at, keyword), "") for keyword in ("$ref", *DYNAMIC_REFERENCES))
    return width + sum(widths.get(target, 0) for target in targets)


def _product(index: Index, at: str, schema: dict[str, object], cases: dict[str, int]) -> int:
    product = 1
    sums: dict[str, int] = {}
    for keyword, below, _ in children(schema):
        if keyword in ("anyOf", "oneOf"):
            sums[keyword] = sums.get(keyword, 0) + cases[at + below]
        elif keyword in SAME_INSTANCE:
            product *= cases[at + below] + (keyword != "allOf")
    for keyword in ("$ref", *DYNAMIC_REFERENCES):
        product *= cases.get(index.targets.get((at, keyword), ""), 1)
    for keyword in ("dependencies", "dependentRequired"):
        names = schema.get(keyword)
        product *= 2 ** min(len(names), 32) if isinstance(names, dict) else 1
    return product * math.prod(sums.values())
