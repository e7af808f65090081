"""Walks a lowered schema and writes the rules of its values, for notations that write arrays and objects in a
syntax of their own.

Held to are types, lists of values, texts with patterns, numbers with bounds, arrays and objects at any depth,
and references. What else a schema says is loosened, and verified on the finished call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import ClassVar, NamedTuple

from server.dialects.order import Gaps, order_rules
from server.schema import compiling
from server.schema.parameters import TYPES, Reader, properties_of

_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ABOUT = {
    "string": frozenset({"pattern", "minLength", "maxLength", "allOf", "format"}),
    "array": frozenset({"prefixItems", "items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "number": frozenset(_NUMERIC),
    "integer": frozenset(_NUMERIC),
}
"""The keywords about values of one type that its rules hold to."""
_SAYS_NOTHING = frozenset({"$defs", "description", "title", "default", "examples"})
_ONE_OF_ALL = _SAYS_NOTHING | {"allOf", "type"}


class Extent(NamedTuple):
    """How far a notation reaches for one schema. ``exact``: its rules admit valid values only.
    ``unwritable`` are keys that values must have and can't. ``objects`` is how many kinds of objects there
    are."""

    exact: bool
    unwritable: tuple[str, ...]
    objects: int


class Lowering(ABC):
    """One schema, with rules named after ``prefix``; those of up to ``any_order`` members come in any order.
    A notation says how it writes each kind of value, as rule text."""

    separator: ClassVar[str]
    """What stands between two members or items."""

    def __init__(self, any_order: int, prefix: str, schema: Mapping[str, object]) -> None:
        self.lines: list[str] = []
        self.reader = Reader(schema)
        self._exact = True
        self._unwritable: list[str] = []
        self._objects = 0
        self._any_order = any_order
        self._prefix = prefix
        self._named: dict[str, str] = {}
        self._waiting: list[tuple[str, object]] = []
        self._any = ""
        self._count = 0
        self._add(prefix, schema)
        while self._waiting:
            self._add(*self._waiting.pop())

    @property
    def extent(self) -> Extent:
        return Extent(self._exact, tuple(self._unwritable), self._objects)

    # What a notation says.

    @abstractmethod
    def writable(self, key: str) -> bool: ...

    @abstractmethod
    def listed(self, values: Sequence[object]) -> str:
        """One of these values."""

    @abstractmethod
    def plain(self, kind: str, rule: str) -> str:
        """A number, a boolean or null, as a rule of JSON; that is empty for the last two."""

    @abstractmethod
    def text(self, patterns: Sequence[str]) -> str: ...

    @abstractmethod
    def enclosed(self, kind: str, content: str) -> str:
        """An array or an object with its items or members; those are empty where there are none."""

    @abstractmethod
    def item(self, value: str) -> str: ...

    @abstractmethod
    def member(self, key: str, value: str) -> str: ...

    @abstractmethod
    def free_member(self, name: str, declared: Sequence[str], value: str) -> str:
        """A member with any key but the declared ones."""

    @abstractmethod
    def any_value(self, name: str) -> None:
        """Adds the rule ``name`` of any value at all."""

    # What is the same for all.

    def new(self) -> str:
        """The name of one more rule."""
        self._count += 1
        return f"{self._prefix}_v{self._count}"

    def needs(self, keys: Sequence[str]) -> None:
        """Notes the keys of values that can't be written without them."""
        self._unwritable += [key for key in keys if not self.writable(key)]

    def of_type(self, kind: str, node: Mapping[str, object]) -> str:
        """The values of one type."""
        match kind:
            case "string":
                patterns, exact = self.reader.texts(node)
                self._exact &= exact
                return self.text(patterns)
            case "null" | "boolean":
                return self.plain(kind, "")
            case "array":
                return self._array(node)
            case "object":
                return self._object(node)
        name = self.new()
        numeric = {key: node[key] for key in _NUMERIC if key in node} | {"type": kind}
        self.lines.append(f"{name}: %json {compiling.engine_text(numeric)}")
        return self.plain(kind, name)

    def _add(self, name: str, node: object) -> None:
        self.lines.append(f"{name}: {self._value(node)}")

    def _hold_to(self, node: Mapping[str, object], keyword: str) -> None:
        """Notes whether a schema says more than a keyword does."""
        self._exact &= not set(node) - {keyword, "type"} - _SAYS_NOTHING
        if "type" in node:
            said = self.reader.types({"type": node["type"]})
            self._exact &= self.reader.types({keyword: node[keyword]}) <= said

    def _value(self, node: object) -> str:
        """Rule text for the values of a schema that has some."""
        if not isinstance(node, dict):
            return self._any_value()
        if "const" in node or "enum" in node:
            return self.listed(self.reader.listed(node))
        if "$ref" in node:
            self._hold_to(node, "$ref")
            return self._reference(str(node["$ref"]))
        types = self.reader.types(node)
        if "anyOf" in node:
            return self._branches(node, "anyOf")
        if types != {"string"} and len(node.get("allOf", [])) == 1 and not set(node) - _ONE_OF_ALL:
            return self._branches(node, "allOf")
        if types == TYPES and not set(node) - _SAYS_NOTHING:
            return self._any_value()
        kinds = types - {"integer"} if "number" in types else types
        self._exact &= not set(node) - frozenset({"type"}).union(*_ABOUT.values()) - _SAYS_NOTHING
        self._exact &= kinds == {"string"} or "allOf" not in node
        return one_of([self.of_type(kind, node) for kind in sorted(kinds)])

    def _branches(self, node: Mapping[str, object], keyword: str) -> str:
        self._hold_to(node, keyword)
        branches = node[keyword]
        assert isinstance(branches, list)
        return one_of([self._value(each) for each in branches if self.reader.types(each)])

    def _array(self, node: Mapping[str, object]) -> str:
        least, most = node.get("minItems", 0), node.get("maxItems")
        assert isinstance(least, int)
        assert most is None or isinstance(most, int)
        first = node.get("prefixItems", [])
        assert isinstance(first, list)
        items = list(takewhile(self.reader.types, first[:most]))
        rest = node.get("items", True)
        goes_on = len(items) == len(first) and bool(self.reader.types(rest))
        goes_on = goes_on and (most is None or most > len(first))
        items += [rest] if goes_on else []
        names = [self.new() for _ in items]
        for name, each in zip(names, items, strict=True):
            self.lines.append(f"{name}: {self.item(self._value(each))}")
        return self.enclosed("array", _items(names, self.separator, goes_on, least, most) if names else "")

    def _object(self, node: Mapping[str, object]) -> str:
        name = self.new()
        properties = [each for each in properties_of(node) if self.reader.types(each[1])]
        self._exact &= all(self.reader.types(value) for _, value, must in properties_of(node) if must)
        said = [each for each in properties if self.writable(each[0])]
        self.needs([key for key, _, must in properties if must])
        self._objects += bool(said)
        for place, (key, value, _) in enumerate(said):
            self.lines.append(f"{name}_{place}: {self.member(key, self._value(value))}")
        free, others = "", node.get("additionalProperties", True)
        if self.reader.types(others):
            free = f"{name}_free"
            declared = [key for key, _, _ in properties_of(node)]
            self.lines.append(f"{free}: {self.free_member(free, declared, self._value(others))}")
        required = [must for _, _, must in said]
        self.lines += order_rules(name, required, free, Gaps(between=self.separator), self._any_order)
        return self.enclosed("object", name)

    def _reference(self, reference: str) -> str:
        if reference not in self._named:
            self._named[reference] = self.new()
            self._waiting.append((self._named[reference], self.reader.definition(reference)))
        return self._named[reference]

    def _any_value(self) -> str:
        if not self._any:
            self._any = f"{self._prefix}_any"
            self.any_value(self._any)
        return self._any


def _items(names: Sequence[str], separator: str, goes_on: bool, least: int, most: int | None) -> str:
    """Rule text for the items of an array, at least one. ``goes_on``: the last rule is that of all further
    items, too."""
    before = f'"{separator}" ' if separator else ""
    further = ""
    count = len(names)
    if goes_on and most != count:
        further = f"({before}{names[-1]}){{{max(least - count, 0)},{'' if most is None else most - count}}}"
    for place in range(len(names) - 1, 0, -1):
        further = f"{before}{names[place]} {further}"
        further = f"({further})?" if place >= least else further
    return f"{names[0]} {further}" if least else f"({names[0]} {further})?"


def one_of(forms: Sequence[str]) -> str:
    return f"({' | '.join(forms)})"
