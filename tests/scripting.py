"""Script files for replays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

SILENT: dict[str, object] = {"takes": [""]}
"""A line that fits every request, whatever it asks for."""


def script(folder: Path, *lines: Mapping[str, object]) -> str:
    """The path of a script with these lines."""
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return str(path)
