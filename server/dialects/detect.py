"""Finds a model's dialect: by cues in its chat template, checked by a call that the template writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from server.dialects.bound import BoundDialect
from server.dialects.dialect import Dialect
from server.dialects.form import Literal, Marker, span_form
from server.dialects.grammar import grammar_of
from server.dialects.parse import TurnParser
from server.dialects.span import NotASpan, SpanParser
from server.dialects.table import DIALECTS, GENERIC
from server.events import CallArguments, CallEnd, CallStart, Event
from server.turn import ToolCall


def detect(template: str | None) -> Dialect:
    """The first row all of whose cues occur in the template; ``GENERIC`` if it knows neither tools nor
    calls."""
    source = _without_comments(template or "")
    if "tools" not in source and "tool_calls" not in source:
        return generic(template)
    return _narrowed(next(each for each in DIALECTS if all(cue in source for cue in each.cues)), source)


def generic(template: str | None) -> Dialect:
    """What any model can be served with."""
    return _narrowed(GENERIC, template or "")


def _without_comments(source: str) -> str:
    before, *parts = source.split("{#")
    return before + "".join(part.partition("#}")[2] for part in parts)


def _narrowed(row: Dialect, source: str) -> Dialect:
    """The row for one template: reasoning only if the template knows its opening marker."""
    if row.reasoning is None:
        return row
    cue = row.reasoning_cue or row.reasoning[0].replace("\n", "\\n")
    return row if cue in source else dataclasses.replace(row, reasoning=None)


def measured(dialect: Dialect, one: str, two: str, empty: str) -> Dialect | None:
    """The row with the whitespace of a template: ``one`` and ``two`` are what it writes for as many calls
    (``two`` is empty where it can't), ``empty`` for a call without arguments. None if the first is no call of
    the dialect. A template that does not write two calls one after another knows no parallel calls."""
    if dialect.in_history is not None:
        return dialect if measured(dialect.in_history, one, two, empty) is not None else None
    spans, further, bare = (_spans(dialect, text) for text in (one, two, empty))
    if not spans and span_form(dialect).several:  # some templates close a section after its second call only
        one, spans = two, further
    if len(spans) != 1:
        return None
    gaps = dict(dialect.gaps) | _gaps(dialect, one[slice(*spans[0])])
    dialect = _after_reasoning(dialect, one[: spans[0][0]])
    if len(bare) == 1 and "gap_empty" in gaps:
        gaps["gap_empty"] = _gaps(dialect, empty[slice(*bare[0])])["gap_before"]
    if span_form(dialect).several:
        parallel = len(further) == 1
        gaps = (_gaps(dialect, two[slice(*further[0])]) if parallel else {}) | gaps
        return dataclasses.replace(dialect, gaps=gaps, parallel=dialect.parallel and parallel)
    between = two[further[0][1] : further[1][0]] if len(further) == 2 else "no"
    parallel = not between.strip()
    separator = between if parallel else dialect.separator
    return dataclasses.replace(
        dialect, gaps=gaps, separator=separator, parallel=dialect.parallel and parallel
    )


def _after_reasoning(dialect: Dialect, before: str) -> Dialect:
    """The row with the whitespace that a template has between a thought and a call, if it writes one."""
    stem = before.rstrip()
    if dialect.reasoning is None or not stem.endswith(dialect.reasoning[1]):
        return dialect
    return dataclasses.replace(dialect, after_reasoning=before[len(stem) :])


def _spans(dialect: Dialect, text: str) -> list[tuple[int, int]]:
    """Where the complete spans in a text begin and end."""
    found: list[tuple[int, int]] = []
    form = span_form(dialect)
    opener = next(item.text for item in (*form.before, *form.call) if isinstance(item, Literal | Marker))
    at = text.find(opener)
    while at >= 0:
        end = _end_of_span(dialect, text, at)
        if end:
            found.append((at, end))
        at = text.find(opener, end or at + 1)
    return found


def _end_of_span(dialect: Dialect, text: str, start: int) -> int:
    """Where the span that begins at ``start`` ends; 0 if there is none."""
    parser = SpanParser(grammar_of(dialect), dialect.span)
    try:
        for _ in parser.feed(text[start:]):
            pass
    except NotASpan:
        pass  # the end of a span that nothing closes
    return len(text) - len(parser.pending) if parser.may_end else 0


def _gaps(dialect: Dialect, span: str) -> dict[str, str]:
    """The whitespace of a span, by the names of its rules; after the last parameter it is ``gap_last``."""
    tree = grammar_of(dialect).lark.parse(span, start=dialect.span)
    found = [
        (str(each.data), "".join(map(str, each.children)))
        for each in tree.iter_subtrees_topdown()
        if str(each.data).startswith("gap_")
    ]
    after = [text for name, text in found if name == "gap_after"]
    last = {"gap_last": after[-1]} if after else {}
    between = {"gap_after": after[0]} if len(after) > 1 else {}
    return {name: text for name, text in found if name != "gap_after"} | between | last


def bind(dialect: Dialect, single_token: Callable[[str], int | None]) -> BoundDialect:
    """The dialect with the ids of those markers, and other texts of its grammar, that are one token of the
    vocabulary."""
    fixed = (each.text for each in grammar_of(dialect).terminals.values() if each.text)
    tokens = {text: single_token(text) for text in (*dialect.marker_texts, *fixed)}
    return BoundDialect(dialect, {marker: token for marker, token in tokens.items() if token is not None})


def reads(dialect: Dialect, written: str, calls: tuple[ToolCall, ...]) -> bool:
    """Whether the dialect's parser reads just ``calls`` out of what a template wrote for them."""
    dialect = dataclasses.replace(dialect.in_history or dialect, text=())
    parser = TurnParser(
        BoundDialect(dialect), {call.name for call in calls}, trusted=False, new_id=lambda index: str(index)
    )
    events = parser.feed(-1, written.encode()) + parser.flush()
    return _calls(events) == [(call.name, json.loads(call.arguments)) for call in calls]


def _calls(events: list[Event]) -> list[tuple[str, object]]:
    names: list[str] = []
    arguments: list[str] = []
    complete = 0
    for event in events:
        match event:
            case CallStart():
                names.append(event.name)
                arguments.append("")
            case CallArguments():
                arguments[event.index] += event.text
            case CallEnd():
                complete += 1
    return [(name, json.loads(text)) for name, text in zip(names[:complete], arguments, strict=False)]
