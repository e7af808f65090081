"""The official client against a scripted server: a tool loop, streamed and whole, sync and async, and its
exception classes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI
from serving import Serving, playing, serving
from test_chat import WEATHER, call

KEY = "sk-test-key"
PLAN = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
ANSWERS: list[dict[str, Any]] = [
    {"when": "Weather in both?", "text": call("Zürich") + "\n" + call("Rome")},
    {"when": "22 degrees", "text": "It is 22 degrees."},
    {"when": "Plan it", "text": '{"days": 3}'},
    {"when": "dead end", "text": "x", "ended": "dead_end"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("openai")
    with playing(folder, *ANSWERS, api_key=(KEY,), alias=("gpt-4o",)) as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as made:
        yield made


def asking(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def results(calls: list[Any]) -> list[Any]:
    """What the caller's own functions return."""
    return [{"role": "tool", "tool_call_id": each.id, "content": "22 degrees"} for each in calls]


def cities(calls: list[Any]) -> list[str]:
    return [json.loads(each.function.arguments)["city"] for each in calls]


def test_a_tool_loop(client: OpenAI) -> None:
    messages = asking("Weather in both?")
    tools: Any = [WEATHER]
    first = client.chat.completions.create(model="scripted", messages=messages, tools=tools)
    assert first.choices[0].finish_reason == "tool_calls"
    said = first.choices[0].message
    assert cities(said.tool_calls or []) == ["Zürich", "Rome"]
    messages = [*messages, said, *results(said.tool_calls or [])]
    second = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools)
    assert second.choices[0].message.content == "It is 22 degrees."
    assert second.usage
    assert second.usage.prompt_tokens_details
    assert second.usage.prompt_tokens_details.cached_tokens == 0


def test_a_tool_loop_streamed_with_the_clients_own_accumulator(client: OpenAI) -> None:
    messages = asking("Weather in both?")
    tools: Any = [WEATHER]
    with client.chat.completions.stream(model="scripted", messages=messages, tools=tools) as stream:
        kinds = [event.type for event in stream]
        said = stream.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert cities(said.tool_calls or []) == ["Zürich", "Rome"]
    messages = [*messages, said, *results(said.tool_calls or [])]
    with client.chat.completions.stream(
        model="scripted", messages=messages, tools=tools, stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "It is 22 degrees."
    assert final.usage
    assert final.usage.total_tokens == final.usage.prompt_tokens + final.usage.completion_tokens


def test_several_async_clients_at_once(server: Serving) -> None:
    async def loop(client: AsyncOpenAI) -> list[str]:
        tools: Any = [WEATHER]
        stream = await client.chat.completions.create(
            model="scripted", messages=asking("Weather in both?"), tools=tools, stream=True
        )
        parts: dict[int, str] = {}
        async for chunk in stream:
            for delta in chunk.choices[0].delta.tool_calls or []:
                assert delta.function
                parts[delta.index] = parts.get(delta.index, "") + (delta.function.arguments or "")
        return [json.loads(each)["city"] for each in parts.values()]

    async def test() -> None:
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as client:
            assert await asyncio.gather(*(loop(client) for _ in range(8))) == [["Zürich", "Rome"]] * 8

    asyncio.run(test())


class Plan(pydantic.BaseModel):
    days: int


def test_parsed_answers(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(model="scripted", messages=asking("Plan it"), response_format=Plan)
    assert parsed.choices[0].message.parsed == Plan(days=3)


def test_models(client: OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["scripted", "gpt-4o"]
    assert client.models.retrieve("gpt-4o").owned_by == "toolspan"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


REFUSALS: list[tuple[dict[str, Any], type[openai.APIStatusError], str]] = [
    ({"n": 100}, openai.BadRequestError, "invalid_value"),
    ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found"),
    ({"messages": asking("dead end")}, openai.InternalServerError, "constraint_dead_end"),
]


@pytest.mark.parametrize(("fields", "kind", "code"), REFUSALS)
def test_errors_become_the_clients_own(
    client: OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], code: str
) -> None:
    request: dict[str, Any] = {"model": "scripted", "messages": asking("x"), **fields}
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**request)
    assert caught.value.code == code
    assert caught.value.request_id


def test_a_wrong_key(client: OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_an_error_in_a_stream_is_raised_with_its_message(client: OpenAI) -> None:
    stream = client.chat.completions.create(model="scripted", messages=asking("dead end"), stream=True)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "constraint_dead_end"


def test_a_full_queue_is_a_rate_limit() -> None:
    with serving(slots=1, queue=0) as server, OpenAI(base_url=server.url + "/v1", api_key="-") as client:
        stream = client.chat.completions.create(
            model="fake", messages=asking('[["text", "x"], ["sleep", 60]]'), stream=True
        )
        with pytest.raises(openai.RateLimitError):
            client.with_options(max_retries=0).chat.completions.create(model="fake", messages=asking("x"))
        stream.close()
