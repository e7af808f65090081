"""Real models behind the real command, asked by the official client over a socket."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema_rs
import openai
import pytest
from launch import Launched, eventually, launched

pytestmark = pytest.mark.model


def function(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


WEATHER = function(
    "get_weather",
    "The current weather in a city",
    city={"type": "string", "maxLength": 30},
    unit={"enum": ["celsius", "fahrenheit"]},
)
TIME = function("get_time", "The time in a time zone", zone={"type": "string", "maxLength": 30})
TOOLS = [WEATHER, TIME]
ASK = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
REQUIRED: dict[str, Any] = {
    "messages": ASK,
    "tools": TOOLS,
    "tool_choice": "required",
    "temperature": 0,
    "max_tokens": 150,
}
ONE_CALL: dict[str, Any] = {
    "messages": ASK,
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 200,
}
ENDLESS: dict[str, Any] = {
    "messages": ASK,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "long",
            "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 900},
        },
    },
}
"""An answer that may not end before its 900th number."""


@pytest.fixture(scope="module", params=["smollm2-135m", "qwen2.5-coder-0.5b"])
def server(request: pytest.FixtureRequest) -> Iterator[Launched]:
    with launched("--model", request.param) as running:
        yield running


def is_qwen(server: Launched) -> bool:
    return server.model.startswith("qwen")


def valid(call: Any) -> bool:
    """Whether a call names one of the tools and its arguments are what that one takes."""
    schema = next(each["function"] for each in TOOLS if each["function"]["name"] == call.function.name)
    arguments = json.loads(call.function.arguments)
    return bool(jsonschema_rs.Draft202012Validator(schema["parameters"]).is_valid(arguments))


def fold(stream: Any) -> tuple[dict[str, Any], str | None]:
    """A streamed answer as message and finish reason, by the rules of the protocol."""
    message: dict[str, Any] = {"role": "", "content": None}
    reason = None
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            message["role"] = delta.role or message["role"]
            if delta.content:
                message["content"] = (message["content"] or "") + delta.content
            for part in delta.tool_calls or ():
                calls = message.setdefault("tool_calls", [])
                if part.index == len(calls):
                    named = {"name": part.function.name, "arguments": ""}
                    calls.append({"id": part.id, "type": part.type, "function": named})
                calls[part.index]["function"]["arguments"] += part.function.arguments or ""
            reason = choice.finish_reason or reason
    return message, reason


def test_it_says_what_it_serves(server: Launched) -> None:
    said = "\n".join(server.said)
    assert ("hermes" if is_qwen(server) else "generic") in said
    assert ("32768 tokens" if is_qwen(server) else "8192 tokens") in said
    assert "4 slots" in said
    assert f"page      {server.url}/" in server.said
    model = httpx.get(server.url + "/v1/models").json()["data"][0]
    assert model["id"] == server.model
    assert model["tools"] is True


def test_the_printed_curl_line_returns_a_call(server: Launched) -> None:
    line = next(each for each in server.said if each.startswith("curl"))
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=True)
    (choice,) = json.loads(done.stdout)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_loop_of_two_turns(server: Launched, stream: bool) -> None:
    def turn(messages: list[Any], choice: str) -> tuple[dict[str, Any], str | None]:
        fields = {
            "messages": messages,
            "tools": TOOLS,
            "tool_choice": choice,
            "temperature": 0,
            "max_tokens": 120 if choice == "required" else 30,
        }
        answer = server.create(**fields, stream=stream)
        if stream:
            return fold(answer)
        return answer.choices[0].message.model_dump(exclude_unset=True), answer.choices[0].finish_reason

    called, reason = turn(ASK, "required")
    assert reason == "tool_calls"
    assert called["content"] is None
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"} for call in called["tool_calls"]
    ]
    told, reason = turn([*ASK, called, *results], "none")
    assert reason in ("stop", "length")
    assert told["content"]
    assert not told.get("tool_calls")


@pytest.mark.parametrize(
    "choice",
    [
        "none",
        "auto",
        "required",
        {"type": "function", "function": {"name": "get_time"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TIME]}},
    ],
    ids=["none", "auto", "required", "named", "allowed"],
)
def test_every_tool_choice(server: Launched, choice: Any) -> None:
    answer = server.create(
        messages=ASK,
        tools=TOOLS,
        tool_choice=choice,
        temperature=1,
        seed=3,
        max_tokens=60 if choice in ("none", "auto") else 400,
    )
    chosen = answer.choices[0]
    calls = chosen.message.tool_calls or []
    assert chosen.finish_reason != "length" or choice in ("none", "auto")
    assert all(valid(call) for call in calls)
    if choice == "none":
        assert not calls
    elif choice != "auto":
        assert chosen.finish_reason == "tool_calls"
        assert calls
    if isinstance(choice, dict):
        assert {call.function.name for call in calls} == {"get_time"}


def test_two_calls_at_once(server: Launched) -> None:
    if not is_qwen(server):
        pytest.skip("the embedded model seldom makes two different calls")
    ask = [{"role": "user", "content": "What is the weather in Paris and in Rome, in celsius? Ask for both."}]
    answer = server.create(
        messages=ask, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=300
    )
    calls = answer.choices[0].message.tool_calls
    assert len(calls) >= 2
    assert all(valid(call) for call in calls)
    assert len({call.id for call in calls}) == len(calls)
    alone = server.create(
        messages=ask, tools=[WEATHER], tool_choice="required", temperature=0, parallel_tool_calls=False
    )
    assert len(alone.choices[0].message.tool_calls) == 1


def test_two_choices_share_the_prompt(server: Launched) -> None:
    answer = server.create(**ONE_CALL, n=2, temperature=1.5, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    one = server.create(**ONE_CALL)
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert all(map(valid, choice.message.tool_calls))


def test_eight_at_once(server: Launched) -> None:
    def ask(number: int) -> Any:
        fields = ONE_CALL | {"temperature": 1.0, "seed": number}
        if number % 2:
            return fold(server.create(**fields, stream=True))[1]
        return server.create(**fields).choices[0].finish_reason

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {"tool_calls"}


def test_the_stream_is_the_whole_answer(server: Launched) -> None:
    extra = {"extra_body": {"reuse_prefix": False}}
    whole = server.create(**REQUIRED, **extra).choices[0]
    message, reason = fold(server.create(**REQUIRED, **extra, stream=True))
    assert reason == whole.finish_reason
    assert [call["function"] for call in message["tool_calls"]] == [
        call.function.model_dump() for call in whole.message.tool_calls
    ]


def test_a_prompt_seen_before_is_not_computed_again(server: Launched) -> None:
    server.create(**ONE_CALL)
    usage = server.create(**ONE_CALL).usage
    assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens / 2


def test_a_call_that_comes_back_is_not_computed_again(server: Launched) -> None:
    ask = {"role": "user", "content": "How warm is it in Lisbon, in celsius?"}
    first = server.create(**ONE_CALL | {"messages": [ask]}, temperature=0)
    (call,) = first.choices[0].message.tool_calls
    message = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
    second = server.create(messages=[ask, message, result], tools=TOOLS, temperature=0, max_tokens=1)
    turn = first.usage.prompt_tokens + first.usage.completion_tokens
    # What is forced after the last choice (its closing marker, at most 10 tokens) is not computed.
    assert turn - 10 <= second.usage.prompt_tokens_details.cached_tokens <= turn


def test_text_follows_a_response_format(server: Launched) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    answer = server.create(
        messages=ASK,
        temperature=0,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["ok"], bool)


def test_the_context_has_an_end(server: Launched) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.create(messages=[{"role": "user", "content": "word " * 40_000}], stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert server.create(**ONE_CALL).choices[0].message.tool_calls


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_leaves_frees_its_slot(server: Launched, stream: bool) -> None:
    body = ENDLESS | {"model": server.model, "stream": stream}
    path = server.url + "/v1/chat/completions"
    if stream:
        with httpx.stream("POST", path, json=body, timeout=60) as answer:
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(path, json=body, timeout=1)
    assert eventually(lambda: server.metric("toolspan_sequences_active") == 0, within=20)
    assert server.create(**ONE_CALL).choices[0].message.tool_calls


def test_a_killed_runner_comes_back(server: Launched) -> None:
    stream = server.create(**ENDLESS, stream=True)
    next(iter(stream))
    runner = server.runner
    os.kill(runner, signal.SIGKILL)
    with pytest.raises(openai.APIError):
        for _ in stream:
            pass
    assert server.alive()
    assert eventually(lambda: server.health().status_code == 200)
    assert server.runner != runner
    assert server.create(**ONE_CALL).choices[0].message.tool_calls
