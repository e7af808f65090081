"""How far the schemas that apply to one value reach: references that lead nowhere, and ones that multiply.

The validator and the set algebra walk these natively, so they are bounded before either sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from server.schema.drafts import DYNAMIC_REFERENCES, SAME_INSTANCE
from server.schema.problem import Refused
from server.schema.references import Index, children

NODE_LIMIT = 50_000
REFERENCE_CHAIN_LIMIT = 100
HEIGHT_LIMIT = 250


@dataclass(slots=True)
class Expansion:
    """What each subschema becomes when all that applies to the same value is written out: how many
    schemas, how many references in a row, how many steps in a row. Inner schemas come first."""

    sizes: dict[str, int] = field(default_factory=dict)
    chains: dict[str, int] = field(default_factory=dict)
    heights: dict[str, int] = field(default_factory=dict)

    def add(self, at: str, edges: list[tuple[str, int]]) -> None:
        self.sizes[at] = 1 + sum(self.sizes[each] for each, _ in edges)
        self.chains[at] = max((self.chains[each] + step for each, step in edges), default=0)
        self.heights[at] = max((self.heights[each] + 1 for each, _ in edges), default=1)
        for measured, limit, what in (
            (self.sizes[at], NODE_LIMIT, "schemas in one"),
            (self.chains[at], REFERENCE_CHAIN_LIMIT, "references in a row"),
            (self.heights[at], HEIGHT_LIMIT, "schemas that apply to one value inside each other"),
        ):
            if measured > limit:
                raise Refused(at, "$ref", f"more than {limit} {what}", "schema_too_large")


def expansion(index: Index) -> Expansion:
    """Refuses references that lead back to themselves without entering a value, chains that are too
    long, and references that multiply. Recursion through a property or an item is fine."""
    expanded = Expansion()
    for start in index.schemas:
        if start not in expanded.sizes:
            _expand(index, start, expanded)
    return expanded


def _expand(index: Index, start: str, expanded: Expansion) -> None:
    path: set[str] = set()
    # Each entry is visited twice: on the way down and, with all below it known, on the way up.
    waiting: list[tuple[str, bool]] = [(start, False)]
    while waiting:
        at, known = waiting.pop()
        edges = _same_value(index, at)
        if known:
            path.discard(at)
            expanded.add(at, edges)
        elif at in path:
            raise Refused(at, "$ref", "refers to itself without entering the value", "schema_unsatisfiable")
        elif at not in expanded.sizes:
            path.add(at)
            waiting.append((at, True))
            waiting.extend((each, False) for each, _ in edges)


def _same_value(index: Index, at: str) -> list[tuple[str, int]]:
    """The schemas that apply to the same value, with 1 for a step over a reference."""
    schema = index.schemas[at]
    if not isinstance(schema, dict):
        return []
    found: list[tuple[str, int]] = []
    for keyword in ("$ref", *DYNAMIC_REFERENCES):
        target = index.targets.get((at, keyword))
        if target is not None:
            found.append((target, 1))
    if not (index.draft.ref_stands_alone and "$ref" in schema):
        found += [(at + below, 0) for keyword, below, _ in children(schema) if keyword in SAME_INSTANCE]
    return found
