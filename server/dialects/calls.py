"""Turns the terminals of a span into the events of its calls. Terminal names are the contract with the
grammar files: NAME, CALL_CLOSE, and those that ``arguments`` reads."""

from __future__ import annotations

from collections.abc import Callable

from server.dialects.arguments import ArgumentsReader
from server.dialects.span import Lexeme, NotASpan
from server.events import CallArguments, CallEnd, CallStart, Event


class CallReader:
    """``feed`` lexemes, ``take`` events. A name that is none of ``names`` raises ``NotASpan``.
    ``new_arguments`` gives the reader of the arguments of a name. A call ends with CALL_CLOSE, or
    (``ends_with_arguments``) as soon as its arguments are complete."""

    def __init__(
        self,
        names: frozenset[str],
        new_id: Callable[[int], str],
        new_arguments: Callable[[str], ArgumentsReader],
        *,
        ends_with_arguments: bool = False,
    ) -> None:
        self._names = names
        self._new_id = new_id
        self._new_arguments = new_arguments
        self._ends_with_arguments = ends_with_arguments
        self._name = ""
        self._arguments: ArgumentsReader | None = None
        self._pieces: list[str] = []
        self._events: list[Event] = []
        self.completed = 0

    @property
    def between(self) -> bool:
        """Whether no call has begun since the last one was complete."""
        return not self._name

    @property
    def named(self) -> bool:
        """Whether the call being read has its name and is not complete."""
        return self._arguments is not None

    @property
    def quoted(self) -> bool:
        """Whether what was read last is within the quotes of a JSON value."""
        return self._arguments is not None and self._arguments.quoted

    def feed(self, lexeme: Lexeme) -> bool:
        """Whether a call is complete with this lexeme."""
        terminal, text = lexeme
        if self._arguments is None:
            if terminal == "NAME":
                self._name += text
                return False
            if not self._name:
                return False
            self._arguments = self._begin()
        self._pieces.append(self._arguments.feed(lexeme))
        if terminal == "CALL_CLOSE":
            self._pieces.append(self._arguments.close())
        elif not (self._ends_with_arguments and self._arguments.complete):
            return False
        self._end()
        return True

    def take(self) -> list[Event]:
        """The events since the last time."""
        text = "".join(self._pieces)
        if text:
            self._events.append(CallArguments(self.completed, text))
        self._pieces.clear()
        taken, self._events = self._events, []
        return taken

    def cut(self, text: str) -> list[Event]:
        """The last events of a call whose turn has ended in the middle of a terminal."""
        if self._arguments is not None:
            self._pieces.append(self._arguments.cut(text))
        return self.take()

    def forget(self) -> None:
        """Drops the call being read."""
        self._name = ""
        self._arguments = None
        self._pieces.clear()
        self._events.clear()

    def _begin(self) -> ArgumentsReader:
        if self._name not in self._names:
            raise NotASpan("the name is not that of a tool")
        self._events.append(CallStart(self.completed, self._new_id(self.completed), self._name))
        return self._new_arguments(self._name)

    def _end(self) -> None:
        ended = [*self.take(), CallEnd(self.completed)]
        self.completed += 1
        self.forget()
        self._events = ended
