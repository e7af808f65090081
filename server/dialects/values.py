"""Reads one value that stands raw: text as it stands, any other value as JSON."""

from __future__ import annotations

import ast
import json

from server.schema.parameters import Value
from server.schema.verify import decode

_LONGEST_LITERAL = 65_536
_LONGEST_SCALAR = 512
_SPELLINGS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_ABSENT = frozenset({"", "none", "null"})
"""How a model writes that a parameter has no value."""
in_json = json.JSONEncoder(ensure_ascii=False).encode


class Quotes:
    """Whether JSON text that is ``follow``ed has come to within quotes."""

    def __init__(self) -> None:
        self.open = False
        self._escaped = False

    def follow(self, text: str) -> None:
        for character in text:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self.open = not self.open


class ValueReader:
    """One value: what has come of it and waits until it is certain what it is. ``quoted``: it is certain to
    be JSON, and has come to within quotes."""

    def __init__(self, value: Value, *, trusted: bool) -> None:
        self._value = value
        self._trusted = trusted
        self._waiting: list[str] = []
        self._is_text = not value.may_be_other
        self._is_other = not value.may_be_text
        self._structured = False  # it may be an array or an object, which only its end can tell
        self._opened = False
        self._parts: list[str] = []
        self._quotes = Quotes()

    @property
    def quoted(self) -> bool:
        return self._quotes.open

    @property
    def text(self) -> str:
        """All of the value that has come, where nothing constrains it."""
        return "".join(self._parts)

    def told(self, *, text: bool) -> None:
        """The dialect says what the value is; it is believed where the schema allows that."""
        if text and self._value.may_be_text:
            self._is_text, self._is_other = True, False
        elif not text and self._value.may_be_other:
            self._is_text, self._is_other = False, True

    def feed(self, text: str) -> str:
        if self._is_other and self._trusted:
            self._quotes.follow(text)
            return text
        if not self._trusted:
            self._parts.append(text)
        self._waiting.append(text)
        if not (self._is_text or self._is_other or self._structured):
            begun = "".join(self._waiting)
            may_be_other = self._value.may_become_other(begun)
            self._structured = may_be_other and begun.lstrip()[:1] in ("{", "[")
            self._is_text = not self._structured and (not may_be_other or len(begun) > _LONGEST_SCALAR)
        return self._let_go() if self._is_text else ""

    def end(self) -> str:
        whole = "".join(self._waiting)
        if self._is_other:
            return "" if self._trusted else self._json_of(whole)
        if not self._is_text and self._value.is_other(whole):
            return whole.strip()
        return self._let_go() + '"'

    def _json_of(self, text: str) -> str:
        """The JSON of a value as a model wrote it; where it wrote none, null or nothing."""
        if text.strip().lower() in _ABSENT:
            return "null" if "null" in self._value.types else ""
        return as_json(text)

    def _let_go(self) -> str:
        opening = "" if self._opened else '"'
        self._opened = True
        text = "".join(self._waiting)
        self._waiting.clear()
        return opening + in_json(text)[1:-1]


def as_json(text: str) -> str:
    """The JSON of a value as a model wrote it: JSON, Python, or true and none in any case. What is nothing
    of these is text, and the schema's check will say so."""
    text = text.strip()
    try:
        decode(text)
    except (ValueError, RecursionError):
        return _SPELLINGS.get(text.lower()) or _python_as_json(text) or in_json(text)
    return text


def _python_as_json(text: str) -> str | None:
    if len(text) > _LONGEST_LITERAL:
        return None
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
