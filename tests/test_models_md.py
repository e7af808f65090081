"""The models page says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.catalogue import CATALOGUE
from server.dialects.dialect import Dialect
from server.dialects.form import written_calls
from server.dialects.table import DIALECTS
from server.turn import ToolCall

PAGE = (Path(__file__).resolve().parent.parent / "models.md").read_text(encoding="utf-8")


def table(first: str) -> list[list[str]]:
    """The cells of the page's table whose first column is ``first``."""
    lines = PAGE.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = lines[start + 2 : lines.index("", start)]
    cells = [re.split(r"(?<!\\)\|", row.strip()[1:-1]) for row in rows]
    return [[cell.strip() for cell in row] for row in cells]


def test_the_catalogue_is_the_codes() -> None:
    assert table("key") == [
        [f"`{entry.key}`", entry.title, entry.licence, f"{entry.recipe.size / 1e6:.0f} MB", entry.note]
        for entry in CATALOGUE
    ]


def code(text: str) -> str:
    """Text as a cell of a table shows it."""
    return f"`{text.replace('|', chr(92) + '|').replace(chr(10), '⏎')}`"


def described(dialect: Dialect) -> list[str]:
    thought = " and ".join(code(text) for text in dialect.reasoning) if dialect.reasoning else "no"
    return [
        code(dialect.name),
        code(f"{dialect.grammar}.lark"),
        code(written_calls(dialect, [ToolCall("", "f", '{"a": 1}')])),
        thought,
        "yes" if dialect.parallel else "no",
        "yes" if dialect.tools_in_template else "no",
    ]


def test_the_dialects_are_the_codes() -> None:
    assert [row[:6] for row in table("dialect")] == [described(dialect) for dialect in DIALECTS]


@pytest.mark.parametrize("row", table("dialect"), ids=lambda row: row[0])
def test_tested_models_are_in_the_catalogue(row: list[str]) -> None:
    keys = row[-1].replace("`", "").split(", ")
    assert set(keys) <= {entry.key for entry in CATALOGUE} | {"its template", "a template of the tests"}
