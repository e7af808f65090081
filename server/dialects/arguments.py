"""Reads the arguments of a call out of its terminals, as pieces of JSON text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from server.dialects.form import Notation, SpanForm
from server.dialects.nested_arguments import NestedArguments
from server.dialects.span import RAW, Lexeme, NotASpan
from server.dialects.values import ValueReader, in_json
from server.schema.parameters import UNKNOWN, Parameters

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
    known = parameters.get(name, UNKNOWN)
    if form.elements is not None:
        return ElementArguments(known, form.elements.opening, trusted=trusted)
    match form.notation:
        case Notation.GEMMA | Notation.PYTHONIC:
            return LiteralArguments(keywords=form.notation is Notation.PYTHONIC)
        case Notation.NESTED:
            return NestedArguments(known, trusted=trusted)
    return JsonArguments()


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
            return in_json(text)[1:-1]
        if terminal == "KEY":
            opening = "" if not self._keywords else ", " if self._begun else "{"
            return opening + in_json(text)
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
        self._value: ValueReader | None = None

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
        self._value = ValueReader(self._parameters.value(key), trusted=self._trusted)

    def _with_key(self, value: str) -> str:
        """What comes of a value, after its key where nothing of it has come."""
        key, self._key = self._key, ""
        if not key:
            return value
        opening, self._begun = ", " if self._begun else "{", True
        return f"{opening}{in_json(key)}: {value}"

    def _ended(self, value: ValueReader) -> str:
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
