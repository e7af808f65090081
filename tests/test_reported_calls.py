"""What users have reported about the calls of local servers, lost, invented or changed, distilled into cases;
the number in a test's name is the case's."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from chunks import folded
from languages import tokenizer_of
from llguidance import LLMatcher
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
    reply_of,
    tool,
)
from serving import Serving, playing
from test_chat import WEATHER as WEATHER_BODY
from test_chat import told
from test_chat_request import turn
from test_history import arguments as of_history
from test_prompt import assistant, call, prompter, result, user

from server.dialects.form import Notation, span_form, written_calls
from server.engine.protocol import Ended
from server.turn import ResponseFormat, Tool, ToolCall, ToolChoice, Turn

EVERY_ROW = pytest.mark.parametrize("name", ROWS)
ELEMENT_ROWS = pytest.mark.parametrize(
    "name", [name for name, row in ROWS.items() if span_form(row).elements is not None]
)
JSON_ROWS = pytest.mark.parametrize(
    "name", [name for name, row in ROWS.items() if span_form(row).notation is Notation.JSON]
)
IN_PARIS, IN_OSLO = in_hermes("get_weather", PARIS), in_hermes("get_weather", OSLO)
CUT = in_hermes("write_file", '{"path": "a", "content": "abc"}').partition('c"}')[0]
BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"]}\n</tool_call>'
ANSWERS: list[dict[str, Any]] = [
    {"when": "a call", "text": IN_PARIS},
    {"when": "a cut call", "text": IN_PARIS.partition('is"')[0], "ended": "length"},
    {"when": "a broken call", "takes": [BROKEN]},
    {"when": "an unknown call", "pieces": ["<tool_call>\n", "<function", "=list", ">", "</function>"]},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("calls"), *ANSWERS) as running:
        yield running


def asking(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": [WEATHER_BODY], **fields}


def both_ways(server: Serving, body: dict[str, Any]) -> Reply:
    """What a request is told, which must be the same as a stream and as a whole."""
    whole = server.post(body)
    assert whole.status_code == 200, whole.text
    streamed = reply_of(folded(told(server, body)))
    assert reply_of(whole.json()) == streamed
    return streamed


def written(name: str, function: str, arguments: str) -> str:
    return written_calls(model(name).row, [ToolCall("", function, arguments)])


# Leaked, lost, invented.


def test_b26_all_calls_after_a_text_are_calls() -> None:
    greet, add = tool("say_hello", to=TEXT), tool("add", a={"type": "integer"}, b={"type": "integer"})
    calls = [("say_hello", '{"to": "Ann"}'), ("add", '{"a": 1, "b": 2}')]
    said = "\n".join(["Because of scattering.", *(in_hermes(*each) for each in calls)])
    assert model().replied(said, greet, add) == called(*calls, content="Because of scattering.")


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not span_form(row).closing])
def test_b28_a_call_that_only_the_end_closes_is_a_call(name: str) -> None:
    said = written(name, "get_weather", PARIS)
    assert model(name).replied(said, WEATHER) == called(("get_weather", PARIS))


@EVERY_ROW
def test_b29_a_call_that_nothing_closes_is_one_if_its_arguments_are_whole(name: str) -> None:
    said = written(name, "get_weather", PARIS)
    closing = span_form(model(name).row).closing
    unclosed = said[: said.rindex(closing)].rstrip() if closing else said
    assert model(name).replied(unclosed, WEATHER) == called(("get_weather", PARIS))
    half = said[: said.index("ris")]
    assert model(name).replied(half, WEATHER) == Reply(half)


SIGNS = ("}A", "{", "[", "]", '"}', "<", "\\", '{"name": "write_log"')


@pytest.mark.parametrize(
    ("name", "signs"), [("llama3-json", each) for each in SIGNS] + [(name, "".join(SIGNS)) for name in ROWS]
)
def test_b31_no_sign_in_a_text_ends_a_call(name: str, signs: str) -> None:
    arguments = json.dumps({"message": signs})
    said = written(name, "write_log", arguments)
    assert model(name).replied(said, tool("write_log", message=TEXT)) == called(("write_log", arguments))


def test_b32_malformed_calls_are_no_fault_of_the_server(server: Serving) -> None:
    said = (
        "<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>"
        '{"path":"a","content":"x"]}'
    )
    assert model("harmony").replied(said, WRITE) == Reply(said)
    assert not model("harmony").allows(said, WRITE, whole=False)
    assert both_ways(server, asking("a broken call")) == Reply(BROKEN)


@EVERY_ROW
def test_b34_a_call_of_no_tool_of_the_request_is_shown(name: str) -> None:
    said = written(name, "delete_all", PARIS)
    assert model(name).replied(said, WEATHER) == Reply(said)
    assert model(name).replied(said) == Reply(said)
    # Where calls have no markers, this is JSON like any other.
    assert model(name).allows(said, WEATHER) is not bool(model(name).row.opener)


BARE = '{{"name": "get_weather", "{}": {{"city": "Paris"}}}}'


@pytest.mark.parametrize(("name", "key"), [("llama3-json", "parameters"), ("hermes", "arguments")])
def test_b35_json_that_begins_an_answer_and_calls_a_tool_is_a_call(name: str, key: str) -> None:
    known, bare = model(name), BARE.format(key)
    for said in (bare, f"```json\n{bare}\n```", f"```\n{bare}\n```"):
        assert known.allows(said, WEATHER)
        assert known.replied(said, WEATHER) == called(("get_weather", PARIS))
    for said in (f"So: {bare}", bare.replace("get_weather", "delete_all")):
        assert known.replied(said, WEATHER) == Reply(said)
        assert known.replied(bare) == Reply(bare)
    form = ResponseFormat("json_object")
    assert model().replied(BARE.format("a"), WEATHER, response_format=form) == Reply(BARE.format("a"))


THOUGHT = "<|channel|>analysis<|message|>Need data."


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("arguments", ['{"city":"Paris"}', PARIS])
def test_b37_no_markup_of_channels_leaves(tokens: bool, arguments: str) -> None:
    """The token that ends such a call ends the turn, so it is not part of the answer's text."""
    said = (
        f"{THOUGHT}<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{arguments}"
    )
    expected = called(("get_weather", arguments), reasoning="Need data.")
    assert model("harmony", tokens=tokens).replied(said, WEATHER) == expected


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("thought", ["", f"{THOUGHT}<|end|><|start|>assistant"], ids=["alone", "thought"])
def test_b38_a_recipient_may_stand_in_the_header_of_a_role(thought: str, tokens: bool) -> None:
    known = model("harmony", tokens=tokens)
    header = " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"
    said = f"{thought}{header}{PARIS}"
    expected = called(("get_weather", PARIS), reasoning="Need data." if thought else "")
    for choice in (ToolChoice(), ToolChoice("required")):
        assert known.allows(said, READ, WEATHER, tool_choice=choice)
        assert not known.allows(said.replace("get_weather", "get"), READ, WEATHER, tool_choice=choice)
        assert known.replied(said, READ, WEATHER, tool_choice=choice) == expected


@JSON_ROWS
def test_b40_a_call_without_its_last_brace_is_not_lost(name: str) -> None:
    said = written(name, "get_weather", PARIS)
    said = said[::-1].replace("}", "", 1)[::-1]
    assert model(name).replied(said, WEATHER) == Reply(said)
    assert not model(name).allows(said, WEATHER)


def test_b41_a_closer_that_comes_twice_breaks_nothing() -> None:
    said = in_qwen("read_file", ("path", "a")).replace("</parameter>", "</parameter>\n</parameter>")
    assert model("qwen3-coder").replied(said, READ) == Reply(said)
    assert not model("qwen3-coder").allows(said, READ)


def test_b43_a_token_beyond_the_end_of_a_marker_is_masked_or_text(server: Serving) -> None:
    words = ("<function", "=list", "=read_file")
    known = model("qwen3-coder")
    grammar = LLMatcher.grammar_from_lark(known.prepared(READ, tool_choice=ToolChoice("required")).constraint)
    matcher = LLMatcher(tokenizer_of((), words), grammar, log_level=0)
    begun = [*b"<tool_call>\n", 257]
    assert matcher.try_consume_tokens(begun) == len(begun)
    assert matcher.validate_tokens([258]) == 0
    assert matcher.validate_tokens([259]) == 1
    said = "<tool_call>\n<function=list></function>"
    assert both_ways(server, asking("an unknown call")) == Reply(said)
    assert both_ways(server, asking("a call")) == called(("get_weather", PARIS))


def described(text: str) -> Tool:
    place = {"type": "string", "description": text}
    schema = {"type": "object", "description": text, "properties": {"place": place}, "required": ["place"]}
    return Tool("look_up", text, json.dumps(schema))


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "gemma4"])
def test_b44_descriptions_are_no_part_of_the_constraint(name: str) -> None:
    chance = random.Random(44)
    parts = ['"', "\\", "::=", "\n", "{0,3}", "%json", "/", "|", "root", "é", "<tool_call>", "$ref", " "]
    texts = ["".join(chance.choices(parts, k=chance.randrange(1, 60))) for _ in range(50)]
    constraints = {model(name).prepared(described(text)).constraint for text in [*texts, "x" * 5000, ""]}
    assert len(constraints) == 1


NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
def test_b46_calls_are_the_reason_of_the_end_whatever_was_asked(server: Serving, choice: Any) -> None:
    assert both_ways(server, asking("a call", tool_choice=choice)) == called(("get_weather", PARIS))


@EVERY_ROW
def test_b47_a_call_that_is_cut_is_a_matter_of_length(name: str) -> None:
    said = written(name, "get_weather", PARIS)
    half = PARIS.partition("ris")[0]
    cut = model(name).replied(said.partition("ris")[0], WEATHER, ended=Ended.LENGTH)
    assert cut == Reply(None, (("get_weather", half),), finish="length")


def test_b47_the_request_of_a_cut_call_has_not_failed(server: Serving) -> None:
    half = (("get_weather", '{"city": "Par'),)
    assert both_ways(server, asking("a cut call")) == Reply(None, half, finish="length")


@pytest.mark.parametrize("tokens", [False, True])
def test_b49_a_call_without_its_header_is_not_lost_in_a_thought(tokens: bool) -> None:
    """Where markers are tokens it can't be written there."""
    call = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{PARIS}"
    known = model("harmony", tokens=tokens)
    assert known.allows(THOUGHT + call, WEATHER, whole=False) is not tokens
    assert known.replied(THOUGHT + call, WEATHER) == called(("get_weather", PARIS), reasoning="Need data.")


@pytest.mark.parametrize("names", [None, ("get_weather",)], ids=["required", "named"])
@EVERY_ROW
def test_b50_forced_calls_stream(name: str, names: tuple[str, ...] | None) -> None:
    said = written(name, "get_weather", PARIS)
    choice = ToolChoice("required", names)
    assert model(name).allows(said, WEATHER, READ, tool_choice=choice)
    assert model(name).replied(said, WEATHER, READ, tool_choice=choice) == called(("get_weather", PARIS))


# Arguments.


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "gemma4", "lfm2"])
def test_b52_a_value_of_the_wrong_type_is_kept(name: str) -> None:
    arguments = '{"day": "2026-01-15"}'
    said, remind = written(name, "remind", arguments), tool("remind", day={"type": "integer"})
    assert not model(name).allows(said, remind)
    assert model(name).replied(said, remind) == called(("remind", arguments))


@pytest.mark.parametrize("none", ["", "None", "null"])
@pytest.mark.parametrize(
    ("kind", "arguments", "allowed"),
    [
        ("integer", "{{}}", ()),
        ("array", "{{}}", ()),
        (["integer", "null"], '{{"limit": null}}', ("null",)),
        ("string", '{{"limit": "{}"}}', ("", "None", "null")),
    ],
)
def test_b53_no_value_is_an_empty_text_only_of_a_text(
    none: str, kind: Any, arguments: str, allowed: tuple[str, ...]
) -> None:
    search = tool("search", (), limit={"type": kind})
    said = in_qwen("search", ("limit", none))
    assert model("qwen3-coder").allows(said, search) is (none in allowed)
    assert model("qwen3-coder").replied(said, search) == called(("search", arguments.format(none)))
    rest = in_qwen("search", ("limit", none), ("unit", "C"))
    both = tool("search", (), limit={"type": kind}, unit=TEXT)
    ((_, told_arguments),) = model("qwen3-coder").replied(rest, both).calls
    assert json.loads(told_arguments) == json.loads(arguments.format(none)) | {"unit": "C"}


def test_b55_a_closing_tag_in_json_closes_nothing() -> None:
    arguments = '{"path": "a", "content": "A block ends with </tool_call> here."}'
    said = in_hermes("write_file", arguments)
    assert model().allows(said, WRITE)
    assert model().replied(said, WRITE) == called(("write_file", arguments))


def test_b55_a_text_ends_at_its_whole_closer_and_nothing_else_can_be_said() -> None:
    """That closer is a line of its own, so a pair of tags within a line is text."""
    known = model("qwen3-coder")
    for command in ("echo <parameter=x>..</parameter>", "a </parameter>\nb", "</function></tool_call>"):
        said = in_qwen("bash", ("command", command))
        assert known.allows(said, SHELL)
        assert known.replied(said, SHELL) == called(("bash", json.dumps({"command": command})))
    for command in ("a\n</parameter>\nb", "<parameter=x>\n..\n</parameter>"):
        said = in_qwen("bash", ("command", command))
        assert not known.allows(said, SHELL)
        assert known.replied(said, SHELL) == Reply(said)


@ELEMENT_ROWS
@pytest.mark.parametrize("order", [("path", "content"), ("content", "path")])
def test_b56_a_wrong_closer_swallows_no_parameter(name: str, order: tuple[str, str]) -> None:
    known = model(name)
    said = written(name, "write_file", json.dumps({key: f"{key} x" for key in order}))
    elements = span_form(known.row).elements
    assert elements is not None
    closer = elements.value_end.text
    wrong = said.replace(closer, f"{closer[:-3]}{closer[-2]}{closer[-3]}>", 1)
    assert wrong != said
    assert not known.allows(wrong, WRITE)
    assert known.replied(wrong, WRITE) == Reply(wrong)


def test_b58_arguments_are_a_text(server: Serving) -> None:
    message = server.post(asking("a call")).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": PARIS}


SENT = [('{"a": 3}', "text"), ({"a": 3}, "object"), (json.dumps('{"a": 3}'), "twice")]


@pytest.mark.parametrize("sent", [sent for sent, _ in SENT], ids=[name for _, name in SENT])
def test_b59_arguments_of_the_history_are_an_object(sent: Any) -> None:
    function = {"name": "add", "arguments": sent}
    calling = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    (message,) = turn(messages=[calling]).messages
    assert of_history(message.tool_calls[0].arguments) == {"a": 3}


def test_b59_every_template_shows_them_alike(templates: dict[str, str]) -> None:
    for name, source in templates.items():
        prompts = {
            prompter(source)
            .prompt(
                Turn((user(), assistant(None, call("call00001", "add", text)), result("call00001")), (NOW,))
            )
            .text
            for text in ('{"a": "THREE"}', '{ "a" : "THREE" }', json.dumps('{"a": "THREE"}'))
        }
        assert len(prompts) == 1, name
        assert "THREE" in prompts.pop(), name


@ELEMENT_ROWS
def test_b61_parameters_come_in_any_order(name: str) -> None:
    arguments = '{"content": "x", "path": "a"}'
    said = written(name, "write_file", arguments)
    assert model(name).allows(said, WRITE)
    assert model(name).replied(said, WRITE) == called(("write_file", arguments))


@pytest.mark.parametrize("function", ["web_search", "brave_search", "python", "browser.search", "final"])
@pytest.mark.parametrize("name", ["llama3-json", "harmony", "hermes"])
def test_b62_a_name_that_a_model_has_of_its_own_is_any_name(name: str, function: str) -> None:
    limit = {"type": "integer", "minimum": 1, "maximum": 100}
    search = tool(function, ["query"], query=TEXT, limit=limit)
    said = written(name, function, '{"query": "x", "limit": 5}')
    assert model(name).allows(said, search)
    assert model(name).replied(said, search) == called((function, '{"query": "x", "limit": 5}'))
    assert not model(name).allows(said.replace("5", "101"), search)
