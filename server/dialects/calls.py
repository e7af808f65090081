"""Turns the terminals of a span into the events of its calls. Terminal names are the contract with the
grammar files: NAME, CALL_CLOSE, and those that ``arguments`` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from server.dialects.arguments import ArgumentsReader
from server.dialects.span import Lexeme, NotASpan
from server.events import CallArguments, CallEnd, CallStart, Event


class CallReader:
    """``feed`` lexemes. A name that is none of ``names`` raises ``NotASpan``. ``new_arguments`` gives the
    reader of the arguments of a name. A call ends with CALL_CLOSE, or (``ends_with_arguments``) as soon as
    its arguments are complete."""

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

    def feed(self, lexeme: Lexeme) -> Iterator[Event]:
        terminal, text = lexeme
        if self._arguments is None:
            if terminal == "NAME":
                self._name += text
                return
            if not self._name:
                return
            yield self._start()
        assert self._arguments is not None
        yield from self._pieces(self._arguments.feed(lexeme))
        if terminal == "CALL_CLOSE":
            yield from self._pieces([self._arguments.close()])
            yield self._end()
        elif self._ends_with_arguments and self._arguments.complete:
            yield self._end()

    def cut(self, text: str) -> list[Event]:
        """What is left of a call whose turn has ended in the middle of a terminal."""
        return list(self._pieces([self._arguments.cut(text)])) if self._arguments is not None else []

    def forget(self) -> None:
        """Drops the call being read."""
        self._name = ""
        self._arguments = None

    def _pieces(self, texts: Iterable[str]) -> Iterator[CallArguments]:
        return (CallArguments(self.completed, text) for text in texts if text)

    def _start(self) -> CallStart:
        if self._name not in self._names:
            raise NotASpan("the name is not that of a tool")
        self._arguments = self._new_arguments(self._name)
        return CallStart(self.completed, self._new_id(self.completed), self._name)

    def _end(self) -> CallEnd:
        ended = CallEnd(self.completed)
        self.completed += 1
        self.forget()
        return ended
