"""Chat completions over a socket: the scripted engine for answers, the fake runner for faults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from chunks import folded, stable
from serving import Serving, events, eventually, order, playing, request_bytes, serving

from server.turn import Turn

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def call(city: str) -> str:
    arguments = json.dumps({"city": city}, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


ANSWERS = {
    "greet": {"text": "Hello there, émigré 😀!"},
    "nothing": {"text": ""},
    "think": {"text": "<think>\nLet me see.\n</think>\n\nSeen."},
    "call once": {"text": call("Paris")},
    "call twice": {"text": call("Zürich 😀") + "\n" + call("Rome")},
    "talk, then call": {"text": "Let me look. " + call("Paris")},
    "think, then call": {"text": "<think>\nParis?\n</think>\n\n" + call("Paris")},
    "be cut": {"text": "This is too", "ended": "length"},
    "be cut in a call": {"text": call("Paris")[:50], "ended": "length"},
    "call bare": {"text": '{"name": "get_weather", "arguments": {"city": "Bern"}}'},
}
OTHERS = [
    {"when": "dead end", "text": "Half an ans", "ended": "dead_end"},
    {"when": "slow", "text": "At last", "prefill_ms": 600},
    {"when": "endless", "text": "la " * 30_000, "delay_ms": 5},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    answers = [{"when": when, **answer} for when, answer in ANSWERS.items()] + OTHERS
    with playing(tmp_path_factory.mktemp("chat"), *answers, keepalive=0.1, ctx=2000) as running:
        yield running


@pytest.fixture(scope="module")
def faulty() -> Iterator[Serving]:
    with serving(keepalive=0.1, slots=2, queue=2) as running:
        yield running


def say(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": content}], **fields}


def told(server: Serving, body: dict[str, Any]) -> list[Any]:
    """The events of a streamed answer."""
    reply = server.post(body | {"stream": True})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    return events(reply.text)


def answered(server: Serving, body: dict[str, Any]) -> dict[str, Any]:
    reply = server.post(body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    return dict(reply.json())


@pytest.mark.parametrize("content", ANSWERS)
@pytest.mark.parametrize("choices", [1, 3])
def test_the_stream_folds_to_the_whole_answer(server: Serving, content: str, choices: int) -> None:
    body = say(content, tools=[WEATHER], n=choices, stream_options={"include_usage": True})
    stream = folded(told(server, body))
    whole = answered(server, body)
    assert stable(stream) == stable(whole)
    assert len(whole["choices"]) == choices


def test_a_text(server: Serving) -> None:
    answer = answered(server, say("greet"))
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there, émigré 😀!"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert set(answer) == {
        *("id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings")
    }
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "scripted"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert set(usage["prompt_tokens_details"]) == {"cached_tokens"}
    assert set(usage["completion_tokens_details"]) == {"reasoning_tokens"}
    timings = answer["timings"]
    assert timings["sampled_tokens"] + timings["forced_tokens"] == usage["completion_tokens"]
    assert {"queue_ms", "prepare_ms", "prefill_ms", "decode_ms"} <= set(timings)


def test_calls(server: Serving) -> None:
    (choice,) = answered(server, say("call twice", tools=[WEATHER]))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [json.loads(each["function"]["arguments"]) for each in calls] == [
        {"city": "Zürich 😀"},
        {"city": "Rome"},
    ]
    assert {each["type"] for each in calls} == {"function"}
    assert len({each["id"] for each in calls}) == 2
    assert all(len(each["id"]) == 9 and each["id"].isalnum() for each in calls)


def test_thoughts_have_as_many_tokens_as_they_may(tmp_path: Path) -> None:
    """The script goes on with the rest of the thought as if it were the answer."""
    answer = {"pieces": ["<think>", *"abcdef", "</think>", "Hi"]}
    with playing(tmp_path, answer, reasoning_budget=4, reasoning_budget_message="!") as server:
        thoughts = []
        for fields in ({}, {"thinking_budget_tokens": 2}, {"thinking_budget_tokens": -1}):
            choice = server.chat(**fields).json()["choices"][0]
            thoughts.append((choice["message"]["reasoning_content"], choice["message"]["content"]))
    assert thoughts == [("abcd!", "ef</think>Hi"), ("ab!", "cdef</think>Hi"), ("abcdef", "Hi")]


def test_reasoning_is_kept_apart(server: Serving) -> None:
    answer = answered(server, say("think"))
    message = answer["choices"][0]["message"]
    assert message["content"] == "Seen."
    assert message["reasoning_content"].strip() == "Let me see."
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_a_cut_call_is_a_matter_of_length(server: Serving) -> None:
    (choice,) = answered(server, say("be cut in a call", tools=[WEATHER]))["choices"]
    assert choice["finish_reason"] == "length"


def test_usage_only_if_asked_for(server: Serving) -> None:
    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        chunks = told(server, say("greet", **options))[:-1]
        assert not any("usage" in each for each in chunks)
        assert "timings" in chunks[-1]


def test_an_answer_starts_before_there_is_anything_to_say_and_never_falls_silent(server: Serving) -> None:
    deltas = [each["choices"][0]["delta"] for each in told(server, say("slow"))[:-1]]
    assert deltas[0] == {"role": "assistant", "content": None}
    first = next(index for index, delta in enumerate(deltas) if delta.get("content"))
    assert first > 1
    assert deltas[1:first] == [{}] * (first - 1)


def test_an_error_after_the_first_byte_is_an_event(server: Serving) -> None:
    *chunks, error, done = told(server, say("dead end"))
    assert chunks
    assert all("error" not in each for each in chunks)
    assert not any(choice["finish_reason"] for each in chunks for choice in each["choices"])
    assert set(error) == {"error"}
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["code"] == "constraint_dead_end"
    assert done == "[DONE]"
    reply = server.post(say("dead end"))
    assert reply.status_code == 500
    assert reply.json() == error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"messages": [{"role": "user", "content": "x" * 2500}]}, 400, "context_length_exceeded"),
        ({"messages": []}, 400, "invalid_value"),
        ({"messages": None}, 400, "missing_required_parameter"),
        ({"model": "gpt-5"}, 404, "model_not_found"),
        ({"n": 9}, 400, "invalid_value"),
        ({"functions": [{"name": "f"}]}, 400, "unsupported_parameter"),
        ({"tool_choice": "required"}, 400, "invalid_value"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "invalid_tool_name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]},
            400,
            "invalid_schema",
        ),
    ],
)
def test_an_error_before_the_first_byte_has_its_status(
    server: Serving, stream: bool, fields: dict[str, Any], status: int, code: str
) -> None:
    reply = server.post(say("greet") | fields | {"stream": stream})
    assert reply.status_code == status
    error = reply.json()["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}
    assert reply.headers["x-request-id"].startswith("req_")


def test_an_overflow_names_both_numbers(server: Serving) -> None:
    error = server.post(say("x" * 2500)).json()["error"]
    assert "2000 tokens" in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [PATH, PATH.removeprefix("/v1"), PATH + "?beta=true"])
def test_paths(server: Serving, path: str) -> None:
    assert server.request("POST", path, json=say("greet")).status_code == 200


def test_the_model_may_be_left_out(server: Serving) -> None:
    body = say("greet")
    del body["model"]
    assert server.post(body).status_code == 200


def test_more_choices_than_slots_take_turns(server: Serving) -> None:
    choices = server.post(say("greet", n=8)).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(8))
    assert {choice["message"]["content"] for choice in choices} == {"Hello there, émigré 😀!"}


def idle(server: Serving) -> bool:
    return server.in_flight == 0 and server.server.supervisor.status.active == 0


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"stream": True, "n": 8}])
def test_a_client_that_leaves_frees_its_slots(server: Serving, fields: dict[str, Any]) -> None:
    with httpx.Client() as client:
        request = client.build_request("POST", server.url + PATH, json=say("endless", **fields))
        if fields["stream"]:
            reply = client.send(request, stream=True)
            lines = reply.iter_lines()
            assert next(lines).startswith("data: ")
            assert server.in_flight == 1
            reply.close()
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(server.url + PATH, json=say("endless", **fields), timeout=0.5)
    assert eventually(lambda: idle(server))
    assert server.post(say("greet")).status_code == 200


def test_clients_that_leave_at_once_leave_nothing_behind(server: Serving) -> None:
    data = request_bytes(json.dumps(say("endless", stream=True)).encode())
    for end in range(0, len(data) + 1, 9):
        with server.raw(data[:end]):
            pass
    for _ in range(20):
        with server.raw(data):
            pass
    assert eventually(lambda: idle(server))
    assert server.post(say("greet")).status_code == 200


def test_an_answer_that_takes_too_long_is_ended(tmp_path: Any) -> None:
    with playing(tmp_path, OTHERS[2], generation_timeout=2.0) as server:
        *_, error, done = told(server, say("endless"))
        assert (error["error"]["code"], done) == ("generation_timeout", "[DONE]")
        reply = server.post(say("endless"))
        assert reply.status_code == 504
        assert reply.json()["error"]["type"] == "server_error"
        assert eventually(lambda: idle(server))


def test_an_agents_first_request(tmp_path: Any) -> None:
    """Tens of kilobytes, text parts everywhere, tools without parameters, more tokens than there are."""

    def part(text: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text}]

    asking = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    body = {
        "messages": [
            {"role": "system", "content": "You are an agent. " * 2500},
            {"role": "user", "content": part("Go on")},
            {"role": "assistant", "content": "", "tool_calls": [asking], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "call_1", "content": part("22 degrees\n" * 2000)},
            {"role": "user", "content": part("Now greet")},
        ],
        "tools": [
            WEATHER,
            *(
                {"type": "function", "function": {"name": f"tool_{n}", "description": "d" * 500}}
                for n in range(13)
            ),
        ],
        "max_tokens": 32_000,
        "stream_options": {"include_usage": True},
    }
    assert len(json.dumps(body)) > 70_000
    with playing(tmp_path, {"when": "Now greet", "text": "Hello"}, ctx=100_000) as server:
        stream = folded(told(server, body))
        assert stable(stream) == stable(answered(server, body))
        assert stream["choices"][0]["message"]["content"] == "Hello"


# What only the fake runner does.


def on_the_wire(*steps: list[Any], **fields: Any) -> bytes:
    return request_bytes(json.dumps(order(*steps, **fields)).encode())


def test_headers_and_role_leave_as_soon_as_the_request_is_accepted(faulty: Serving) -> None:
    with faulty.raw(on_the_wire(["sleep", 60], stream=True)) as connection:
        seen = b""
        while b"\n\n" not in seen.partition(b"\r\n\r\n")[2]:
            seen += connection.recv(4096)
        assert seen.startswith(b"HTTP/1.1 200 ")
        assert b'"delta":{"role":"assistant","content":null}' in seen
    assert eventually(lambda: idle(faulty))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_that_is_noticed_too(faulty: Serving, stream: bool) -> None:
    with faulty.raw(on_the_wire(["prepare", 60], stream=stream)):
        assert eventually(lambda: faulty.in_flight == 1)
    assert eventually(lambda: idle(faulty))


def test_logprobs_cover_the_text(faulty: Serving) -> None:
    reply = faulty.chat(["scored", "a"], ["scored", "é"], logprobs=True, top_logprobs=2)
    content = reply.json()["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in content] == ["a", "é"]
    assert [each["logprob"] for each in content] == [-9999.0, -9999.0]  # what JSON cannot say
    stream = folded(faulty.streamed(["scored", "a"], ["scored", "é"], logprobs=True))
    assert stream["choices"][0]["logprobs"]["content"] == content


def test_warnings_stand_in_the_answer(faulty: Serving) -> None:
    steps = [["warn", "mind this"], ["text", "x"]]
    warnings = [{"code": "schema_not_enforced", "message": "mind this", "param": None}]
    assert faulty.chat(*steps).json()["warnings"] == warnings
    assert folded(faulty.streamed(*steps))["warnings"] == warnings
    assert "warnings" not in faulty.chat().json()


def test_the_turn_arrives_as_it_was_sent(faulty: Serving) -> None:
    answer = faulty.chat(["echo"], temperature=0, stop=["a"], max_tokens=5).json()
    turn = msgspec.json.decode(answer["choices"][0]["message"]["content"], type=Turn)
    assert turn.sampling.temperature == 0
    assert (turn.stop, turn.max_tokens, turn.partition) == (("a",), 5, "")


@pytest.mark.parametrize("steps", [[["reject", "some_code"]], [["text", "x"], ["fail", "some_code"]]])
def test_what_the_runner_refuses_has_its_status(faulty: Serving, steps: list[list[Any]]) -> None:
    assert faulty.chat(*steps).json()["error"]["code"] == "some_code"


def test_a_broken_runner_is_an_internal_error(faulty: Serving) -> None:
    reply = faulty.chat(["disorder"])
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"


def test_a_mistake_of_ours_in_a_stream_is_an_error_event_too(
    faulty: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.api.chat_answer.ChatEncoder.chunks", lambda self, frame: 1 // 0)
    *chunks, error, done = faulty.streamed(["text", "x"])
    assert len(chunks) == 1
    assert (error["error"]["code"], done) == ("internal_error", "[DONE]")


@pytest.mark.parametrize("sign", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_a_runner_that_dies_ends_streams_with_an_error_and_comes_back(faulty: Serving, sign: str) -> None:
    first = faulty.runner
    *chunks, error, done = faulty.streamed(["text", "x"], ["signal", sign])
    assert chunks
    assert (error["error"]["code"], done) == ("engine_restarting", "[DONE]")
    reply = faulty.chat()
    assert reply.status_code in (200, 503)
    assert reply.status_code == 200 or int(reply.headers["retry-after"]) >= 1
    assert eventually(lambda: faulty.chat().status_code == 200)
    assert faulty.runner != first


def test_when_slots_and_queue_are_full_clients_are_told_when_to_come_back(faulty: Serving) -> None:
    assert eventually(lambda: faulty.get("/health").status_code == 200)
    data = on_the_wire(["sleep", 60])
    with faulty.raw(data), faulty.raw(data), faulty.raw(data), faulty.raw(data):
        assert eventually(lambda: faulty.in_flight == 4)
        reply = faulty.chat()
        assert reply.status_code == 429
        assert reply.json()["error"]["type"] == "rate_limit_error"
        assert reply.json()["error"]["code"] == "queue_full"
        assert int(reply.headers["retry-after"]) >= 1
        assert faulty.get("/health").status_code == 200
    assert eventually(lambda: faulty.in_flight == 0)
    assert faulty.chat().status_code == 200


def test_many_clients_at_once_and_a_runner_killed_among_them(tmp_path: Any) -> None:
    answers = [{"when": "greet", "text": "Hello " * 5, "delay_ms": 1}]
    with playing(tmp_path, *answers, slots=8, queue=64) as server:
        done = asyncio.run(_crowd(server, clients=64, each=2))
        assert done.count("answered") == 64 * 2
        killed = asyncio.run(_crowd(server, clients=64, each=1, kill_after=16))
        assert set(killed) <= {"answered", "engine_restarting"}
        assert killed.count("engine_restarting") > 0
        assert eventually(lambda: server.get("/health").status_code == 200)
        assert server.post(say("greet")).status_code == 200
        assert server.in_flight == 0


async def _crowd(server: Serving, clients: int, each: int, kill_after: int | None = None) -> list[str]:
    """How every request of many streaming clients ended; the runner is killed after some."""
    ended: list[str] = []

    async def client(http: httpx.AsyncClient) -> None:
        for _ in range(each):
            reply = await http.post(server.url + PATH, json=say("greet", stream=True))
            ended.append(_end(reply))
            if len(ended) == kill_after and server.runner:
                os.kill(server.runner, signal.SIGKILL)

    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
        assert (await http.get(server.url + "/health")).status_code in (200, 503)
    return ended


def _end(reply: httpx.Response) -> str:
    if reply.status_code != 200:
        return str(reply.json()["error"]["code"])
    *_, last, done = events(reply.text)
    assert done == "[DONE]"
    return str(last["error"]["code"]) if "error" in last else "answered"


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"enable_thinking": False}])
def test_no_thought_is_read_where_none_is_wanted(tmp_path: Path, fields: dict[str, Any]) -> None:
    """The scripted model's template has no switch for that."""
    with playing(tmp_path, {"text": "<think>abc</think> Hi"}) as server:
        message = server.chat(**fields).json()["choices"][0]["message"]
    assert "reasoning_content" not in message
