"""Finds a model's dialect: by cues in its chat template, checked by a call that the template writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from server.dialects.constrain import BoundDialect
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS, GENERIC, Dialect
from server.events import CallArguments, CallEnd, CallStart, Event
from server.turn import ToolCall


def detect(template: str | None) -> Dialect:
    """The first row all of whose cues occur in the template; ``GENERIC`` if it doesn't know tools."""
    source = template or ""
    if "tools" not in source:
        return generic(template)
    return _narrowed(next(each for each in DIALECTS if all(cue in source for cue in each.cues)), source)


def generic(template: str | None) -> Dialect:
    """What any model can be served with."""
    return _narrowed(GENERIC, template or "")


def _narrowed(row: Dialect, source: str) -> Dialect:
    """The row for one template: reasoning only if the template knows its opening marker."""
    if row.reasoning and row.reasoning[0] not in source:
        return dataclasses.replace(row, reasoning=None)
    return row


def bind(dialect: Dialect, single_token: Callable[[str], int | None]) -> BoundDialect:
    """The dialect with the ids of those markers that are one token of the vocabulary."""
    tokens = {marker: single_token(marker) for marker in dialect.marker_texts}
    return BoundDialect(dialect, {marker: token for marker, token in tokens.items() if token is not None})


def reads(dialect: Dialect, written: str, calls: tuple[ToolCall, ...]) -> bool:
    """Whether the dialect's parser reads just ``calls`` out of what a template wrote for them."""
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
