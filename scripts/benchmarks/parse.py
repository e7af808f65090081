"""What the parser of answers costs: microseconds of a character, and how that grows."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from answers import Case, fed

from server.dialects.constrain import ReasoningState
from server.dialects.dialect import Dialect
from server.dialects.form import written_calls
from server.dialects.table import DIALECTS
from server.turn import ToolCall

PIECE = 4


def filled(part: str, size: int) -> str:
    return part * max(1, size // len(part))


def call(row: Dialect, argument: str) -> str:
    return written_calls(row, [ToolCall("", "add", argument)])


def with_text(part: str) -> Callable[[Dialect, int], str]:
    """A call with a long text, which is written as it stands."""
    return lambda row, size: call(row, '{"a": "TEXT"}').replace("TEXT", filled(part, size))


def with_array(begin: str, part: str, end: str) -> Callable[[Dialect, int], str]:
    """A call with a long array, which is written as it stands."""
    return lambda row, size: call(row, '{"a": [0]}').replace("[0]", begin + filled(part, size) + end)


def calls(row: Dialect, size: int) -> str:
    one = ToolCall("", "add", '{"a": 1}')
    return written_calls(row, [one] * max(1, size // len(call(row, one.arguments))))


def nested(row: Dialect, size: int) -> str:
    return call(row, '{"a": [0]}').replace("[0]", "[" * (size // 2) + "]" * (size // 2))


def unfinished(row: Dialect, size: int) -> str:
    whole = call(row, '{"a": "x y"}')
    return filled(whole[: whole.index("y")], size)


def swallowed(row: Dialect, size: int) -> str:
    """Calls within the text of a call that is none, as its end shows."""
    before, after = call(row, '{"a": "TEXT"}').split("TEXT")
    return filled(before, size) + after[: len(after) // 2] + "<>"


def thoughts(row: Dialect, size: int) -> str:
    begin, end = row.reasoning or ("", "")
    return filled("A thought. ", size) + end + begin


WORKLOADS: dict[str, Callable[[Dialect, int], str]] = {
    "text": lambda _, size: filled("Plain words, and more of them. ", size),
    "openings": lambda row, size: filled("<" + row.opener[:-1], size),
    "brackets": lambda _, size: filled("<", size),
    "spaces": lambda _, size: filled(" ", size),
    "thoughts": thoughts,
    "string": with_text("some words "),
    "backslashes": with_text("\\\\"),
    "unicode": with_text("\\u00e9"),
    "quotes": with_text('\\"'),
    "numbers": with_array("[", "1,-0.5e+7,1234,", "1]"),
    "digits": with_array("[", "1,", "1]"),
    "objects": with_array("[", "{},", "{}]"),
    "gaps": with_array("[", " ", "1]"),
    "nested": nested,
    "calls": calls,
    "openers": lambda row, size: filled(row.opener or "{", size),
    "unfinished": unfinished,
    "swallowed": swallowed,
}
NEVER_CONSTRAINED = ("openers", "unfinished", "swallowed", "calls", "gaps", "nested")
"""Workloads that no constraint lets through in every dialect."""


class Cost(NamedTuple):
    """CPU time of one character, in microseconds, and how that grows."""

    each: float
    growth: float
    dialect: str
    workload: str
    way: str


def seconds(
    row: Dialect, text: str, piece: int, *, trusted: bool, reasoning: ReasoningState = ReasoningState.NONE
) -> float:
    case = Case(row, "", [], ("add",), bare=row.bare, trusted=trusted, reasoning=reasoning)
    chunks = [text[at : at + piece].encode() for at in range(0, len(text), piece)]
    started = time.process_time()
    fed(case.parser(), chunks)
    return time.process_time() - started


def costs(row: Dialect, workload: str, size: int) -> Iterator[Cost]:
    gc.collect()
    quarter, whole = (WORKLOADS[workload](row, length) for length in (size // 4, size))
    reasoning = ReasoningState.OPEN if workload == "thoughts" else ReasoningState.NONE
    for trusted in [False] if workload in NEVER_CONSTRAINED else [True, False]:
        for piece in (size * 2, PIECE):
            few, all_of_them = (
                seconds(row, text, piece, trusted=trusted, reasoning=reasoning) / len(text) * 1e6
                for text in (quarter, whole)
            )
            way = ("trusted" if trusted else "any") + (", pieces" if piece == PIECE else ", whole")
            yield Cost(all_of_them, all_of_them / few, row.name, workload, way)


def run(options: argparse.Namespace) -> None:
    rows = [row for row in DIALECTS if row.name in (options.dialect or [row.name])]
    found = [
        cost
        for row in rows
        for workload in options.workload or WORKLOADS
        for cost in costs(row, workload, options.size)
    ]
    print(f"{'µs/char':>8} {'growth':>6}  {'dialect':16} {'workload':12} answer")
    for cost in sorted(found, reverse=True):
        print(f"{cost.each:8.2f} {cost.growth:6.2f}  {cost.dialect:16} {cost.workload:12} {cost.way}")


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dialect", action="append", choices=[row.name for row in DIALECTS])
    command.add_argument("--workload", action="append", choices=list(WORKLOADS))
    command.add_argument("--size", type=int, default=200_000, help="characters of an answer")
