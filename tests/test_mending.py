"""Each need of a template, seen to by itself."""

from __future__ import annotations

from typing import Any

import pytest

from server.dialects.table import HERMES
from server.prompt.history import Rendered, conversation
from server.prompt.mending import SHORT_ID, Arguments, Needs, System, mended, short_id
from server.turn import Message, Role, ToolCall

NATIVE = Needs(developer=True)


def text(role: Role, content: str, **more: Any) -> Message:
    return Message(role, content, **more)


def calling(*names: str, content: str | None = None, **more: Any) -> Message:
    calls = tuple(ToolCall(f"id-{name}", name, f'{{"x": "{name}", "n": null}}') for name in names)
    return Message("assistant", content, tool_calls=calls, **more)


def result(name: str) -> Message:
    return Message("tool", f"{name} done", tool_call_id=f"id-{name}")


def after(needs: Needs, *messages: Message, instructions: tuple[str, ...] = ()) -> list[Rendered]:
    return mended(conversation(messages, str), needs, HERMES, instructions)


def outline(messages: list[Rendered]) -> list[str]:
    """Role, content and called names of each message, as one line each."""
    lines = []
    for each in messages:
        names = [call["function"]["name"] for call in each.get("tool_calls", ())]
        lines.append(f"{each['role']}: {each['content']}" + (f" {names}" if names else ""))
    return lines


def test_a_template_without_needs_gets_everything_as_it_is() -> None:
    messages = [text("developer", "d"), text("user", "u"), calling("f", "g", content="c"), result("f")]
    assert after(NATIVE, *messages) == conversation(messages, str)


MENDED: dict[str, tuple[Needs, list[Message], list[str]]] = {
    "developer": (Needs(), [text("developer", "d"), text("user", "u")], ["system: d", "user: u"]),
    "system first": (
        Needs(system=System.FIRST),
        [text("user", "u"), text("system", "a"), text("developer", "b")],
        ["system: a\n\nb", "user: u"],
    ),
    "system nowhere": (
        Needs(system=System.NOWHERE),
        [text("user", "u"), text("system", "a"), text("assistant", "r")],
        ["user: a\n\nu", "assistant: r"],
    ),
    "system nowhere, no user": (
        Needs(system=System.NOWHERE),
        [text("assistant", "r"), text("system", "a")],
        ["user: a", "assistant: r"],
    ),
    "calls written": (
        NATIVE.but(write_calls=True),
        [calling("f", "g", content="c")],
        [
            'assistant: c\n<tool_call>\n{"name": "f", "arguments": {"x": "f", "n": null}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {"x": "g", "n": null}}\n</tool_call>'
        ],
    ),
    "results as user": (
        NATIVE.but(results_as_user=True),
        [calling("f", "g"), result("f"), result("g"), text("user", "u")],
        [
            "assistant:  ['f', 'g']",
            "user: <tool_response>\nf done\n</tool_response>\n<tool_response>\ng done\n</tool_response>",
            "user: u",
        ],
    ),
    "one call": (
        NATIVE.but(one_call=True),
        [calling("f", "g", content="c"), result("g"), result("f"), text("user", "u")],
        ["assistant: c ['f']", "tool: f done", "assistant:  ['g']", "tool: g done", "user: u"],
    ),
    "calls beside text written": (
        NATIVE.but(write_beside_text=True),
        [calling("f", content="c"), calling("g")],
        [
            'assistant: c\n<tool_call>\n{"name": "f", "arguments": {"x": "f", "n": null}}\n</tool_call>',
            "assistant:  ['g']",
        ],
    ),
    "null content": (NATIVE.but(null_content=True), [calling("f", content="c")], ["assistant: None ['f']"]),
    "no empty answers": (
        NATIVE.but(no_empty_answers=True),
        [text("assistant", ""), calling("f"), text("user", "")],
        ["assistant:  ['f']", "user: "],
    ),
    "bridge": (
        NATIVE.but(bridge="ok"),
        [calling("f"), result("f"), text("user", "u")],
        ["assistant:  ['f']", "tool: f done", "assistant: ok", "user: u"],
    ),
    "alternate": (
        NATIVE.but(alternate=True),
        [
            text("assistant", "a"),
            calling("f", content="b"),
            calling("g"),
            text("user", "u"),
            text("user", "v"),
        ],
        ["user: ", "assistant: a\n\nb ['f', 'g']", "user: u\n\nv"],
    ),
}


@pytest.mark.parametrize("case", MENDED)
def test_needs(case: str) -> None:
    needs, messages, expected = MENDED[case]
    assert outline(after(needs, *messages)) == expected


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (Arguments.OBJECT, {"x": "f", "n": None}),
        (Arguments.TEXT, '{"x": "f", "n": null}'),
        (Arguments.WRITTEN_VALUES, {"x": "f", "n": "null"}),
    ],
)
def test_forms_of_arguments(form: Arguments, shown: object) -> None:
    (message,) = after(NATIVE.but(arguments=form), calling("f"))
    assert message["tool_calls"][0]["function"]["arguments"] == shown


def test_short_ids_stay_equal_for_call_and_result() -> None:
    shown = after(NATIVE.but(short_ids=True), calling("f"), result("f"))
    assert shown[0]["tool_calls"][0]["id"] == shown[1]["tool_call_id"] == short_id("id-f")
    assert len(short_id("id-f")) == SHORT_ID
    assert short_id("id-f").isalnum()
    assert short_id("abcDEF123") == "abcDEF123"
    assert short_id("abcDEF12é") != "abcDEF12é"


def test_thoughts() -> None:
    message = calling("f", content="c", reasoning="t")
    (renamed,) = after(NATIVE.but(reasoning_key="thinking"), message)
    assert (renamed["thinking"], renamed["content"]) == ("t", "c")
    assert "reasoning_content" not in renamed
    (one,) = after(NATIVE.but(one_thought=True), message)
    assert (one["reasoning_content"], one["content"]) == ("t\n\nc", "")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], ["system: one\n\ntwo"]),
        ([text("user", "u")], ["system: one\n\ntwo", "user: u"]),
        ([text("system", "s"), text("user", "u")], ["system: s\n\none\n\ntwo", "user: u"]),
        ([text("system", ""), text("user", "u")], ["system: one\n\ntwo", "user: u"]),
        ([text("developer", "d")], ["developer: d\n\none\n\ntwo"]),
    ],
)
def test_instructions_end_the_system_text(messages: list[Message], expected: list[str]) -> None:
    assert outline(after(NATIVE, *messages, instructions=("one", "two"))) == expected
