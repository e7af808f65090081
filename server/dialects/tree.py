"""A value of nested elements as a tree, and its JSON by a schema.

Read without recursion, since nothing but the room of an answer limits how deep a tree is: from the root down,
each element gets the shapes that it may have, and from the leaves up what it is in each of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from server.dialects.span import Lexeme
from server.dialects.values import as_json
from server.dialects.written import ITEM
from server.schema.shapes import ANYTHING, STRUCTURED, Shape


class _Reading(NamedTuple):
    """The JSON of an element, and whether it is what the schema says."""

    json: str
    fits: bool


class _Element:
    """Its own text and the elements within. What it holds is said from ``start`` to ``end``. ``found`` is
    what it is in each of its ``shapes``, by their identity."""

    __slots__ = ("children", "end", "found", "key", "parts", "shapes", "start")

    def __init__(self, key: str, start: int) -> None:
        self.key = key
        self.start = self.end = start
        self.parts: list[str] = []
        self.children: list[_Element] = []
        self.shapes: dict[int, Shape] = {}
        self.found: dict[int, _Reading] = {}


class Tree:
    """``say`` each terminal; then ``text`` between tags, ``open`` and ``close`` for each element, the last
    one for the tree itself. ``json`` is the whole, as a value of a shape."""

    def __init__(self) -> None:
        root = _Element("", 0)
        self._elements = [root]  # each before those within it
        self._open = [root]
        self._said: list[str] = []
        self._tag = 0  # where the last tag begins

    @property
    def is_empty(self) -> bool:
        """Whether no element has come within it."""
        return len(self._elements) == 1

    def say(self, lexeme: Lexeme) -> None:
        terminal, text = lexeme
        if terminal == "TAG":
            self._tag = len(self._said)
        self._said.append(text)

    def text(self, text: str) -> None:
        self._open[-1].parts.append(text)

    def open(self, key: str) -> None:
        element = _Element(key, len(self._said))
        self._open[-1].children.append(element)
        self._open.append(element)
        self._elements.append(element)

    def close(self) -> bool:
        """Whether it was an element within that is closed now."""
        self._open.pop().end = self._tag
        return bool(self._open)

    def json(self, shape: Shape) -> str:
        root = self._elements[0]
        root.shapes[id(shape)] = shape
        for element in self._elements:
            for each in list(element.shapes.values()):
                _spread(element, each)
        for element in reversed(self._elements):
            element.found = {key: self._best(element, each) for key, each in element.shapes.items()}
        return root.found[id(shape)].json

    def _best(self, element: _Element, shape: Shape) -> _Reading:
        """What fits, and of that rather what is no text, or a text where nothing is there."""
        is_empty = not element.children and not element.parts
        readings = [each for part in _alternatives(shape) for each in self._readings(element, part)]
        best = min(readings, key=lambda each: (not each.fits, each.json.startswith('"') is not is_empty))
        return best if shape.alternatives else _Reading(best.json, False)

    def _readings(self, element: _Element, shape: Shape) -> Iterator[_Reading]:
        """What an element may be where the shape is no union."""
        text = "".join(element.parts)
        if shape.listed is not None:
            yield from (_listed(each) for each in shape.listed if _spells(element, each))
        if not element.children:
            yield from _empty(shape) if not (text if "string" in shape.types else text.strip()) else ()
            yield _plain(text, shape)
        elif text.strip() or (shape.types and not shape.types - {"string"}):
            said = json.dumps("".join(self._said[element.start : element.end]), ensure_ascii=False)
            yield _Reading(said, shape.value.is_valid(said))
        else:
            yield from _structures(element, shape)


def key_json(key: str) -> str:
    """A key as JSON, with what follows it."""
    return f"{json.dumps(key, ensure_ascii=False)}: "


def _alternatives(shape: Shape) -> tuple[Shape, ...]:
    return shape.alternatives or (ANYTHING,)


def _kinds(shape: Shape) -> frozenset[str]:
    """Which of the two an element with others in it may be."""
    return shape.types & STRUCTURED or STRUCTURED


def _spread(element: _Element, shape: Shape) -> None:
    """Tells the elements within which shapes they may have."""
    for each in _alternatives(shape):
        kinds = _kinds(each)
        for place, child in enumerate(element.children):
            within = [each.item(place)] if "array" in kinds else []
            within += [each.member(child.key)] if "object" in kinds else []
            child.shapes |= {id(shape): shape for shape in within}


def _structures(element: _Element, shape: Shape) -> Iterator[_Reading]:
    kinds, children = _kinds(shape), element.children
    fitting = bool(shape.types & STRUCTURED) and shape.listed is None
    are_items = all(child.key == ITEM for child in children)
    if "array" in kinds and (are_items or kinds == {"array"}):
        found = [child.found[id(shape.item(place))] for place, child in enumerate(children)]
        fits = fitting and are_items and shape.has_items(len(found)) and all(each.fits for each in found)
        yield _Reading(f"[{', '.join(each.json for each in found)}]", fits)
    if "object" in kinds:
        first = {child.key: child for child in reversed(children)}
        members = {
            child.key: child.found[id(shape.member(child.key))]
            for child in children
            if first[child.key] is child
        }
        fits = fitting and shape.has_members(set(members)) and all(each.fits for each in members.values())
        written = ", ".join(key_json(key) + each.json for key, each in members.items())
        yield _Reading(f"{{{written}}}", fits)


_EMPTY = {"string": '""', "object": "{}", "array": "[]", "null": "null"}
"""What an element without anything in it may be."""


def _empty(shape: Shape) -> Iterator[_Reading]:
    for kind, written in _EMPTY.items():
        if kind in shape.types:
            yield _Reading(written, shape.value.is_valid(written))


def _plain(text: str, shape: Shape) -> _Reading:
    value = shape.value
    if "string" not in shape.types:
        written = as_json(text)
    elif value.is_other(text):
        return _Reading(text.strip(), True)
    else:
        written = json.dumps(text, ensure_ascii=False)
    return _Reading(written, value.is_valid(written))


def _listed(value: object) -> _Reading:
    return _Reading(json.dumps(value, ensure_ascii=False), True)


def _spells(element: _Element, value: object) -> bool:
    """Whether an element is how a listed value is written."""
    text = "".join(element.parts)
    match value:
        case dict() if value:
            members = zip(element.children, value.items(), strict=False)
            alike = all(child.key == key and _spells(child, each) for child, (key, each) in members)
            return alike and len(element.children) == len(value) and not text.strip()
        case list() if value:
            items = zip(element.children, value, strict=False)
            alike = all(child.key == ITEM and _spells(child, each) for child, each in items)
            return alike and len(element.children) == len(value) and not text.strip()
        case dict() | list():
            written = ""
        case str():
            written = value
        case _:
            written = json.dumps(value)
    return not element.children and text == written
