"""The example of ``docs/replay.md``, run as it stands, and what a start without a model says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
from launch import ROOT, launched

from server.runner.replay import Line

PAGE = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    found = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(found[-1])


def test_the_example_does_what_the_page_says(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(block("jsonl"), encoding="utf-8")
    with launched("--replay", str(script), "--chunk", "1") as server:
        done = subprocess.run(
            [sys.executable, "-c", block("python")],
            env=os.environ | {"AGENT_URL": f"{server.url}/v1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert server.said[0].startswith(f"model     scripted (a replay of {script}: no model is loaded")
    assert done.stderr == ""
    assert done.stdout == PAGE.split("It prints:\n\n```\n")[1].removesuffix("```\n")


def test_a_start_without_a_file_plays_the_built_in_script() -> None:
    with launched("--replay") as server:
        assert "a replay of the built-in script: no model is loaded" in server.said[0]
        assert not any(line.startswith("runs on") for line in server.said)
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        answer = server.create(messages=[{"role": "user", "content": "Hi"}], tools=[tool])
    assert [each.function.name for each in answer.choices[0].message.tool_calls] == ["f"]


def test_the_table_has_every_field() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    fields = {each.name for each in msgspec.structs.fields(Line)}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == fields


def test_the_lines_of_the_page_are_lines() -> None:
    for text in (*block("jsonl").splitlines(), block("json")):
        msgspec.json.decode(text, type=Line)
