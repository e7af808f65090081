"""Turns the terminals of a span into the events of its calls. Terminal names are the contract with the
grammar files: NAME, LBRACE .. RBRACE, LSQB .. RSQB, CALL_CLOSE."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator

from server.dialects.span import Lexeme, NotASpan
from server.events import CallArguments, CallEnd, CallStart, Event


class _Part(enum.Enum):
    """How far the call being read has come."""

    BETWEEN = "between"
    NAME = "name"
    NAMED = "named"
    ARGUMENTS = "arguments"
    ARGUED = "argued"


class CallReader:
    """``feed`` lexemes. A name that is none of ``names`` raises ``NotASpan``. A call ends with CALL_CLOSE, or
    (``ends_with_arguments``) as soon as its arguments are complete."""

    def __init__(
        self, names: frozenset[str], new_id: Callable[[int], str], *, ends_with_arguments: bool = False
    ) -> None:
        self._names = names
        self._ends_with_arguments = ends_with_arguments
        self._new_id = new_id
        self._part = _Part.BETWEEN
        self._name = ""
        self._depth = 0
        self.completed = 0

    @property
    def between(self) -> bool:
        """Whether no call has begun since the last one was complete."""
        return self._part is _Part.BETWEEN

    @property
    def named(self) -> bool:
        """Whether the call being read has its name and is not complete."""
        return self._part not in (_Part.BETWEEN, _Part.NAME)

    def feed(self, lexeme: Lexeme) -> Iterator[Event]:
        terminal, text = lexeme
        if self._part is _Part.ARGUMENTS:
            yield CallArguments(self.completed, text)
            if self._closes(terminal):
                self._part = _Part.ARGUED
                if self._ends_with_arguments:
                    yield self._end()
        elif terminal == "NAME":
            self._part = _Part.NAME
            self._name += text
        elif self._part is _Part.NAME:
            yield self._start()
        elif self._part is _Part.NAMED and terminal == "LBRACE":
            self._part = _Part.ARGUMENTS
            self._depth = 1
            yield CallArguments(self.completed, text)
        elif terminal == "CALL_CLOSE":
            yield self._end()

    def cut(self, text: str) -> list[Event]:
        """What is left of a call whose turn has ended in the middle of a terminal."""
        in_arguments = self._part is _Part.ARGUMENTS and bool(text)
        return [CallArguments(self.completed, text)] if in_arguments else []

    def forget(self) -> None:
        """Drops the call being read."""
        self._part = _Part.BETWEEN
        self._name = ""
        self._depth = 0

    def _start(self) -> CallStart:
        if self._name not in self._names:
            raise NotASpan("the name is not that of a tool")
        self._part = _Part.NAMED
        return CallStart(self.completed, self._new_id(self.completed), self._name)

    def _end(self) -> CallEnd:
        ended = CallEnd(self.completed)
        self.completed += 1
        self.forget()
        return ended

    def _closes(self, terminal: str) -> bool:
        """Counts brackets; whether this one closes the arguments."""
        self._depth += terminal in ("LBRACE", "LSQB")
        self._depth -= terminal in ("RBRACE", "RSQB")
        return self._depth == 0
