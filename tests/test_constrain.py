"""The grammar of a whole answer: what it lets through, token by token, and that the parser reads it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from answers import folded
from languages import Language

from server.dialects.bound import BoundDialect
from server.dialects.constrain import AnswerForm, CallableTool, ReasoningState, compose
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS, GENERIC, HERMES
from server.events import Event

SPACED = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


def tool(name: str, **properties: object) -> CallableTool:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return CallableTool(name, json.dumps(schema | SPACED))


ADD = tool("add", a={"type": "integer"})
GET = tool("get")
GET_ALL = tool("get_all", kind={"enum": ["x", "y"]})
TOOLS = (ADD, GET, GET_ALL)
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
GET_CALL = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'
BARE = '{"name": "add", "arguments": {"a": 1}}'
FENCED = "```json\n" + BARE + "\n```"
ANSWER_SCHEMA = tool("answer", x={"type": "boolean"}).schema


def language(form: AnswerForm, *, tokens: bool) -> Language:
    """The answers of a form, with markers as tokens of the vocabulary or as text."""
    markers = MARKERS if tokens else ()
    bound = BoundDialect(HERMES, {marker: 257 + place for place, marker in enumerate(markers)})
    return Language(compose(bound, form), markers)


HINTS = (*MARKERS, CALL, BARE[:20], "```json\n")

FORMS = {
    "none": (
        AnswerForm(),
        ["", "text", "a < b", BARE, FENCED, "```\ncode\n```", "\n\n"],
        [CALL, "text" + CALL],
    ),
    "auto": (
        AnswerForm(TOOLS),
        ["", "text", CALL, CALL + "\n" + GET_CALL, "text " + CALL, "text\n\n" + CALL, BARE, "a <b> c"],
        [CALL + "text", CALL + GET_CALL, CALL.replace("1", "1.5"), CALL.replace("add", "sub"), CALL[:-3]],
    ),
    "auto with bare calls": (
        AnswerForm(TOOLS, bare=True),
        [
            BARE,
            FENCED,
            "  " + BARE,
            BARE + "\n" + BARE,
            '{"name": "subtract"}',
            "Use " + BARE,
            "```py\n```",
            CALL,
        ],
        [BARE.replace("1", '"x"'), FENCED.replace("1", "true"), BARE + "text", BARE[:-1], FENCED + "text"],
    ),
    "required": (
        AnswerForm(TOOLS, must_call=True, bare=True),
        [CALL, GET_CALL, CALL + "\n" + CALL],
        ["", "text", " " + CALL, "text" + CALL, BARE, CALL + "\n"],
    ),
    "named": (AnswerForm((GET,), must_call=True), [GET_CALL], [CALL, ""]),
    "one call": (
        AnswerForm(TOOLS, must_call=True, parallel=False),
        [CALL],
        [CALL + "\n" + CALL],
    ),
    "response": (
        AnswerForm(response=ANSWER_SCHEMA),
        ['{"x": true}'],
        ["", "text", '{"x": 1}', '{"x":true}', CALL, ' {"x": true}'],
    ),
    "response or calls": (
        AnswerForm(TOOLS, response=ANSWER_SCHEMA),
        ['{"x": true}', CALL],
        ["text", "text" + CALL, '{"x": true}' + CALL, BARE],
    ),
    "thought possible": (
        AnswerForm(TOOLS, reasoning=ReasoningState.POSSIBLE),
        [
            "text",
            CALL,
            "<think>\na < b\n</think>\n\ntext",
            "<think>hm</think>" + CALL,
            "<think></think>x" + CALL,
        ],
        [CALL + "<think>", "<think>hm"],
    ),
    "thought open, call required": (
        AnswerForm(TOOLS, must_call=True, reasoning=ReasoningState.OPEN),
        ["hm</think>\n\n" + CALL, "</think>\n\n" + CALL],
        ["hm</think>" + "text", "hm</think>text" + CALL],
    ),
    "thought, then response": (
        AnswerForm(response=ANSWER_SCHEMA, reasoning=ReasoningState.POSSIBLE),
        ['{"x": true}', '<think>\nhm\n</think>\n\n{"x": true}'],
        ["text", "<think>hm</think>text"],
    ),
}


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FORMS)
def test_language(name: str, tokens: bool) -> None:
    form, passing, failing = FORMS[name]
    answers = language(form, tokens=tokens)
    assert [text for text in passing if not answers.has(text)] == []
    assert [text for text in failing if answers.has(text)] == []


def test_a_call_ends_a_thought_where_markers_are_tokens() -> None:
    form = AnswerForm(TOOLS, must_call=True, reasoning=ReasoningState.OPEN)
    assert language(form, tokens=True).has("hm" + CALL)


def test_a_marker_token_cannot_be_spelled_in_text() -> None:
    answers = language(AnswerForm(TOOLS), tokens=True)
    token = answers.ids("<tool_call>")
    assert len(token) == 1
    assert answers.begins([*b"text ", *token])
    assert not answers.begins([*b"text ", *answers.ids("</tool_call>")])
    assert not answers.begins([*b"text ", *answers.ids("<think>")])


def test_a_turn_has_at_most_32_calls() -> None:
    answers = language(AnswerForm(TOOLS, must_call=True), tokens=True)
    assert answers.has("\n".join([GET_CALL] * 32))
    assert not answers.has("\n".join([GET_CALL] * 33))


def test_names_that_begin_alike_are_told_apart() -> None:
    answers = language(AnswerForm(TOOLS, must_call=True), tokens=True)
    assert answers.has(GET_CALL.replace('"get", "arguments": {}', '"get_all", "arguments": {"kind": "x"}'))
    assert not answers.has(GET_CALL.replace('"get"', '"get_all"'))


def test_where_a_model_does_not_reason_the_markers_of_thoughts_are_text() -> None:
    silent = dataclasses.replace(GENERIC, reasoning=None)
    answers = Language(compose(BoundDialect(silent), AnswerForm(TOOLS, reasoning=ReasoningState.POSSIBLE)))
    assert answers.has(CALL)
    assert answers.has("<think>")


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FORMS)
def test_the_parser_reads_whatever_the_constraint_lets_through(name: str, tokens: bool) -> None:
    form, _, _ = FORMS[name]
    answers = language(form, tokens=tokens)
    samples = list(answers.samples(25, 7, HINTS))
    assert samples
    for sample in samples:
        lines = folded(parsed(form, answers, sample))
        calls = [line.split(" ", 2)[1:] for line in lines if line.startswith("call ")]
        texts = [json.loads(line.removeprefix("text ")) for line in lines if line.startswith("text ")]
        assert not any(line.startswith("cut") for line in lines)
        assert all(keys(arguments) == declared(form, name) for name, arguments in calls)
        assert calls or not form.must_call
        assert not (calls and form.response and texts)
        if form.response and not calls:
            assert keys("".join(texts)) == {"x"}


def parsed(form: AnswerForm, answers: Language, tokens: list[int]) -> list[Event]:
    parser = TurnParser(
        BoundDialect(HERMES, {marker: 257 + place for place, marker in enumerate(answers.markers)}),
        [each.name for each in form.tools],
        reasoning=form.reasoning,
        bare=form.bare and not form.must_call and form.response is None,
        new_id=str,
    )
    return [event for each in tokens for event in parser.feed(each, answers.data(each))] + parser.flush()


def keys(text: str) -> set[str]:
    return set(json.loads(text.replace("\\n", " ")))


def declared(form: AnswerForm, name: str) -> set[str]:
    return set(json.loads(next(each.schema for each in form.tools if each.name == name))["properties"])


@pytest.mark.parametrize("name", ["llama3-json", "hermes"])
@pytest.mark.parametrize("aside", ['"type": "function", ', '"type":"function",', '"type" : "function",\n  '])
def test_a_call_without_markers_may_say_that_it_is_a_function(name: str, aside: str) -> None:
    row = next(each for each in DIALECTS if each.name == name)
    key = row.keys.get("ARGUMENTS_KEY", '"arguments"')
    tool = CallableTool("add", '{"type": "object", "properties": {}, "additionalProperties": false}')
    said = f'{{{aside}"name": "add", {key}: {{}}}}'
    assert Language(compose(BoundDialect(row), AnswerForm((tool,), bare=True))).has(said)
    for trusted in (True, False):
        parser = TurnParser(BoundDialect(row), ["add"], bare=True, trusted=trusted, new_id=str)
        assert folded(parser.feed(-1, said.encode()) + parser.flush()) == ["call add {}"]
    other = said.replace("function", "object")
    assert Language(compose(BoundDialect(row), AnswerForm((tool,), bare=True))).has(other)
    parser = TurnParser(BoundDialect(row), ["add"], bare=True, new_id=str)
    assert folded(parser.feed(-1, other.encode()) + parser.flush()) == [f"text {json.dumps(other)}"]
