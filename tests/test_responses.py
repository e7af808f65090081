"""OpenAI's Responses API over a socket: its official client, whole and streamed, and bodies to turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from serving import Serving, playing
from test_chat import call

from server.api.parts import Served
from server.api.responses_request import decode
from server.errors import ToolspanError
from server.turn import Message, ToolCall, ToolChoice, Turn

KEY = "sk-test-key"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather",
    "parameters": CITY,
    "strict": True,
}
ANSWERS: list[dict[str, Any]] = [
    {"when": "Weather in both?", "text": "I look.\n" + call("Zürich") + "\n" + call("Rome")},
    {"when": "22 degrees", "text": "It is 22 degrees."},
    {"when": "Think first", "text": "<think>Let me see.</think>\n\nDone."},
    {"when": "Cut it", "text": call("Rome")[:50], "ended": "length"},
    {"when": "Plan it", "text": '{"city": "Oslo"}'},
    {"when": "dead end", "text": "x", "ended": "dead_end"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("responses"), *ANSWERS, api_key=(KEY,), keepalive=0.1) as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_a_tool_loop(client: OpenAI) -> None:
    history: Any = [{"role": "user", "content": "Weather in both?"}]
    first = client.responses.create(model="scripted", input=history, tools=[WEATHER])
    assert first.status == "completed"
    assert first.output_text == "I look."
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(each.arguments) for each in calls] == [{"city": "Zürich"}, {"city": "Rome"}]
    history += first.output
    history += [
        {"type": "function_call_output", "call_id": each.call_id, "output": "22 degrees"} for each in calls
    ]
    second = client.responses.create(
        model="scripted", input=history, tools=[WEATHER], instructions="Be brief."
    )
    assert second.output_text == "It is 22 degrees."
    assert second.usage is not None
    assert second.usage.output_tokens > 0
    assert second.instructions == "Be brief."


@pytest.mark.parametrize("text", [each["when"] for each in ANSWERS[:4]])
def test_a_stream_says_what_the_whole_answer_says(client: OpenAI, text: str) -> None:
    given: Any = {"model": "scripted", "input": text, "tools": [WEATHER]}
    whole = client.responses.create(**given)
    events = list(client.responses.create(**given, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last: Any = events[-1]
    assert last.type == f"response.{whole.status}"
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [_shown(item) for item in last.response.output] == [_shown(item) for item in done]
    assert [_shown(item) for item in done] == [_shown(item) for item in whole.output]
    assert last.response.usage == whole.usage
    assert last.response.incomplete_details == whole.incomplete_details


def _shown(item: Any) -> Any:
    return item.model_dump(exclude={"id", "call_id"})


def test_the_order_of_events(client: OpenAI) -> None:
    stream = client.responses.create(model="scripted", input="Weather in both?", tools=[WEATHER], stream=True)
    kinds = [event.type.removeprefix("response.") for event in stream]
    told = [kind for kind in kinds if not kind.endswith(".delta")]
    call_events = ["output_item.added", "function_call_arguments.done", "output_item.done"]
    assert [kind for kind in told if kind != "in_progress"] == [
        "created",
        *[
            "output_item.added",
            "content_part.added",
            "output_text.done",
            "content_part.done",
            "output_item.done",
        ],
        *call_events,
        *call_events,
        "completed",
    ]


def test_the_clients_own_reading_of_a_stream(client: OpenAI) -> None:
    with client.responses.stream(model="scripted", input="Think first") as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    thought, message = final.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "Let me see."
    assert message.type == "message"
    assert final.output_text == "Done."


def test_a_schema_for_the_text(client: OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "plan", "schema": CITY, "strict": True}}
    answer = client.responses.create(model="scripted", input="Plan it", text=form)
    assert json.loads(answer.output_text) == {"city": "Oslo"}


def test_errors(server: Serving, client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="scripted", input="Hi", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="nobody", input="Hi")
    *_, last = client.responses.create(model="scripted", input="dead end", stream=True)
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "constraint_dead_end"
    (item,) = last.response.output
    assert (item.type, item.status) == ("message", "incomplete")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "1"}]}, "input[0].call_id"),
        (
            {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "[1]"}]},
            "input[0].arguments",
        ),
        (
            {"tools": [{"type": "web_search"}, {**WEATHER, "parameters": {"type": 1}}]},
            "tools[1].parameters.type",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 1}}}},
            "text.format.schema.type",
        ),
        ({"input": "long " * 60_000}, "input"),
    ],
)
def test_errors_name_the_fields_of_this_api(client: OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{"model": "scripted", "input": "Hi", **fields})
    assert refused.value.param == param


# Bodies to turns.


def turn(given: Any = "Hi", **fields: Any) -> Turn:
    return decode({"model": "m", "input": given, **fields}, Served(("m",), 1000)).turn


def part(kind: str, words: str) -> dict[str, Any]:
    return {"type": kind, "text": words, "annotations": []}


def test_a_history_of_items() -> None:
    given = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be kind."}],
        },
        {"role": "user", "content": "One"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "x",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "get",
            "arguments": '{"a": 1}',
            "status": "completed",
        },
        {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": "12:00"},
        {"type": "function_call_output", "call_id": "c1", "output": [part("input_text", "22")]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "B"},
    ]
    assert turn(given, instructions="Be brief.").messages == (
        Message("system", "Be brief."),
        Message("developer", "Be kind."),
        Message("user", "One"),
        Message(
            "assistant",
            "I look.",
            "Hm.",
            (
                ToolCall("c1", "get", '{"a": 1}', "input[4].arguments"),
                ToolCall("c2", "now", "{}", "input[5].arguments"),
            ),
        ),
        Message("tool", "12:00", tool_call_id="c2", place="input[6].call_id"),
        Message("tool", "22", tool_call_id="c1", place="input[7].call_id"),
        Message("assistant", "A"),
        Message("assistant", "B"),
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "get_weather"}, ToolChoice("required", ("get_weather",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]},
            ToolChoice("auto", ("get_weather",)),
        ),
    ],
)
def test_tool_choices(choice: Any, expected: ToolChoice) -> None:
    assert turn(tools=[WEATHER], tool_choice=choice).tool_choice == expected


def test_other_fields() -> None:
    found = turn(
        tools=[{"type": "web_search"}, {"type": "namespace", "name": "x", "tools": []}, WEATHER],
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=7,
        temperature=0.5,
        parallel_tool_calls=False,
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="x",
        client_metadata={},
        background=False,
    )
    assert [(tool.name, tool.strict) for tool in found.tools] == [("get_weather", True)]
    assert (found.reasoning_effort, found.max_tokens, found.sampling.temperature) == ("low", 7, 0.5)
    assert found.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"given": None}, "input"),
        ({"given": []}, "input"),
        ({"given": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"given": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"given": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"given": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}, "strict": "yes"}}},
            "text.format.strict",
        ),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ToolspanError) as refused:
        turn(**fields)
    assert refused.value.param == param
