"""What the parts of an answer begin and end with, in one dialect and vocabulary: for the parser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from server.dialects.bound import BoundDialect
from server.dialects.dialect import Segment
from server.dialects.form import SpanForm, span_form
from server.dialects.grammar import Grammar, grammar_of
from server.dialects.held import overlap
from server.dialects.interruption import Interruption, interruption


@dataclass(frozen=True, slots=True)
class Landmarks:
    """``rules`` are those of a span by what it begins with, ``opener`` first. ``segments`` are those of free
    text by what they begin with, ``parts`` what a part begins with that has a marker, a thought at least.
    ``tokens`` are the markers that are one token, by their ids; what is found in text is in ``textual``.
    ``span_tokens`` are the terminals that never come as text. ``no_thought`` may begin a turn without one.
    ``turn_end`` may end text that has no segments. ``inner`` are the tokens that stand within markers.
    ``interruption`` is how a call may end a thought."""

    grammar: Grammar
    form: SpanForm
    opener: str
    rules: Mapping[str, str]
    think_open: str
    think_close: str
    no_thought: str
    segments: Mapping[str, Segment]
    parts: frozenset[str]
    tokens: Mapping[int, str]
    textual: frozenset[str]
    span_tokens: frozenset[str]
    turn_end: str
    inner: tuple[str, ...]
    interruption: Interruption | None

    @property
    def interrupting(self) -> str:
        """What may open a call within a thought."""
        return self.opener if self.interruption is not None else ""

    def split(self, text: str, markers: Iterable[str]) -> tuple[str, str, str]:
        """Text before the first of some markers, which it is (or none), and what follows it, or may still
        become one. A marker that is a token is never found in text."""
        textual = [each for each in markers if each in self.textual]
        found = min((each for each in textual if each in text), key=text.index, default="")
        if found:
            end = text.index(found)
            return text[:end], found, text[end + len(found) :]
        end = len(text) - max((overlap(text, each) for each in textual), default=0)
        return text[:end], "", text[end:]

    def terminal(self, text: str) -> str:
        """The terminal that has this text."""
        return next((each.name for each in self.grammar.terminals.values() if each.text == text), "")


def landmarks(bound: BoundDialect, *, calls: bool, thoughts: bool, thought_calls: bool) -> Landmarks:
    """Without ``calls`` none opens, without ``thoughts`` none is read, without ``thought_calls`` no call ends
    one."""
    dialect, form, grammar = bound.dialect, span_form(bound.dialect), grammar_of(bound.dialect)
    rules = {dialect.opener: dialect.span, **dialect.other_openers}
    if dialect.unopened:
        rules[form.call_marker] = dialect.unopened
    think_open, think_close = (dialect.reasoning if thoughts else None) or ("", "")
    segments = {each.open: each for each in dialect.text}
    tokens = {token: text for text, token in bound.tokens.items() if text not in dialect.inner}
    spelled = {each.name for each in grammar.terminals.values() if each.text in tokens.values()}
    parts = {think_open}
    if segments:
        parts |= {dialect.turn_end, *segments, *(rules if calls else ())}
    return Landmarks(
        grammar=grammar,
        form=form,
        opener=dialect.opener,
        rules=rules,
        think_open=think_open,
        think_close=think_close,
        no_thought=think_close if dialect.thoughtless else "",
        segments=segments,
        parts=frozenset(parts - {""}),
        tokens=tokens,
        textual=frozenset({*dialect.marker_texts, *rules} - {"", *tokens.values()}),
        span_tokens=frozenset(spelled),
        turn_end="" if segments else dialect.turn_end,
        inner=tuple(each for each in dialect.inner if each in bound.tokens),
        interruption=interruption(bound) if calls and thought_calls else None,
    )
