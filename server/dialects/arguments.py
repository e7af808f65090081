"""Reads the arguments of a call out of its terminals, as pieces of JSON text."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Protocol

from server.dialects.form import Notation, SpanForm
from server.dialects.span import RAW, Lexeme, NotASpan
from server.schema.parameters import UNKNOWN, Parameters, Value
from server.schema.verify import decode

_LONGEST_LITERAL = 65_536
_LONGEST_SCALAR = 512
_SPELLINGS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_ABSENT = frozenset({"", "none", "null"})
"""How a model writes that a parameter has no value."""
_QUOTES = frozenset({"TEXT_QUOTE", "QUOTE", "APOSTROPHE"})
_JSON = {
    "COMMA": ", ",
    "COLON": ": ",
    "EQUALS": ": ",
    "PY_TRUE": "true",
    "PY_FALSE": "false",
    "NONE": "null",
    "WS": "",
}
"""Terminals that JSON writes otherwise."""
_in_json = json.JSONEncoder(ensure_ascii=False).encode
_DEEPER = {"LBRACE": 1, "LSQB": 1, "RBRACE": -1, "RSQB": -1}


class ArgumentsReader(Protocol):
    """``feed`` the terminals after a call's name and get JSON text; ``close`` at its end, ``cut`` where the
    turn ends before. ``quoted``: what comes next in a raw value is within the quotes of its JSON."""

    complete: bool

    @property
    def quoted(self) -> bool: ...

    def feed(self, lexeme: Lexeme) -> str: ...

    def close(self) -> str: ...

    def cut(self, text: str) -> str: ...


def arguments_reader(
    form: SpanForm, parameters: Mapping[str, Parameters], name: str, *, trusted: bool
) -> ArgumentsReader:
    """The reader of the arguments of one call of the tool ``name``. ``trusted``: a constraint wrote them."""
    if form.elements is not None:
        known = parameters.get(name, UNKNOWN)
        return ElementArguments(known, form.elements.opening, trusted=trusted)
    if form.notation is Notation.JSON:
        return JsonArguments()
    return LiteralArguments(keywords=form.notation is Notation.PYTHONIC)


class JsonArguments:
    """Arguments that are one JSON object."""

    quoted = False

    def __init__(self) -> None:
        self.complete = False
        self._depth = 0

    def feed(self, lexeme: Lexeme) -> str:
        terminal, text = lexeme
        if self.complete or not (self._depth or terminal == "LBRACE"):
            return ""
        self._depth += _DEEPER.get(terminal, 0)
        self.complete = self._depth == 0
        return text

    def close(self) -> str:
        return ""

    def cut(self, text: str) -> str:
        """What is left of a terminal in the middle of which the turn has ended."""
        return text if self._depth else ""


class LiteralArguments:
    """Arguments in a notation that is nearly JSON: Gemma's, with bare keys and raw texts, or Python's keyword
    arguments (``keywords``), with its spelling of words and texts."""

    quoted = False

    def __init__(self, *, keywords: bool) -> None:
        self.complete = False
        self._keywords = keywords
        self._depth = 0
        self._begun = False
        self._in_text = False
        self._escaped = False

    def feed(self, lexeme: Lexeme) -> str:
        terminal, text = lexeme
        if self.complete or not (self._begun or terminal == ("KEY" if self._keywords else "LBRACE")):
            return ""
        piece = self._piece(terminal, text)
        self._begun = True
        self._depth += _DEEPER.get(terminal, 0)
        self.complete = not self._keywords and self._depth == 0
        return piece

    def _piece(self, terminal: str, text: str) -> str:
        if self._escaped:
            self._escaped = False
            return text if text == "'" else f"\\{text}"
        if terminal in _QUOTES:
            self._in_text = not self._in_text
            return '"'
        if terminal == "BACKSLASH":
            self._escaped = True
            return ""
        if self._in_text and terminal != "HEX":
            return _in_json(text)[1:-1]
        if terminal == "KEY":
            opening = "" if not self._keywords else ", " if self._begun else "{"
            return opening + _in_json(text)
        if self._keywords and (terminal == "CALL_CLOSE" or (terminal == "COMMA" and self._depth == 0)):
            return ""
        return _JSON.get(terminal, text)

    def close(self) -> str:
        if not self._keywords:
            return ""
        self.complete = True
        return "}" if self._begun else "{}"

    def cut(self, text: str) -> str:
        return ""


class ElementArguments:
    """Arguments that are one element each: text as it stands, other values as JSON.

    A value that may be text leaves as it comes as soon as it can be nothing else; one that is JSON does
    where the constraint wrote it (``trusted``), else it is read as Python writes it, too, and a key without a
    value is none. Of a key that comes twice the first value counts. ``opening`` stands before each key.
    """

    def __init__(self, parameters: Parameters, opening: str, *, trusted: bool) -> None:
        self.complete = False
        self._parameters = parameters
        self._opening = opening
        self._trusted = trusted
        self._keys: set[str] = set()
        self._key = ""  # of the value being read, until something of it leaves
        self._begun = False
        self._value: _ValueReader | None = None

    @property
    def quoted(self) -> bool:
        return self._value is not None and self._value.quoted

    def feed(self, lexeme: Lexeme) -> str:
        terminal, text = lexeme
        match terminal:
            case "KEY" if text not in self._keys:
                self._begin(text)
                return self._with_key("") if self._trusted else ""
            case "VALUE_END" | "CDATA_END" if self._value is not None:
                return self._ended(self._value)
            case "CDATA_OPEN" if self._value is not None:
                self._value.told(text=True)
            case _ if terminal.endswith("_KIND") and self._value is not None:
                self._value.told(text=terminal == "TEXT_KIND")
            case _ if terminal == RAW and self._value is not None:
                value = self._value.feed(text)
                return self._with_key(value) if value else ""
        return ""

    def close(self) -> str:
        self.complete = True
        return "}" if self._begun else "{}"

    def cut(self, text: str) -> str:
        return ""  # the beginning of a closing marker, at most

    def _begin(self, key: str) -> None:
        self._keys.add(key)
        self._key = key
        self._value = _ValueReader(self._parameters.value(key), trusted=self._trusted)

    def _with_key(self, value: str) -> str:
        """What comes of a value, after its key where nothing of it has come."""
        key, self._key = self._key, ""
        if not key:
            return value
        opening, self._begun = ", " if self._begun else "{", True
        return f"{opening}{_in_json(key)}: {value}"

    def _ended(self, value: _ValueReader) -> str:
        self._value = None
        rest = value.end()
        if not self._trusted:
            self._refuse_swallowed(value.text)
            if not rest:
                self._key = ""
                return ""
        return self._with_key(rest)

    def _refuse_swallowed(self, text: str) -> None:
        """A required parameter that stands within the value of another, since the other's end is wrong."""
        for each in self._parameters.declared:
            if each.required and each.key not in self._keys and f"{self._opening}{each.key}" in text:
                raise NotASpan(f"the value of a parameter holds {each.key}")


class _ValueReader:
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
        self.quoted = False
        self._escaped = False

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
            self._follow_quotes(text)
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
            return "" if self._trusted else self._as_json(whole)
        if not self._is_text and self._value.is_other(whole):
            return whole.strip()
        return self._let_go() + '"'

    def _as_json(self, text: str) -> str:
        """The JSON of a value as a model wrote it; where it wrote none, null or nothing."""
        if text.strip().lower() in _ABSENT:
            return "null" if "null" in self._value.types else ""
        return _as_json(text)

    def _follow_quotes(self, text: str) -> None:
        for character in text:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self.quoted = not self.quoted

    def _let_go(self) -> str:
        opening = "" if self._opened else '"'
        self._opened = True
        text = "".join(self._waiting)
        self._waiting.clear()
        return opening + _in_json(text)[1:-1]


def _as_json(text: str) -> str:
    """The JSON of a value as a model wrote it: JSON, Python, or true and none in any case. What is nothing
    of these is text, and the schema's check will say so."""
    text = text.strip()
    try:
        decode(text)
    except (ValueError, RecursionError):
        return _SPELLINGS.get(text.lower()) or _python_as_json(text) or _in_json(text)
    return text


def _python_as_json(text: str) -> str | None:
    if len(text) > _LONGEST_LITERAL:
        return None
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
