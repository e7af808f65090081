"""Reads one span with its grammar file, as the text comes, through the automaton that lark makes of it.

Lark's own lexer can't read half a token, so the text is cut into terminals here: the state of the automaton
says which terminals may come; a literal is taken when it is all there, and waited for while the text may
still become it; a run of one character class is taken as far as it goes. Raw text, a class that the literal
after it also fits, goes up to that literal's first occurrence outside quotes. No guessing, no backing up: the
time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from server.dialects.automaton import Automaton, State
from server.dialects.grammar import Grammar
from server.dialects.held import overlap

_END = "$END"
RAW = "RAW"
"""The terminal of raw text, which any characters are but the literals that may come in its place."""


class NotASpan(Exception):
    """The text is no sentence of the grammar, and no beginning of one."""


Lexeme = tuple[str, str]
"""A terminal's name and the text it took. Neighbouring lexemes of one run are pieces of it."""


class _Class(NamedTuple):
    """A terminal that is a character class. ``whole``: a run of it can't be shifted in pieces."""

    name: str
    match: Callable[[str, int], re.Match[str] | None]
    whole: bool


class _Acceptable(NamedTuple):
    """The terminals that may come in one state of the automaton, the literals also by their first characters.
    Of ``pieces``, more may come of the same run. ``raw``: raw text is one of them."""

    literals: tuple[Lexeme, ...]
    beginning: Mapping[str, tuple[Lexeme, ...]]
    classes: tuple[_Class, ...]
    pieces: frozenset[str]
    raw: bool
    only_end: bool


class _OpenRun(NamedTuple):
    """A run of one class that has begun, in the parts in which it came."""

    terminal: _Class
    parts: list[str]


class SpanParser:
    """``feed`` text, ``feed_marker`` where a marker is a token, ``flush`` at the end of the turn. Those
    terminals that are ``tokens`` never come as text. ``quoted`` says, after each lexeme, whether raw text is
    within quotes, where a literal is text, too."""

    def __init__(
        self,
        grammar: Grammar,
        start: str,
        tokens: frozenset[str] = frozenset(),
        quoted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._quoted = quoted
        self._automaton = Automaton(grammar.table, start)
        self._known: dict[State, _Acceptable] = grammar.acceptable.setdefault(tokens, {})
        self._text = ""
        self._at = 0
        self._run: _OpenRun | None = None
        self._last = ""

    @property
    def complete(self) -> bool:
        """Whether nothing more can belong to the span."""
        return (self._known.get(self._automaton.state) or self._acceptable()).only_end

    @property
    def may_end(self) -> bool:
        """Whether the span may end here."""
        return _END in self._automaton.symbols

    @property
    def pending(self) -> str:
        """Text not yet taken: the beginning of a terminal, or what follows a complete span."""
        return "".join(self._run.parts if self._run else ()) + self._text[self._at :]

    def feed(self, text: str) -> Iterator[Lexeme]:
        """The lexemes that ``text`` completes. Raises ``NotASpan`` where the grammar allows no more."""
        self._text = self._text[self._at :] + text
        self._at = 0
        return self._taken(final=False)

    def feed_marker(self, terminal: str, text: str) -> Iterator[Lexeme]:
        """A marker that came as one token."""
        yield from self._taken(final=True)
        self._shift(terminal)
        yield terminal, text

    def flush(self) -> Iterator[Lexeme]:
        """The lexemes of text that was waited for, now that no more comes."""
        return self._taken(final=True)

    def _taken(self, *, final: bool) -> Iterator[Lexeme]:
        while self._at < len(self._text):
            acceptable = self._known.get(self._automaton.state) or self._acceptable()
            if acceptable.only_end:
                return
            lexeme = self._next(acceptable)
            if lexeme is None:
                break
            if lexeme[0] != self._last or lexeme[0] not in acceptable.pieces:
                self._shift(lexeme[0])
            yield lexeme
        if final and self._run is not None:
            lexeme = self._end_run(self._run)
            self._shift(lexeme[0])
            yield lexeme
        if final and self._at < len(self._text):
            raise NotASpan("the text ends within a terminal")

    def _next(self, acceptable: _Acceptable) -> Lexeme | None:
        """Takes the terminal at the start of the pending text; None while it may still become one."""
        if self._run is not None:
            return self._continue_run(self._run)
        if acceptable.raw:
            return self._next_raw(acceptable.literals)
        text, at = self._text, self._at
        for name, expected in acceptable.beginning.get(text[at], ()):
            if text.startswith(expected, at):
                self._at = at + len(expected)
                return name, expected
            if expected.startswith(text[at:]):
                return None
        for each in acceptable.classes:
            match = each.match(text, at)
            if match is None:
                continue
            if each.whole:
                self._run = _OpenRun(each, [])
                return self._continue_run(self._run)
            self._at = match.end()
            return each.name, match.group()
        raise NotASpan("no terminal that may come here")

    def _next_raw(self, literals: tuple[Lexeme, ...]) -> Lexeme | None:
        """Takes raw text up to the first literal, or that literal; None while all there is may become
        one."""
        text = self._text[self._at :]
        ends = [(at, literal) for literal in literals if (at := text.find(literal[1])) >= 0]
        if ends:
            cut, (name, closing) = min(ends)
            if cut == 0:
                self._at += len(closing)
                return RAW if self._quoted() else name, closing
        else:
            cut = len(text) - max((overlap(text, expected) for _, expected in literals), default=0)
        self._at += cut
        return (RAW, text[:cut]) if cut else None

    def _continue_run(self, run: _OpenRun) -> Lexeme | None:
        """Takes what belongs to a run that must be shifted whole; None while it may go on."""
        text, at = self._text, self._at
        match = run.terminal.match(text, at)
        self._at = match.end() if match else at
        run.parts.append(text[at : self._at])
        return self._end_run(run) if self._at < len(text) else None

    def _end_run(self, run: _OpenRun) -> Lexeme:
        self._run = None
        return run.terminal.name, "".join(run.parts)

    def _shift(self, terminal: str) -> None:
        if not self._automaton.shift(terminal):
            raise NotASpan(f"{terminal} is not expected here")
        self._last = terminal

    def _acceptable(self) -> _Acceptable:
        """What may come in the automaton's state, which is kept for the next time."""
        symbols = self._automaton.symbols
        terminals = [self._grammar.terminals[name] for name in symbols if name in self._grammar.terminals]
        literals = [
            (each.name, each.text) for each in terminals if each.text and each.name not in self._tokens
        ]
        classes = [
            _Class(each.name, each.character_class.match, each.repeats and not self._may_repeat(each.name))
            for each in terminals
            if each.character_class
        ]
        found = _Acceptable(
            literals=tuple(literals),
            beginning={
                text[0]: tuple(each for each in literals if each[1][0] == text[0]) for _, text in literals
            },
            classes=tuple(classes),
            pieces=frozenset(each.name for each in terminals if each.repeats or each.name == RAW),
            raw=RAW in symbols,
            only_end=_END in symbols and not terminals,
        )
        self._known[self._automaton.state] = found
        return found

    def _may_repeat(self, terminal: str) -> bool:
        """Whether a terminal may follow itself, so that a run of it may come in pieces."""
        ahead = self._automaton.copy()
        return ahead.shift(terminal) and terminal in ahead.symbols
