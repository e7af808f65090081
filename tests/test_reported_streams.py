"""What users have reported about the streams of local servers, distilled into cases; the number in a test's
name is the case's. Where a case is about text, ``replies`` cuts it in every way and compares the streams with
the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from pydantic_core import from_json
from replies import (
    NOW,
    OSLO,
    PARIS,
    READ,
    ROWS,
    SHELL,
    TEXT,
    WEATHER,
    WRITE,
    Reply,
    called,
    in_hermes,
    in_qwen,
    model,
    tool,
)
from serving import Serving, events, playing
from test_chat import WEATHER as WEATHER_BODY

from server.dialects.form import written_calls
from server.turn import ToolCall

EVERY_ROW = pytest.mark.parametrize("name", ROWS)
BOTH = [("get_weather", PARIS), ("get_weather", OSLO)]
IN_PARIS, IN_OSLO = (in_hermes(*each) for each in BOTH)
ANSWERS: list[dict[str, Any]] = [
    {"when": "one city", "text": IN_PARIS},
    {"when": "two cities", "text": f"{IN_PARIS}\n{IN_OSLO}"},
    {"when": "a result", "text": "Sunny."},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("streams"), *ANSWERS) as running:
        yield running


def asking(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": [WEATHER_BODY], **fields}


def call_deltas(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call for delta in deltas for call in delta.get("tool_calls", ())]


def streamed_calls(server: Serving, text: str) -> list[dict[str, Any]]:
    *chunks, done = events(server.post(asking(text, stream=True)).text)
    assert done == "[DONE]"
    return call_deltas([choice["delta"] for chunk in chunks for choice in chunk["choices"]])


def cut_once(text: str) -> Iterator[list[bytes]]:
    """A text in two pieces, in every way."""
    data = text.encode()
    return ([data[:at], data[at:]] for at in range(1, len(data)))


@EVERY_ROW
def test_b1_calls_are_numbered_in_their_order(name: str) -> None:
    known = model(name)
    count = 2 if known.row.parallel else 1
    text = written_calls(known.row, [ToolCall("", *each) for each in BOTH[:count]])
    assert known.replied(text, WEATHER) == called(*BOTH[:count])
    for pieces in ([text.encode()], [bytes([each]) for each in text.encode()]):
        deltas = call_deltas(known.deltas(pieces, WEATHER))
        started = [each["index"] for each in deltas if "id" in each]
        assert started == list(range(count))
        told = ["", ""]
        for each in deltas:
            told[each["index"]] += each["function"]["arguments"]
        assert told[:count] == [arguments for _, arguments in BOTH[:count]]


def test_b2_an_index_stands_in_each_delta_and_in_no_whole_answer(server: Serving) -> None:
    deltas = streamed_calls(server, "two cities")
    assert {type(each["index"]) for each in deltas} == {int}
    message = server.post(asking("two cities")).json()["choices"][0]["message"]
    assert [set(each) for each in message["tool_calls"]] == [{"id", "type", "function"}] * 2


def test_b4_a_name_comes_once(server: Serving) -> None:
    first, *more = streamed_calls(server, "one city")
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert (first["type"], len(first["id"])) == ("function", 9)
    assert len(more) > 6
    assert "".join(each["function"].get("name", "") for each in [first, *more]) == "get_weather"
    assert "".join(each["function"]["arguments"] for each in more) == PARIS


def test_b5_what_a_later_delta_does_not_say_is_not_there(server: Serving) -> None:
    _, *more = streamed_calls(server, "one city")
    for each in more:
        assert set(each) == {"index", "function"}
        assert set(each["function"]) == {"arguments"}


def test_b7_equal_requests_have_calls_of_different_ids(server: Serving) -> None:
    body = asking("two cities", seed=1, temperature=0)
    calls = [
        call for _ in range(3) for call in server.post(body).json()["choices"][0]["message"]["tool_calls"]
    ]
    assert [each["function"]["arguments"] for each in calls] == [PARIS, OSLO] * 3
    assert len({each["id"] for each in calls}) == 6


@pytest.mark.parametrize("stream", [False, True])
def test_b8_an_answer_can_be_sent_back_as_it_came(server: Serving, stream: bool) -> None:
    body = asking("two cities")
    tools: Any = [WEATHER_BODY]
    with OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0) as client:
        if stream:
            with client.chat.completions.stream(
                model="scripted", messages=body["messages"], tools=tools
            ) as told:
                said: Any = told.get_final_completion().choices[0].message
        else:
            said = (
                client.chat.completions.create(model="scripted", messages=body["messages"], tools=tools)
                .choices[0]
                .message
            )
        sent_back = said.model_dump(exclude_unset=True)
    calls = sent_back["tool_calls"]
    assert all(each["id"] and each["type"] == "function" for each in calls)
    assert [each["function"]["name"] for each in calls] == ["get_weather"] * 2
    assert [each["function"]["arguments"] for each in calls] == [PARIS, OSLO]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "a result"} for each in calls]
    reply = server.post(body | {"messages": [*body["messages"], sent_back, *results]})
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"] == {"role": "assistant", "content": "Sunny."}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.parallel])
def test_b10_a_call_after_one_without_arguments_keeps_its_own(name: str) -> None:
    known = model(name)
    calls = [("now", "{}"), ("get_weather", PARIS)]
    text = written_calls(known.row, [ToolCall("", *each) for each in calls])
    assert known.replied(text, NOW, WEATHER) == called(*calls)


def test_b11_text_and_calls_may_come_at_once() -> None:
    text = f"Let me check.\n{IN_PARIS}\n{IN_OSLO}"
    assert model().replied(text, WEATHER) == called(*BOTH, content="Let me check.")
    deltas = model().deltas([text.encode()], WEATHER)
    assert [each["content"] for each in deltas if each.get("content")] == ["Let me check."]


@pytest.mark.parametrize("value", ["42", "true", "null", "[]", "{}"])
def test_b13_the_last_brace_after_a_value_that_is_no_text(value: str) -> None:
    arguments = f'{{"id": {value}}}'
    text, get = in_hermes("get_by_id", arguments), tool("get_by_id", id={})
    assert model().replied(text, get) == called(("get_by_id", arguments))
    ended = text.index("}}\n")
    deltas = call_deltas(model().deltas([text[:ended].encode(), text[ended:].encode()], get))
    assert "".join(each["function"]["arguments"] for each in deltas) == arguments


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder"])
def test_b14_the_first_number_may_be_cut_anywhere(name: str) -> None:
    known = model(name)
    arguments = '{"a": 12345, "b": "x"}'
    text = written_calls(known.row, [ToolCall("", "put", arguments)])
    put = tool("put", a={"type": "integer"}, b=TEXT)
    assert known.replied(text, put) == called(("put", arguments))
    for pieces in cut_once(text):
        deltas = call_deltas(known.deltas(pieces, put))
        assert "".join(each["function"]["arguments"] for each in deltas) == arguments


@EVERY_ROW
def test_b16_no_call_and_no_end_of_one_is_lost_between_chunks(name: str) -> None:
    known = model(name)
    arguments = '{"path": "/tmp/a b", "content": "one\\ntwo\\n\\"three\\" {4} [5]"}'
    calls = [("write_file", arguments), ("get_weather", OSLO), ("now", "{}")]
    calls = calls if known.row.parallel else calls[:1]
    text = written_calls(known.row, [ToolCall("", *each) for each in calls])
    assert known.replied(text, WRITE, WEATHER, NOW) == called(*calls)


def test_b17_a_call_of_two_texts_is_one_call() -> None:
    shell = tool("bash", command=TEXT, description=TEXT)
    text = in_qwen("bash", ("command", "cd /tmp\nls -l"), ("description", "Lists the files"))
    arguments = '{"command": "cd /tmp\\nls -l", "description": "Lists the files"}'
    assert model("qwen3-coder").replied(text, shell) == called(("bash", arguments))
    deltas = call_deltas(model("qwen3-coder").deltas(text, shell))
    assert {each["index"] for each in deltas} == {0}
    assert [each["function"]["name"] for each in deltas if "name" in each["function"]] == ["bash"]


@pytest.mark.parametrize("sign", ["🙂", "日"])
def test_b19_a_character_in_two_tokens_is_one_character(sign: str) -> None:
    text, arguments = f"A {sign}.", f'{{"city": "{sign}"}}'
    call = in_hermes("get_weather", arguments)
    said = f"{text}\n{call}"
    assert model().replied(said, WEATHER) == called(("get_weather", arguments), content=text)
    for pieces in cut_once(said):
        deltas = model().deltas(pieces, WEATHER)
        assert "".join(each.get("content") or "" for each in deltas) == text
        assert "".join(each["function"]["arguments"] for each in call_deltas(deltas)) == arguments
        assert "\ufffd" not in json.dumps(deltas, ensure_ascii=False)


def test_b20_escaped_and_plain_signs_are_readable_at_every_cut() -> None:
    """A delta alone is valid Unicode, and a client that decodes what has come so far never fails."""
    arguments = '{"city": "\\ud83d\\ude42 🙂"}'
    said = in_hermes("get_weather", arguments)
    assert model().replied(said, WEATHER) == called(("get_weather", arguments))
    for pieces in cut_once(said):
        come = ""
        for each in call_deltas(model().deltas(pieces, WEATHER)):
            each["function"]["arguments"].encode("utf-8")
            come += each["function"]["arguments"]
            if come:
                from_json(come, allow_partial="trailing-strings")
        assert json.loads(come) == {"city": "🙂 🙂"}


@pytest.mark.parametrize("tokens", [False, True])
def test_b22_the_last_channel_streams_although_there_are_tools(tokens: bool) -> None:
    tools = (WEATHER, READ, WRITE, SHELL, NOW)
    said = "<|channel|>analysis<|message|>17 times 23.<|end|><|start|>assistant<|channel|>final<|message|>391"
    known = model("harmony", tokens=tokens)
    assert known.replied(said, *tools) == Reply("391", reasoning="17 times 23.")
    deltas = known.deltas(said, *tools)
    assert [each["content"] for each in deltas if each.get("content")] == ["3", "9", "1"]


@pytest.mark.parametrize("pieces", [[IN_PARIS, "\n"], [IN_PARIS], [IN_PARIS, "\n", IN_OSLO]])
def test_b23_calls_in_an_earlier_chunk_are_the_reason_of_the_end(tmp_path: Any, pieces: list[str]) -> None:
    with playing(tmp_path, {"pieces": pieces}) as server:
        *_, last, _ = events(server.post(asking("x", stream=True)).text)
        whole = server.post(asking("x")).json()
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    assert whole["choices"][0]["finish_reason"] == "tool_calls"


def test_b25_what_only_begins_like_a_call_takes_nothing_back() -> None:
    begun = "<tool_call>\n<path"
    assert model().replied(begun, WEATHER) == Reply(begun)
    expected = Reply(begun, (BOTH[0],), finish="tool_calls")
    assert model().replied(f"{IN_PARIS}\n{begun}", WEATHER) == expected
    assert not model().allows(begun, WEATHER, whole=False)
    assert not model().allows(f"{IN_PARIS}\n{begun}", WEATHER, whole=False)
