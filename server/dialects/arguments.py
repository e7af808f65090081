"""Reads the arguments of a call out of its terminals, as pieces of JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Protocol

from server.dialects.form import Notation
from server.dialects.nested_arguments import NestedArguments
from server.dialects.span import RAW, Lexeme
from server.dialects.values import ValueReader
from server.schema.parameters import Parameters

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


class ArgumentsReader(Protocol):
    """``feed`` the terminals after a call's name; ``close`` at its end, ``cut`` where the turn ends
    before. ``quoted``: what comes next in a raw value is within the quotes of its JSON."""

    complete: bool

    @property
    def quoted(self) -> bool: ...

    def feed(self, lexeme: Lexeme) -> Iterator[str]: ...

    def close(self) -> str: ...

    def cut(self, text: str) -> str: ...


def arguments_reader(notation: Notation, parameters: Parameters, *, trusted: bool) -> ArgumentsReader:
    """The reader of one call's arguments. ``trusted``: a constraint wrote them."""
    match notation:
        case Notation.ELEMENTS:
            return ElementArguments(parameters, trusted=trusted)
        case Notation.GEMMA | Notation.PYTHONIC:
            return LiteralArguments(keywords=notation is Notation.PYTHONIC)
        case Notation.NESTED:
            return NestedArguments(parameters, trusted=trusted)
    return JsonArguments()


class JsonArguments:
    """Arguments that are one JSON object."""

    quoted = False

    def __init__(self) -> None:
        self.complete = False
        self._depth = 0

    def feed(self, lexeme: Lexeme) -> Iterator[str]:
        terminal, text = lexeme
        if self.complete or not (self._depth or terminal == "LBRACE"):
            return
        self._depth += terminal in ("LBRACE", "LSQB")
        self._depth -= terminal in ("RBRACE", "RSQB")
        self.complete = self._depth == 0
        yield text

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

    def feed(self, lexeme: Lexeme) -> Iterator[str]:
        terminal, text = lexeme
        if self.complete or not (self._begun or terminal == ("KEY" if self._keywords else "LBRACE")):
            return
        yield self._piece(terminal, text)
        self._begun = True
        self._depth += terminal in ("LBRACE", "LSQB")
        self._depth -= terminal in ("RBRACE", "RSQB")
        self.complete = not self._keywords and self._depth == 0

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
            return json.dumps(text, ensure_ascii=False)[1:-1]
        if terminal == "KEY":
            opening = "" if not self._keywords else ", " if self._begun else "{"
            return opening + json.dumps(text, ensure_ascii=False)
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
    where the constraint wrote it (``trusted``), else it is read as Python writes it, too. Of a key that comes
    twice the first value counts.
    """

    def __init__(self, parameters: Parameters, *, trusted: bool) -> None:
        self.complete = False
        self._parameters = parameters
        self._trusted = trusted
        self._keys: set[str] = set()
        self._value: ValueReader | None = None

    @property
    def quoted(self) -> bool:
        return self._value is not None and self._value.quoted

    def feed(self, lexeme: Lexeme) -> Iterator[str]:
        terminal, text = lexeme
        match terminal:
            case "KEY":
                yield from self._begun(text)
            case "TEXT_KIND" | "JSON_KIND" if self._value is not None:
                self._value.told(text=terminal == "TEXT_KIND")
            case "VALUE_END" | "CDATA_END" if self._value is not None:
                yield self._value.end()
                self._value = None
            case "CDATA_OPEN" if self._value is not None:
                self._value.told(text=True)
            case _ if terminal == RAW and self._value is not None:
                yield self._value.feed(text)

    def close(self) -> str:
        self.complete = True
        return "}" if self._keys else "{}"

    def cut(self, text: str) -> str:
        return ""  # the beginning of a closing marker, at most

    def _begun(self, key: str) -> Iterator[str]:
        if key in self._keys:
            return
        yield f"{', ' if self._keys else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._keys.add(key)
        self._value = ValueReader(self._parameters.value(key), trusted=self._trusted)
