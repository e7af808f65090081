"""Turns to prompts, over all chat templates of the llama.cpp sources and a small vocabulary."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2.ext
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from vocabularies import CONTROL, MARKERS, SmallVocabulary, markup, template_of, vocabulary_of, written

from server.dialects.detect import detect, reads
from server.dialects.table import GENERIC, HERMES
from server.engine.protocol import Vocabulary
from server.errors import InvalidRequest, TemplateFailed
from server.prompt.prompt import CHATML, PLAIN, Prompter, probe_call
from server.turn import Message, ResponseFormat, Tool, ToolCall, ToolChoice, Turn

VOCABULARY = SmallVocabulary()

WEATHER = Tool(
    "get_weather",
    "The weather of a city",
    '{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},'
    ' "required": ["city"]}',
)
TIME = Tool("get_time")
TOOLS = (WEATHER, TIME)


def user(text: str = "QUESTION") -> Message:
    return Message("user", text)


def system(text: str = "RULES") -> Message:
    return Message("system", text)


def assistant(text: str | None = "REPLY", *calls: ToolCall, reasoning: str | None = None) -> Message:
    return Message("assistant", text, reasoning, calls)


def call(id: str, name: str = "get_weather", arguments: str = '{"city": "PARIS"}') -> ToolCall:
    return ToolCall(id, name, arguments)


def result(id: str | None, text: str = "OUTCOME") -> Message:
    return Message("tool", text, tool_call_id=id)


PARIS, OSLO = call("call_abc-123"), call("0b6d1c1e-7b5f", "get_time", '{"zone": "OSLO"}')

SHAPES: dict[str, tuple[tuple[Message, ...], tuple[str, ...]]] = {
    "user": ((user(),), ("QUESTION",)),
    "system": ((system(), user()), ("RULES", "QUESTION")),
    "developer": ((Message("developer", "RULES"), user()), ("RULES", "QUESTION")),
    "system and developer": (
        (system(), Message("developer", "MORE"), user()),
        ("RULES", "MORE", "QUESTION"),
    ),
    "two developers, two users": (
        (Message("developer", "RULES"), Message("developer", "MORE"), user(), user("SECOND")),
        ("RULES", "MORE", "QUESTION", "SECOND"),
    ),
    "developer in the middle": (
        (user(), assistant(), Message("developer", "RULES"), user("SECOND")),
        ("RULES", "SECOND"),
    ),
    "system in the middle": ((user(), assistant(), system(), user("SECOND")), ("RULES", "SECOND")),
    "system last": ((user(), system()), ("QUESTION", "RULES")),
    "two users": ((user(), user("SECOND")), ("QUESTION", "SECOND")),
    "two answers": ((user(), assistant(), assistant("MORE"), user("SECOND")), ("REPLY", "MORE", "SECOND")),
    "answer first": ((assistant(), user()), ("REPLY", "QUESTION")),
    "answer last": ((user(), assistant()), ("QUESTION",)),
    "null answer": ((user(), assistant(None), user("SECOND")), ("QUESTION", "SECOND")),
    "empty user": ((user(""), user("SECOND")), ("SECOND",)),
    "call last": ((user(), assistant(None, PARIS)), ("QUESTION",)),
    "one call, result": ((user(), assistant(None, PARIS), result(PARIS.id)), ("PARIS", "OUTCOME")),
    "call beside text": ((user(), assistant("REPLY", PARIS), result(PARIS.id)), ("PARIS", "OUTCOME")),
    "two calls": (
        (user(), assistant(None, PARIS, OSLO), result(PARIS.id), result(OSLO.id, "TICKS")),
        ("PARIS", "OSLO", "OUTCOME", "TICKS"),
    ),
    "two calls, results swapped": (
        (user(), assistant(None, PARIS, OSLO), result(OSLO.id, "TICKS"), result(PARIS.id)),
        ("PARIS", "OSLO", "OUTCOME", "TICKS"),
    ),
    "two rounds": (
        (
            *(user(), assistant(None, PARIS), result(PARIS.id)),
            *(assistant(None, OSLO), result(OSLO.id, "TICKS")),
        ),
        ("PARIS", "OUTCOME", "OSLO", "TICKS"),
    ),
    "user after result": (
        (user(), assistant(None, PARIS), result(PARIS.id), user("SECOND")),
        ("PARIS", "OUTCOME", "SECOND"),
    ),
    "whole loop": (
        (system(), user(), assistant(None, PARIS), result(PARIS.id), assistant(), user("SECOND")),
        ("RULES", "PARIS", "OUTCOME", "SECOND"),
    ),
    "ids missing": ((user(), assistant(None, call("")), result(None)), ("PARIS", "OUTCOME")),
    "empty result": ((user(), assistant(None, PARIS), result(PARIS.id, "")), ("PARIS",)),
    "reasoning": (
        (user(), assistant(None, PARIS, reasoning="THOUGHT"), result(PARIS.id)),
        ("PARIS", "OUTCOME"),
    ),
    "reasoning beside text and call": (
        (user(), assistant("REPLY", PARIS, reasoning="THOUGHT"), result(PARIS.id)),
        ("PARIS", "OUTCOME"),
    ),
    "odd arguments": (
        (
            user(),
            assistant(
                None, call("a", arguments='{"city": "PARIS", "n": null, "on": true, "l": [1, {"x": 2}]}')
            ),
            result("a"),
        ),
        ("PARIS", "OUTCOME"),
    ),
    "no arguments": ((user(), assistant(None, call("a", arguments="")), result("a")), ("OUTCOME",)),
}


NOW = datetime(2026, 3, 4, 5, 6, 7)
QWEN25, QWEN3 = "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"
HERMES2, HERMES3 = (
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
)


@functools.cache
def prompter(source: str | None, dialect: str = "", vocabulary: Vocabulary = VOCABULARY) -> Prompter:
    row = {"hermes": HERMES, "generic": GENERIC}.get(dialect) or detect(source)
    return Prompter(source, row, vocabulary, clock=lambda: NOW)


# All templates.


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dialect", ["hermes", "generic"])
def test_every_template_takes_every_history(templates: dict[str, str], dialect: str, shape: str) -> None:
    messages, words = SHAPES[shape]
    failures: list[str] = []
    for name, source in templates.items():
        try:
            text = prompter(source, dialect).prompt(Turn(messages, TOOLS)).text
        except TemplateFailed as error:
            failures.append(f"{name}: {error}")
            continue
        lost = [word for word in words if word not in text]
        if lost:
            failures.append(f"{name}: lost {lost}")
    assert not failures, "\n".join(failures)


def test_every_template_takes_a_turn_without_tools(templates: dict[str, str]) -> None:
    for name, source in templates.items():
        text = prompter(source, "hermes").prompt(Turn((system(), user()))).text
        assert "RULES" in text, name
        assert "QUESTION" in text, name
        assert "# Functions" not in text, name


MARKER = re.compile(r"<\|[^<>|\s]+\|>|<｜[^<>]+?｜>|</?[a-z_]+>|\[/?[A-Z_]+\]")


def attacks(markers: Sequence[str]) -> Iterator[str]:
    """Markers, the end of one and the beginning of another, without end."""
    for number in itertools.count():
        first, second, third = (markers[(number + at) % len(markers)] for at in range(3))
        yield f"{second[len(second) // 2 :]}{first} and {third[: len(third) // 2]}"


def attacked(turn: Turn, texts: Callable[[], str]) -> Turn:
    """The turn with a text put before and after every text of the client's, schema words left alone."""

    def wrapped(text: str) -> str:
        return f"{texts()} {text} {texts()}"

    messages = tuple(
        Message(
            each.role,
            wrapped(each.content or ""),
            wrapped(each.reasoning) if each.reasoning else None,
            tuple(
                ToolCall(call.id, call.name, json.dumps({wrapped("key"): [wrapped("value")]}))
                for call in each.tool_calls
            ),
            each.tool_call_id,
        )
        for each in turn.messages
    )
    tools = tuple(
        Tool(
            tool.name,
            wrapped(tool.description or ""),
            json.dumps(
                {
                    "type": "object",
                    "properties": {
                        wrapped("property"): {
                            "type": "string",
                            "description": wrapped("words"),
                            "enum": [wrapped("value")],
                        }
                    },
                }
            ),
        )
        for tool in turn.tools
    )
    return Turn(messages, tools)


def test_no_template_makes_markup_of_client_text(templates: dict[str, str]) -> None:
    messages, _ = SHAPES["reasoning beside text and call"]
    turn = Turn((system(), *messages, assistant("<think>an answer"), user()), TOOLS)
    for name, source in templates.items():
        markers = sorted({*MARKER.findall(source), *CONTROL, *MARKERS})
        vocabulary = SmallVocabulary(markers)
        known = prompter(source, "", vocabulary)
        words = (f"x{number}" for number in itertools.count())  # some templates compare messages
        harmless = known.prompt(attacked(turn, words.__next__))
        prompt = known.prompt(attacked(turn, attacks(markers).__next__))
        assert markup(vocabulary, prompt.tokens) == markup(vocabulary, harmless.tokens), name
        assert written(vocabulary, prompt.tokens) == prompt.text, name


# The templates that have to be right, by the letter.


def reference(source: str, messages: list[dict[str, Any]], tools: list[Any] | None, **more: Any) -> str:
    """What a plain Jinja sandbox makes of a template, as its publisher's own tools do."""

    def dumped(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = dumped
    given = {"bos_token": "<s>", "eos_token": "</s>", **({"tools": tools} if tools else {}), **more}
    return environment.from_string(source).render(messages=messages, add_generation_prompt=True, **given)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PLAIN_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Größe <b>", "parameters": SCHEMA},
}
PLAIN_CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Ålesund"}}}


@pytest.mark.parametrize("name", [QWEN25, QWEN3, "Qwen-QwQ-32B", HERMES2, HERMES3, CHATML])
@pytest.mark.parametrize("tools", [False, True])
def test_renderings_are_the_templates_own(templates: dict[str, str], name: str, tools: bool) -> None:
    source = templates.get(name, name)
    offered = [PLAIN_TOOL] if tools and name != CHATML else None
    loop: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [PLAIN_CALL | {"id": "a"}]},
        {"role": "tool", "content": "12 °C", "tool_call_id": "a", "name": "get_weather"},
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "And <b>now</b>?"},
    ]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}]
    ours = [system("Be brief."), user("Weather?")]
    if offered:
        plain += loop
        ours += [
            assistant(None, call("a", arguments='{"city":"\\u00c5lesund"}')),
            result("a", "12 °C"),
            assistant("Cold."),
            user("And <b>now</b>?"),
        ]
    known = (Tool("get_weather", "Größe <b>", json.dumps(SCHEMA)),) if offered else ()
    prompt = prompter(source).prompt(Turn(tuple(ours), known))
    assert prompt.text == reference(source, plain, offered)
    assert written(VOCABULARY, prompt.tokens) == prompt.text


@pytest.mark.parametrize("name", [HERMES2, HERMES3])
def test_hermes_keeps_text_beside_a_call(templates: dict[str, str], name: str) -> None:
    messages = (user(), assistant("Looking.", PARIS), result(PARIS.id))
    text = prompter(templates[name]).prompt(Turn(messages, TOOLS)).text
    spoken = 'Looking.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "PARIS"}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{spoken}<|im_end|>" in text


def test_qwen3_shows_the_thoughts_of_the_current_turn_only(templates: dict[str, str]) -> None:
    rendered = prompter(templates[QWEN3]).prompt
    think, end = VOCABULARY.single_token("<think>"), VOCABULARY.single_token("</think>")
    called = assistant(None, PARIS, reasoning="HM </think> HM")
    current = rendered(Turn((user(), called, result(PARIS.id)), TOOLS))
    assert "<think>\nHM </think> HM\n</think>\n\n<tool_call>" in current.text
    assert [current.tokens.count(token) for token in (think, end)] == [1, 1]
    past = rendered(Turn((user(), called, result(PARIS.id), assistant(), user()), TOOLS))
    assert "HM" not in past.text
    assert think not in past.tokens


@pytest.mark.parametrize("field", [True, False])
def test_qwen3_takes_thoughts_from_content_as_from_their_field(
    templates: dict[str, str], field: bool
) -> None:
    answer = assistant("SO", reasoning="HM") if field else assistant("<think>\nHM\n</think>\n\nSO")
    rendered = prompter(templates[QWEN3]).prompt
    current = rendered(Turn((user(), answer)))
    assert "<|im_start|>assistant\n<think>\nHM\n</think>\n\nSO<|im_end|>" in current.text
    assert markup(VOCABULARY, current.tokens).count("<think>") == 1
    past = rendered(Turn((user(), answer, user())))
    assert "<|im_start|>assistant\nSO<|im_end|>" in past.text


def test_text_that_looks_like_a_thought_is_kept(templates: dict[str, str]) -> None:
    said = "the tag </think> ends it"
    prompt = prompter(templates[QWEN3]).prompt(Turn((user(), assistant(said), user(said))))
    assert prompt.text.count(said) == 2
    assert "</think>" not in markup(VOCABULARY, prompt.tokens)


@pytest.mark.parametrize("name", [QWEN25, QWEN3, "Qwen-QwQ-32B", HERMES2, HERMES3])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_probe_calls_are_read_back(templates: dict[str, str], name: str, count: int) -> None:
    known = prompter(templates[name])
    calls = tuple(probe_call(number, "one", "two") for number in range(count))
    text = known.rendered_calls(calls)
    assert "probe_question" not in text
    assert reads(known.dialect, text, calls)


@pytest.mark.model
@pytest.mark.parametrize(
    ("key", "dialect", "described"), [("qwen2.5-coder-0.5b", HERMES, False), ("smollm2-135m", GENERIC, True)]
)
def test_real_models(model_file: Callable[[str], Path], key: str, dialect: Any, described: bool) -> None:
    path = model_file(key)
    vocabulary = vocabulary_of(path)
    known = prompter(template_of(path), "", vocabulary)
    assert known.dialect.name == dialect.name
    assert known.needs.describe_tools is described
    assert known.warnings == ()
    said = "".join(vocabulary.markup_texts()[:4])
    prompt = known.prompt(Turn((user(said), assistant(None, PARIS), result(PARIS.id, said)), TOOLS))
    assert written(vocabulary, prompt.tokens) == prompt.text
    assert prompt.text.count(said) == 2
    harmless = known.prompt(Turn((user("x"), assistant(None, PARIS), result(PARIS.id, "x")), TOOLS))
    assert markup(vocabulary, prompt.tokens) == markup(vocabulary, harmless.tokens)
    assert '"get_weather"' in prompt.text
    assert reads(known.dialect, known.rendered_calls((probe_call(0, "one"),)), (probe_call(0, "one"),))


@pytest.mark.model
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_qwen_never_makes_markup_of_client_text(
    model_file: Callable[[str], Path], data: st.DataObject
) -> None:
    path = model_file("qwen2.5-coder-0.5b")
    vocabulary = vocabulary_of(path)
    known = prompter(template_of(path), "", vocabulary)
    pieces = st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "<|im_start|>",
            "<|im_",
            "start|>",
            "<|endoftext|>",
            "tool_call",
            "a",
            " ",
        ]
    )
    texts = st.lists(pieces, max_size=3).map("".join)
    turn = Turn((system(), user(), assistant("REPLY", PARIS), result(PARIS.id), user()), TOOLS)
    prompt = known.prompt(attacked(turn, lambda: data.draw(texts)))
    assert written(vocabulary, prompt.tokens) == prompt.text
    assert markup(vocabulary, prompt.tokens) == markup(
        vocabulary, known.prompt(attacked(turn, lambda: "x")).tokens
    )


# The generic dialect, and models without a template.


def test_the_generic_dialect_describes_tools_in_the_system_text() -> None:
    known = prompter(CHATML)
    text = known.prompt(Turn((system(), user(), assistant(None, PARIS), result(PARIS.id)), TOOLS)).text
    told, asked, called, answered, opened = text.split("<|im_start|>")[1:]
    assert told.startswith("system\nRULES\n\n# Functions")
    assert told.count('{"type":"function","function":{"name":') == len(TOOLS)
    assert asked == "user\nQUESTION<|im_end|>\n"
    body = '{"name": "get_weather", "arguments": {"city": "PARIS"}}'
    assert called == f"assistant\n<tool_call>\n{body}\n</tool_call><|im_end|>\n"
    assert answered == "user\n<tool_response>\nOUTCOME\n</tool_response><|im_end|>\n"
    assert opened == "assistant\n"
    assert known.warnings == ()


def test_tools_are_shown_whatever_may_be_called(templates: dict[str, str]) -> None:
    for source in (CHATML, templates[QWEN25]):
        choices = (ToolChoice(), ToolChoice("none"), ToolChoice("required", ("get_time",)))
        prompts = {prompter(source).prompt(Turn((user(),), TOOLS, choice)).tokens for choice in choices}
        assert len(prompts) == 1


def test_the_form_of_the_answer_is_told(templates: dict[str, str]) -> None:
    form = ResponseFormat("json_schema", "n", '{"type": "object", "title": "<|im_end|>"}')
    for source in (CHATML, templates[QWEN25]):
        plain = prompter(source).prompt(Turn((system(), user())))
        prompt = prompter(source).prompt(Turn((system(), user()), response_format=form))
        assert 'nothing else:\n{"type":"object","title":"<|im_end|>"}<|im_end|>\n' in prompt.text
        assert markup(VOCABULARY, prompt.tokens) == markup(VOCABULARY, plain.tokens)


@pytest.mark.parametrize("source", [None, "{% broken", "{{ raise_exception('closed') }}"])
def test_a_built_in_template_stands_in(source: str | None) -> None:
    for vocabulary, expected in (
        (VOCABULARY, "<|im_start|>user\nQUESTION<|im_end|>\n<|im_start|>assistant\n"),
        (SmallVocabulary(["<s>"]), "User: QUESTION\n\nAssistant:"),
    ):
        known = prompter(source, "generic", vocabulary)
        assert len(known.warnings) == 1
        assert known.prompt(Turn((user(),))).text == expected
    assert "closed" in prompter("{{ raise_exception('closed') }}", "generic").warnings[0]
    assert PLAIN != CHATML


def test_a_template_that_shows_no_tools_is_told_of() -> None:
    known = prompter(CHATML, "hermes")
    assert known.needs.describe_tools
    assert len(known.warnings) == 1
    assert "get_weather" in known.prompt(Turn((user(),), TOOLS)).text


# The edges of a prompt.


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("prints", [False, True])
def test_there_is_one_bos_at_most(adds: bool, prints: bool) -> None:
    vocabulary = SmallVocabulary(adds_bos=adds)
    source = ("{{ bos_token }}" if prints else "") + "{{ messages[0].content }}"
    tokens = prompter(source, "generic", vocabulary).prompt(Turn((user("<s>hi"),))).tokens
    assert tokens.count(vocabulary.bos or -1) == (adds or prints)
    assert (tokens[0] == vocabulary.bos) is (adds or prints)
    assert written(vocabulary, tokens).endswith("<s>hi")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>", True),
        ("<think>\nfirst I will", True),
        ("<think>\n\n</think>\n\n", False),
        ("</think>", False),
        ("<think><|im_start|>assistant\n", False),
    ],
)
def test_a_thought_opened_by_the_template(end: str, expected: bool) -> None:
    source = f"{CHATML}{{% if add_generation_prompt %}}{{{{ {end!r} }}}}{{% endif %}}"
    turn = Turn((user("<think>"), assistant("<think>")))
    assert prompter(source, "hermes").prompt(turn).reasoning_open is expected
    assert prompter(source).prompt(turn).reasoning_open is expected


@pytest.mark.parametrize(
    ("name", "expected"), [(QWEN3, False), (QWEN25, False), ("Qwen3.5-4B", True), ("MiMo-VL", False)]
)
def test_thoughts_opened_by_real_templates(templates: dict[str, str], name: str, expected: bool) -> None:
    assert prompter(templates[name]).prompt(Turn((user(),), TOOLS)).reasoning_open is expected


def test_a_templates_refusal_reaches_the_client_with_its_words() -> None:
    source = (
        CHATML
        + "{% if messages | length > 4 %}{{ raise_exception('Too long: ' + messages[0].content) }}{% endif %}"
    )
    known = prompter(source, "hermes")
    with pytest.raises(TemplateFailed) as failure:
        known.prompt(Turn((user("<|im_end|>"),) * 5))
    assert failure.value.data.status == 400
    assert failure.value.data.code == "chat_template_failed"
    assert failure.value.message == "the model's chat template failed: Too long: <|im_end|>"


def test_what_no_prompt_can_be_made_of_is_refused() -> None:
    for turn in (
        Turn((user("half \ud800"),)),
        Turn((assistant(None, call("a", arguments='"\\ud800"')),)),
        Turn((assistant(None, call("a", arguments="[]")),)),
    ):
        with pytest.raises(InvalidRequest):
            prompter(CHATML).prompt(turn)


def test_equal_beginnings_of_conversations_are_equal_tokens(templates: dict[str, str]) -> None:
    begun = (system("<tool_call>"), user(), assistant(None, PARIS), result(PARIS.id))
    known = prompter(templates[QWEN25])
    first = known.prompt(Turn(begun, TOOLS)).tokens
    second = known.prompt(Turn((*begun, assistant(), user("\U00100005<|im_end|>")), TOOLS)).tokens
    shared = len(first) - len(b"assistant\n") - 1
    assert second[:shared] == first[:shared]
    assert known.prompt(Turn(begun, TOOLS)).tokens == first
