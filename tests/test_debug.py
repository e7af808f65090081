"""The request option ``debug``: how an answer came about, whole and streamed, in every family; who may ask;
and what bounds it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import anthropic
import pytest
from launch import launched
from openai import OpenAI
from serving import Serving, events, playing
from starlette.types import Message, Receive, Scope, Send
from test_chat import WEATHER, call

from server.api.auth import Keys
from server.api.guard import Guard
from server.engine.protocol import Piece, Progress, SequenceId
from server.engine.scripted import ByteVocabulary
from server.events import Source
from server.runner.origin import TEXT_BYTES, TOKENS, Origins, Told
from server.settings import Settings

KEY, ADMIN = "sk-user", "sk-admin"
ONCE = {
    "type": "function",
    "function": {
        "name": "pick",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"of": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
            "required": ["of"],
        },
    },
}


def picked(numbers: str) -> str:
    return f'<tool_call>\n{{"name": "pick", "arguments": {{"of": {numbers}}}}}\n</tool_call>'


ANSWERS: list[dict[str, Any]] = [
    {"when": "Greet", "text": "Hé 😀"},
    {"when": "Weather", "text": call("Paris")},
    {"when": "Pick", "takes": [picked("[1, 1]"), picked("[1, 2]")]},
    {"when": "dead end", "text": "Half", "ended": "dead_end"},
]
PATHS = {
    "/v1/chat/completions": "messages",
    "/v1/messages": "messages",
    "/v1/responses": "input",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("debug"), *ANSWERS) as running:
        yield running


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "admins").write_text(f"# us\n{ADMIN}\n")
    (folder / "admins").chmod(0o600)
    keys: dict[str, Any] = {"api_key": (KEY,), "admin_key_file": str(folder / "admins")}
    with playing(folder, *ANSWERS, **keys) as running:
        yield running


def asking(text: str, path: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
    return {PATHS[path]: [{"role": "user", "content": text}], "debug": True, **fields}


def whole(server: Serving, body: dict[str, Any], path: str = "/v1/chat/completions") -> Any:
    reply = server.request("POST", path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(server: Serving, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
    reply = server.request("POST", path, json=body | {"stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.splitlines() if line.startswith("data: ")]
    return events("\n\n".join(lines))


def joined(chunks: list[Any]) -> Any:
    """The debug objects of a stream as one."""
    found = [chunk["debug"] for chunk in chunks if isinstance(chunk, dict) and "debug" in chunk]
    assert found[0].keys() == {"prompt", "constraint"}
    assert all(each.keys() == {"generated"} for each in found[1:])
    runs: list[Any] = []
    for run in chain.from_iterable(each["generated"] for each in found[1:]):
        last = next((each for each in reversed(runs) if each["choice"] == run["choice"]), None)
        if last and run["start"] == last["start"] + len(last["tokens"]):
            last["tokens"] += run["tokens"]
        else:
            runs.append(run)
    return found[0] | {"generated": sorted(runs, key=lambda run: int(run["choice"]))}


def text_of(run: Any) -> str:
    """The text of a run, from the bytes where a token is a part of a character."""
    data = (bytes(each.get("bytes", each["text"].encode())) for each in run["tokens"])
    return b"".join(data).decode()


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_and_a_whole_answer_say_the_same(server: Serving, path: str) -> None:
    body = asking("Greet me", path)
    debug = whole(server, body, path)["debug"]
    assert joined(streamed(server, body, path)) == debug
    assert debug["prompt"] == [
        {"text": "<|im_start|>", "control": True},
        {"text": "user\nGreet me", "control": False},
        {"text": "<|im_end|>", "control": True},
        {"text": "\n", "control": False},
        {"text": "<|im_start|>", "control": True},
        {"text": "assistant\n", "control": False},
    ]
    assert debug["constraint"].startswith("start: ")
    (run,) = debug["generated"]
    assert (run["choice"], run["start"], text_of(run)) == (0, 0, "Hé 😀")
    assert {each["source"] for each in run["tokens"]} == {"sampled"}


def test_a_completion_shows_the_prompt_it_was_given(server: Serving) -> None:
    path, body = "/v1/completions", {"prompt": "<|im_start|>Greet", "n": 2, "max_tokens": 20, "debug": True}
    debug = whole(server, body, path)["debug"]
    assert joined(streamed(server, body, path)) == debug
    assert debug["prompt"] == [{"text": "<|im_start|>", "control": True}, {"text": "Greet", "control": False}]
    assert [text_of(run) for run in debug["generated"]] == ["Hé 😀"] * 2


def test_of_several_prompts_none_is_shown(server: Serving) -> None:
    reply = server.request("POST", "/v1/completions", json={"prompt": ["Greet", "Greet"], "debug": True})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "debug")
    assert "one prompt" in error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_told_unless_asked(server: Serving, path: str) -> None:
    for fields in ({}, {"debug": False}, {"debug": None}):
        body = asking("Greet me", path) | fields
        if not fields:
            del body["debug"]
        assert "debug" not in whole(server, body, path)
        assert not any("debug" in each for each in streamed(server, body, path))


def test_what_a_client_wrote_is_no_control_token(server: Serving) -> None:
    debug = whole(server, asking("Greet <|im_end|> me"))["debug"]
    assert {"text": "user\nGreet <|im_end|> me", "control": False} in debug["prompt"]


def test_the_constraint_is_that_of_the_request(server: Serving) -> None:
    debug = whole(server, asking("Weather?", tools=[WEATHER], tool_choice="required"))["debug"]
    assert "get_weather" in debug["constraint"]
    assert text_of(debug["generated"][0]) == call("Paris")


def test_what_is_sampled_again_is_told_from_where_it_begins(server: Serving) -> None:
    body = asking("Pick", tools=[ONCE])
    answer = whole(server, body)
    assert answer["timings"]["resampled_calls"] == 1
    assert json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {
        "of": [1, 2]
    }
    first, second = answer["debug"]["generated"]
    assert (first["start"], text_of(first).endswith('{"of": [1, 1]}}')) == (0, True)
    assert 0 < second["start"] < len(first["tokens"])
    kept = {"tokens": first["tokens"][: second["start"]] + second["tokens"]}
    assert text_of(kept) == picked("[1, 2]")
    assert joined(streamed(server, body)) == answer["debug"]


def test_each_choice_has_its_own_tokens(server: Serving) -> None:
    body = asking("Greet me", n=3)
    debug = whole(server, body)["debug"]
    assert [(run["choice"], text_of(run)) for run in debug["generated"]] == [(n, "Hé 😀") for n in range(3)]
    assert joined(streamed(server, body)) == debug


def test_an_answer_that_fails_has_told_its_tokens(server: Serving) -> None:
    chunks = streamed(server, asking("dead end"))
    assert text_of(joined(chunks)["generated"][0]) == "Half"
    assert chunks[-2]["error"]["code"] == "constraint_dead_end"


def test_debug_is_true_or_false(server: Serving) -> None:
    for path in PATHS:
        reply = server.request("POST", path, json=asking("Greet me", path, debug="yes"))
        assert reply.status_code == 400
        assert "debug must be true or false" in reply.json()["error"]["message"]


# Official clients.


def test_openais_client_is_not_disturbed(server: Serving) -> None:
    asked: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "Weather?"}]}
    asked |= {"tools": [WEATHER], "extra_body": {"debug": True}}
    with OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0) as client:
        with client.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        plain = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    said = final.choices[0].message.tool_calls
    assert said
    assert said[0].function.arguments == '{"city": "Paris"}'
    assert plain.model_extra
    assert plain.model_extra["debug"] == joined([each.model_dump(exclude_unset=True) for each in chunks])


def test_anthropics_client_is_not_disturbed(server: Serving) -> None:
    asked: Any = {
        "model": "scripted",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "Greet me"}],
    }
    with anthropic.Anthropic(base_url=server.url, api_key="-", max_retries=0) as client:
        with client.messages.stream(**asked, extra_body={"debug": True}) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        plain = client.messages.create(**asked, extra_body={"debug": True})
    assert [block.text for block in final.content if block.type == "text"] == ["Hé 😀"]
    assert kinds[0] == "message_start"
    assert plain.model_extra
    assert plain.model_extra["debug"]["constraint"]


def test_the_responses_client_is_not_disturbed(server: Serving) -> None:
    asked: Any = {"model": "scripted", "input": "Greet me", "extra_body": {"debug": True}}
    with (
        OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0) as client,
        client.responses.stream(**asked) as stream,
    ):
        numbers = [event.sequence_number for event in stream]
        final = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    assert final.output_text == "Hé 😀"


# Rights.


@pytest.mark.parametrize("path", PATHS)
def test_with_keys_only_an_admin_may_ask(keyed: Serving, path: str) -> None:
    body = asking("Greet me", path)
    for stream in (False, True):
        asked = body | {"stream": stream}
        refused = keyed.request("POST", path, json=asked, headers={"x-api-key": KEY})
        assert refused.status_code == 403
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "admin_key_required")
        assert (refused.json().get("type") == "error") == (path == "/v1/messages")
        assert "--admin-key" in error["message"]
        assert keyed.request("POST", path, json=asked).status_code == 401
        allowed = keyed.request("POST", path, json=asked, headers={"authorization": f"Bearer {ADMIN}"})
        assert allowed.status_code == 200
        assert '"constraint"' in allowed.text
    plain = keyed.request("POST", path, json=body | {"debug": False}, headers={"x-api-key": KEY})
    assert plain.status_code == 200


def test_an_admin_key_alone_locks_the_server(tmp_path: Path) -> None:
    with playing(tmp_path, *ANSWERS, admin_key=(ADMIN,)) as running:
        assert running.get("/v1/models").status_code == 401
        assert running.get("/v1/models", headers={"x-api-key": ADMIN}).status_code == 200


@pytest.mark.parametrize(
    ("client", "admin"),
    [
        (("127.0.0.1", 9), True),
        (("127.8.8.8", 9), True),
        (("::1", 9), True),
        (("::ffff:127.0.0.1", 9), True),
        (("192.168.1.4", 9), False),
        (("::ffff:192.168.1.4", 9), False),
        (("fd00::1%eth0", 9), False),
        (None, False),
    ],
)
def test_without_keys_only_this_machine_may_ask(client: tuple[str, int] | None, admin: bool) -> None:
    seen: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["state"]["admin"])

    async def nothing() -> Message:
        raise AssertionError

    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b""}
    scope |= {"query_string": b"", "headers": [(b"host", b"localhost")], "client": client, "state": {}}
    asyncio.run(Guard(app, Settings(), Keys([]))(scope, nothing, app))  # type: ignore[arg-type]
    assert seen == [admin]


# Bounds.


def test_a_prompt_and_a_constraint_are_shown_up_to_a_limit() -> None:
    origins = Origins(ByteVocabulary())
    exact = (65,) * (TEXT_BYTES - 12) + (256,)
    origin, warnings = origins.of(exact, "é" * (TEXT_BYTES // 2))
    assert not warnings
    assert [len(each.text) for each in origin.prompt] == [TEXT_BYTES - 12, 12]
    origin, warnings = origins.of((65, *exact), "é" * (TEXT_BYTES // 2) + "x")
    assert [len(each.text) for each in origin.prompt] == [TEXT_BYTES - 11]
    assert origin.constraint == "é" * (TEXT_BYTES // 2)
    assert [each.code for each in warnings] == ["debug_cut"] * 2
    assert ["prompt" in warnings[0].message, "constraint" in warnings[1].message] == [True, True]


def test_a_cut_prompt_is_a_warning_of_the_answer(tmp_path: Path) -> None:
    with playing(tmp_path, *ANSWERS, ctx=2 * TEXT_BYTES) as running:
        answer = whole(running, asking("Greet " + "a" * TEXT_BYTES))
        assert [each["code"] for each in answer["warnings"]] == ["debug_cut"]
        assert sum(len(each["text"]) for each in answer["debug"]["prompt"]) == TEXT_BYTES
        assert answer["choices"][0]["message"]["content"] == "Hé 😀"


def test_tokens_are_told_up_to_a_limit_for_all_choices() -> None:
    told = Told(2)

    def made(choice: int, count: int) -> list[tuple[int, int]]:
        progress = Progress(SequenceId(1, choice), (Piece(1, b"a", Source.FORCED),) * count)
        return [(each.start, len(each.tokens)) for each in told.events(progress)]

    assert made(0, 10) == [(0, 10)]
    assert made(1, 0) == []
    told.rewound(SequenceId(1, 0), 4)
    assert made(0, TOKENS - 15) == [(4, TOKENS - 15)]
    assert not told.warnings
    assert made(1, 9) == [(0, 5)]
    assert made(0, 1) == made(1, 1) == []
    assert [each.code for each in told.warnings] == ["debug_cut"]


# A real model.


@pytest.mark.model
def test_a_real_model_tells_sampled_and_forced_tokens_apart() -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Weather in Paris?"}], "temperature": 0}
    asked |= {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    with launched("--model", "smollm2-135m", "--threads", "1", "--ctx", "2048") as running:
        extra = {"debug": True, "reuse_prefix": False}
        answer = running.create(**asked, extra_body=extra)
        stream = running.create(**asked, extra_body=extra, stream=True)
        chunks = [each.model_dump(exclude_unset=True) for each in stream]
    debug = answer.model_extra["debug"]
    (run,) = debug["generated"]
    sources = [each["source"] for each in run["tokens"]]
    timings = answer.model_extra["timings"]
    assert sources.count("sampled") == timings["sampled_tokens"] > 0
    assert sources.count("forced") == timings["forced_tokens"] > 5
    assert all(each["id"] >= 0 for each in run["tokens"])
    assert answer.choices[0].message.tool_calls[0].function.arguments in text_of(run)
    assert {each["text"] for each in debug["prompt"] if each["control"]} == {"<|im_start|>", "<|im_end|>"}
    assert "Weather in Paris?" in "".join(each["text"] for each in debug["prompt"])
    assert joined(chunks)["generated"] == debug["generated"]
