"""What must hold of every row of the table: the constraint has what the row writes and nothing near it, the
parser reads whatever the constraint lets through, and the real templates are read by their own rows."""

from __future__ import annotations

import json
import re

import pytest
from answers import folded
from languages import Language

from server.dialects.bound import BoundDialect
from server.dialects.constrain import AnswerForm, CallableTool, ReasoningState, compose
from server.dialects.detect import detect, measured, reads
from server.dialects.dialect import Dialect
from server.dialects.form import Notation, span_form, written_calls
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS
from server.engine.scripted import ByteVocabulary
from server.errors import TemplateFailed
from server.events import Event
from server.prompt.prompt import Prompter, probe_call
from server.schema.parameters import parameters
from server.turn import ToolCall

ROWS = pytest.mark.parametrize("row", DIALECTS, ids=lambda row: row.name)
TOKENS = pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
SPACED = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


def tool(name: str, **properties: object) -> CallableTool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    closed = schema | {"additionalProperties": False}
    return CallableTool(name, json.dumps(closed | SPACED), parameters(closed))


TOOLS = (tool("add", a={"type": "integer"}), tool("get"), tool("get_all", kind={"enum": ["x", "y"]}))
ADD, GET, GET_ALL = (
    ToolCall("", "add", '{"a": 1}'),
    ToolCall("", "get", "{}"),
    ToolCall("", "get_all", '{"kind": "y"}'),
)
REQUIRED = AnswerForm(TOOLS, must_call=True)


def bound_to(row: Dialect, tokens: bool) -> BoundDialect:
    markers = sorted(set(row.hidden_texts)) if tokens else []
    return BoundDialect(row, {marker: 257 + place for place, marker in enumerate(markers)})


def language(bound: BoundDialect, form: AnswerForm) -> Language:
    return Language(compose(bound, form), tuple(bound.tokens))


def parsed(bound: BoundDialect, form: AnswerForm, answers: Language, tokens: list[int]) -> list[Event]:
    parser = TurnParser(
        bound,
        [each.name for each in form.tools],
        reasoning=form.reasoning,
        calls_only=form.must_call,
        bare=form.bare and not form.must_call,
        new_id=str,
        parameters={each.name: each.parameters for each in form.tools},
    )
    return [event for each in tokens for event in parser.feed(each, answers.data(each))] + parser.flush()


def lines(*calls: ToolCall) -> list[str]:
    return [f"call {call.name} {call.arguments}" for call in calls]


@ROWS
@TOKENS
@pytest.mark.parametrize("calls", [(ADD,), (GET,), (GET_ALL,), (ADD, GET), (GET_ALL, ADD, GET)])
def test_what_a_row_writes_is_allowed_and_read(
    row: Dialect, tokens: bool, calls: tuple[ToolCall, ...]
) -> None:
    bound = bound_to(row, tokens)
    text = written_calls(row, calls)
    for form in (REQUIRED, AnswerForm(TOOLS), AnswerForm(TOOLS, parallel=False)):
        answers = language(bound, form)
        assert answers.has(text) is (len(calls) == 1 or (row.parallel and form.parallel))
        if answers.has(text):
            assert folded(parsed(bound, form, answers, answers.ids(text))) == lines(*calls)


@ROWS
@TOKENS
def test_near_misses_are_refused(row: Dialect, tokens: bool) -> None:
    answers = language(bound_to(row, tokens), REQUIRED)
    text = written_calls(row, (ADD,))
    assert answers.has(text)
    misses = {
        "wrong type": written_calls(row, (ToolCall("", "add", '{"a": true}'),)),
        "wrong key": written_calls(row, (ToolCall("", "add", '{"b": 1}'),)),
        "twice": written_calls(row, (ToolCall("", "add", '{"a": 1, "a2": 1}'),)).replace("a2", "a"),
        "missing": written_calls(row, (ToolCall("", "add", "{}"),)),
        "another tool": text.replace("add", "sub"),
        "a longer name": text.replace("add", "add_all"),
        "no opener": text.removeprefix(row.opener or "{"),
        "text before": "x" + text,
        "text after": text + "x",
        "cut": text[:-1],
        "nothing": "",
    }
    if closing := span_form(row).closing:
        misses["no closing"] = text.replace(closing, "")
    assert [name for name, miss in misses.items() if answers.has(miss)] == []


@ROWS
@TOKENS
def test_text_may_come_before_a_call_and_not_after(row: Dialect, tokens: bool) -> None:
    bound, form = bound_to(row, tokens), AnswerForm(TOOLS)
    answers = language(bound, form)
    text = written_calls(row, (ADD,))
    if not row.opener:  # a call is known only at the start
        said = "I add. " + text
        read = folded(parsed(bound, form, answers, answers.ids(said)))
        assert read == [f"text {json.dumps(said)}"]
        return
    onward = [each for each in row.text if each.onward]
    if row.text and not onward:  # text or calls
        for each in row.text:
            alone = f"{each.open}I add.{each.close}"
            assert answers.has(alone)
            assert folded(parsed(bound, form, answers, answers.ids(alone))) == ['text "I add."']
            assert not answers.has(alone + text)
        return
    said = f"I add.{'' if row.opener.startswith(' ') else ' '}{text}"
    if onward:
        said = f"{onward[0].open}I add.{onward[0].close}{text}"
    assert answers.has(said)
    assert folded(parsed(bound, form, answers, answers.ids(said))) == ['text "I add."', *lines(ADD)]
    assert not answers.has(said + " Done.")


@ROWS
@TOKENS
def test_a_thought_may_come_before_a_call(row: Dialect, tokens: bool) -> None:
    if row.reasoning is None:
        pytest.skip("this row has no thoughts")
    opener, closer = row.reasoning
    call = written_calls(row, (ADD,))
    for state, start in ((ReasoningState.POSSIBLE, opener), (ReasoningState.OPEN, "")):
        bound, form = bound_to(row, tokens), AnswerForm(TOOLS, must_call=True, reasoning=state)
        answers = language(bound, form)
        text = f"{start}one and one{closer}{row.after_reasoning}{call}"
        assert answers.has(text)
        read = folded(parsed(bound, form, answers, answers.ids(text)))
        assert read == ['reasoning "one and one"', *lines(ADD)]


@ROWS
@TOKENS
def test_a_turn_without_a_thought_may_begin_with_its_close(row: Dialect, tokens: bool) -> None:
    if row.reasoning is None or row.text:
        pytest.skip("this row has no thoughts, or text only in segments")
    bound, closer, call = bound_to(row, tokens), row.reasoning[1], written_calls(row, (ADD,))
    required = AnswerForm(TOOLS, must_call=True, reasoning=ReasoningState.POSSIBLE)
    assert language(bound, required).has(closer + row.after_reasoning + call) is row.thoughtless
    if row.thoughtless:
        form = AnswerForm(TOOLS, reasoning=ReasoningState.POSSIBLE)
        answers = language(bound, form)
        for text, expected in ((f"{closer}\n\nNo.", ['text "No."']), (closer + call, lines(ADD))):
            assert answers.has(text)
            assert folded(parsed(bound, form, answers, answers.ids(text))) == expected
        assert not answers.has(f" {closer}{closer}")


@ROWS
@TOKENS
@pytest.mark.parametrize("must_call", [True, False])
def test_the_parser_reads_whatever_the_constraint_lets_through(
    row: Dialect, tokens: bool, must_call: bool
) -> None:
    bound, form = bound_to(row, tokens), AnswerForm(TOOLS, must_call=must_call, bare=row.bare)
    answers = language(bound, form)
    hints = (written_calls(row, (ADD,)), written_calls(row, (GET_ALL, GET)), row.opener, *bound.tokens)
    samples = list(answers.samples(12, 5, hints))
    assert samples
    for sample in samples:
        read = folded(parsed(bound, form, answers, sample))
        calls = [line.split(" ", 2)[1:] for line in read if line.startswith("call ")]
        assert not any(line.startswith("cut") for line in read)
        assert calls or not must_call
        for name, arguments in calls:
            declared = json.loads(next(each.schema for each in TOOLS if each.name == name))
            assert set(json.loads(arguments)) == set(declared["properties"])


# The real templates.

OWN = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed-oss",
    "Cohere2MoE": "cohere-text",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r-plus",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere-response",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "GigaChat3-10B-A1.8B": "gigachat3",
    "GigaChat3.1-10B-A1.8B": "gigachat3.1",
    "Kimi-K2-Instruct": "kimi-k2",
    "Kimi-K2-Thinking": "kimi-k2",
    "Kimi-K3": "kimi-k3",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax-m1",
    "MiniMax-M2": "minimax-m2",
    "MiniMax-M3": "minimax-m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-v11-id",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3-coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron-v2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen3-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-r1",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-r1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai-DeepSeek-V3.2": "dsml-v3.2",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "dsml-v4",
    "deepseek-ai-DeepSeek-V4": "dsml-v4",
    "fireworks-ai-llama-3-firefunction-v2": "functools",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "google-gemma-4-31B-it": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite-3",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "llama-cpp-deepseek-r1": "deepseek-r1",
    "meetkai-functionary-medium-v3.1": "functionary-v3.1",
    "meetkai-functionary-medium-v3.2": "functionary-v3.2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3-json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3-json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3-json",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral-v11",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-v3",
    "moonshotai-Kimi-K2": "kimi-k2",
    "muse-glimmer": "muse",
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "tencent-Hy3": "hunyuan-3",
    "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral-v11",
    "upstage-Solar-Open-100B": "solar-open",
}
"""Templates whose dialect is in the table. All others are served with the generic one."""


UNCLOSED = "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"
"""This template closes the section of calls after the second one only."""


INDENTED = "CohereForAI-c4ai-command-r-plus-tool_use"
"""This template writes each argument on a line of its own."""


PROBES = (
    (probe_call(0, "one", "two"),),
    (probe_call(0, "one", "two"), probe_call(1, "three")),
    (probe_call(0),),
)


def calls_of(source: str, row: Dialect) -> list[str]:
    """What a template writes for one call, for two, and for one without arguments."""
    prompter = Prompter(source, row, ByteVocabulary())
    written = []
    for calls in PROBES:
        try:
            written.append(prompter.rendered_calls(calls))
        except TemplateFailed:
            written.append("")
    return written


def test_each_template_is_read_by_its_own_row_or_by_none(templates: dict[str, str]) -> None:
    found = {}
    for name, source in templates.items():
        row = detect(source)
        if row.name != "generic" and measured(row, *calls_of(source, row)) is not None:
            found[name] = row.name
    assert found == OWN


@pytest.mark.parametrize("name", OWN)
def test_what_a_template_writes_is_what_the_measured_row_writes(templates: dict[str, str], name: str) -> None:
    source = templates[name]
    row = detect(source)
    rendered = calls_of(source, row)
    found = measured(row, *rendered)
    assert found is not None
    for calls, text in zip(PROBES, rendered, strict=True):
        if name == UNCLOSED and len(calls) == 1:
            continue
        if text and (found.parallel or len(calls) == 1):
            written = written_calls(found.in_history or found, calls)
            if span_form(found).notation is Notation.PYTHONIC:
                text = text.replace("'", '"')
            if name == INDENTED:
                text = text.replace('{\n            "', '{"').replace('",\n            "', '", "')
                text = text.replace('"\n        }', '"}')
            assert without_ids(written) in without_ids(text)
            assert reads(found, written, calls)


LONGCAT = """\
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}[{{ message.role }}]{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '<longcat_tool_call>' }}{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
{{- '</longcat_tool_call>' }}
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


def test_a_dialect_outside_the_real_templates() -> None:
    row = detect(LONGCAT)
    assert row.name == "longcat"
    found = measured(row, *calls_of(LONGCAT, row))
    assert found is not None
    assert (found.separator, found.parallel) == ("", True)
    assert calls_of(LONGCAT, row)[1] == written_calls(found, PROBES[1])


def without_ids(text: str) -> str:
    return re.sub("probe0000|probe0001|call00000|call00001", "ID", text)


def test_the_separator_is_the_templates_own() -> None:
    row = next(each for each in DIALECTS if each.name == "hermes")
    one, two = (written_calls(row, (ADD, GET)[:count]) for count in (1, 2))
    close = measured(row, one, two.replace("</tool_call>\n<", "</tool_call><"), "")
    assert close is not None
    assert (close.separator, close.parallel) == ("", True)
    alone = measured(row, one, "", "")
    assert alone is not None
    assert not alone.parallel
    tight = measured(row, one.replace("\n", ""), "", "")
    assert tight is not None
    assert written_calls(tight, (GET,)) == '<tool_call>{"name": "get", "arguments": {}}</tool_call>'
