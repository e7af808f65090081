"""The rules of arguments in Gemma's notation, for the constraint: JSON with bare keys and raw texts.

The schema is lowered into that syntax: types, lists of values, texts with patterns, numbers with bounds,
arrays and objects at any depth, and references. What else a schema says is loosened, and verified on the
finished call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from server.dialects.grammar import lark_string
from server.dialects.order import Gaps, any_order_limit, order_rules
from server.dialects.raw_text import BARE_KEY_ENDS, Split, free_key, text_until, writable
from server.schema import compiling
from server.schema.parameters import TYPES, Parameters, Reader, properties_of

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
_WORDS = {"null": '("null" | "None")', "boolean": '("true" | "false")'}


class GemmaRules:
    """Writes the rules for the arguments of the tools of an answer. ``quote`` is the marker around texts,
    ``split`` the same as tokens and text."""

    def __init__(self, quote: str, split: Split, tools: Iterable[Parameters]) -> None:
        self._quote = quote
        self._split = split
        self._any_order = any_order_limit(sum(gemma_extent(tool).objects for tool in tools))

    def rules(self, name: str, parameters: Parameters) -> list[str]:
        """The rules of one tool's arguments; ``name`` is the first one's."""
        return _Lowering(self._quote, self._split, self._any_order, name, parameters.schema).lines


class GemmaExtent(NamedTuple):
    """How far the notation reaches for one schema. ``exact``: its rules admit valid values only.
    ``unwritable`` are keys that values must have and can't. ``objects`` is how many kinds of objects there
    are."""

    exact: bool
    unwritable: tuple[str, ...]
    objects: int


@lru_cache(maxsize=256)
def gemma_extent(parameters: Parameters) -> GemmaExtent:
    lowering = _Lowering('"', Split('"', ""), 0, "arguments", parameters.schema)
    return GemmaExtent(lowering.exact, tuple(lowering.unwritable), lowering.objects)


class _Lowering:
    """One schema, with rules named after ``prefix``. ``exact``: nothing of it is loosened."""

    def __init__(
        self, quote: str, split: Split, any_order: int, prefix: str, schema: Mapping[str, object]
    ) -> None:
        self.lines: list[str] = []
        self.exact = True
        self.unwritable: list[str] = []
        self.objects = 0
        self._marker = quote
        self._split = split
        self._quote = split.rule_text
        self._any_order = any_order
        self._prefix = prefix
        self._reader = Reader(schema)
        self._named: dict[str, str] = {}
        self._waiting: list[tuple[str, object]] = []
        self._any = ""
        self._count = 0
        self._add(prefix, schema)
        while self._waiting:
            self._add(*self._waiting.pop())

    def _new(self) -> str:
        self._count += 1
        return f"{self._prefix}_v{self._count}"

    def _add(self, name: str, node: object) -> None:
        self.lines.append(f"{name}: {self._value(node)}")

    def _hold_to(self, node: Mapping[str, object], keyword: str) -> None:
        """Notes whether a schema says more than a keyword does."""
        self.exact &= not set(node) - {keyword, "type"} - _SAYS_NOTHING
        if "type" in node:
            said = self._reader.types({"type": node["type"]})
            self.exact &= self._reader.types({keyword: node[keyword]}) <= said

    def _value(self, node: object) -> str:
        """Rule text for the values of a schema that has some."""
        if not isinstance(node, dict):
            return self._any_value()
        if "const" in node or "enum" in node:
            return _one_of([self._literal(each) for each in self._reader.listed(node)])
        if "$ref" in node:
            self._hold_to(node, "$ref")
            return self._reference(str(node["$ref"]))
        types = self._reader.types(node)
        if "anyOf" in node:
            return self._branches(node, "anyOf")
        if types != {"string"} and len(node.get("allOf", [])) == 1 and not set(node) - _ONE_OF_ALL:
            return self._branches(node, "allOf")
        if types == TYPES and not set(node) - _SAYS_NOTHING:
            return self._any_value()
        kinds = types - {"integer"} if "number" in types else types
        self.exact &= not set(node) - frozenset({"type"}).union(*_ABOUT.values()) - _SAYS_NOTHING
        self.exact &= kinds == {"string"} or "allOf" not in node
        return _one_of([self._of_type(kind, node) for kind in sorted(kinds)])

    def _literal(self, value: object) -> str:
        match value:
            case str():
                return " ".join([self._quote, *([lark_string(value)] if value else []), self._quote])
            case None:
                return _WORDS["null"]
            case list():
                return " ".join(['"["', *_parted([self._literal(each) for each in value]), '"]"'])
            case dict():
                self.unwritable += [key for key in value if not writable(key, BARE_KEY_ENDS)]
                pairs = [f"{lark_string(key + ':')} {self._literal(each)}" for key, each in value.items()]
                return " ".join(['"{"', *_parted(pairs), '"}"'])
        return lark_string(json.dumps(value))

    def _branches(self, node: Mapping[str, object], keyword: str) -> str:
        self._hold_to(node, keyword)
        branches = node[keyword]
        assert isinstance(branches, list)
        return _one_of([self._value(each) for each in branches if self._reader.types(each)])

    def _of_type(self, kind: str, node: Mapping[str, object]) -> str:
        match kind:
            case "string":
                return self._text(node)
            case "null" | "boolean":
                return _WORDS[kind]
            case "array":
                return self._array(node)
            case "object":
                return self._object(node)
        name = self._new()
        numeric = {key: node[key] for key in _NUMERIC if key in node} | {"type": kind}
        self.lines.append(f"{name}: %json {compiling.engine_text(numeric)}")
        return name

    def _text(self, node: Mapping[str, object]) -> str:
        patterns, exact = self._reader.texts(node)
        self.exact &= exact
        name = self._new()
        self.lines += text_until(name, self._marker, self._split, patterns)
        return f"{self._quote} {name}"

    def _array(self, node: Mapping[str, object]) -> str:
        least, most = node.get("minItems", 0), node.get("maxItems")
        assert isinstance(least, int)
        assert most is None or isinstance(most, int)
        first = node.get("prefixItems", [])
        assert isinstance(first, list)
        items = list(takewhile(self._reader.types, first[:most]))
        rest = node.get("items", True)
        goes_on = len(items) == len(first) and bool(self._reader.types(rest))
        goes_on = goes_on and (most is None or most > len(first))
        items += [rest] if goes_on else []
        names = [self._new() for _ in items]
        for name, each in zip(names, items, strict=True):
            self._add(name, each)
        return f'"[" {_items(names, goes_on, least, most)} "]"' if names else '"[" "]"'

    def _object(self, node: Mapping[str, object]) -> str:
        name = self._new()
        properties = [each for each in properties_of(node) if self._reader.types(each[1])]
        self.exact &= all(self._reader.types(value) for _, value, must in properties_of(node) if must)
        said = [each for each in properties if writable(each[0], BARE_KEY_ENDS)]
        self.unwritable += [key for key, _, must in properties if must and not writable(key, BARE_KEY_ENDS)]
        self.objects += bool(said)
        for place, (key, value, _) in enumerate(said):
            self.lines.append(f"{name}_{place}: {lark_string(f'{key}:')} {self._value(value)}")
        free, others = "", node.get("additionalProperties", True)
        if self._reader.types(others):
            free = f"{name}_free"
            declared = [key for key, _, _ in properties_of(node)]
            self.lines.append(free_key(f"{free.upper()}_KEY", BARE_KEY_ENDS, declared))
            self.lines.append(f'{free}: {free.upper()}_KEY ":" {self._value(others)}')
        required = [must for _, _, must in said]
        self.lines += order_rules(name, required, free, Gaps(between=","), self._any_order)
        return f'"{{" {name} "}}"'

    def _reference(self, reference: str) -> str:
        if reference not in self._named:
            self._named[reference] = self._new()
            self._waiting.append((self._named[reference], self._reader.definition(reference)))
        return self._named[reference]

    def _any_value(self) -> str:
        if not self._any:
            self._any = f"{self._prefix}_any"
            plain = [self._of_type(kind, {}) for kind in ("string", "number", "boolean", "null")]
            self.lines.append(f"{self._any}: {' | '.join([*plain, f'{self._any}_list', f'{self._any}_map'])}")
            self.lines.append(f'{self._any}_list: "[" ({self._any} ("," {self._any})*)? "]"')
            self.lines.append(free_key(f"{self._any.upper()}_KEY", BARE_KEY_ENDS, ()))
            pair = f'{self._any.upper()}_KEY ":" {self._any}'
            self.lines.append(f'{self._any}_map: "{{" ({pair} ("," {pair})*)? "}}"')
        return self._any


def _items(names: Sequence[str], goes_on: bool, least: int, most: int | None) -> str:
    """Rule text for the items of an array, at least one. ``goes_on``: the last rule is that of all further
    items, too."""
    further = ""
    count = len(names)
    if goes_on and most != count:
        further = f'("," {names[-1]}){{{max(least - count, 0)},{"" if most is None else most - count}}}'
    for place in range(len(names) - 1, 0, -1):
        further = f'"," {names[place]} {further}'
        further = f"({further})?" if place >= least else further
    return f"{names[0]} {further}" if least else f"({names[0]} {further})?"


def _one_of(forms: Sequence[str]) -> str:
    return f"({' | '.join(forms)})"


def _parted(texts: list[str]) -> Iterator[str]:
    for place, each in enumerate(texts):
        if place:
            yield '","'
        yield each
