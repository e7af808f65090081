"""The places of a schema, for notations that write a value without saying of which type it is: what may stand
in each, and in the places within it.

A union is read as its branches, each with what it says itself. What a schema says beyond types, lists of
values, members and items is not seen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache

from server.schema.check import NESTING_MOST
from server.schema.parameters import NOTES, TYPES, Parameters, Reader, Value, properties_of

STRUCTURED = frozenset({"array", "object"})
_Types = frozenset[str]


class Shape:
    """One place. ``types`` are those of its values, no more than of the place that it is a branch of."""

    def __init__(self, document: _Document, node: object, types: _Types) -> None:
        self._document = document
        self._node = node
        self.types = types & document.reader.types(node)

    @cached_property
    def value(self) -> Value:
        return self._document.reader.value(self._node)

    @cached_property
    def listed(self) -> list[object] | None:
        """The values that may stand here, where they are listed."""
        if isinstance(self._node, dict) and ("const" in self._node or "enum" in self._node):
            return self._document.reader.listed(self._node)
        return None

    @cached_property
    def alternatives(self) -> tuple[Shape, ...]:
        """The branches of a union, all with some values; the shape itself where it is none."""
        nodes = self._branches(self._node, frozenset())
        found = (self._document.shape(each, self.types) for each in nodes)
        return tuple(each for each in found if each.types)

    @cached_property
    def written(self) -> _Types:
        """The types of what a constraint may write here, which takes each branch as it stands."""
        reader = self._document.reader
        return frozenset().union(*map(reader.types, self._branches(self._node, frozenset())))

    def member(self, key: str) -> Shape:
        """What the value of a key may be."""
        return self._document.shape(self._members.get(key, self._others))

    def item(self, place: int) -> Shape:
        first = self._said("prefixItems", [])
        assert isinstance(first, list)
        return self._document.shape(first[place] if place < len(first) else self._said("items", True))

    def has_members(self, keys: set[str]) -> bool:
        """Whether these may be all the keys of an object."""
        return self._required <= keys

    def has_items(self, count: int) -> bool:
        least, most = self._said("minItems", 0), self._said("maxItems", count)
        assert isinstance(least, int)
        assert isinstance(most, int)
        return least <= count <= most

    def _said(self, keyword: str, otherwise: object) -> object:
        return self._node.get(keyword, otherwise) if isinstance(self._node, dict) else otherwise

    @cached_property
    def _members(self) -> dict[str, object]:
        return {key: node for part in self._parts for key, node, _ in properties_of(part)}

    @cached_property
    def _required(self) -> set[str]:
        return {key for part in self._parts for key, _, must in properties_of(part) if must}

    @cached_property
    def _others(self) -> object:
        others = [part["additionalProperties"] for part in self._parts if "additionalProperties" in part]
        return others[-1] if others else True

    @cached_property
    def _parts(self) -> list[Mapping[str, object]]:
        """The schemas that all hold here, the shape's own last."""
        if not isinstance(self._node, dict):
            return []
        several = self._node.get("allOf", [])
        reader = self._document.reader
        return [*(reader.resolved(each) for each in several if isinstance(each, dict)), self._node]

    def _branches(self, node: object, followed: frozenset[str]) -> Iterator[object]:
        if not isinstance(node, dict) or "const" in node or "enum" in node:
            yield node
        elif "$ref" in node:
            reference = str(node["$ref"])
            if reference not in followed:
                target = self._document.reader.definition(reference)
                yield from self._branches(target, followed | {reference})
        elif "anyOf" in node:
            for each in node["anyOf"]:
                yield from self._branches(each, followed)
        elif len(node.get("allOf", [])) == 1 and not set(node) - NOTES - {"allOf", "type"}:
            yield from self._branches(node["allOf"][0], followed)
        else:
            yield node


class _Document:
    """The shapes of one schema, each made once."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._known: dict[tuple[int, _Types], Shape] = {}

    def shape(self, node: object, types: _Types = TYPES) -> Shape:
        key = (id(node), types)
        if key not in self._known:
            self._known[key] = Shape(self, node, types)
        return self._known[key]


@lru_cache(maxsize=256)
def shape_of(parameters: Parameters) -> Shape:
    """The shape of all arguments of a tool."""
    schema = parameters.schema or {"type": "object"}
    return _Document(Reader(schema, parameters.nesting)).shape(schema, frozenset({"object"}))


ANYTHING = _Document(Reader({}, NESTING_MOST)).shape(True)
"""The shape of any value."""
