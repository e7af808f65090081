"""Real schemas with values that they admit and values that they do not, in the form of MaskBench.

``TOOLSPAN_MASKBENCH=PATH pytest -s tests/test_maskbench.py``: a file of JSON lines, each with ``id``,
``schema`` and ``tests``, a list of ``data`` and ``valid``. The data is not ours to ship; without it this is
skipped.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from conformance import Decided, Outcome, answered, decided, named

from server.schema.cache import Prepared
from server.schema.problem import Problem

VARIABLE = "TOOLSPAN_MASKBENCH"
WHOLE, ALONE = 0.97, 0.90
"""The shares of schemas with each value decided right: by all together, and by the constraint alone."""


@dataclass(frozen=True, slots=True)
class Record:
    """One schema of the file: what came of it, and of its values."""

    id: str
    made: Prepared | Problem
    well_named: bool
    values: list[Decided]

    @property
    def whole(self) -> bool:
        return not isinstance(self.made, Problem) and all(each.outcome.decided for each in self.values)

    @property
    def alone(self) -> bool:
        return self.whole and all(each.outcome is Outcome.RIGHT for each in self.values)

    def has(self, outcome: Outcome) -> bool:
        return any(each.outcome is outcome for each in self.values)


def record(line: str) -> Record:
    read = json.loads(line, parse_float=Decimal)
    made = answered(read["schema"])
    cases = [(test["data"], test["valid"]) for test in read["tests"]]
    if isinstance(made, Problem):
        return Record(read["id"], made, named(made, read["schema"]), [])
    return Record(read["id"], made, True, list(decided(made, cases)))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} names no file")
    return [record(line) for line in Path(path).read_text("utf-8").splitlines()]


def share(records: list[Record], wanted: list[Record]) -> float:
    return len(wanted) / len(records)


def test_nearly_all_values_are_decided_right(records: list[Record]) -> None:
    whole = [each for each in records if each.whole]
    alone = [each for each in records if each.alone]
    values = sum(len(each.values) for each in records)
    print(f"\n{len(records)} schemas, {values} values")
    print(f"all decided right: {len(whole)} ({share(records, whole):.1%})")
    print(f"by the constraint alone: {len(alone)} ({share(records, alone):.1%})")
    print("else:", *(each.id for each in records if not each.alone))
    assert share(records, whole) >= WHOLE
    assert share(records, alone) > ALONE


def test_nothing_invalid_is_accepted(records: list[Record]) -> None:
    assert [each.id for each in records if each.has(Outcome.ACCEPTED)] == []


def test_refusals_are_named(records: list[Record]) -> None:
    assert [each for each in records if not each.well_named] == []
