"""What users have reported about thoughts beside tools in local servers, distilled into cases; the number in
a test's name is the case's."""

from __future__ import annotations

import pytest
from replies import (
    PARIS,
    READ,
    ROWS,
    WEATHER,
    Reply,
    called,
    in_hermes,
    model,
)
from test_prompt import PARIS as PARIS_CALL
from test_prompt import TOOLS, assistant, prompter, result, user

from server.dialects.form import written_calls
from server.turn import ToolCall, ToolChoice, Turn

IN_PARIS = in_hermes("get_weather", PARIS)
THOUGHTFUL = [name for name, row in ROWS.items() if row.reasoning is not None]


@pytest.mark.parametrize("end", ["", "</think>", "\n</think>\n\n"])
@pytest.mark.parametrize("opened", [False, True], ids=["opens", "is open"])
@pytest.mark.parametrize("tokens", [False, True])
def test_b64_a_call_ends_a_thought(tokens: bool, opened: bool, end: str) -> None:
    known = model(tokens=tokens, open_thought=opened)
    said = f"{'' if opened else '<think>'}Need it.{IN_PARIS}"
    expected = called(("get_weather", PARIS), reasoning="Need it.")
    for choice in (ToolChoice(), ToolChoice("required")):
        assert known.allows(said, WEATHER, tool_choice=choice)
        assert not known.allows(said + "x", WEATHER, tool_choice=choice, whole=False)
        assert known.replied(said + end, WEATHER, tool_choice=choice) == expected


@pytest.mark.parametrize("opened", [False, True], ids=["opens", "is open"])
@pytest.mark.parametrize(
    "quoted", ["<tool_call>", '<tool_call>\n{"name": "', in_hermes("delete_all", PARIS), "</tool_call>"]
)
def test_b64_what_looks_like_a_call_is_a_part_of_the_thought(opened: bool, quoted: str) -> None:
    """Where its marker is no token, a call shows by the name of a tool."""
    known = model(open_thought=opened)
    said = f"Is it {quoted}? Yes.</think>\n\nHi"
    expected = Reply("Hi", reasoning=f"Is it {quoted}? Yes.")
    said = said if opened else f"<think>{said}"
    assert known.allows(said, WEATHER)
    assert known.replied(said, WEATHER) == expected


@pytest.mark.parametrize("tokens", [False, True])
def test_b64_calls_may_be_kept_out_of_thoughts(tokens: bool) -> None:
    known = model(tokens=tokens, open_thought=True, thought_calls=False)
    said = f"Need it.{IN_PARIS}</think>\n\nHi"
    assert known.allows(said, WEATHER) is not tokens  # a text can be quoted, a token can't
    assert known.replied(said, WEATHER) == Reply("Hi", reasoning=f"Need it.{IN_PARIS}")


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("name", THOUGHTFUL)
def test_b65_an_answer_may_begin_within_a_thought(name: str, tokens: bool) -> None:
    known = model(name, tokens=tokens, open_thought=True)
    assert known.row.reasoning is not None
    text = known.row.text[0].open if known.row.text else ""
    end = known.row.text[0].close if known.row.text else ""
    said = f"plan{known.row.reasoning[1]}\n\n{text}Hi{end}"
    assert known.replied(said, WEATHER) == Reply("Hi", reasoning="plan")
    assert known.replied("plan", WEATHER) == Reply("", reasoning="plan")


@pytest.mark.parametrize("names", [None, ("get_weather",)], ids=["required", "named"])
@pytest.mark.parametrize("opened", [False, True], ids=["opens", "is open"])
@pytest.mark.parametrize("name", THOUGHTFUL)
def test_b67_a_forced_call_may_be_thought_about(
    name: str, opened: bool, names: tuple[str, ...] | None
) -> None:
    known = model(name, open_thought=opened)
    assert known.row.reasoning is not None
    opener, closer = known.row.reasoning
    call = written_calls(known.row, [ToolCall("", "get_weather", PARIS)])
    said = f"{'' if opened else opener}Paris, {{not JSON}}.{closer}{known.row.after_reasoning}{call}"
    choice = ToolChoice("required", names)
    assert known.allows(said, WEATHER, READ, tool_choice=choice)
    expected = called(("get_weather", PARIS), reasoning="Paris, {not JSON}.")
    assert known.replied(said, WEATHER, READ, tool_choice=choice) == expected


def test_b68_text_beside_a_thought_and_a_call_joins_the_thought(templates: dict[str, str]) -> None:
    """Where a template takes one of the two only: the thought first, then the text."""
    turn = Turn((user(), assistant("SAID", PARIS_CALL, reasoning="THOUGHT"), result(PARIS_CALL.id)), TOOLS)
    prompt = prompter(templates["openai-gpt-oss-120b"]).prompt(turn)
    assert (
        "<|start|>assistant<|channel|>analysis<|message|>THOUGHT\n\nSAID<|end|>"
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "PARIS"}'
        '<|call|><|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"OUTCOME"<|end|>'
    ) in prompt.text


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("tools", [(), (WEATHER,)], ids=["no tools", "tools"])
def test_b70_a_channel_of_thoughts_is_no_text(tokens: bool, tools: tuple[()]) -> None:
    known = model("gemma4", tokens=tokens)
    thought = "<|channel>thought\nHm.<channel|>"
    assert known.replied(f"{thought}Hello.", *tools) == Reply("Hello.", reasoning="Hm.")
    if tools:
        said = thought + written_calls(known.row, [ToolCall("", "get_weather", PARIS)])
        assert known.replied(said, *tools) == called(("get_weather", PARIS), reasoning="Hm.")
