"""What the documents say of the code is so."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from server import settings
from server.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "models.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATHS = re.compile(r"`((?:server|scripts|tests|grammars|docs)/[\w./-]*|\w+\.md)`")
DECISION = re.compile(r"\d{4}-(\d{4}-\d{2}-\d{2})-[a-z0-9-]+\.md")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_path_exists(page: Path) -> None:
    named = PATHS.findall(page.read_text(encoding="utf-8"))
    assert not [path for path in named if not (ROOT / path).exists()]


def test_every_package_is_on_the_way() -> None:
    text = (ROOT / "docs/life-of-a-request.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "server").glob("*/__init__.py")}
    assert packages <= {path.split("/")[1] for path in PATHS.findall(text)}


def test_every_setting_is_in_the_table() -> None:
    lines = README.splitlines()
    start = lines.index("| flag | default | what it sets |")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 :]]
    table = rows[: next(n for n, row in enumerate(rows) if row == [""])]
    shown = settings.parser("toolspan serve").format_help()
    assert [row[0] for row in table] == [f"`--{each.name.replace('_', '-')}`" for each in fields(Settings)]
    for (flag, default, help_line), setting in zip(table, fields(Settings), strict=True):
        assert help_line == setting.metadata["help"]
        assert flag.strip("`") in shown
        if not setting.metadata.get("secret"):
            assert f"(default: {default})" in " ".join(shown.split())
            assert default == (str(setting.default).lower() if setting.default not in ("", ()) else "none")


@pytest.mark.parametrize("block", re.findall(r"```json\n(.*?)```", README, re.DOTALL))
def test_json_is_json(block: str) -> None:
    assert json.loads(block)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_is_python(block: str) -> None:
    assert compile(block, "README.md", "exec")


def test_every_command_names_a_script_and_known_flags() -> None:
    flags = {f"--{each.name.replace('_', '-')}" for each in fields(Settings)}
    commands = re.findall(r"scripts/serve[^`\n#|]*", README)
    assert commands
    for command in commands:
        assert set(re.findall(r"--[\w-]+", command)) <= flags


def test_decisions_are_dated_and_short() -> None:
    pages = sorted((ROOT / "docs/decisions").iterdir())
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == list(range(1, len(pages) + 1))
    for page in pages:
        match = DECISION.fullmatch(page.name)
        assert match
        lines = page.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# ")
        assert match[1] in lines
        assert len(lines) <= 30
