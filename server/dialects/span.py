"""Reads one span with its grammar file, as the text comes, through lark's public interactive parser.

Lark's own lexer can't read half a token, so the text is cut into terminals here: the state of the parser
says which terminals may come; a literal is taken when it is all there, and waited for while the text may
still become it; a run of one character class is taken as far as it goes. Raw text, a class that the literal
after it also fits, goes up to that literal's first occurrence outside quotes. No guessing, no backing up: the
time is linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lark import Token, UnexpectedInput

from server.dialects.grammar import Grammar, Terminal
from server.dialects.held import overlap

_END = "$END"
RAW = "RAW"
"""The terminal of raw text, which any characters are but the literals that may come in its place."""


class NotASpan(Exception):
    """The text is no sentence of the grammar, and no beginning of one."""


class Lexeme(NamedTuple):
    """A terminal and the text it took. Neighbouring lexemes of one run are pieces of it."""

    terminal: str
    text: str


class _Acceptable(NamedTuple):
    """The terminals that may come in one state of the parser; ``raw``: raw text is one of them."""

    literals: tuple[Terminal, ...]
    classes: tuple[Terminal, ...]
    raw: bool
    only_end: bool


class _OpenRun(NamedTuple):
    """A run of one class that has begun, in the parts in which it came."""

    terminal: Terminal
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
        self._lark = grammar.lark.parse_interactive("", start=start)
        self._pending = ""
        self._run: _OpenRun | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing more can belong to the span."""
        return self._acceptable().only_end

    @property
    def may_end(self) -> bool:
        """Whether the span may end here."""
        return _END in self._lark.choices()

    @property
    def pending(self) -> str:
        """Text not yet taken: the beginning of a terminal, or what follows a complete span."""
        return "".join(self._run.parts if self._run else ()) + self._pending

    def feed(self, text: str) -> Iterator[Lexeme]:
        """The lexemes that ``text`` completes. Raises ``NotASpan`` where the grammar allows no more."""
        self._pending += text
        return self._taken(final=False)

    def feed_marker(self, terminal: str, text: str) -> Iterator[Lexeme]:
        """A marker that came as one token."""
        yield from self._taken(final=True)
        self._shift(terminal, text)
        yield Lexeme(terminal, text)

    def flush(self) -> Iterator[Lexeme]:
        """The lexemes of text that was waited for, now that no more comes."""
        return self._taken(final=True)

    def _taken(self, *, final: bool) -> Iterator[Lexeme]:
        while self._pending:
            acceptable = self._acceptable()
            if acceptable.only_end:
                return
            lexeme = self._next(acceptable)
            if lexeme is None:
                break
            self._shift(*lexeme)
            yield lexeme
        if final and self._run is not None:
            lexeme = self._end_run(self._run)
            self._shift(*lexeme)
            yield lexeme
        if final and self._pending:
            raise NotASpan("the text ends within a terminal")

    def _next(self, acceptable: _Acceptable) -> Lexeme | None:
        """Takes the terminal at the start of the pending text; None while it may still become one."""
        if self._run is not None:
            return self._continue_run(self._run)
        text = self._pending
        if acceptable.raw:
            return self._next_raw(acceptable.literals)
        found: Lexeme | None = None
        for literal in acceptable.literals:
            expected = literal.text or ""
            if text.startswith(expected):
                if found is None or len(expected) > len(found.text):
                    found = Lexeme(literal.name, expected)
            elif expected.startswith(text):
                return None
        if found is not None:
            self._pending = text[len(found.text) :]
            return found
        for each in acceptable.classes:
            match = each.character_class.match(text) if each.character_class else None
            if match is None:
                continue
            if each.repeats and not self._may_repeat(each):
                self._run = _OpenRun(each, [])
                return self._continue_run(self._run)
            self._pending = text[match.end() :]
            return Lexeme(each.name, match.group())
        raise NotASpan(f"expected one of {sorted(t.name for t in acceptable.literals + acceptable.classes)}")

    def _next_raw(self, literals: tuple[Terminal, ...]) -> Lexeme | None:
        """Takes raw text up to the first literal, or that literal; None while all there is may become
        one."""
        text = self._pending
        ends = [(at, each) for each in literals if (at := text.find(each.text or "")) >= 0]
        if not ends:
            cut = len(text) - max((overlap(text, each.text or "") for each in literals), default=0)
        else:
            cut, first = min(ends, key=lambda end: end[0])
            if cut == 0:
                self._pending = text[len(first.text or "") :]
                return Lexeme(RAW if self._quoted() else first.name, first.text or "")
        self._pending = text[cut:]
        return Lexeme(RAW, text[:cut]) if cut else None

    def _continue_run(self, run: _OpenRun) -> Lexeme | None:
        """Takes what belongs to a run that must be shifted whole; None while it may go on."""
        text = self._pending
        match = run.terminal.character_class.match(text) if run.terminal.character_class else None
        end = match.end() if match else 0
        run.parts.append(text[:end])
        self._pending = text[end:]
        return self._end_run(run) if self._pending else None

    def _end_run(self, run: _OpenRun) -> Lexeme:
        self._run = None
        return Lexeme(run.terminal.name, "".join(run.parts))

    def _shift(self, terminal: str, text: str) -> None:
        try:
            self._lark.feed_token(Token(terminal, text))
        except UnexpectedInput as error:
            raise NotASpan(f"{terminal} is not expected here") from error

    def _may_repeat(self, terminal: Terminal) -> bool:
        """Whether a run may be taken in pieces, because its terminal may follow itself."""
        known = self._grammar.repeatable
        key = (id(self._lark.choices()), terminal.name)
        if key not in known:
            ahead = self._lark.copy()
            ahead.feed_token(Token(terminal.name, ""))
            known[key] = terminal.name in ahead.choices()
        return known[key]

    def _acceptable(self) -> _Acceptable:
        # The parse table's own dict for the state: one object per state, alive as long as the grammar.
        choices = self._lark.choices()
        known = self._grammar.acceptable.get((id(choices), self._tokens))
        if known is None:
            terminals = [self._grammar.terminals[name] for name in choices if name in self._grammar.terminals]
            literals = [each for each in terminals if each.text is not None]
            known = _Acceptable(
                literals=tuple(each for each in literals if each.name not in self._tokens),
                classes=tuple(each for each in terminals if each.text is None),
                raw=any(each.name == RAW for each in terminals),
                only_end=_END in choices and not terminals,
            )
            self._grammar.acceptable[id(choices), self._tokens] = known
        return known
