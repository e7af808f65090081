"""Whether a constraint lets a value through in one of its canonical writings.

Canonical is what ``server.schema.lower`` promises: separators as models write them, no needless escapes,
whole numbers without a fraction, declared keys in the order of the schema and then the others. Where
several schemas meet on one object, the order is that of their keywords, and with ``anyOf`` there is one for
each branch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from llguidance import LLMatcher
from schemas import matcher

from server.schema.lower import Lowered

_TRIES = 20_000
_BRANCHES = 256
_LONGEST_EXPONENT = 400

_Nodes = tuple[object, ...]
"""Lowered schemas that may apply to one value."""


@dataclass(frozen=True, slots=True)
class _Value:
    value: object
    nodes: _Nodes


@dataclass(frozen=True, slots=True)
class _Members:
    """An object from the key at ``place`` on."""

    value: dict[str, object]
    names: Sequence[str]
    place: int
    nodes: _Nodes


@dataclass(frozen=True, slots=True)
class _Elements:
    """An array from the item at ``place`` on."""

    value: list[object]
    place: int
    nodes: _Nodes


# What is still to be written: the next part, and what comes after it.
_Rest = tuple[_Value | _Members | _Elements, "_Rest"] | None


class Writings:
    """The canonical writings that a lowered schema lets through."""

    def __init__(self, lowered: Lowered) -> None:
        self._root = lowered.schema
        definitions = lowered.schema.get("$defs")
        self._definitions = definitions if isinstance(definitions, dict) else {}
        self._start = matcher(lowered)

    def admit(self, value: object) -> bool | None:
        """Whether one of the value's writings is let through; None where there are too many to tell."""
        trial = self._start.deep_copy()
        written = 0
        waiting = [(0, self._next((_Value(value, (self._root,)), None)))]
        for _ in range(_TRIES):
            if not waiting:
                return False
            length, alternatives = waiting[-1]
            trial.rollback(written - length)
            written = length
            text, rest = next(alternatives, (None, None))
            if text is None:
                waiting.pop()
            elif (count := _written(trial, text)) is not None:
                written += count
                if rest is None and trial.is_accepting():
                    return True
                waiting.append((written, self._next(rest)))
        return None

    def _next(self, rest: _Rest) -> Iterator[tuple[str, _Rest]]:
        """The ways to write the next part, each with what is to be written then."""
        if rest is None:
            return
        part, after = rest
        if isinstance(part, _Members):
            yield self._member(part, after)
        elif isinstance(part, _Elements):
            yield self._element(part, after)
        elif isinstance(part.value, dict):
            nodes = tuple(self._applying(part.nodes))
            for names in self._orders(part.value, part.nodes):
                yield "{", (_Members(part.value, names, 0, nodes), after)
        elif isinstance(part.value, list):
            yield "[", (_Elements(part.value, 0, tuple(self._applying(part.nodes))), after)
        else:
            for text in _scalar(part.value):
                yield text, after

    def _member(self, part: _Members, after: _Rest) -> tuple[str, _Rest]:
        if part.place == len(part.names):
            return "}", after
        name = part.names[part.place]
        value = _Value(part.value[name], tuple(_below_name(part.nodes, name)))
        onward = _Members(part.value, part.names, part.place + 1, part.nodes)
        between = ", " if part.place else ""
        return f"{between}{json.dumps(name, ensure_ascii=False)}: ", (value, (onward, after))

    def _element(self, part: _Elements, after: _Rest) -> tuple[str, _Rest]:
        if part.place == len(part.value):
            return "]", after
        value = _Value(part.value[part.place], tuple(_below_place(part.nodes, part.place)))
        onward = _Elements(part.value, part.place + 1, part.nodes)
        return ", " if part.place else "", (value, (onward, after))

    def _applying(self, nodes: _Nodes) -> Iterator[dict[str, object]]:
        """These schemas, and those that they have the same value satisfy."""
        seen: set[int] = set()
        waiting = [*reversed(nodes)]
        while waiting:
            node = waiting.pop()
            if isinstance(node, dict) and id(node) not in seen:
                seen.add(id(node))
                yield node
                waiting += reversed([*_listed(node, "allOf"), *_listed(node, "anyOf"), self._target(node)])

    def _target(self, node: dict[str, object]) -> object:
        return self._definitions.get(str(node.get("$ref", "")).removeprefix("#/$defs/"))

    def _orders(self, value: dict[str, object], nodes: _Nodes) -> Iterator[tuple[str, ...]]:
        seen: set[tuple[str, ...]] = set()
        together = {"allOf": list(nodes)}
        required = [name for node in self._applying(nodes) for name in _listed(node, "required")]
        for declared in itertools.islice(self._declared(together, ()), _BRANCHES):
            known = [name for name in dict.fromkeys([*declared, *map(str, required)]) if name in value]
            order = (*known, *(name for name in value if name not in known))
            if order not in seen:
                seen.add(order)
                yield order

    def _declared(self, node: object, path: tuple[int, ...]) -> Iterator[list[str]]:
        """The names that a schema declares, in order, for each choice of branches."""
        if not isinstance(node, dict) or id(node) in path:
            yield []
            return
        path = (*path, id(node))
        parts: list[list[list[str]]] = []
        for keyword, value in node.items():
            if keyword == "properties" or (keyword == "const" and isinstance(value, dict)):
                parts.append([list(value)])
            elif keyword == "enum":
                parts.append([[], *(list(each) for each in value if isinstance(each, dict))])
            elif keyword == "allOf":
                parts += [list(itertools.islice(self._declared(each, path), _BRANCHES)) for each in value]
            elif keyword == "anyOf":
                parts.append([names for each in value for names in self._declared(each, path)])
            elif keyword == "$ref":
                parts.append(list(itertools.islice(self._declared(self._target(node), path), _BRANCHES)))
        for chosen in itertools.product(*parts):
            yield [name for names in chosen for name in names]


def _written(trial: LLMatcher, text: str) -> int | None:
    """Writes a text and returns its length in tokens; None, and nothing written, where it cannot go on so."""
    tokens = list(text.encode("utf-8", "surrogatepass"))
    if trial.validate_tokens(tokens) < len(tokens) or not trial.consume_tokens(tokens):
        return None
    return len(tokens)


def _below_name(nodes: _Nodes, name: str) -> Iterator[object]:
    for node in nodes:
        assert isinstance(node, dict)
        if name in node.get("properties", {}):
            yield node["properties"][name]
        else:
            yield from node.get("patternProperties", {}).values()
            yield node.get("additionalProperties")
        for each in _values(node):
            if isinstance(each, dict) and name in each:
                yield {"const": each[name]}


def _below_place(nodes: _Nodes, place: int) -> Iterator[object]:
    for node in nodes:
        assert isinstance(node, dict)
        yield from _listed(node, "prefixItems")[place : place + 1]
        yield node.get("items")
        for each in _values(node):
            if isinstance(each, list):
                yield from ({"const": item} for item in each[place : place + 1])


def _values(node: dict[str, object]) -> list[object]:
    return [*_listed(node, "enum"), *([node["const"]] if "const" in node else [])]


def plain(value: object) -> str:
    """A value as JSON, with the digits of its decimals."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)}: {plain(each)}' for name, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def _listed(node: dict[str, object], keyword: str) -> list[object]:
    value = node.get(keyword)
    return value if isinstance(value, list) else []


def _scalar(value: object) -> list[str]:
    if not isinstance(value, float | Decimal):
        return [json.dumps(value, ensure_ascii=False)]
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    if abs(exact.adjusted()) > _LONGEST_EXPONENT:
        return [str(exact)]
    if exact == exact.to_integral_value():
        return [f"{exact:.0f}", f"{float(exact)!r}"]
    return [f"{exact:f}", f"{float(exact)!r}"]
