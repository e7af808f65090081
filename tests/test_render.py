"""``toolspan render``, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_dialects import LONGCAT

TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Files by the option that takes them; the messages' comes first, without one."""
    contents: dict[str, Any] = {
        "--messages": json.dumps([{"role": "user", "content": "Hi <longcat_tool_call>"}]),
        "--template": LONGCAT,
        "--tools": json.dumps([TOOL]),
    }
    for option, text in contents.items():
        (tmp_path / option[2:]).write_text(text)
    return {option: str(tmp_path / option[2:]) for option in contents}


def render(options: dict[str, str], answer: str = "") -> subprocess.CompletedProcess[str]:
    words = [word for pair in options.items() for word in pair if word not in ("", "--messages")]
    command = [sys.executable, "-m", "server", "render", *words]
    return subprocess.run(command, input=answer, capture_output=True, text=True, timeout=60, check=False)


def test_everything_is_shown(files: dict[str, str]) -> None:
    done = render(files, 'Well. <longcat_tool_call>{"name": "get", "arguments": {}}</longcat_tool_call>')
    assert done.returncode == 0, done.stderr
    for line in (
        "dialect   longcat (json_object.lark, rule span)",
        "why       the template has '<longcat_tool_call>'; its own calls were read back as longcat",
        "marker    '<longcat_tool_call>' is text",
        "text      'Well.'",
        "call      get",
        "arguments {}",
        "finish    tool_calls",
    ):
        assert line in done.stdout.splitlines()
    assert "[user]Hi <longcat_tool_call>[assistant]\n" in done.stdout
    assert 'call_0: "{\\"name\\": \\"get\\"' in done.stdout


def test_the_prompt_alone(files: dict[str, str]) -> None:
    done = render(files | {"--prompt": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[user]Hi <longcat_tool_call>[assistant]")
    assert "---" not in done.stdout


@pytest.mark.model
def test_a_models_own_template_and_tokens(files: dict[str, str]) -> None:
    options = {key: files[key] for key in ("--messages", "--tools")} | {"--model": "qwen2.5-coder-0.5b"}
    done = render(options)
    assert done.returncode == 0, done.stderr
    assert "marker    '<tool_call>' is token 151657" in done.stdout
    assert "⟦<|im_start|>⟧user\nHi <longcat_tool_call>⟦<|im_end|>⟧" in done.stdout


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"--messages": None}, "render takes"),
        ({"--template": None}, "--template"),
        ({"--prompt": "x"}, "render takes"),
        ({"--model": "smollm2-135m"}, "--template"),
        ({"--template": "/nowhere"}, "no file"),
        ({"--messages": "/nowhere"}, "can't be read"),
        ({"--tools": None, "--extra": "x"}, "render takes"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    files: dict[str, str], changed: dict[str, str | None], word: str
) -> None:
    options = {key: value for key, value in (files | changed).items() if value is not None}
    done = render(options)
    assert done.returncode == 1
    assert word in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bad_request_is_refused_as_the_server_would(files: dict[str, str]) -> None:
    Path(files["--messages"]).write_text('[{"role": "nobody"}]')
    done = render(files)
    assert done.returncode == 1
    assert "messages[0].role" in done.stderr
    Path(files["--messages"]).write_text('[{"role": "user", "content": "x"}]')
    Path(files["--tools"]).write_text(
        json.dumps([TOOL | {"function": {"name": "f", "parameters": {"type": 1}}}])
    )
    done = render(files)
    assert done.returncode == 1
    assert "type" in done.stderr
