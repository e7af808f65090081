"""The dialects: one row each. Everything that differs between two models of one grammar family is here.

A row names its grammar file and gives the texts of that file's markers and gaps for this dialect. Gaps
are exact on the constraint side; the parser reads any whitespace in their places. ``cues`` are texts
that must all occur in a chat template for the row to be taken; rows are tried in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from server.turn import ToolCall


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model writes calls and reasoning.

    ``markers`` take the place of the grammar file's terminals of the same name; a gap that is not named
    in ``gaps`` is empty. ``separator`` stands between two spans. ``reasoning`` is the pair of markers
    around a thought and ``after_reasoning`` what the model writes between a thought and a call.
    ``tools_in_template`` is False where the template knows no tools and the system text has to describe
    them. ``bare`` says that such a model may forget the markers around a call.
    """

    name: str
    grammar: str
    cues: tuple[str, ...]
    markers: Mapping[str, str]
    gaps: Mapping[str, str] = field(default_factory=dict)
    separator: str = ""
    reasoning: tuple[str, str] | None = None
    after_reasoning: str = ""
    tools_in_template: bool = True
    parallel: bool = True
    bare: bool = False

    @property
    def opener(self) -> str:
        """The text that opens a span."""
        return self.markers["OPEN"]

    @property
    def marker_texts(self) -> tuple[str, ...]:
        """Every marker of the dialect, those of reasoning included."""
        return (*self.markers.values(), *(self.reasoning or ()))


HERMES = Dialect(
    name="hermes",
    grammar="json_object",
    cues=("<tool_call>",),
    markers=MappingProxyType({"OPEN": "<tool_call>", "CLOSE": "</tool_call>"}),
    gaps=MappingProxyType(
        {
            "gap_open": "\n",
            "gap_name": " ",
            "gap_arguments_key": " ",
            "gap_arguments": " ",
            "gap_close": "\n",
        }
    ),
    separator="\n",
    reasoning=("<think>", "</think>"),
    after_reasoning="\n\n",
    bare=True,
)

GENERIC = Dialect(
    name="generic",
    grammar="json_object",
    cues=(),
    markers=HERMES.markers,
    gaps=HERMES.gaps,
    separator=HERMES.separator,
    reasoning=HERMES.reasoning,
    after_reasoning=HERMES.after_reasoning,
    tools_in_template=False,
    bare=True,
)

DIALECTS: tuple[Dialect, ...] = (HERMES, GENERIC)
"""In order of detection; the last one takes what no other does."""

ALL_MARKERS: tuple[str, ...] = tuple(sorted({text for row in DIALECTS for text in row.marker_texts}))
"""Every marker of every row: what a vocabulary must know as tokens where it has them."""


def written_calls(dialect: Dialect, calls: Sequence[ToolCall]) -> str:
    """The calls as a model of this dialect writes them, for a history that the template can't render.
    Each ``arguments`` must be JSON text."""
    return dialect.separator.join(_written_call(dialect, call) for call in calls)


def _written_call(dialect: Dialect, call: ToolCall) -> str:
    gap = {name: dialect.gaps.get(name, "") for name in ("gap_open", "gap_close")}
    body = f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'
    return f"{dialect.opener}{gap['gap_open']}{body}{gap['gap_close']}{dialect.markers['CLOSE']}"
