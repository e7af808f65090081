"""The models page says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.catalogue import CATALOGUE
from server.dialects.table import DIALECTS, Dialect

PAGE = (Path(__file__).resolve().parent.parent / "models.md").read_text(encoding="utf-8")


def table(first: str) -> list[list[str]]:
    """The cells of the page's table whose first column is ``first``."""
    lines = PAGE.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = lines[start + 2 : lines.index("", start)]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_catalogue_is_the_codes() -> None:
    assert table("key") == [
        [f"`{entry.key}`", entry.title, entry.licence, f"{entry.recipe.size / 1e6:.0f} MB", entry.note]
        for entry in CATALOGUE
    ]


def described(dialect: Dialect) -> list[str]:
    def spans(pair: tuple[str, str] | None) -> str:
        return " and ".join(f"`{text}`" for text in pair) if pair else "no"

    return [
        f"`{dialect.name}`",
        f"`grammars/{dialect.grammar}.lark`",
        spans((dialect.markers["OPEN"], dialect.markers["CLOSE"])),
        spans(dialect.reasoning),
        "yes" if dialect.parallel else "no",
        "yes" if dialect.tools_in_template else "no",
    ]


def test_the_dialects_are_the_codes() -> None:
    assert [row[:-1] for row in table("dialect")] == [described(dialect) for dialect in DIALECTS]


@pytest.mark.parametrize("row", table("dialect"), ids=lambda row: row[0])
def test_tested_models_are_in_the_catalogue(row: list[str]) -> None:
    keys = row[-1].replace("`", "").split(", ")
    assert set(keys) <= {entry.key for entry in CATALOGUE}
