"""One switch for thinking, whatever a template calls it."""

from __future__ import annotations

import pytest

from server.dialects.detect import detect
from server.engine.scripted import ByteVocabulary
from server.prompt.prompt import Prompt, Prompter
from server.prompt.thinking import template_variables
from server.turn import Message, TemplateValue, Turn

QUESTION = (Message("user", "What is one and one?"),)


def prompt(source: str, effort: str | None = None, **variables: TemplateValue) -> Prompt:
    prompter = Prompter(source, detect(source), ByteVocabulary())
    return prompter.prompt(
        Turn(QUESTION, reasoning_effort=effort, template_variables=tuple(variables.items()))
    )


SWITCHED = {
    "Bielik-11B-v3.0-Instruct": "opens",
    "ByteDance-Seed-OSS": "closes",
    "Cohere2MoE": "closes",
    "GLM-4.6": "closes",
    "GLM-4.7-Flash": "both",
    "MiniMax-M3": "both",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "both",
    "Qwen-Qwen3-0.6B": "closes",
    "Qwen3.5-4B": "both",
    "Reka-Edge": "opens",
    "Spark2.5": "both",
    "deepseek-ai-DeepSeek-V3.1": "opens",
    "deepseek-ai-DeepSeek-V3.2": "opens",
    "deepseek-ai-DeepSeek-V4": "opens",
    "inclusionai-ling-3.0-flash": "both",
    "openbmb-MiniCPM5-1B": "both",
    "poolside-Laguna-S-2.1": "both",
    "poolside-Laguna-XS-2.1": "opens",
    "tencent-Hy3": "opens",
}
"""Templates whose prompt ends in a thought when it is on, or differs when it is off, or both."""


@pytest.mark.parametrize("name", SWITCHED)
def test_thinking_is_switched_in_every_template_that_can(templates: dict[str, str], name: str) -> None:
    source = templates[name]
    on, off = prompt(source, enable_thinking=True), prompt(source, enable_thinking=False)
    assert not off.reasoning_open
    assert on.text != off.text
    if SWITCHED[name] in ("opens", "both"):
        assert on.reasoning_open
    assert prompt(source, "none").text == off.text
    assert prompt(source, "high").reasoning_open == on.reasoning_open


def test_effort_is_written_where_a_template_has_it(templates: dict[str, str]) -> None:
    sources = templates
    for effort in ("low", "medium", "high"):
        assert f"Reasoning: {effort}" in prompt(sources["openai-gpt-oss-120b"], effort).text
    assert prompt(sources["tencent-Hy3"], "max").text == prompt(sources["tencent-Hy3"], "high").text


def test_what_the_client_sets_itself_is_passed_on() -> None:
    known = frozenset({"enable_thinking", "thinking_mode", "clear_thinking", "preserve_thinking"})

    def variables(effort: str | None = None, **own: TemplateValue) -> dict[str, TemplateValue]:
        turn = Turn(QUESTION, reasoning_effort=effort, template_variables=tuple(own.items()))
        return template_variables(turn, known)

    assert variables() == variables("minimal") == {}
    assert variables("none") == {"enable_thinking": False, "thinking_mode": "disabled"}
    assert variables("none", thinking_mode="adaptive")["thinking_mode"] == "adaptive"
    assert variables(preserve_thinking=True) == {"preserve_thinking": True, "clear_thinking": False}
