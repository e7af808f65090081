"""The official JSON Schema tests of drafts 7 and 2020-12, which the sources of jsonschema carry.

``schema_suite.json`` has what came of every case that is not plainly right, by draft, file, schema and value.
After a change that is meant: ``TOOLSPAN_SUITE=write python -m pytest tests/test_schema_suite.py``
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from conformance import Outcome, answered, decided, named

from server.schema.drafts import Draft
from server.schema.problem import Problem

EXPECTED = Path(__file__).with_name("schema_suite.json")
DRAFTS = {"draft7": Draft.DRAFT7, "draft2020-12": Draft.DRAFT202012}

ASSERTED = {("format.json", "format"), ("vocabulary.json", "minimum")}
"""Where we mean to be stricter: formats are asserted in every draft, and a metaschema that is not known
cannot take keywords away."""


@dataclass(frozen=True, slots=True)
class Case:
    """One value of the suite, or a schema that is refused: what came of it."""

    draft: str
    file: str
    schema: str
    value: str
    outcome: str
    keyword: str | None = None
    problem: Problem | None = None
    well_named: bool = True


def cases(folder: Path, draft: str) -> Iterator[Case]:
    for path in sorted((folder / draft).rglob("*.json")):
        file = path.relative_to(folder / draft).as_posix()
        for group in json.loads(path.read_text("utf-8"), parse_float=Decimal):
            yield from _cases(draft, file, group)


def _cases(draft: str, file: str, group: dict[str, object]) -> Iterator[Case]:
    schema, tests, name = group["schema"], group["tests"], str(group["description"])
    assert isinstance(tests, list)
    if isinstance(schema, dict):
        schema = {"$schema": DRAFTS[draft].uri, **schema}
    made = answered(schema)
    if isinstance(made, Problem):
        outcome = f"refused: {made.code} {made.keyword}".strip()
        yield Case(draft, file, name, "", outcome, None, made, named(made, schema))
        return
    values = decided(made, [(test["data"], test["valid"]) for test in tests])
    for test, each in zip(tests, values, strict=True):
        yield Case(draft, file, name, test["description"], each.outcome.value, each.keyword)


@pytest.fixture(scope="module")
def suite(schema_suite_dir: Path) -> list[Case]:
    found = [case for draft in DRAFTS for case in cases(schema_suite_dir / "json/tests", draft)]
    print(f"\n{dict(Counter(case.outcome for case in found))}")
    return found


def of(suite: list[Case], outcome: Outcome) -> list[Case]:
    return [case for case in suite if case.outcome == outcome.value]


def test_outcomes_are_the_known_ones(suite: list[Case]) -> None:
    found = ratchet(suite)
    if os.environ.get("TOOLSPAN_SUITE") == "write":
        EXPECTED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    expected = json.loads(EXPECTED.read_text("utf-8"))
    assert {
        "new": sorted(lines(found) - lines(expected)),
        "gone": sorted(lines(expected) - lines(found)),
    } == {
        "new": [],
        "gone": [],
    }


def lines(found: object, place: str = "") -> set[str]:
    """Each outcome with its place, as one line."""
    if isinstance(found, dict):
        return {line for name, each in found.items() for line in lines(each, f"{place}{name}: ")}
    return {f"{place}{found}"}


def ratchet(suite: list[Case]) -> dict[str, dict[str, dict[str, object]]]:
    """What is not right, nested; a refused schema has one outcome for all its values."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for case in suite:
        if case.outcome != Outcome.RIGHT.value:
            schemas = found.setdefault(case.draft, {}).setdefault(case.file, {})
            if case.problem:
                schemas[case.schema] = case.outcome
            else:
                values = schemas.setdefault(case.schema, {})
                assert isinstance(values, dict)
                assert values.setdefault(case.value, case.outcome) == case.outcome
    return found


def test_nothing_invalid_is_accepted(suite: list[Case]) -> None:
    assert of(suite, Outcome.ACCEPTED) == []


def test_nothing_valid_is_denied(suite: list[Case]) -> None:
    denied = of(suite, Outcome.DENIED)
    assert [case for case in denied if (case.file, case.keyword) not in ASSERTED] == []


def test_refusals_are_named(suite: list[Case]) -> None:
    assert [case for case in suite if not case.well_named] == []


def test_only_impossible_and_remote_schemas_are_refused(suite: list[Case]) -> None:
    codes = {case.problem.code for case in suite if case.problem}
    assert codes == {"schema_unsatisfiable", "unsupported_ref"}
