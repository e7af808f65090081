"""Anthropic's Messages API over a socket: its official client, whole and streamed, and its error shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from serving import Serving, playing
from test_chat import call

from server.api.messages_request import decode
from server.api.parts import Served
from server.errors import ToolspanError
from server.turn import Message, ToolCall, ToolChoice, Turn

KEY = "sk-test-key"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "get_weather", "description": "The weather in a city", "input_schema": CITY}
ANSWERS: list[dict[str, Any]] = [
    {"when": "Weather in both?", "text": "I look.\n" + call("Zürich") + "\n" + call("Rome")},
    {"when": "22 degrees", "text": "It is 22 degrees."},
    {"when": "Think first", "text": "<think>Let me see.</think>\n\nDone."},
    {"when": "Cut it", "text": call("Rome")[:-20], "ended": "length"},
    {"when": "dead end", "text": "x", "ended": "dead_end"},
    {"text": "Hello"},
]
SERVED = Served(("m",), 1000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("messages"), *ANSWERS, api_key=(KEY,), keepalive=0.1) as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


def asking(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_a_tool_loop(client: anthropic.Anthropic) -> None:
    messages = asking("Weather in both?")
    first = client.messages.create(model="scripted", max_tokens=200, messages=messages, tools=[WEATHER])
    assert first.stop_reason == "tool_use"
    text, *uses = first.content
    assert text.type == "text"
    assert text.text == "I look."
    assert [use.input for use in uses if use.type == "tool_use"] == [{"city": "Zürich"}, {"city": "Rome"}]
    assert len({use.id for use in uses if use.type == "tool_use"}) == 2
    results = [
        {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "22 degrees"}]}
        for use in uses
        if use.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = client.messages.create(model="scripted", max_tokens=200, messages=messages, tools=[WEATHER])
    assert [block.text for block in second.content if block.type == "text"] == ["It is 22 degrees."]
    assert second.stop_reason == "end_turn"
    assert second.usage.output_tokens > 0


@pytest.mark.parametrize("text", [each["when"] for each in ANSWERS[:4]])
def test_a_stream_says_what_the_whole_answer_says(client: anthropic.Anthropic, text: str) -> None:
    given: Any = {"model": "scripted", "max_tokens": 200, "messages": asking(text), "tools": [WEATHER]}
    whole = client.messages.create(**given)
    with client.messages.stream(**given) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    assert streamed.stop_reason == whole.stop_reason
    assert [_shown(block) for block in streamed.content] == [_shown(block) for block in whole.content]
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def _shown(block: Any) -> Any:
    shown = block.model_dump(exclude={"id", "caller"})
    return {key: value for key, value in shown.items() if value is not None}


def raw(server: Serving, path: str = "/v1/messages?beta=true", **fields: Any) -> Any:
    body = {"model": "scripted", "max_tokens": 50, "messages": asking("Think first"), **fields}
    return server.request("POST", path, json=body, headers={"x-api-key": KEY})


def test_the_order_of_events(server: Serving) -> None:
    lines = raw(
        server, max_tokens=500, messages=asking("Weather in both?"), tools=[WEATHER], stream=True
    ).text.split("\n\n")
    names = [line.split("\n")[0].removeprefix("event: ") for line in lines if line]
    data = [json.loads(line.split("data: ")[1]) for line in lines if line]
    assert names == [each["type"] for each in data]
    told = [each for each in data if each["type"] not in ("content_block_delta", "ping")]
    assert [each["type"] for each in told] == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    starts = [each for each in told if each["type"] == "content_block_start"]
    assert [each["index"] for each in starts] == [0, 1, 2]
    assert [each["content_block"]["type"] for each in starts] == ["text", "tool_use", "tool_use"]
    parts = [each for each in data if each["type"] == "content_block_delta" and each["index"] == 1]
    assert json.loads("".join(each["delta"]["partial_json"] for each in parts)) == {"city": "Zürich"}
    assert told[-2]["delta"]["stop_reason"] == "tool_use"
    assert told[0]["message"]["usage"]["input_tokens"] > 0


def test_thoughts(server: Serving) -> None:
    content = raw(server).json()["content"]
    assert [(each["type"], each.get("thinking") or each.get("text")) for each in content] == [
        ("thinking", "Let me see."),
        ("text", "Done."),
    ]


def test_counting_tokens(client: anthropic.Anthropic) -> None:
    few = client.messages.count_tokens(model="scripted", messages=asking("Hi"))
    longer = asking("Hi, how are you?")
    more = client.messages.count_tokens(model="scripted", messages=longer, system="Be brief.")
    assert 0 < few.input_tokens < more.input_tokens
    too_many = client.messages.count_tokens(model="scripted", messages=asking("long " * 40_000))
    assert too_many.input_tokens > 200_000 - few.input_tokens
    used = client.messages.create(model="scripted", max_tokens=9, messages=asking("Hi")).usage
    assert used.input_tokens + (used.cache_read_input_tokens or 0) == few.input_tokens


def test_a_stop_sequence_is_told(server: Serving) -> None:
    for stream in (False, True):
        answer = raw(server, messages=asking("22 degrees"), stop_sequences=["zzz", "22"], stream=stream).text
        assert '"stop_reason":"stop_sequence","stop_sequence":"22"' in answer
    ended = raw(server, messages=asking("22 degrees"), stop_sequences=["zzz"]).json()
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)


@pytest.mark.parametrize("arguments", ['{"n": 1e400}', '{"n": 12345678901234567890.10}', '{"n": "\\ud800"}'])
def test_arguments_keep_their_text(tmp_path: Path, arguments: str) -> None:
    script = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {"n": {}}}}
    with playing(tmp_path, {"takes": [script]}) as alone:
        answer = alone.request(
            "POST",
            "/v1/messages",
            json={"model": "scripted", "max_tokens": 500, "messages": asking("Hi"), "tools": [tool]},
        )
    assert f'"input":{arguments}' in answer.text


def test_a_failed_stream_closes_what_it_began(server: Serving) -> None:
    text = raw(server, messages=asking("dead end"), stream=True).text
    names = [line.removeprefix("event: ") for line in text.split("\n") if line.startswith("event: ")]
    assert [name for name in names if name != "ping"][-2:] == ["content_block_stop", "error"]


def test_errors_have_anthropics_shape(server: Serving, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="scripted", max_tokens=9, messages=[])
    assert refused.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "messages must have at least one message",
            "code": "invalid_value",
        },
    }
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", max_tokens=9, messages=asking("Hi"))
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        client.messages.create(model="scripted", max_tokens=9, messages=asking("long " * 60_000))
    with (
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model="scripted", max_tokens=9, messages=asking("Hi"))
    lines = raw(server, messages=asking("dead end"), stream=True).text
    assert "event: error\ndata: " in lines
    assert json.loads(lines.split("event: error\ndata: ")[1])["error"]["type"] == "api_error"


def test_errors_about_the_history_name_what_was_sent(server: Serving) -> None:
    answer = raw(
        server, system="Be brief.", messages=[{"role": "user", "content": [text("Hi"), result("x")]}]
    )
    assert answer.status_code == 400
    said = answer.json()["error"]["message"]
    assert said.startswith("messages[0].content[1].tool_use_id must be that of an earlier call")


def test_a_wrong_method_too(server: Serving) -> None:
    answer = server.request("GET", "/v1/messages", headers={"x-api-key": KEY})
    assert (answer.status_code, answer.json()["type"]) == (405, "error")


# Bodies to turns.


def turn(**fields: Any) -> Turn:
    return decode({"model": "m", "max_tokens": 9, "messages": asking("Hi"), **fields}, SERVED).turn


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def result(identifier: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identifier, **more}


def use(identifier: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": name, "input": arguments}


def said(role: str, **block: Any) -> dict[str, Any]:
    """Messages of one block."""
    return {"messages": [{"role": role, "content": [block]}]}


def test_a_history_of_blocks() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    calls = [use("toolu_1", "get", {"a": "é"}), use("toolu_2", "now", {})]
    late = result("toolu_2", is_error=True, content=[text("late")])
    results = [result("toolu_1", content="22"), late, result("toolu_3")]
    found = turn(
        system=[text("Be ", cache_control={"type": "ephemeral"}), text("brief.")],
        messages=[
            {"role": "user", "content": [text("One"), text(" two")]},
            {"role": "system", "content": "Later."},
            {"role": "assistant", "content": [*thoughts, text("I look."), *calls]},
            {"role": "user", "content": [text("And?"), *results]},
        ],
    )
    assert found.messages == (
        Message("system", "Be brief."),
        Message("user", "One two"),
        Message("system", "Later."),
        Message(
            "assistant",
            "I look.",
            "Hm.",
            (ToolCall("toolu_1", "get", '{"a": "é"}'), ToolCall("toolu_2", "now", "{}")),
        ),
        *(
            Message("tool", said, None, (), f"toolu_{at}", place=f"messages[3].content[{at}].tool_use_id")
            for at, said in enumerate(("22", "Error: late", ""), 1)
        ),
        Message("user", "And?"),
    )


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, ToolChoice(), True),
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required"), False),
        ({"type": "tool", "name": "get_weather"}, ToolChoice("required", ("get_weather",)), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_tool_choices(choice: Any, expected: ToolChoice, parallel: bool) -> None:
    found = turn(tools=[WEATHER], tool_choice=choice)
    assert (found.tool_choice, found.parallel_tool_calls) == (expected, parallel)


def test_tools_of_other_kinds_are_left_out() -> None:
    others = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "later", "input_schema": CITY, "defer_loading": True},
        {**WEATHER, "type": "custom", "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True},
    ]
    assert [tool.name for tool in turn(tools=others).tools] == ["get_weather"]


def test_other_fields() -> None:
    found = turn(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stop_sequences=["END"],
        thinking={"type": "enabled", "budget_tokens": 2048},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": CITY}},
        metadata={"user_id": "x"},
        context_management={"edits": []},
        service_tier="auto",
    )
    assert (found.sampling.temperature, found.sampling.top_p, found.sampling.top_k) == (0.5, 0.9, 5)
    assert (found.stop, found.max_tokens) == (("END",), 9)
    assert (found.reasoning_budget, found.reasoning_effort) == (2048, "low")
    assert json.loads(found.response_format.schema or "") == CITY
    off = turn(thinking={"type": "disabled"})
    assert (off.reasoning_budget, off.reasoning_effort) == (0, "none")
    adaptive = turn(thinking={"type": "adaptive"})
    assert (adaptive.reasoning_budget, adaptive.reasoning_effort) == (None, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (said("user", type="image"), "messages[0].content[0]"),
        (said("user", type="tool_result"), "messages[0].content[0].tool_use_id"),
        (said("assistant", **use("x", "f", "{}")), "messages[0].content[0].input"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ToolspanError) as refused:
        turn(**fields)
    assert refused.value.param == param
