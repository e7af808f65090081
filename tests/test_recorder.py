"""A recording and its replay, over a socket, in all API families: the second time says what the first did."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from launch import Launched, launched
from serving import Serving, eventually, playing, serving
from test_chat import WEATHER, call
from test_debug import ONCE, picked

from server.errors import StartupFailed
from server.record_file import FIRST
from server.supervisor import RUNNER

ANSWERS: list[dict[str, Any]] = [
    {"when": "4 degrees", "text": "Take a coat."},
    {
        "when": "weather",
        "reasoning": "I look it up.",
        "text": "A moment.",
        "calls": [{"name": "get_weather", "arguments": {"city": "Öslo"}}],
    },
    {"when": "twice", "text": "one", "once": True},
    {"when": "twice", "text": "two"},
    {"when": "pick", "takes": [picked("[1, 1]"), picked("[1, 2]")]},
    {"when": "never valid", "takes": [picked("[1, 1]")]},
    {"when": "breaks", "text": "So f", "ended": "dead_end"},
    {"when": "busy", "error": {"status": 429, "message": "slow down", "code": "busy", "retry_after": 7}},
    {"when": "think", "reasoning": "A long thought, much too long.", "text": "Done."},
    {"when": "raw", "pieces": [call("Rome") + "\n" + call("Rome")]},
    {"when": "slow", "pieces": ["Sl", 200, "o", 3_600_000, "w"]},
    {"text": "Hello, 😀. This is the end."},
]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
VARYING = ("id", "call_id", "item_id", "created", "created_at", "completed_at", "timings")
Exchange = Callable[[Serving], Any]


def stable(value: Any) -> Any:
    """An answer or an event without what differs each time."""
    if isinstance(value, dict):
        return {name: stable(each) for name, each in value.items() if name not in VARYING}
    return [stable(each) for each in value] if isinstance(value, list) else value


def post(server: Serving, path: str, body: dict[str, Any]) -> Any:
    """Status and answer; the events, each as it came, if it is a stream."""
    reply = server.request("POST", path, json=body)
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return reply.status_code, reply.headers.get("retry-after"), stable(reply.json())
    lines = [line for line in reply.text.splitlines() if line]
    said = [line.removeprefix("data: ") for line in lines]
    return [stable(json.loads(line)) if line.startswith("{") else line for line in said]


def twice(folder: Path, exchange: Exchange, **settings: Any) -> tuple[Any, Any]:
    """What comes of an exchange while it is recorded, and when that is replayed."""
    record = str(folder / "record.jsonl")
    with playing(folder, *ANSWERS, record=record, chunk=3, **settings) as server:
        first = exchange(server)
    with serving(command=RUNNER, replay=record, **settings) as server:
        return first, exchange(server)


def entries(folder: Path) -> list[Any]:
    lines = (folder / "record.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def ask(text: str, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    if path == COMPLETIONS:
        return {"prompt": text, "max_tokens": 100, **fields}
    said = {"role": "user", "content": text}
    if path == RESPONSES:
        return {"input": [said], **fields}
    return {"messages": [said], **({"max_tokens": 500} if path == MESSAGES else {}), **fields}


# Every family, whole and streamed.


def of_chat(server: Serving, stream: bool) -> Iterator[Any]:
    body = ask("weather?", tools=[WEATHER], stream=stream, stream_options={"include_usage": True})
    yield post(server, CHAT, body)
    made = server.post(body | {"stream": False}).json()["choices"][0]["message"]
    yield stable(made)
    result = {"role": "tool", "tool_call_id": made["tool_calls"][0]["id"], "content": "4 degrees"}
    yield post(server, CHAT, body | {"messages": [*body["messages"], made, result]})


def of_messages(server: Serving, stream: bool) -> Iterator[Any]:
    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}  # type: ignore[index]
    body = ask("weather?", MESSAGES, tools=[tool], stream=stream)
    yield post(server, MESSAGES, body)
    content = server.request("POST", MESSAGES, json=body | {"stream": False}).json()["content"]
    yield stable(content)
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "4 degrees"}
    told = [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    yield post(server, MESSAGES, body | {"messages": [*body["messages"], *told]})


def of_responses(server: Serving, stream: bool) -> Iterator[Any]:
    tool = {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
    body = ask("weather?", RESPONSES, tools=[tool], stream=stream)
    yield post(server, RESPONSES, body)
    output = server.request("POST", RESPONSES, json=body | {"stream": False}).json()["output"]
    yield stable(output)
    result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "4 degrees"}
    yield post(server, RESPONSES, body | {"input": [*body["input"], *output, result]})


def of_completions(server: Serving, stream: bool) -> Iterator[Any]:
    for fields in ({}, {"echo": True}, {"n": 2}, {"prompt": ["one", "two"]}, {"max_tokens": 2}):
        yield post(server, COMPLETIONS, ask("Once upon a time", COMPLETIONS, stream=stream) | fields)


@pytest.mark.parametrize("loop", [of_chat, of_messages, of_responses, of_completions])
def test_a_loop_of_two_turns_is_replayed(
    tmp_path: Path, loop: Callable[[Serving, bool], Iterator[Any]]
) -> None:
    first, second = twice(tmp_path, lambda server: [*loop(server, False), *loop(server, True)])
    assert first == second
    assert "Take a coat." in json.dumps(first) or loop is of_completions


def test_an_entry_has_request_prompt_constraint_and_pieces(tmp_path: Path) -> None:
    twice(tmp_path, lambda server: post(server, CHAT, ask("Hi", temperature=0)))
    (entry,) = entries(tmp_path)
    assert list(entry) == ["request", "prompt", "prompt_tokens", "constraint", "answers"]
    assert entry["request"]["messages"] == [{"role": "user", "content": "Hi"}]
    assert entry["request"]["sampling"]["temperature"] == 0
    assert "user\nHi" in "".join(each["text"] for each in entry["prompt"])
    assert entry["constraint"].startswith("start: ")
    ((take,),) = entry["answers"]
    assert [each for each in take["pieces"] if isinstance(each, str)][:3] == ["Hel", "lo,", " 😀."]
    assert take["kinds"] == "s" * 9


# What comes of an answer.


BODIES = [
    ask("pick", tools=[ONCE]),
    ask("pick", tools=[ONCE], n=2),
    ask("never valid", tools=[ONCE]),
    ask("breaks"),
    ask("think", thinking_budget_tokens=3),
    ask("Hi", stop=["the"]),
    ask("Hi", max_tokens=3),
    ask("Hi", n=3),
    ask("raw", tools=[WEATHER]),
    ask("busy"),
    ask("Hi", tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "no"}}}]),
    ask("Hi", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 1}}}),
    ask("Hi " * 1000),
]


@pytest.mark.parametrize("options", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_whatever_comes_of_a_request_comes_again(tmp_path: Path, options: dict[str, Any]) -> None:
    record = str(tmp_path / "record.jsonl")
    with playing(tmp_path, *ANSWERS, record=record, ctx=2000, chunk=3) as server:
        first = [post(server, CHAT, body | options) for body in BODIES]
    assert len(entries(tmp_path)) == len(BODIES)
    with serving(command=RUNNER, replay=record) as server:
        for body, answer in zip(BODIES, first, strict=True):
            assert post(server, CHAT, body | options) == answer, body


def test_calls_that_were_sampled_again_are(tmp_path: Path) -> None:
    def resampled(server: Serving) -> Any:
        return server.post(ask("pick", tools=[ONCE])).json()["timings"]["resampled_calls"]

    assert twice(tmp_path, resampled) == (1, 1)
    ((first, second),) = entries(tmp_path)[0]["answers"]
    assert "".join(each for each in second["pieces"] if isinstance(each, str)) == picked("[1, 2]")
    assert first["ended"] == "never"


def test_silences_are_played(tmp_path: Path) -> None:
    def until_o(server: Serving) -> float:
        begun = time.monotonic()
        with httpx.stream("POST", server.url + CHAT, json=ask("slow", stream=True)) as reply:
            next(line for line in reply.iter_lines() if '"o"' in line)
        return time.monotonic() - begun

    # What a server may do in less time than the silence it was told is what this would show.
    assert all(each >= 0.2 for each in twice(tmp_path, until_o))


def test_an_answer_that_a_client_left_does_not_end(tmp_path: Path) -> None:
    def left(server: Serving) -> str:
        said = ""
        with (
            contextlib.suppress(httpx.ReadTimeout),
            httpx.stream("POST", server.url + CHAT, json=ask("slow", stream=True), timeout=2) as reply,
        ):
            for line in reply.iter_lines():
                said += "".join(
                    json.loads(line[6:])["choices"][0]["delta"].get("content") or "" if line else ""
                )
        assert eventually(lambda: server.in_flight == 0)
        assert post(server, CHAT, ask("Hi"))[0] == 200
        return said

    assert twice(tmp_path, left, keepalive=30) == ("Slo", "Slo")
    assert [each["answers"][0][0].get("ended") for each in entries(tmp_path)] == ["never", None]


def test_a_request_that_was_left_while_it_waited_is_one_without_pieces(tmp_path: Path) -> None:
    record = str(tmp_path / "record.jsonl")
    with (
        playing(tmp_path, *ANSWERS, record=record, slots=1) as server,
        httpx.stream("POST", server.url + CHAT, json=ask("slow", stream=True)),
    ):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + CHAT, json=ask("Hi"), timeout=1)
        assert eventually(lambda: len(entries(tmp_path)) == 1)
    assert entries(tmp_path)[0]["answers"] == [[{"ended": "never"}]]


# Which answer.


def test_the_same_request_gets_its_answers_in_order_and_again(tmp_path: Path) -> None:
    def said(server: Serving) -> list[str]:
        return [server.post(ask("twice")).json()["choices"][0]["message"]["content"] for _ in range(2)]

    first, second = twice(tmp_path, lambda server: said(server))
    assert first == second == ["one", "two"]
    with serving(command=RUNNER, replay=str(tmp_path / "record.jsonl")) as server:
        assert said(server) + said(server) == first * 2


def test_a_request_that_is_not_in_the_recording_is_refused(tmp_path: Path) -> None:
    paths = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
    twice(tmp_path, lambda server: [post(server, path, ask("Hi", path)) for path in paths])
    with serving(command=RUNNER, replay=str(tmp_path / "record.jsonl")) as server:
        for path, stream in itertools.product(paths, (False, True)):
            status, _, answer = post(server, path, ask("Hi there", path, stream=stream))
            assert status == 400
            where = "raw" if path == COMPLETIONS else "messages[0]"
            assert answer["error"]["message"].endswith(f"differs in {where}")
            assert answer["error"]["type"] == "invalid_request_error"
            assert (answer.get("type") == "error") == (path == MESSAGES)


def test_lines_of_a_script_stand_beside_recorded_ones(tmp_path: Path) -> None:
    twice(tmp_path, lambda server: post(server, CHAT, ask("Hi")))
    path = tmp_path / "record.jsonl"
    with path.open("a") as file:
        file.write('{"text": "by cue"}\n')
    with serving(command=RUNNER, replay=str(path)) as server:
        said = [server.post(ask(each)).json()["choices"][0]["message"]["content"] for each in ("Hi", "Ho")]
    assert said == ["Hello, 😀. This is the end.", "by cue"]


def test_a_replay_can_be_recorded(tmp_path: Path) -> None:
    body = ask("weather?", tools=[WEATHER])
    first, _ = twice(tmp_path, lambda server: post(server, CHAT, body))
    copy = tmp_path / "copy.jsonl"
    with serving(command=RUNNER, replay=str(tmp_path / "record.jsonl"), record=str(copy)) as server:
        assert post(server, CHAT, body) == first
    with serving(command=RUNNER, replay=str(copy)) as server:
        assert post(server, CHAT, body) == first


MODEL = {"dialect": "hermes", "context": 999, "context_train": 9999, "vocabulary": 50_000}
MARKED = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]


def test_a_marker_is_one_where_it_was_a_token_and_text_where_it_was_not(tmp_path: Path) -> None:
    twice(tmp_path, lambda server: post(server, CHAT, ask("Hi")))
    head = json.loads((tmp_path / "record.jsonl").read_text().splitlines()[0])["recording"]
    head |= {**MODEL, "name": "marked", "markup": MARKED}
    opener, body, closer = (
        "<tool_call>",
        '\n{"name": "get_weather", "arguments": {"city": "x"}}\n',
        "</tool_call>",
    )
    spelled, told = ["a <", "tool_call", "> b <"], {"messages": [{"role": "user", "content": "Hi"}]}
    tool = {"name": "get_weather", "parameters": json.dumps(WEATHER["function"]["parameters"])}  # type: ignore[index]
    takes = [{"pieces": spelled, "kinds": "sss"}, {"pieces": [opener, body, closer], "kinds": "SsS"}]
    lines: list[Any] = [{"request": told, "answers": [[takes[0]]]}]
    lines.append({"request": {**told, "tools": [tool]}, "prompt_tokens": 7, "answers": [[takes[1]]]})
    path = tmp_path / "marked.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ({"recording": head}, *lines)))
    with serving(command=RUNNER, replay=str(path)) as server:
        text = post(server, CHAT, ask("Hi", stream=True))
        called = server.post(ask("Hi", tools=[WEATHER], logit_bias={"49999": 1}))
        answer = server.post(ask("Hi", tools=[WEATHER])).json()
        (model,) = server.get("/v1/models").json()["data"]
    deltas = [each["choices"][0]["delta"] for each in text[1:-2]]
    assert [each["content"] for each in deltas] == spelled
    assert called.json()["error"]["code"] == "request_not_recorded"
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "x"}'
    assert answer["usage"]["prompt_tokens"] == 7
    assert (model["id"], model["context_length"]) == ("marked", 999)


# The file.


def test_requests_beside_each_other_are_whole_lines(tmp_path: Path) -> None:
    def many(server: Serving) -> Any:
        with ThreadPoolExecutor(8) as pool:
            bodies = [ask(f"Hi {number} {'x' * 20_000}", n=2) for number in range(24)]
            return list(pool.map(lambda body: post(server, CHAT, body), bodies))

    first, second = twice(tmp_path, many)
    assert first == second
    asked = {each["request"]["messages"][0]["content"][:5] for each in entries(tmp_path)}
    assert len(entries(tmp_path)) == len(asked) == 24


def test_keys_are_not_in_it_and_it_is_for_its_owner(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with playing(tmp_path, *ANSWERS, record=str(record), api_key=("sk-secret",)) as server:
        for headers in ({"authorization": "Bearer sk-secret"}, {"x-api-key": "sk-secret"}):
            assert server.post(ask("Hi"), headers=headers).status_code == 200
    assert "sk-secret" not in record.read_text()
    assert "partition" not in record.read_text()
    assert record.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_said_and_serving_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.jsonl"
    with playing(tmp_path, *ANSWERS, record=str(record)) as server:
        assert server.post(ask("Hi")).status_code == 200
        assert server.runner is not None
        before = record.read_bytes()
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(server.runner, resource.RLIMIT_FSIZE, (len(before) + 50, hard))
        assert server.post(ask("Hi, secret")).status_code == 200
        assert record.read_bytes() == before
        resource.prlimit(server.runner, resource.RLIMIT_FSIZE, (hard, hard))
        assert server.post(ask("Ho")).status_code == 200
    assert [each["request"]["messages"][0]["content"] for each in entries(tmp_path)] == ["Hi", "Ho"]
    (line,) = [each for each in capfd.readouterr().err.splitlines() if "not recorded" in each]
    assert str(record) in line
    assert "File too large" in line
    assert "secret" not in line


def test_a_runner_that_ends_leaves_what_it_has_recorded(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    with playing(tmp_path, *ANSWERS, record=str(record)) as server:
        server.post(ask("Hi"))
        assert server.runner is not None
        os.kill(server.runner, signal.SIGKILL)
        assert eventually(lambda: server.get("/health").status_code == 200)
        assert eventually(lambda: server.post(ask("Ho")).status_code == 200)
    assert [each["request"]["messages"][0]["content"] for each in entries(tmp_path)] == ["Hi", "Ho"]
    assert record.read_bytes().count(FIRST) == 1


def test_a_file_of_another_model_is_not_gone_on_with(tmp_path: Path) -> None:
    twice(tmp_path, lambda server: post(server, CHAT, ask("Hi")))
    before = (tmp_path / "record.jsonl").read_bytes()
    with (
        pytest.raises(StartupFailed, match="another model"),
        playing(tmp_path, *ANSWERS, record=str(tmp_path / "record.jsonl"), ctx=5000),
    ):
        pass
    assert (tmp_path / "record.jsonl").read_bytes() == before


def test_recordings_of_two_models_are_not_one_script(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    model = {"dialect": "hermes", "template": None, "context": 1, "context_train": 1, "vocabulary": 1}
    path.write_text("".join(json.dumps({"recording": {"name": name, **model}}) + "\n" for name in "ab"))
    with pytest.raises(StartupFailed, match="several models"), serving(command=RUNNER, replay=str(path)):
        pass


def test_a_template_that_is_read_otherwise_now_is_said(tmp_path: Path) -> None:
    twice(tmp_path, lambda server: post(server, CHAT, ask("Hi")))
    path = tmp_path / "record.jsonl"
    path.write_text(path.read_text().replace('"dialect":"hermes"', '"dialect":"mistral"'))
    with pytest.raises(StartupFailed, match="mistral"), serving(command=RUNNER, replay=str(path)):
        pass


# A real model.


def loop_of(server: Launched, stream: bool) -> Iterator[Any]:
    """Two turns, and answers of every kind, with what differs each time taken out."""

    def posted(**body: Any) -> Any:
        reply = httpx.post(server.url + CHAT, json={"max_tokens": 40, **body}, timeout=280)
        if not body.get("stream"):
            return reply.json()
        return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]

    user = {"role": "user", "content": "What is the weather in Paris?"}
    body: dict[str, Any] = {"messages": [user], "tools": [WEATHER], "tool_choice": "required", "seed": 3}
    body |= {"max_tokens": 300, "parallel_tool_calls": False}
    made = posted(**body)
    yield made
    message = made["choices"][0]["message"]
    calls = message["tool_calls"]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "4 degrees"} for each in calls]
    following = {**body, "max_tokens": 40, "messages": [user, message, *results], "tool_choice": "none"}
    yield posted(**following, stream=stream, stream_options={"include_usage": True} if stream else None)
    yield posted(**body, stream=stream, n=2, temperature=1.5)
    emoji = {"messages": [{"role": "user", "content": "Say 😀🇫🇷 three times, and 你好."}]}
    yield posted(**emoji, stream=stream, logit_bias={"100": -5}, stop=["zzz"])
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["😀", "🇫🇷é"]}}}
    yield posted(**emoji, stream=stream, response_format=form)


@pytest.mark.model
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_real_model_is_replayed(tmp_path: Path, stream: bool) -> None:
    record = str(tmp_path / "record.jsonl")
    model = ("--model", "smollm2-135m", "--threads", "1", "--ctx", "4096")
    with launched(*model, "--record", record) as server:
        first = list(loop_of(server, stream))
        assert f"records   all requests and answers, to {record}" in server.said
    assert len(entries(tmp_path)) == 5
    with launched("--replay", record) as server:
        assert server.said[0].startswith("model     smollm2-135m (a replay of ")
        second = list(loop_of(server, stream))
    assert without_fingerprint(first) == without_fingerprint(second)
    kinds = "".join(take["kinds"] for each in entries(tmp_path) for (take, *_) in each["answers"])
    assert {"s", "f"} <= set(kinds)


def without_fingerprint(value: Any) -> Any:
    """It tells how a model is run, and a replay runs none."""
    if isinstance(value, dict):
        value = {name: each for name, each in value.items() if name != "system_fingerprint"}
        return {name: without_fingerprint(each) for name, each in stable(value).items()}
    return [without_fingerprint(each) for each in value] if isinstance(value, list) else value
