"""A model's dialect from its template, with the real templates of the llama.cpp sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.dialects.detect import bind, detect, generic, reads
from server.dialects.form import written_calls
from server.dialects.table import GENERIC, HERMES
from server.turn import ToolCall

TEMPLATES = Path("vendor/llama.cpp/models/templates")


@pytest.mark.parametrize(
    ("name", "dialect", "reasoning"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", "hermes", False),
        ("Qwen-Qwen3-0.6B", "hermes", True),
        ("Qwen-QwQ-32B", "hermes", True),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", False),
        ("llama-cpp-rwkv-world", "generic", True),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral-v3", False),
        ("moonshotai-Kimi-K2", "kimi-k2", False),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama3-json", False),
    ],
)
def test_real_templates(sdist_dir: Path, name: str, dialect: str, reasoning: bool) -> None:
    found = detect((sdist_dir / TEMPLATES / f"{name}.jinja").read_text())
    assert (found.name, found.reasoning is not None) == (dialect, reasoning)


def test_no_template_is_generic() -> None:
    for template in (None, "{{ messages }}", "<tool_call> in a template without a list of them"):
        found = detect(template)
        assert (found.name, found.reasoning) == ("generic", None)


def test_a_template_without_tools_may_reason() -> None:
    assert detect("{{ messages }}<think>").reasoning == ("<think>", "</think>")
    assert generic("{{ tools }}<think>").reasoning == ("<think>", "</think>")
    assert generic("{{ tools }}").reasoning is None


def test_markers_are_bound_to_the_tokens_that_exist() -> None:
    known = {"<tool_call>": 7}
    assert bind(HERMES, known.get).tokens == known
    assert bind(HERMES, known.get).opener_token == 7


CALLS = (ToolCall("", "add", '{"a": [1, {"b": null}]}'), ToolCall("", "get", "{}"))


def test_what_is_written_reads_back() -> None:
    for dialect in (HERMES, GENERIC):
        assert reads(dialect, written_calls(dialect, CALLS), CALLS)
        assert not reads(dialect, written_calls(dialect, CALLS[:1]), CALLS)
        assert not reads(dialect, "<function=add></function>", CALLS)
        assert not reads(dialect, written_calls(dialect, CALLS).replace("add", "sub"), CALLS)
