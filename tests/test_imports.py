"""Imports go one way. The order is read from the sources, not from what happens to be loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(file for file in (ROOT / "server").rglob("*.py") if file.stat().st_size)

CONTRACTS = {"errors", "events", "turn", "settings", "frames"}
"""Pure values that both processes share. Among themselves: see ``ALLOWED``."""

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "logs": set(),
    "events": set(),
    "turn": set(),
    "programs": set(),
    "settings": {"errors"},
    "frames": {"errors", "events", "turn"},
    "gguf": {"errors"},
    "model_file": {"errors", "gguf"},
    "record_file": {"errors"},
    "download": {"errors", "model_file"},
    "catalogue": {"errors", "download"},
    "schema": CONTRACTS,
    "dialects": CONTRACTS | {"schema"},
    "engine.protocol": {"events", "turn"},
    "prompt": CONTRACTS | {"schema", "dialects", "engine.protocol"},
    "engine": CONTRACTS | {"model_file", "schema", "dialects", "prompt", "engine.protocol"},
    "runner": CONTRACTS
    | {"logs", "record_file", "schema", "dialects", "prompt", "engine", "engine.protocol"},
    "supervisor": CONTRACTS | {"programs"},
    "api": CONTRACTS | {"logs", "programs", "supervisor"},
    "commands": CONTRACTS
    | {"logs", "programs", "supervisor", "api", "catalogue", "download", "model_file", "record_file"},
    "__main__": {"commands"},
}
"""Unit of the tree -> the units it may import, besides itself. Everything stands here: a new package needs
a line, and with it a place in the order."""

OWNERS: dict[str, set[str]] = {
    "fastapi": {"api"},
    "h11": {"api"},
    "huggingface_hub": {"download"},
    "jinja2": {"prompt"},
    "jsonschema_rs": {"schema"},
    "lark": {"dialects"},
    "llama_cpp": {"engine"},
    "llguidance": {"engine", "engine.protocol", "runner", "schema"},
    "prometheus_client": {"api"},
    "pydantic": {"api"},
    "pydantic_core": {"api"},
    "rich": {"download"},
    "starlette": {"api"},
    "uvicorn": {"api"},
}
"""Package of others -> the only units that may import it."""

HEAVY = ("jinja2", "jsonschema_rs", "lark", "llama_cpp", "llguidance", "numpy")
"""What belongs to the runner's process alone."""


def unit_of(module: str) -> str:
    """``server.engine.llama`` -> ``engine``: where a module stands in ``ALLOWED``."""
    if module == "server.engine.protocol":
        return "engine.protocol"
    return module.split(".")[1]


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file names, wherever in it, those under TYPE_CHECKING included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            name = node.module or ""
            is_package = (ROOT / name.replace(".", "/")).is_dir()
            yield from (f"{name}.{alias.name}" if is_package else name for alias in node.names)


def imports_of(file: Path) -> list[str]:
    return list(imported(ast.parse(file.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_imports_go_one_way(file: Path) -> None:
    unit = unit_of(module_of(file))
    wrong = [
        name
        for name in imports_of(file)
        if name.startswith("server.") and unit_of(name) not in ALLOWED[unit] | {unit}
    ]
    assert not wrong, f"{unit} may import {sorted(ALLOWED[unit])}"


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_every_foreign_package_has_its_place(file: Path) -> None:
    unit = unit_of(module_of(file))
    tops = {name.split(".")[0] for name in imports_of(file)}
    assert not [name for name in tops if unit not in OWNERS.get(name, {unit})]


def test_only_the_native_modules_import_llama_cpp() -> None:
    importers = {file.name for file in FILES if any(n.startswith("llama_cpp") for n in imports_of(file))}
    assert importers
    assert all(name.startswith("llama") for name in importers)


def test_the_order_has_no_cycle() -> None:
    placed: set[str] = set()
    while remaining := [unit for unit in ALLOWED if unit not in placed]:
        ready = {unit for unit in remaining if ALLOWED[unit] <= placed}
        assert ready, f"a cycle among {remaining}"
        placed |= ready


def test_every_unit_exists() -> None:
    units = {unit_of(module_of(file)) for file in FILES}
    assert units == set(ALLOWED)


def test_the_api_process_loads_nothing_of_the_runner() -> None:
    """Whatever the sources say: the command line and the API, loaded, have brought in none of it."""
    program = "import sys, server.commands, server.api.app; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not loaded & set(HEAVY)
    parts = ("runner", "engine", "prompt", "dialects", "schema")
    assert not [name for name in loaded for part in parts if f"{name}.".startswith(f"server.{part}.")]
