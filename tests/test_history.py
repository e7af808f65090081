"""Messages to dictionaries: ids paired, arguments as objects, content never null."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequest
from server.prompt.history import ARGUMENTS_DEPTH, conversation, mapped
from server.turn import Message, ToolCall

THINK = ("<think>", "</think>")


def call(id: str, name: str = "f", arguments: str = "{}") -> ToolCall:
    return ToolCall(id, name, arguments)


def calling(*calls: ToolCall) -> Message:
    return Message("assistant", tool_calls=calls)


def result(id: str | None, text: str = "", name: str | None = None) -> Message:
    return Message("tool", text, tool_call_id=id, name=name)


def paired(*messages: Message) -> list[tuple[str, str, str]]:
    """Id, name and text of each result, in the order in which they are shown."""
    shown = conversation(messages, str)
    return [(each["tool_call_id"], each["name"], each["content"]) for each in shown if each["role"] == "tool"]


def arguments(text: str) -> Any:
    (message,) = conversation([calling(call("a", arguments=text))], str)
    return message["tool_calls"][0]["function"]["arguments"]


def refused(text: str) -> str:
    with pytest.raises(InvalidRequest) as failure:
        conversation([Message("user", "hi"), calling(call("a"), call("b", arguments=text))], str)
    assert failure.value.code == "invalid_arguments"
    assert failure.value.param == "messages[1].tool_calls[1].function.arguments"
    return failure.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans())
def test_arguments_become_objects(value: dict[str, Any], ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    assert arguments(text) == value
    assert list(arguments(text)) == list(value)
    assert arguments(json.dumps(text)) == value


@pytest.mark.parametrize("text", ["", " \n", "null", '"null"', '""', "{}"])
def test_no_arguments(text: str) -> None:
    assert arguments(text) == {}


@pytest.mark.parametrize(
    "text", ["[]", "1", "true", '"text"', "{", '{"a": NaN}', '{"a": 1e999}', "{'a': 1}", '{"a": 1', "nope"]
)
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    assert "JSON" in refused(text)


def test_arguments_may_not_be_nested_without_end() -> None:
    deepest = '{"a":' * ARGUMENTS_DEPTH + "1" + "}" * ARGUMENTS_DEPTH
    assert json.dumps(arguments(deepest)).count("{") == ARGUMENTS_DEPTH
    assert "nested" in refused(f'{{"a": {deepest}}}')
    assert refused('{"a":' * 100_000 + "1" + "}" * 100_000)


def test_every_text_is_hidden() -> None:
    messages = (
        Message("system", "x"),
        Message("user", "x", name="x"),
        Message("assistant", "x", "x", (call("x", "x", '{"x": {"x": ["x", 1]}}'),)),
        result("x", "x"),
    )
    assert conversation(messages, lambda text: f"({text})") == [
        {"role": "system", "content": "(x)"},
        {"role": "user", "content": "(x)", "name": "(x)"},
        {
            "role": "assistant",
            "content": "(x)",
            "reasoning_content": "(x)",
            "tool_calls": [
                {
                    "id": "(x)",
                    "type": "function",
                    "function": {"name": "(x)", "arguments": {"(x)": {"(x)": ["(x)", 1]}}},
                }
            ],
        },
        {"role": "tool", "content": "(x)", "tool_call_id": "(x)", "name": "(x)"},
    ]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_content_is_text(role: Any) -> None:
    assert conversation([Message(role)], str) == [{"role": role, "content": ""}]


def test_results_stand_in_the_order_of_their_calls() -> None:
    calls = calling(call("a", "f"), call("b", "g"), call("c", "h"))
    shown = paired(calls, result("c", "3"), result("a", "1"), result("b", "2"))
    assert shown == [("a", "f", "1"), ("b", "g", "2"), ("c", "h", "3")]


def test_missing_ids_are_made_up_and_pair_in_order() -> None:
    shown = paired(calling(call("", "f"), call("", "g")), result(None, "1"), result("", "2"))
    assert [(name, text) for _, name, text in shown] == [("f", "1"), ("g", "2")]
    assert len({id for id, _, _ in shown}) == 2
    assert paired(
        calling(call("call00001", "f"), call("", "g")), result("call00001", "1"), result(None, "2")
    )[1] == ("call00002", "g", "2")


def test_an_id_used_twice_pairs_in_order() -> None:
    one = paired(calling(call("a", "f"), call("a", "g")), result("a", "1"), result("a", "2"))
    assert one == [("a", "f", "1"), ("a", "g", "2")]
    again = paired(calling(call("a", "f")), result("a", "1"), calling(call("a", "g")), result("a", "2"))
    assert again == [("a", "f", "1"), ("a", "g", "2")]


def test_a_rewritten_id_takes_the_call_that_no_result_asks_for() -> None:
    shown = paired(calling(call("a", "f"), call("b", "g")), result("rewritten", "2"), result("a", "1"))
    assert shown == [("a", "f", "1"), ("b", "g", "2")]


@pytest.mark.parametrize("id", ["z", "a", "", None])
@pytest.mark.parametrize("before", [(), (calling(call("a")), result("a"))], ids=["no call", "none open"])
def test_a_result_without_a_call_is_refused(before: tuple[Message, ...], id: str | None) -> None:
    with pytest.raises(InvalidRequest) as failure:
        conversation([Message("user", "hi"), *before, result(id, "1", "old")], str)
    assert failure.value.param == f"messages[{len(before) + 1}].tool_call_id"


@pytest.mark.parametrize(
    ("content", "thought", "answer"),
    [
        ("<think>\nhm\n</think>\n\nyes", "hm", "yes"),
        ("\n<think></think>yes", None, "yes"),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("<think>never closed", None, "<think>never closed"),
        ("say </think>", None, "say </think>"),
        ("say <think>a</think>", None, "say <think>a</think>"),
    ],
)
def test_a_thought_at_the_start_of_an_answer_is_one(content: str, thought: str | None, answer: str) -> None:
    (message,) = conversation([Message("assistant", content)], str, THINK)
    assert (message.get("reasoning_content"), message["content"]) == (thought, answer)
    for other in (Message("user", content), Message("assistant", content, "known")):
        assert conversation([other], str, THINK)[0]["content"] == content
    assert conversation([Message("assistant", content)], str)[0]["content"] == content


@given(JSON)
def test_mapped_changes_texts_only(value: Any) -> None:
    assert mapped(value, str) == value
    assert json.dumps(mapped(value, lambda text: "")).count('"') <= json.dumps(value).count('"')
