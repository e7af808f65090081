"""Tool lists of benchmarks and of real clients all compile, alone and together, in every notation of calls.

``TOOLSPAN_BFCL`` is a folder of JSON lines with ``function`` (lists of the Berkeley Function Calling
Leaderboard), ``TOOLSPAN_CLIENTS`` a file of JSON lines with ``body`` (requests of clients, of any of the
three APIs). The data is not ours to ship; without a path its tests are skipped.
"""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance import answered
from languages import Language

from server.dialects.bound import BoundDialect
from server.dialects.constrain import AnswerForm, CallableTool, compose
from server.dialects.form import Notation, span_form
from server.dialects.table import DIALECTS
from server.runner.prepare import NO_ARGUMENTS
from server.schema.cache import prepared
from server.schema.problem import Problem

ROOT = Path(__file__).parent.parent
NOTATIONS = {span_form(row).notation: row for row in reversed(DIALECTS)}

CONTRADICTORY = {
    "Events_3_BuyEventTickets": ("schema_unsatisfiable", "/properties/number_of_tickets", "enum"),
    "extract_parameters_v1": ("schema_unsatisfiable", "/properties/metrics", "enum"),
}
"""Tools of the leaderboard with a required parameter whose listed values are not of its type."""

Tools = dict[str, Any]
"""Parameters by name."""


def lines(path: Path) -> Iterator[Any]:
    yield from (json.loads(line) for line in path.read_text("utf-8").splitlines())


def of_leaderboard(folder: Path) -> Iterator[Tools]:
    question: Callable[[Any], Any] = runpy.run_path(str(ROOT / "scripts/bfcl"))["question"]
    for file in sorted(folder.glob("*.jsonl")):
        for row in lines(file):
            functions = [tool["function"] for tool in question(row).tools]
            yield {each["name"]: each["parameters"] for each in functions}


def of_clients(file: Path) -> Iterator[Tools]:
    for request in lines(file):
        tools = (request["body"] or {}).get("tools", ())
        functions = [
            tool.get("function", tool) for tool in tools if tool.get("type", "function") == "function"
        ]
        yield {each["name"]: each.get("parameters", each.get("input_schema")) for each in functions}


SOURCES: dict[str, Callable[[Path], Iterator[Tools]]] = {
    "TOOLSPAN_BFCL": of_leaderboard,
    "TOOLSPAN_CLIENTS": of_clients,
}


@pytest.fixture(scope="module", params=SOURCES)
def lists(request: pytest.FixtureRequest) -> list[Tools]:
    path = os.environ.get(request.param)
    if not path:
        pytest.skip(f"{request.param} names nothing")
    found = {json.dumps(each): each for each in SOURCES[request.param](Path(path)) if each}
    print(f"\n{request.param}: {len(found)} lists, {sum(map(len, found.values()))} tools")
    return list(found.values())


def test_every_tool_that_can_be_called_is_accepted(lists: list[Tools]) -> None:
    tools = {json.dumps(parameters): name for each in lists for name, parameters in each.items()}
    made = [(name, answered(json.loads(text) or {}, as_object=True)) for text, name in tools.items()]
    exact = sum(not isinstance(each, Problem) and each.lowered.exact for _, each in made)
    print(f"\n{len(made)} different schemas, {exact} enforced whole while generating")
    refused = [(name, each) for name, each in made if isinstance(each, Problem)]
    assert [name for name, _ in refused if name not in CONTRADICTORY] == []
    assert {(each.code, each.pointer, each.keyword) for _, each in refused} <= set(CONTRADICTORY.values())


@pytest.mark.parametrize("notation", NOTATIONS, ids=lambda notation: notation.name.lower())
def test_every_list_compiles(lists: list[Tools], notation: Notation) -> None:
    bound = BoundDialect(NOTATIONS[notation])
    for each in lists:
        possible = {name: parameters for name, parameters in each.items() if name not in CONTRADICTORY}
        tools = tuple(callable_tool(name, parameters) for name, parameters in possible.items())
        assert Language(compose(bound, AnswerForm(tools, must_call=bool(tools))))


def callable_tool(name: str, parameters: Any) -> CallableTool:
    made = prepared(json.dumps(parameters) if parameters else NO_ARGUMENTS, "tools", as_object=True)
    return CallableTool(name, made.lowered.text, made.parameters)
