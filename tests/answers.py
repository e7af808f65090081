"""Answers for tests of the parser: golden files, and texts made of the pieces that matter."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from server.dialects.bound import BoundDialect
from server.dialects.constrain import ReasoningState
from server.dialects.dialect import Dialect
from server.dialects.form import span_form, written_calls
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS
from server.events import CallArguments, CallEnd, CallStart, Event, Reasoning, Text
from server.turn import ToolCall

GOLDEN = Path(__file__).with_name("golden")


@dataclass(frozen=True)
class Case:
    """One golden file: what the parser is told, the model's raw text, and the folded events."""

    dialect: Dialect
    raw: str
    expected: list[str]
    names: tuple[str, ...] = ()
    bare: bool = False
    trusted: bool = True
    reasoning: ReasoningState = ReasoningState.NONE
    stop: tuple[str, ...] = ()

    def parser(self, tokens: dict[str, int] | None = None) -> TurnParser:
        return TurnParser(
            BoundDialect(self.dialect, tokens or {}),
            self.names,
            reasoning=self.reasoning,
            bare=self.bare,
            stop=self.stop,
            trusted=self.trusted,
            new_id=str,
        )


def golden_files() -> list[Path]:
    return sorted(GOLDEN.glob("*/*.txt"))


def read_case(path: Path) -> Case:
    """Reads ``tests/golden/<dialect>/<case>.txt``: options, raw text and expected lines, parted by
    ``----``."""
    head, raw, expected = path.read_text(encoding="utf-8").split("----\n")
    options = dict(line.split(":", 1) for line in head.splitlines())
    return Case(
        dialect=next(row for row in DIALECTS if row.name == path.parent.name),
        raw=raw.removesuffix("\n"),
        expected=expected.split("\n")[:-1],
        names=tuple(options.get("names", "").split()),
        bare=options.get("bare", "").strip() == "yes",
        trusted=options.get("trusted", "").strip() != "no",
        reasoning=ReasoningState(options.get("reasoning", "none").strip()),
        stop=tuple(options.get("stop", "").split()),
    )


def fed(parser: TurnParser, chunks: Iterable[bytes]) -> list[Event]:
    """The events of text that comes in chunks, without token ids, and ends."""
    return [event for chunk in chunks for event in parser.feed(-1, chunk)] + parser.flush()


def folded(events: Sequence[Event]) -> list[str]:
    """Events as lines: neighbouring text joined, one line a call (``cut`` if it has no end)."""
    lines: list[tuple[str, str]] = []
    for event in events:
        match event:
            case Text() | Reasoning():
                kind = "text" if isinstance(event, Text) else "reasoning"
                if lines and lines[-1][0] == kind:
                    lines[-1] = (kind, lines[-1][1] + event.text)
                else:
                    lines.append((kind, event.text))
            case CallStart():
                lines.append(("cut", f"{event.name} "))
            case CallArguments():
                lines[-1] = (lines[-1][0], lines[-1][1] + event.text.replace("\n", "\\n"))
            case CallEnd():
                lines[-1] = ("call", lines[-1][1])
            case _:
                raise AssertionError(f"the parser makes no {event}")
    quoted = ("text", "reasoning")
    return [f"{k} {json.dumps(t, ensure_ascii=False) if k in quoted else t}" for k, t in lines]


def cut_at(data: bytes, places: Iterable[int]) -> list[bytes]:
    """``data`` in chunks that end at ``places``."""
    ends = [*sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def random_cuts(data: bytes, chance: random.Random) -> list[bytes]:
    """``data`` cut at random: in a few places, in many, or after a few bytes each time."""
    most = chance.choice([1, 3, 12, len(data)])
    return cut_at(data, [chance.randrange(len(data) + 1) for _ in range(chance.randint(0, most))])


ATOMS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_call",
    "<tool_",
    "<",
    "<think>",
    "</think>",
    "```json\n",
    "```",
    "`",
    '{"name": "add", "arguments": {',
    '{"name":"add","arguments":{}}',
    '{"name": "nope", "arguments": {}}',
    '"name"',
    '"arguments"',
    '{"a": 1}',
    '"a": "x"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    "\\",
    "\\u00e9",
    "\\u12",
    "1",
    "-0.5e+7",
    "01",
    "true",
    "nul",
    "add",
    "add_all",
    " ",
    "\n",
    "\t ",
    "word",
    "é",
    "🦊",
    "STOP",
    "STO",
)
TEXTS = st.lists(st.sampled_from(ATOMS), max_size=24).map("".join)


def texts_of(row: Dialect) -> st.SearchStrategy[str]:
    """Texts made of the pieces that matter to one dialect: its markers, parts of them, whole calls."""
    calls = [ToolCall("", name, '{"a": [1]}') for name in ("add", "add_all", "nope")]
    own = {part for marker in row.marker_texts for part in (marker, marker[:-1], marker[:3])}
    whole = {written_calls(row, calls[:1]), written_calls(row, calls[:2]), written_calls(row, calls[2:])}
    atoms = sorted(own | whole | {'"id"', '"a1"', "]" + span_form(row).closing})
    return st.lists(st.sampled_from(atoms) | st.sampled_from(ATOMS), max_size=20).map("".join)
