"""What users have reported about requests, histories and templates in local servers, distilled into cases;
the number in a test's name is the case's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chunks import folded
from driving import answer
from fake_llama import FakeLlama, engine, job
from replies import OSLO, PARIS, READ, ROWS, WEATHER, Reply, called, in_hermes, model, reply_of, tool
from serving import Serving, events, playing, serving
from test_chat import WEATHER as WEATHER_BODY
from test_chat import told
from test_prompt import TOOLS, assistant, call, prompter, result, system, user

from server.dialects.form import written_calls
from server.engine.protocol import Ended, Engine, Model, Progress, SequenceId
from server.engine.scripted import TEMPLATE, ByteVocabulary
from server.errors import InvalidRequest
from server.events import Text
from server.prompt.prompt import CHATML
from server.runner.answer import Answer
from server.runner.model import model_of
from server.settings import Settings
from server.turn import Message, ResponseFormat, ToolCall, ToolChoice, Turn

EVERY_ROW = pytest.mark.parametrize("name", ROWS)
IN_PARIS, IN_OSLO = in_hermes("get_weather", PARIS), in_hermes("get_weather", OSLO)
TIME_BODY = {"type": "function", "function": {"name": "get_time"}}
ANSWERS: list[dict[str, Any]] = [
    {"text": "Hello."},
    {"when": "a call", "text": f"Well. {IN_PARIS}"},
    {"when": "42.69", "text": "It is 42.69."},
    {"when": "no number", "takes": ["Hello."]},
    {"when": "a number", "text": '{"n": 1}'},
]
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("requests"), *ANSWERS) as running:
        yield running


def saying(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def refusal(server: Serving, body: dict[str, Any]) -> dict[str, Any]:
    reply = server.post(body)
    assert reply.status_code == 400, reply.text
    return dict(reply.json()["error"])


def rendered(source: str, *messages: Message, tools: Any = TOOLS) -> str:
    return prompter(source).prompt(Turn(messages, tools)).text


# What may be called.


@EVERY_ROW
def test_b97_a_named_tool_is_the_only_one(name: str) -> None:
    calls = [("read_file", '{"path": "a"}'), ("get_weather", PARIS)]
    other, wanted = (written_calls(model(name).row, [ToolCall("", *each)]) for each in calls)
    choice = ToolChoice("required", ("get_weather",))
    assert model(name).allows(wanted, READ, WEATHER, tool_choice=choice)
    assert not model(name).allows(other, READ, WEATHER, tool_choice=choice)
    assert not model(name).allows("Hi", READ, WEATHER, tool_choice=choice, whole=False)


@pytest.mark.parametrize("stream", [False, True])
def test_b97_a_name_that_no_tool_has_is_refused(server: Serving, stream: bool) -> None:
    body = saying("Hi", tools=[WEATHER_BODY], tool_choice=named("get_time"), stream=stream)
    error = refusal(server, body)
    assert error["param"] == "tool_choice"
    assert "'get_time'" in error["message"]


def test_b98_a_model_that_would_chat_calls_if_it_must() -> None:
    city = tool("get_weather", city={"enum": ["Paris"]})
    forced: dict[str, Any] = {"tool_choice": ToolChoice("required"), "parallel_tool_calls": False}
    known = model("longcat")
    free = known.prepared(city).constraint
    bound = known.prepared(city, **forced).constraint
    talker = engine(FakeLlama(likes=b"xHello, how are you?", context=1024))
    assert answer(talker, job(1, "x", free, max_tokens=256)).text == "Hello, how are you?"
    said = answer(talker, job(2, "x", bound, max_tokens=256))
    assert said.ended is Ended.STOP
    assert known.replied(said.text, city, **forced) == called(("get_weather", PARIS))


def test_b100_after_the_one_call_nothing_more_is_generated() -> None:
    both = f"{IN_PARIS}\n{IN_OSLO}"
    caller = engine(FakeLlama(likes=f"x{both}".encode(), context=1024))
    for parallel, text in ((True, both), (False, IN_PARIS)):
        constraint = model().prepared(WEATHER, parallel_tool_calls=parallel).constraint
        said = answer(caller, job(1 + parallel, "x", constraint, max_tokens=400))
        assert (said.text, said.ended) == (text, Ended.STOP)
    assert not model().allows(f"{IN_PARIS}\n", WEATHER, parallel_tool_calls=False, whole=False)


LENIENT: list[dict[str, Any]] = [
    {"tools": None},
    {"tools": []},
    {"tools": None, "tool_choice": None},
    {"tools": [], "tool_choice": "auto"},
    {"tool_choice": "none"},
    {"tools": [WEATHER_BODY], "tool_choice": "none"},
    {"tools": [WEATHER_BODY], "tool_choice": None},
]


@pytest.mark.parametrize("fields", LENIENT, ids=json.dumps)
def test_b101_no_tools_are_no_mistake(server: Serving, fields: dict[str, Any]) -> None:
    body = saying("Hi", **fields)
    expected = Reply("Hello.")
    assert reply_of(server.post(body).json()) == expected
    assert reply_of(folded(told(server, body))) == expected


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("choice", ["required", named("get_weather")], ids=["required", "named"])
def test_b101_a_forced_call_of_no_tool_is_refused(server: Serving, tools: Any, choice: Any) -> None:
    assert refusal(server, saying("Hi", tools=tools, tool_choice=choice))["param"] == "tool_choice"


def test_b101_tools_that_may_not_be_called_are_shown() -> None:
    choice = ToolChoice("none")
    prompt = prompter(TEMPLATE).prompt(Turn((user(),), TOOLS, choice)).text
    assert prompt == prompter(TEMPLATE).prompt(Turn((user(),), TOOLS)).text
    assert '"get_weather"' in prompt
    assert model().replied("Hello.", WEATHER, tool_choice=choice) == Reply("Hello.")


# Histories.


def test_b103_content_may_be_null_beside_calls(server: Serving) -> None:
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    }
    answered = {"role": "tool", "tool_call_id": "c1", "content": "42.69"}
    reply = server.post(saying("Hi") | {"messages": [*saying("Hi")["messages"], calling, answered]})
    assert reply.status_code == 200, reply.text
    assert reply_of(reply.json()) == Reply("It is 42.69.")


def test_b104_a_turn_of_calls_alone_is_shown(templates: dict[str, str]) -> None:
    for name, source in templates.items():
        text = rendered(source, user(), assistant(None, call("call00001")), result("call00001"))
        places = [text.rindex(word) for word in ("QUESTION", "PARIS", "OUTCOME")]
        assert places == sorted(places), name


DEVELOPER = Message("developer", "FIRST")
LATER = (user(), assistant(), Message("developer", "FIRST"), user("SECOND"))


def test_b106_a_developer_is_the_system(templates: dict[str, str]) -> None:
    gemma, qwen = templates["google-gemma-2-2b-it"], templates["Qwen-Qwen2.5-7B-Instruct"]
    gpt, qwen3 = templates["openai-gpt-oss-120b"], templates["Qwen3.5-4B"]
    both = (system(), DEVELOPER, user())
    started = "<|im_start|>{}\n{}<|im_end|>\n"
    for messages, in_qwen, in_gemma, in_gpt in (
        ((DEVELOPER, user()), [("system", "FIRST")], "FIRST", "FIRST"),
        (both, [("system", "RULES"), ("system", "FIRST")], "RULES\n\nFIRST", "RULES\n\nFIRST"),
    ):
        shown = "".join(started.format(*each) for each in [*in_qwen, ("user", "QUESTION")])
        assert rendered(qwen, *messages, tools=()).startswith(shown)
        assert f"<start_of_turn>user\n{in_gemma}\n\nQUESTION<" in rendered(gemma, *messages, tools=())
        instructed = f"<|start|>developer<|message|># Instructions\n\n{in_gpt}\n\n<|end|>"
        assert instructed in rendered(gpt, *messages, tools=())
    assert started.format("system", "RULES\n\nFIRST") in rendered(qwen3, *both, tools=())
    own = CHATML + "{# 'developer' #}"
    assert rendered(own, DEVELOPER, user(), tools=()).count("FIRST") == 1


@pytest.mark.parametrize("role", ["system", "developer"])
def test_b107_rules_after_the_first_question_stay_or_go_first(templates: dict[str, str], role: Any) -> None:
    messages = (user(), assistant(), Message(role, "RULES"), user("SECOND"))
    for name, source in templates.items():
        text = rendered(source, *messages, tools=())
        assert text.count("RULES") == 1, name
        assert text.index("RULES") < text.index("SECOND"), name
    qwen = rendered(templates["Qwen-Qwen2.5-7B-Instruct"], *messages, tools=())
    assert "REPLY<|im_end|>\n<|im_start|>system\nRULES<|im_end|>\n<|im_start|>user\nSECOND" in qwen
    first = rendered(templates["google-gemma-2-2b-it"], *messages, tools=())
    assert "user\nRULES\n\nQUESTION<end_of_turn>\n<start_of_turn>model\nREPLY<" in first


LLAMAS = ("3.1-8B-Instruct", "3.2-3B-Instruct", "3.3-70B-Instruct")


@pytest.mark.parametrize("name", LLAMAS)
def test_b109_two_calls_become_two_turns(templates: dict[str, str], name: str) -> None:
    calls = (call("c1", arguments=PARIS), call("c2", arguments=OSLO))
    history = (user(), assistant(None, *calls), result("c2", "7"), result("c1", "12"))
    text = rendered(templates[f"meta-llama-Llama-{name}"], *history)
    head = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>"
    assert text.endswith(
        head.format("assistant", f'{{"name": "get_weather", "parameters": {PARIS}}}')
        + head.format("ipython", '"12"')
        + head.format("assistant", f'{{"name": "get_weather", "parameters": {OSLO}}}')
        + head.format("ipython", '"7"')
        + "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


SHOWING_IDS = ("Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Mistral-Nemo-Instruct-2407")


@pytest.mark.parametrize("name", SHOWING_IDS)
def test_b110_ids_of_any_form_are_shown_as_nine_signs(templates: dict[str, str], name: str) -> None:
    ids = ("call_abc-123", "0b6d1c1e-7b5f-4c3d-9a57-5e2f6f1a2b3c", "abcDEF123")
    calls = [call(id, arguments=f'{{"city": "CITY{at}"}}') for at, id in enumerate(ids)]
    results = [result(id, f"RESULT{at}") for at, id in enumerate(ids)]
    text = rendered(templates[name], user(), assistant(None, *calls), *results)
    places = r"\[CALL_ID\](.*?)\[ARGS\]|\[TOOL_RESULTS\](.*?)\[TOOL_CONTENT\]|id\": \"(.*?)\""
    shown = ["".join(found) for found in re.findall(places, text)]
    assert shown[: len(ids)] == shown[len(ids) :]
    assert len(set(shown)) == len(ids)
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in shown)
    assert ids[2] in shown


def test_b112_a_result_belongs_to_a_call(server: Serving) -> None:
    """By its id, or in order; a result of no open call is refused."""
    one = (user(), assistant(None, call("c1")), result(None))
    assert rendered(TEMPLATE, *one).endswith(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "PARIS"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>tool\nOUTCOME<|im_end|>\n<|im_start|>assistant\n"
    )
    calls = assistant(None, call("c1"), call("c2", arguments=OSLO))
    swapped = rendered(TEMPLATE, user(), calls, result("other", "SECOND"), result("c1", "FIRST"))
    assert swapped == rendered(TEMPLATE, user(), calls, result("c1", "FIRST"), result("c2", "SECOND"))
    for messages in ((user(), result("c1")), (*one, result("c1"))):
        with pytest.raises(InvalidRequest) as caught:
            rendered(TEMPLATE, *messages)
        assert caught.value.param == f"messages[{len(messages) - 1}].tool_call_id"
    orphan = {"role": "tool", "tool_call_id": "c1", "content": "42.69"}
    error = refusal(server, {"messages": [*saying("Hi")["messages"], orphan]})
    assert error["param"] == "messages[1].tool_call_id"
    assert error["type"] == "invalid_request_error"


def test_b113_results_stand_in_the_order_of_their_calls(templates: dict[str, str]) -> None:
    calls = [call(f"call0000{at}", arguments=f'{{"city": "CITY{at}"}}') for at in range(3)]
    results = [result(f"call0000{at}", f"RESULT{at}") for at in range(3)]
    for name, source in templates.items():
        texts = {
            rendered(source, user(), assistant(None, *calls), *(results[at] for at in order))
            for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0))
        }
        assert len(texts) == 1, name
        text = texts.pop()
        places = [text.rindex(f"RESULT{at}") for at in range(3)]
        assert places == sorted(places), name


RESPONSES = "/v1/responses"
READING = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": PARIS}


def answered(server: Serving, **fields: Any) -> Any:
    """What the Responses API tells of an answer."""
    reply = server.request("POST", RESPONSES, json=fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_b115_the_result_of_a_call_may_come_in_parts(server: Serving) -> None:
    """Its texts are read; the model can't see pictures, and the request is told which one it is."""
    for kind in ("input_text", "output_text"):
        parts = [{"type": kind, "text": "It was "}, {"type": kind, "text": "42.69"}]
        result = {"type": "function_call_output", "call_id": "c1", "output": parts}
        told_of = answered(server, input=[{"role": "user", "content": "Which?"}, READING, result])
        assert told_of["output"][-1]["content"][0]["text"] == "It is 42.69."
    seen = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:,"}]
    result = {"type": "function_call_output", "call_id": "c1", "output": seen}
    reply = server.request("POST", RESPONSES, json={"input": [READING, result]})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == ("input[1].output[1]", "model_has_no_vision")


@pytest.mark.parametrize(
    "other",
    [
        {"type": "custom", "name": "patch"},
        {"type": "web_search"},
        {"type": "namespace", "name": "x", "tools": []},
        {"type": "image_generation"},
    ],
    ids=lambda each: str(each["type"]),
)
def test_b116_tools_that_are_no_functions_are_passed_over(server: Serving, other: dict[str, Any]) -> None:
    weather = {"type": "function", **WEATHER_BODY["function"]}
    for tools in ([other, weather], [weather, other]):
        told_of = answered(server, input="a call", tools=tools)
        called_for = [each for each in told_of["output"] if each["type"] == "function_call"]
        assert [(each["name"], each["arguments"]) for each in called_for] == [("get_weather", PARIS)]
    assert answered(server, input="Hi", tools=[other])["output"][-1]["content"][0]["text"] == "Hello."


# Forms of answers.


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.opener])
def test_b118_an_answer_of_a_form_may_be_a_call_instead(name: str) -> None:
    known = model(name)
    form: dict[str, Any] = {"response_format": ResponseFormat("json_schema", "n", json.dumps(NUMBER))}
    segment = next((each for each in known.row.text if not each.onward), None)
    said = f'{segment.open}{{"n": 1}}{segment.close}' if segment else '{"n": 1}'
    calling = written_calls(known.row, [ToolCall("", "get_weather", PARIS)])
    assert known.allows(said, WEATHER, **form)
    assert known.allows(calling, WEATHER, **form)
    assert known.replied(said, WEATHER, **form) == Reply('{"n": 1}')
    assert known.replied(calling, WEATHER, **form) == called(("get_weather", PARIS))
    for other in ("Hi", said.replace("1", "true"), said.replace('"n"', '"m"')):
        assert not known.allows(other, WEATHER, **form)


def test_b119_a_schema_that_is_taken_is_kept(server: Serving) -> None:
    described = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
    reply = server.post(saying("a number", response_format=described))
    assert reply_of(reply.json()) == Reply('{"n": 1}')
    failed = server.post(saying("no number", response_format=described))
    assert failed.status_code == 500
    assert failed.json()["error"]["code"] == "schema_not_satisfied"
    assert not model().allows("Hello.", response_format=ResponseFormat("json_object"), whole=False)


def loaded(template: str) -> Any:
    own = Model("none", 4096, 4096, 1, template)
    made = SimpleNamespace(vocabulary=ByteVocabulary(), model=own)
    return model_of(cast(Engine, made), Settings(model="m.gguf"))


def test_b121_a_model_that_knows_no_tools_is_told_of_them(tmp_path: Any) -> None:
    known = loaded(CHATML)
    assert (known.facts.dialect, known.facts.tools) == ("generic", True)
    text = known.prompter.prompt(Turn((user(),), TOOLS)).text
    assert text.startswith("<|im_start|>system\n# Functions\n")
    assert all(f'"name":"{each.name}"' in text for each in TOOLS)
    with playing(tmp_path) as server:
        (shown,) = server.get("/v1/models").json()["data"]
    assert (shown["dialect"], shown["tools"]) == ("hermes", True)


def test_b122_a_template_that_ignores_tools_is_found_out() -> None:
    """It writes calls like a dialect that is known, and shows no tools."""
    ignoring = TEMPLATE.replace("{%- if tools %}", "{%- if false %}")
    assert ignoring != TEMPLATE
    known = loaded(ignoring)
    assert known.facts.warnings == (
        "the chat template shows no tools: they are described in the system text",
    )
    text = known.prompter.prompt(Turn((user(),), TOOLS)).text
    assert all(f'"name":"{each.name}"' in text for each in TOOLS)
    assert loaded(TEMPLATE).facts.warnings == ()


def test_b124_an_index_stands_beside_an_id(server: Serving) -> None:
    chunks = events(server.post(saying("a call", tools=[WEATHER_BODY], stream=True)).text)[:-1]
    calls = [each for chunk in chunks for each in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert set(calls[0]) == {"index", "id", "type", "function"}
    assert all("index" in each and "index" not in each["function"] for each in calls)


def test_b125_logprobs_are_those_of_the_text_beside_calls() -> None:
    ready = model().prepared(WEATHER)
    caller = engine(FakeLlama(likes=f"xHi you.\n{IN_PARIS}".encode(), context=1024))
    said = answer(caller, job(1, "x", ready.constraint, max_tokens=400, top_logprobs=2))
    choice = Answer(ready.plan, trusted=True)
    step = choice.feed(Progress(SequenceId(1, 0), tuple(said.pieces), said.ended))
    texts = [event for event in step.events if isinstance(event, Text)]
    assert "".join(event.text for event in texts) == "Hi you."
    tokens = [each for event in texts for each in event.logprobs]
    assert b"".join(each.data for each in tokens) == b"Hi you."
    assert all(len(each.top) == 2 and each.logprob <= 0 for each in tokens)


def test_b125_logprobs_stream_beside_calls() -> None:
    steps: list[list[Any]] = [["scored", "a"], ["scored", "é"], ["call", "get_weather", PARIS]]
    fields = {"logprobs": True, "tools": [WEATHER_BODY]}
    with serving() as fake:
        streamed = folded(fake.streamed(*steps, **fields))
        whole = fake.chat(*steps, **fields).json()
    for each in (streamed, whole):
        assert reply_of(each) == called(("get_weather", PARIS), content="aé")
        tokens = each["choices"][0]["logprobs"]["content"]
        assert [(token["token"], token["bytes"]) for token in tokens] == [("a", [97]), ("é", [195, 169])]
