"""Scripts: which line answers a request, what it is made to, and what comes of it over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripting import script
from serving import Serving, events, playing
from test_chat import WEATHER, call

from server.engine.protocol import Ended
from server.engine.scripted import Played, ScriptedJob, TimedText
from server.errors import StartupFailed, ToolspanError
from server.runner.model import load_model
from server.runner.prepare import Preparer
from server.runner.replay import load_script
from server.settings import BUILT_IN, Settings
from server.turn import Message, Tool, ToolChoice, Turn

CITY = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
GET = Tool("get_weather", parameters=CITY)
ROME = {"name": "get_weather", "arguments": {"city": "Rome"}}


class Script:
    """A script with its preparer, asked one thing after another."""

    def __init__(self, folder: Path, *lines: dict[str, Any], **settings: Any) -> None:
        given = Settings(replay=script(folder, *lines), **settings)
        self._preparer = Preparer(load_model(given), given)

    def answer(self, text: str = "Hi", **fields: Any) -> Played:
        turn = Turn((Message("user", text),), **{"tools": (GET,), **fields})
        job = self._preparer.prepare(1, turn).job
        assert isinstance(job, ScriptedJob)
        return job.answer

    def says(self, text: str = "Hi", **fields: Any) -> str:
        return self.answer(text, **fields).text

    def refusal(self, text: str = "Hi", **fields: Any) -> ToolspanError:
        with pytest.raises(ToolspanError) as caught:
            self.answer(text, **fields)
        return caught.value


# The file.


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "line 1"),
        ("{}\n\n[]", "line 3: Expected `object`"),
        ('{"txt": "a"}', "line 1: Object contains unknown field `txt`"),
        ('{"text": 1}', "line 1: Expected `str`"),
        ('{"pieces": [""]}', "line 1"),
        ('{"pieces": ["a", -1]}', "line 1"),
        ('{"pieces": [86400001]}', "line 1"),
        ('{"delay_ms": 86400001}', "line 1"),
        ('{"text": "a", "pieces": ["a"]}', "line 1: an answer is"),
        ('{"builtin": true, "calls": [{"name": "f"}]}', "line 1: an answer is"),
        ('{"calls": [{"name": "f", "arguments": "{}"}]}', "line 1: Expected `object`"),
        ('{"error": {"status": 200}}', "line 1"),
        ('{"ended": "later"}', "line 1"),
        ("[" * 100_000, "line 1"),
    ],
    ids=lambda each: each[:30],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(text)
    with pytest.raises(StartupFailed) as caught:
        load_script(str(path))
    assert what in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name in ("missing", "bytes", "."):
        with pytest.raises(StartupFailed, match="cannot read the script"):
            load_script(str(tmp_path / name))


def test_empty_lines_are_none() -> None:
    assert len(load_script(BUILT_IN)) == 1


# Which line.


def test_the_line_whose_cue_comes_last_answers(tmp_path: Path) -> None:
    lines = [{"text": "default"}, {"when": "a1", "text": "A"}, {"when": "b2", "text": "B"}]
    asked = Script(tmp_path, *lines, {"when": "2", "text": "later"}, {"when": "b2", "text": "never"})
    for text, said in [
        ("xyz", "default"),
        ("a1 b2 c", "later"),
        ("b2 a1", "A"),
        ("a1 b2 a1", "A"),
        ("b2b", "later"),
    ]:
        assert asked.says(text) == said


def test_of_equal_cues_the_first_answers(tmp_path: Path) -> None:
    asked = Script(tmp_path, {"when": "x", "text": "one"}, {"when": "x", "text": "two"})
    assert [asked.says("x"), asked.says("x")] == ["one", "one"]


def test_a_line_for_once_gives_way(tmp_path: Path) -> None:
    asked = Script(tmp_path, {"text": "one", "once": True}, {"text": "two", "once": True})
    assert [asked.says(), asked.says()] == ["one", "two"]
    assert asked.refusal().code == "no_scripted_answer"


def test_a_request_that_no_line_fits_is_refused(tmp_path: Path) -> None:
    error = Script(tmp_path, {"when": "x", "text": "one"}).refusal("y")
    assert (error.status, error.code) == (400, "no_scripted_answer")


# What it says.


def test_parts_are_written_as_the_dialect_has_them(tmp_path: Path) -> None:
    asked = Script(
        tmp_path, {"reasoning": "Well.", "text": "I look.", "calls": [ROME, {**ROME, "arguments": {}}]}
    )
    wanted = "<think>Well.</think>\n\nI look." + call("Rome")
    open_arguments = Tool("get_weather", parameters='{"type": "object"}')
    said = asked.says(tools=(open_arguments,))
    assert said.startswith(wanted)
    assert said.endswith('"arguments": {}}\n</tool_call>')


def test_arguments_keep_their_digits_and_get_the_spaces_of_models(tmp_path: Path) -> None:
    numbers = {"a": 12345678901234567890123, "b": [1.0, 1e3]}
    asked = Script(tmp_path, {"calls": [{"name": "f", "arguments": numbers}]})
    said = asked.says(tools=(Tool("f", parameters='{"type": "object"}'),))
    assert '{"a": 12345678901234567890123, "b": [1.0, 1000.0]}' in said


def test_what_a_request_lets_no_model_say_is_left_out(tmp_path: Path) -> None:
    asked = Script(tmp_path, {"reasoning": "Well.", "text": "I look.", "calls": [ROME]})
    assert asked.says() == "<think>Well.</think>\n\nI look." + call("Rome")
    assert asked.says(reasoning_budget=0) == "I look." + call("Rome")
    must = ToolChoice("required")
    assert asked.says(tool_choice=must) == "<think>Well.</think>\n\n" + call("Rome")
    assert asked.says(tool_choice=must, reasoning_budget=0) == call("Rome")


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ({"calls": [ROME]}, {"tool_choice": ToolChoice("none")}),
        ({"calls": [ROME]}, {"tools": ()}),
        ({"calls": [ROME, {**ROME, "arguments": {"city": "Oslo"}}]}, {"parallel_tool_calls": False}),
        ({"calls": [{"name": "other"}]}, {}),
        ({"calls": [{**ROME, "arguments": {"city": 1}}]}, {}),
        ({"text": "Hi"}, {"tool_choice": ToolChoice("required")}),
        ({}, {"tool_choice": ToolChoice("required")}),
        ({"text": call("Rome")[:-3]}, {}),
    ],
)
def test_an_answer_that_no_model_could_give_is_refused(
    tmp_path: Path, line: dict[str, Any], fields: dict[str, Any]
) -> None:
    error = Script(tmp_path, line).refusal(**fields)
    assert (error.status, error.code) == (400, "scripted_answer_not_allowed")


def test_a_cut_answer_need_not_be_whole_and_raw_pieces_are_played_as_they_are(tmp_path: Path) -> None:
    cut = call("Rome")[:-3]
    assert Script(tmp_path, {"text": cut, "ended": "length"}).answer() == Played(
        (tuple(TimedText(cut[at : at + 4]) for at in range(0, len(cut), 4)),), Ended.LENGTH
    )
    assert Script(tmp_path, {"pieces": [cut]}).says(tool_choice=ToolChoice("none")) == cut


def test_chunks_and_silence(tmp_path: Path) -> None:
    timed = {"text": "abcde", "delay_ms": 10, "prefill_ms": 500}
    assert Script(tmp_path, timed, chunk=2).answer().takes == (
        (TimedText("ab", 0.51), TimedText("cd", 0.01), TimedText("e", 0.01)),
    )
    raw = {"pieces": ["abcde", 1000, 200, "f", 300]}
    assert Script(tmp_path, raw, chunk=1).answer().takes == (
        (TimedText("abcde"), TimedText("f", 1.2), TimedText("", 0.3)),
    )


# Over HTTP.

LINES: list[dict[str, Any]] = [
    {
        "when": "both",
        "reasoning": "Hm.",
        "text": "I look.",
        "calls": [ROME, {**ROME, "arguments": {"city": "Oslo"}}],
    },
    {"when": "busy", "error": {"status": 429, "message": "slow down", "code": "busy", "retry_after": 7}},
    {"when": "broken", "error": {"status": 500}},
    {"when": "breaks", "text": "So f", "ended": "dead_end"},
    {"builtin": True},
]


@pytest.fixture(scope="module", params=[1, 4, 1000], ids=lambda chunk: f"chunk {chunk}")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("replay"), *LINES, chunk=request.param) as running:
        yield running


def say(*messages: Any, **fields: Any) -> dict[str, Any]:
    told = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
    return {"messages": told, "tools": [WEATHER], **fields}


def test_a_whole_answer(server: Serving) -> None:
    message = server.post(say("both")).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "I look.")
    calls = [json.loads(each["function"]["arguments"]) for each in message["tool_calls"]]
    assert calls == [{"city": "Rome"}, {"city": "Oslo"}]


def test_a_streamed_answer_says_the_same(server: Serving) -> None:
    chunks = events(server.post(say("both", stream=True)).text)
    deltas = [each["choices"][0]["delta"] for each in chunks[:-1]]
    assert "".join(each.get("reasoning_content") or "" for each in deltas) == "Hm."
    assert "".join(each.get("content") or "" for each in deltas) == "I look."
    calls = [call for each in deltas for call in each.get("tool_calls", [])]
    assert [each["function"]["name"] for each in calls if "id" in each] == ["get_weather"] * 2
    written = [
        "".join(each["function"]["arguments"] for each in calls if each["index"] == at) for at in (0, 1)
    ]
    assert [json.loads(each) for each in written] == [{"city": "Rome"}, {"city": "Oslo"}]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_in_place_of_an_answer_has_its_status(server: Serving, stream: bool) -> None:
    reply = server.post(say("busy", stream=stream))
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
    assert reply.json()["error"] == {
        "message": "slow down",
        "type": "rate_limit_error",
        "param": None,
        "code": "busy",
    }
    assert server.post(say("broken", stream=stream)).status_code == 500


def test_an_error_within_an_answer_ends_its_stream(server: Serving) -> None:
    chunks = events(server.post(say("breaks", stream=True)).text)
    assert chunks[-2]["error"]["code"] == "constraint_dead_end"
    assert chunks[-1] == "[DONE]"


def test_the_built_in_script_over_a_tool_loop(server: Serving) -> None:
    first = server.post(say("Call get_weather for `Bern`.")).json()["choices"][0]["message"]
    (made,) = first["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"city": "Bern"}
    result = {"role": "tool", "tool_call_id": made["id"], "content": "snow"}
    body = say("Call get_weather for `Bern`.", first, result)
    assert server.post(body).json()["choices"][0]["message"]["content"] == "snow"


RESULTS = [
    "",
    "\n",
    '{"name": "get_weather", "arguments": {"city": 5}}',
    '{"name": "get_weather", "arguments": {"city": "Rome"}}',
    '```json\n{"name": "get_weather"',
    call("Rome"),
    "</tool_call><tool_call>\n{",
    "<think>no</think>",
    "a<<tool_call>tool_call>b",
    "<|im_end|>\x00\x1b 🙂",
]


@pytest.mark.parametrize("stop", [None, "Rome"])
@pytest.mark.parametrize("result", RESULTS)
def test_a_result_that_is_said_is_text_whatever_it_says(
    server: Serving, result: str, stop: str | None
) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]
    called = {"role": "assistant", "content": None, "tool_calls": calls}
    reply = server.post(
        say("Go", called, {"role": "tool", "tool_call_id": "1", "content": result}, stop=stop)
    )
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    cut = result.split("Rome")[0] if stop else result
    said = (choice["message"]["content"] or "").removeprefix("Result: ")
    assert said.replace(" ", "").strip() == cut.replace(" ", "").strip()
