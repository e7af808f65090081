"""The work of lowering one schema: the site being lowered, and what is known across sites.

What becomes of each keyword is in ``scalars``, ``containers`` and ``combinations``; ``lower`` puts them
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property

from server.schema import algebra
from server.schema.check import Checked
from server.schema.references import Schema

OBJECT_KEYWORDS = frozenset(
    {
        "additionalProperties",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "propertyNames",
        "required",
        "unevaluatedProperties",
    }
)
APPLICATORS = (
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "dependentSchemas",
    "if",
    "not",
    "oneOf",
)
COMPILE_LIMIT = 64
"""Patterns and divisors of one document that are tried out on the engine; more are loosened. A thousand
took 17 seconds and 1.1 GB."""

_CLOSABLE = frozenset({"maxProperties", "properties", "required"})
_MENTIONS_VALUES = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")


@dataclass(frozen=True, slots=True)
class Loosened:
    """A keyword that is not, or not wholly, held to while generating; ``reason`` says why. ``pointer``
    is that of the schema that holds it, empty also where it is given up everywhere."""

    pointer: str
    keyword: str
    reason: str


@dataclass(frozen=True, slots=True)
class Site:
    """A schema being lowered. ``written`` ones came out of the set algebra: they have no pointer of
    their own (``at`` is where they came from) and no references. In ``closed`` ones an object that
    declares its properties gets no others."""

    at: str
    node: Schema
    closed: bool = False
    written: bool = False
    out: dict[str, object] = field(default_factory=dict)

    def get(self, keyword: str) -> object:
        return self.node.get(keyword) if isinstance(self.node, dict) else None

    def has(self, *keywords: str) -> bool:
        return isinstance(self.node, dict) and any(keyword in self.node for keyword in keywords)

    def also(self, *schemas: Schema) -> None:
        """Has the value satisfy these too."""
        listed = self.out.setdefault("allOf", [])
        assert isinstance(listed, list)
        listed.extend(schemas)

    def objects_only(self) -> bool:
        return self.get("type") in ("object", ["object"])

    def only(self, keyword: str) -> bool:
        """Whether nothing beside this keyword says anything about the keys of an object."""
        return not any(self.has(each) for each in (*OBJECT_KEYWORDS, *APPLICATORS) if each != keyword)

    def declares_all(self) -> bool:
        """Whether this is an object of declared properties, with no word on others. At the root none may
        be declared; further in that is how some generators write an object of any keys."""
        declared, required = self.get("properties"), self.get("required")
        if not isinstance(declared, dict) or not (declared or not self.at):
            return False
        known = all(name in declared for name in required) if isinstance(required, list) else True
        return known and not any(self.has(each) for each in (*(OBJECT_KEYWORDS - _CLOSABLE), *APPLICATORS))


Rule = Callable[["Lowering", Site, str, object], None]


class Lowering:
    """Lowers schemas of one document by the given rules. Without ``complements`` nothing is negated."""

    def __init__(self, checked: Checked, rules: Mapping[str, Rule], *, complements: bool) -> None:
        self.index = checked.index
        self.draft = checked.draft
        self.loosened: list[Loosened] = []
        self.definitions: dict[str, Schema] = {}
        self._empty = checked.empty
        self._rules = rules
        self._complements = complements
        self._names: dict[tuple[str, bool], str] = {}
        self._waiting: list[tuple[str, bool]] = []
        self._tried: set[str] = set()

    def schema(self, site: Site) -> Schema:
        node = site.node
        if not site.written and site.at in self._empty:
            return False
        if isinstance(node, bool):
            return node
        if "$ref" in node and self.draft.ref_stands_alone and not site.written:
            return self.reference(self.index.targets[site.at, "$ref"], closed=site.closed)
        for keyword, value in node.items():
            rule = self._rules.get(keyword)
            if rule is not None and (site.written or self.draft.knows(keyword)):
                rule(self, site, keyword, value)
        if site.closed and site.declares_all():
            site.out["additionalProperties"] = False
        return site.out

    def child(self, site: Site, below: str, node: object, *, closed: bool = False) -> Schema:
        assert isinstance(node, dict | bool)
        at = site.at if site.written else site.at + below
        return self.schema(Site(at, node, closed and site.closed, site.written))

    def reference(self, target: str, *, closed: bool) -> Schema:
        key = target, closed
        if key not in self._names:
            self._names[key] = f"d{len(self._names)}"
            self._waiting.append(key)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def follow_references(self) -> None:
        while self._waiting:
            target, closed = self._waiting.pop()
            lowered = self.schema(Site(target, self.index.schemas[target], closed))
            self.definitions[self._names[target, closed]] = lowered

    def loosen(self, at: str, keyword: str, reason: str) -> None:
        self.loosened.append(Loosened(at, keyword, reason))

    def may_try(self, part: str) -> bool:
        """Whether one more part of the document may be tried out on the engine."""
        if part not in self._tried and len(self._tried) < COMPILE_LIMIT:
            self._tried.add(part)
        return part in self._tried

    def complement(self, site: Site, below: str) -> Schema | None:
        """A lowered schema for exactly the values that a subschema refuses; None where there is none:
        half a complement costs as much to constrain and leaves the keyword to be verified anyway."""
        if site.written or not self._complements:
            return None
        refused = algebra.complement(self.index, site.at + below, site.get("type"))
        if refused is None:
            return None
        known = len(self.loosened)
        lowered = self.schema(Site(site.at, refused, written=True))
        if len(self.loosened) > known:
            del self.loosened[known:]
            return None
        return lowered

    @cached_property
    def fractions(self) -> frozenset[float]:
        """The numbers with a fraction that a value is compared with anywhere in the document."""
        return fractions(self.index.schemas.values())

    @cached_property
    def merges(self) -> bool:
        """Whether keywords of different schemas may meet on one value."""
        schemas = [schema for schema in self.index.schemas.values() if isinstance(schema, dict)]
        return any(keyword in schema for schema in schemas for keyword in (*APPLICATORS, "patternProperties"))


def fractions(schemas: Iterable[Schema]) -> frozenset[float]:
    """The numbers with a fraction that these schemas themselves compare a value with."""
    waiting: list[object] = [
        schema[keyword]
        for schema in schemas
        if isinstance(schema, dict)
        for keyword in _MENTIONS_VALUES
        if keyword in schema
    ]
    found: set[float] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, float | Decimal) and value != int(value):
            found.add(float(value))
    return frozenset(found)
