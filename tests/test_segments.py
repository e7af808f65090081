"""Dialects in which thoughts, text and calls each begin with a marker of their own."""

from __future__ import annotations

import json

import pytest
from answers import folded
from languages import Language

from server.dialects.bound import BoundDialect
from server.dialects.constrain import AnswerForm, CallableTool, ReasoningState, compose
from server.dialects.detect import detect
from server.dialects.dialect import Dialect
from server.dialects.form import part_names, written_calls
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS
from server.engine.scripted import ByteVocabulary
from server.events import Text, TokenLogprob
from server.prompt.prompt import Prompt, Prompter
from server.schema.parameters import parameters
from server.turn import Message, Tool, ToolCall, Turn

TOKENS = pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])


def row_of(name: str) -> Dialect:
    return next(each for each in DIALECTS if each.name == name)


class Model:
    """One dialect with tools of these names, each with a text ``q``. ``tokens``: what stands within its
    markers are tokens."""

    def __init__(self, name: str, tokens: bool, names: tuple[str, ...], **form: object) -> None:
        self.row = row_of(name)
        inner = sorted(self.row.inner) if tokens else []
        self.bound = BoundDialect(self.row, {each: 257 + place for place, each in enumerate(inner)})
        schema = {"type": "object", "properties": {"q": {"type": "string"}}, "additionalProperties": False}
        tools = tuple(CallableTool(each, json.dumps(schema), parameters(schema)) for each in names)
        self.form = AnswerForm(tools, **form)  # type: ignore[arg-type]
        self.language = Language(compose(self.bound, self.form), tuple(self.bound.tokens))

    def has(self, text: str) -> bool:
        return self.language.has(text)

    def call(self, *names: str) -> str:
        return written_calls(self.row, [ToolCall("", name, '{"q":"x"}') for name in names])

    def read(self, text: str) -> list[str]:
        parser = TurnParser(
            self.bound,
            [each.name for each in self.form.tools],
            reasoning=self.form.reasoning,
            calls_only=self.form.must_call,
            new_id=str,
            parameters={each.name: each.parameters for each in self.form.tools},
        )
        ids = self.language.ids(text)
        events = [event for each in ids for event in parser.feed(each, self.language.data(each))]
        return folded(events + parser.flush())


@TOKENS
@pytest.mark.parametrize("name", ["muse", "functionary-v3.2"])
@pytest.mark.parametrize("tool", ["search", "self_check", "use", "user_info", "all_of_it", "al", "t"])
def test_names_that_begin_like_other_parts(name: str, tokens: bool, tool: str) -> None:
    model = Model(name, tokens, ("get", tool))
    for names in ((tool,), ("get",), ("get", tool), (tool, "get")):
        text = model.call(*names)
        assert model.has(text)
        assert [line.split()[:2] for line in model.read(text)] == [["call", each] for each in names]


@TOKENS
@pytest.mark.parametrize(
    ("name", "said", "onward"),
    [
        ("muse", " to=user<|message|>I look.", "<|eom|><|start|>assistant"),
        ("muse", "<|message|>I look.", None),
        ("functionary-v3.2", ">>>all\nI look.", ""),
        ("kimi-k3", "<|open|>response<|sep|>I look.<|close|>response<|sep|>", ""),
        ("kimi-k3", "<|open|>response<|sep|>I look.<|close|>response<|sep|><|close|>message<|sep|>", None),
    ],
)
def test_text_alone_and_before_a_call(name: str, said: str, onward: str | None, tokens: bool) -> None:
    model = Model(name, tokens, ("get",))
    assert model.has(said)
    assert model.read(said) == ['text "I look."']
    plain = Model(name, tokens, ())
    assert plain.has(said)
    assert plain.read(said) == ['text "I look."']
    text = f"{said}{onward or ''}{model.call('get')}"
    if onward is None:
        assert not (tokens and model.has(text))
        return
    assert model.has(text)
    said_and_called = model.read(text)
    assert said_and_called[0] == 'text "I look."'
    assert [line.split()[:2] for line in said_and_called[1:]] == [["call", "get"]]
    assert not any(line.startswith("call") for line in plain.read(text))


def test_the_turn_of_kimi_k3_may_be_closed() -> None:
    model = Model("kimi-k3", True, ("get",), must_call=True)
    closed = model.call("get") + "<|close|>message<|sep|>"
    assert model.has(closed)
    assert [line.split()[:2] for line in model.read(closed)] == [["call", "get"]]
    assert not model.has(closed + "x")


def test_each_value_of_kimi_k3_says_its_type() -> None:
    schema = {"type": ["string", "integer", "null"], "minimum": 3}
    known = parameters({"type": "object", "properties": {"v": schema}, "required": ["v"]})
    tool = CallableTool("f", "{}", known)
    language = Language(compose(BoundDialect(row_of("kimi-k3")), AnswerForm((tool,), must_call=True)))

    def has(kind: str, value: str) -> bool:
        call = written_calls(row_of("kimi-k3"), [ToolCall("", "f", '{"v": "V"}')])
        return language.has(call.replace('"string"', f'"{kind}"').replace("V", value))

    for kind, value in (("string", "3"), ("string", ""), ("number", "3"), ("null", "null")):
        assert has(kind, value)
    for kind, value in (
        ("number", "2"),
        ("number", "3.5"),
        ("null", "3"),
        ("boolean", "true"),
        ("array", "[]"),
    ):
        assert not has(kind, value)


def prompt(templates: dict[str, str], template: str, effort: str | None = None) -> Prompt:
    source = templates[template]
    prompter = Prompter(source, detect(source), ByteVocabulary())
    tools = (Tool("get", "gets", '{"type": "object", "properties": {}}'),)
    return prompter.prompt(Turn((Message("user", "Hello"),), tools, reasoning_effort=effort))


def test_what_a_prompt_begins_of_the_answer_is_left_to_the_answer(templates: dict[str, str]) -> None:
    assert prompt(templates, "meetkai-functionary-medium-v3.2").text.endswith("<|end_header_id|>\n\n")
    thinking = prompt(templates, "Kimi-K3")
    assert thinking.text.endswith("<|open|>think<|sep|>")
    assert (thinking.reasoning_open, thinking.reasoning_over) == (True, False)
    silent = prompt(templates, "Kimi-K3", "none")
    assert silent.text.endswith('role="assistant"<|sep|>')
    assert (silent.reasoning_open, silent.reasoning_over) == (False, True)


@pytest.mark.parametrize(("effort", "shown"), [("low", "low"), ("medium", "high"), ("xhigh", "max")])
def test_efforts_of_kimi_k3(templates: dict[str, str], effort: str, shown: str) -> None:
    assert f"`thinking_effort={shown}`" in prompt(templates, "Kimi-K3", effort).text


@TOKENS
def test_thoughts_text_and_a_call_in_their_segments(tokens: bool) -> None:
    model = Model("harmony", tokens, ("add",), reasoning=ReasoningState.POSSIBLE)
    again = "<|end|><|start|>assistant"
    said = (
        f"<|channel|>analysis<|message|>One.{again}<|channel|>analysis<|message|>Two.{again}"
        f"<|channel|>commentary<|message|>I add.{again}{model.call('add')}"
    )
    assert model.has(said)
    assert model.read(said) == ['reasoning "One.Two."', 'text "I add."', 'call add {"q":"x"}']
    for refused in (
        "Plain.",
        "<|channel|>commentary<|message|>I add.",
        f"<|channel|>final<|message|>x{again}",
    ):
        assert not model.has(refused) or (not tokens and refused.endswith("assistant"))
    plain = Model("harmony", tokens, ())
    assert plain.has("<|channel|>final<|message|>Hello.")
    assert not plain.has(model.call("add"))
    response = Model("harmony", tokens, (), response='{"type": "integer"}')
    assert response.has("<|channel|>final<|message|>12")
    assert not response.has("12")


def test_logprobs_of_a_segment_are_those_of_its_text() -> None:
    parser = TurnParser(BoundDialect(row_of("cohere-text")), new_id=str)
    events = []
    for word in ("<|START_", "TEXT|>", "One", " two", "<|END_TEXT|>"):
        events += parser.feed(-1, word.encode(), TokenLogprob(word, word.encode(), -0.5))
    events += parser.flush()
    texts = [event for event in events if isinstance(event, Text)]
    assert "".join(event.text for event in texts) == "One two"
    assert [each.token for event in texts for each in event.logprobs] == ["One", " two"]


@pytest.mark.parametrize("name", [row.name for row in DIALECTS if any(each.close for each in row.text)])
@TOKENS
def test_a_value_may_hold_what_closes_its_segment(name: str, tokens: bool) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'
    model = Model(name, tokens, (), response=schema)
    segment = next(each for each in model.row.text if not each.onward)
    inner = next(each.close for each in model.row.text if each.close)
    said = json.dumps({"a": f'x"{inner}\\{inner}y'})
    ids = model.language.ids(segment.open) + list(said.encode()) + model.language.ids(segment.close)
    parser = TurnParser(model.bound, calls_first=True, new_id=str)
    events = [event for each in ids for event in parser.feed(each, model.language.data(each))]
    assert folded(events + parser.flush()) == [f"text {json.dumps(said)}"]


@TOKENS
def test_what_ends_a_turn_may_also_begin_a_call(tokens: bool) -> None:
    """GigaChat 3: the model says whether the user's turn comes next, or its own call."""
    model = Model("gigachat3", tokens, ("add",))
    end, call = model.row.turn_end, model.call("add")
    for said, read in (
        (f"I add.{end}", ['text "I add."']),
        (f"I add.{call}", ['text "I add."', 'call add {"q":"x"}']),
        (f"{call}{end}", ['call add {"q":"x"}']),
        (end, []),
    ):
        assert model.has(said)
        assert model.read(said) == read
    assert not model.has(call + call)
    none = Model("gigachat3", tokens, ())
    assert none.has(f"I add.{end}")
    assert not (tokens and none.has(f"I add.{call}"))
    required = Model("gigachat3", tokens, ("add",), must_call=True)
    assert required.has(call + end)
    assert not required.has(end)
    response = Model("gigachat3", tokens, (), response='{"type": "integer"}')
    assert response.has(f"12{end}")
    assert response.read(f"12{end}") == ['text "12"']


@TOKENS
def test_a_text_may_follow_an_answer_that_calls_nothing(tokens: bool) -> None:
    """Command R+ says first that it answers directly, by what looks like a call."""
    model = Model("command-r-plus", tokens, ("add", "directly"))
    (segment,) = model.row.text
    said = f"{segment.open}It rains.{segment.close}"
    assert model.has(said)
    assert model.read(said) == ['text "It rains."']
    for call in (model.call("directly"), model.call("add", "directly") + model.row.turn_end):
        assert model.has(call)
        assert [line.split()[0] for line in model.read(call)] == ["call"] * call.count("tool_name")
    assert not model.has("It rains.")
    assert not Model("command-r-plus", tokens, ("add",), must_call=True).has(said)
    assert Model("command-r-plus", tokens, ()).has(said)


@pytest.mark.parametrize(
    ("name", "said", "read"),
    [
        ("gigachat3", "Well. <|message_sep|>\n\nfunc", ['text "Well. "']),
        ("dsml-v4", "Well. <｜DSML｜tool", ['text "Well. "']),
        ("dsml-v4", "Well. <", ['text "Well. <"']),
        ("kimi-k3", "<|open|>think<|sep|>One.<|close|>thi", ['reasoning "One."']),
        ("muse", " to=self<|message|>One.<|eom|><|start|>", ['reasoning "One."']),
    ],
)
def test_a_marker_that_was_cut_is_no_text(name: str, said: str, read: list[str]) -> None:
    """What begins with a token that no text has can only be markup."""
    model = Model(name, True, ("add",), reasoning=ReasoningState.POSSIBLE)
    assert model.read(said) == read


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("muse", {"self", "user"}),
        ("functionary-v3.2", {"all"}),
        ("command-r-plus", {"directly-answer"}),
        ("hermes", set()),
        ("llama3-json", set()),
    ],
)
def test_names_that_no_tool_can_have(name: str, names: set[str]) -> None:
    assert part_names(row_of(name)) == names
