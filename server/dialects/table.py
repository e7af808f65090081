"""The dialects: one row each. Everything that differs between two models of one grammar family is here.

A row names its grammar file and gives the texts of that file's markers and gaps for this dialect. Gaps
are exact on the constraint side; the parser reads any whitespace in their places. ``cues`` are texts
that must all occur in a chat template for the row to be taken; rows are tried in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from server.dialects.dialect import Dialect, Segment

_THINK = ("<think>", "</think>")
_JSON_GAPS = MappingProxyType(
    {
        "gap_name": " ",
        "gap_arguments_key": " ",
        "gap_arguments": " ",
        "gap_id_key": " ",
        "gap_id": " ",
        "gap_item": " ",
    }
)
"""Whitespace as Python's ``json`` writes it."""

_LINED_GAPS = MappingProxyType({**_JSON_GAPS, "gap_open": "\n", "gap_close": "\n", "gap_line": "\n"})


def _between(opener: str, closer: str = "") -> Mapping[str, str]:
    return MappingProxyType({"OPEN": opener} | ({"CLOSE": closer} if closer else {}))


_DEEPSEEK = MappingProxyType(
    {
        "OPEN": "<｜tool▁calls▁begin｜>",
        "CLOSE": "<｜tool▁calls▁end｜>",
        "CALL_OPEN": "<｜tool▁call▁begin｜>",
        "ARGS": "<｜tool▁sep｜>",
        "CALL_CLOSE": "<｜tool▁call▁end｜>",
    }
)

_ELEMENT_GAPS = MappingProxyType(
    {
        "gap_open": "\n",
        "gap_close": "\n",
        "gap_line": "\n",
        "gap_before": "\n",
        "gap_after": "\n",
        "gap_last": "\n",
        "gap_empty": "\n",
    }
)
"""Each element on a line of its own."""


_PAIR_GAPS = MappingProxyType({**_ELEMENT_GAPS, "gap_value": "\n"})


def _pair_markers(suffix: str = "") -> Mapping[str, str]:
    """The markers of a parameter as a key and a value, each between two of its own, and of the call's end."""
    names = {"KEY": "arg_key", "VALUE": "arg_value"}
    opened = {f"{each}_OPEN": f"<{name}{suffix}>" for each, name in names.items()}
    closed = {f"{each}_END": f"</{name}{suffix}>" for each, name in names.items()}
    return {**opened, **closed, "CALL_CLOSE": f"</tool_call{suffix}>"}


def _dsml(name: str, section: str) -> Dialect:
    return Dialect(
        name=name,
        grammar="elements",
        cues=("DSML", section),
        markers=MappingProxyType(
            {
                "OPEN": f"<｜DSML｜{section}>",
                "CLOSE": f"</｜DSML｜{section}>",
                "CALL_OPEN": '<｜DSML｜invoke name="',
                "CALL_CLOSE": "</｜DSML｜invoke>",
                "KEY_OPEN": '<｜DSML｜parameter name="',
                "VALUE_END": "</｜DSML｜parameter>",
            }
        ),
        inner=("｜DSML｜",),
        keys=MappingProxyType({"NAME_END": '">'}),
        span="typed_section",
        unopened="unopened_typed_section",
        gaps=_ELEMENT_GAPS,
        reasoning=_THINK,
        after_reasoning="\n\n",
    )


_K3_KINDS = {
    "TEXT": "string",
    **{each.upper(): each for each in ("number", "boolean", "null", "array", "object")},
}

_SOLAR = (
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|begin|>",
    "<|think|>",
    "<|content|>",
    "<|end|>",
)


_ACTION = "Action:\n```json"
_END_OF_TURN = "<|END_OF_TURN_TOKEN|>"
_DIRECTLY = (
    f'{_ACTION}\n[\n    {{\n        "tool_name": "directly-answer",\n        "parameters": {{}}\n    }}\n]```'
    f"{_END_OF_TURN}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
)
"""How Command R+ says that it calls no tool, and where its text begins then."""

_M3 = "]<]minimax[>["
"""What stands before every tag of MiniMax M3, a token of its own."""


def _cohere(name: str, text: str) -> Dialect:
    action, thought, answer = (
        (f"<|START_{each}|>", f"<|END_{each}|>") for each in ("ACTION", "THINKING", text)
    )
    return Dialect(
        name=name,
        grammar="json_object",
        cues=(action[0], answer[0]),
        markers=_between(*action),
        inner=(*action, *thought, *answer),
        keys=MappingProxyType(
            {"ID_KEY": '"tool_call_id"', "NAME_KEY": '"tool_name"', "ARGUMENTS_KEY": '"parameters"'}
        ),
        span="action_list",
        gaps=MappingProxyType(
            {
                **_JSON_GAPS,
                "gap_name_key": " ",
                "gap_first": "\n    ",
                "gap_item": "\n    ",
                "gap_last": "\n",
            }
        ),
        indexed=True,
        reasoning=thought,
        text=(Segment(*answer),),
    )


HERMES = Dialect(
    name="hermes",
    grammar="json_object",
    cues=("<tool_call>",),
    markers=_between("<tool_call>", "</tool_call>"),
    gaps=_LINED_GAPS,
    separator="\n",
    reasoning=_THINK,
    after_reasoning="\n\n",
    bare=True,
)

GENERIC = dataclasses.replace(HERMES, name="generic", cues=(), tools_in_template=False)

DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        name="apertus",
        grammar="json_object",
        cues=("<|tools_prefix|>",),
        markers=_between("<|tools_prefix|>", "<|tools_suffix|>"),
        span="keyed_list",
        gaps=_JSON_GAPS,
        reasoning=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    Dialect(
        name="apriel",
        grammar="json_object",
        cues=("<tool_calls>[",),
        markers=_between("<tool_calls>", "</tool_calls>"),
        span="list",
        gaps=_JSON_GAPS,
        reasoning=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        reasoning_cue="[BEGIN FINAL RESPONSE]",
    ),
    Dialect(
        name="minimax-m1",
        grammar="json_object",
        cues=("<tool_calls>", "<beginning_of_sentence>"),
        markers=_between("<tool_calls>", "</tool_calls>"),
        span="lines",
        gaps=_LINED_GAPS,
        reasoning=_THINK,
    ),
    Dialect(
        name="nemotron-v2",
        grammar="json_object",
        cues=("<TOOLCALL>",),
        markers=_between("<TOOLCALL>", "</TOOLCALL>"),
        span="list",
        gaps=_JSON_GAPS,
        reasoning=_THINK,
    ),
    Dialect(
        name="gigachat3.1",
        grammar="json_object",
        cues=("<|role_sep|>", "<|function_call|>"),
        markers=_between("<|function_call|>"),
        span="open_span",
        gaps=_JSON_GAPS,
        parallel=False,
    ),
    Dialect(
        name="gigachat3",
        grammar="json_object",
        cues=("<|role_sep|>", "function call"),
        markers=_between("<|message_sep|>\n\nfunction call<|role_sep|>\n"),
        inner=("<|message_sep|>", "<|role_sep|>"),
        span="open_span",
        gaps=_JSON_GAPS,
        turn_end="<|message_sep|>\n\nuser<|role_sep|>",
        parallel=False,
    ),
    Dialect(
        name="functools",
        grammar="json_object",
        cues=("functools[",),
        markers=_between(" functools"),
        span="open_list",
        gaps=_JSON_GAPS,
    ),
    Dialect(
        name="granite-3",
        grammar="json_object",
        cues=("<|tool_call|>", "available_tools"),
        markers=_between("<|tool_call|>"),
        span="open_list",
        gaps=_JSON_GAPS,
        reasoning=_THINK,
    ),
    Dialect(
        name="mistral-v11-id",
        grammar="name_json",
        cues=("[TOOL_CALLS]", "[CALL_ID]"),
        markers=MappingProxyType({"OPEN": "[TOOL_CALLS]", "CALL_ID": "[CALL_ID]", "ARGS": "[ARGS]"}),
        span="open_id_span",
    ),
    Dialect(
        name="mistral-v11",
        grammar="name_json",
        cues=("[TOOL_CALLS]", "[ARGS]"),
        markers=MappingProxyType({"OPEN": "[TOOL_CALLS]", "ARGS": "[ARGS]"}),
        span="open_span",
        reasoning=("[THINK]", "[/THINK]"),
    ),
    Dialect(
        name="mistral-v3",
        grammar="json_object",
        cues=("[TOOL_CALLS]",),
        markers=_between("[TOOL_CALLS]"),
        span="open_id_list",
        gaps=_JSON_GAPS,
    ),
    Dialect(
        name="kimi-k3",
        grammar="elements",
        cues=("<|open|>", "<|end_of_msg|>"),
        markers=MappingProxyType(
            {
                "OPEN": "<|open|>tools<|sep|>",
                "CLOSE": "<|close|>tools<|sep|>",
                "CALL_OPEN": '<|open|>call tool="',
                "ID_END": '"<|sep|>',
                "CALL_CLOSE": "<|close|>call<|sep|>",
                "KEY_OPEN": '<|open|>argument key="',
                **{f"{name}_KIND": f'" type="{each}"<|sep|>' for name, each in _K3_KINDS.items()},
                "VALUE_END": "<|close|>argument<|sep|>",
            }
        ),
        inner=("<|open|>", "<|close|>", "<|sep|>"),
        keys=MappingProxyType({"NAME_END": '" index="'}),
        span="numbered_section",
        indexed=True,
        first_index=1,
        reasoning=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        reasoning_cue="open_tag('think')",
        text=(
            Segment("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            Segment("<|open|>response<|sep|>", "<|close|>response<|sep|>", onward=True),
        ),
        turn_end="<|close|>message<|sep|>",
    ),
    Dialect(
        name="muse",
        grammar="elements",
        cues=("<atem:function_calls>",),
        markers=MappingProxyType(
            {
                "AGAIN": "<|eom|><|start|>assistant to=",
                "CALL_OPEN": '<|message|><atem:function_calls>\n<atem:invoke name="',
            }
        ),
        inner=("<|start|>", "<|message|>", "<|eom|>"),
        keys=MappingProxyType(
            {
                "OPEN": " to=",
                "NAME_END": '">',
                "CALL_CLOSE": "</atem:invoke>\n</atem:function_calls>",
                "KEY_OPEN": '<atem:parameter name="',
                "VALUE_OPEN": '">',
                "VALUE_END": "</atem:parameter>",
            }
        ),
        span="addressed_section",
        gaps=_ELEMENT_GAPS,
        reasoning=(" to=self<|message|>", "<|eom|><|start|>assistant"),
        reasoning_cue=" to=self<|message|>",
        text=(
            Segment("<|message|>"),
            Segment(" to=user<|message|>"),
            Segment(" to=user<|message|>", "<|eom|><|start|>assistant", onward=True),
        ),
    ),
    _dsml("dsml-v3.2", "function_calls"),
    _dsml("dsml-v4", "tool_calls"),
    Dialect(
        name="seed-oss",
        grammar="elements",
        cues=("<seed:tool_call>",),
        markers=_between("<seed:tool_call>", "</seed:tool_call>"),
        keys=MappingProxyType({"VALUE_OPEN": ">", "VALUE_END": "</parameter>"}),
        gaps=_ELEMENT_GAPS,
        separator="\n",
        reasoning=("<seed:think>", "</seed:think>"),
    ),
    Dialect(
        name="minimax-m2",
        grammar="elements",
        cues=("<minimax:tool_call>",),
        markers=_between("<minimax:tool_call>", "</minimax:tool_call>"),
        keys=MappingProxyType(
            {
                "CALL_OPEN": '<invoke name="',
                "NAME_END": '">',
                "CALL_CLOSE": "</invoke>",
                "KEY_OPEN": '<parameter name="',
                "VALUE_OPEN": '">',
                "VALUE_END": "</parameter>",
            }
        ),
        span="section",
        gaps=_ELEMENT_GAPS,
        reasoning=_THINK,
        after_reasoning="\n\n",
    ),
    Dialect(
        name="minimax-m3",
        grammar="nested",
        cues=(_M3, "<invoke name="),
        markers=MappingProxyType(
            {
                "OPEN": f"{_M3}<tool_call>",
                "CLOSE": f"{_M3}</tool_call>",
                "CALL_OPEN": f'{_M3}<invoke name="',
                "TAG": f"{_M3}<",
            }
        ),
        inner=(_M3,),
        gaps=MappingProxyType({"gap_open": "\n", "gap_close": "\n", "gap_line": "\n"}),
        reasoning=("<mm:think>", "</mm:think>"),
        thoughtless=True,
    ),
    Dialect(
        name="hunyuan-3",
        grammar="elements",
        cues=("<tool_sep", "<arg_key"),
        markers=MappingProxyType(
            {
                "OPEN": "<tool_calls:opensource>",
                "CLOSE": "</tool_calls:opensource>",
                "CALL_OPEN": "<tool_call:opensource>",
                "NAME_END": "<tool_sep:opensource>",
                **_pair_markers(":opensource"),
            }
        ),
        span="pair_section",
        gaps=_PAIR_GAPS,
        reasoning=("<think:opensource>", "</think:opensource>"),
        reasoning_cue="<think",
    ),
    Dialect(
        name="glm",
        grammar="elements",
        cues=("<tool_call>", "<arg_key>"),
        markers=MappingProxyType({"OPEN": "<tool_call>", **_pair_markers()}),
        span="pair_span",
        gaps=_PAIR_GAPS,
        separator="\n",
        reasoning=_THINK,
        after_reasoning="\n",
    ),
    Dialect(
        name="minicpm5",
        grammar="elements",
        cues=('<function name="', '<param name="'),
        markers=_between('<function name="'),
        keys=MappingProxyType(
            {
                "NAME_END": '">',
                "CALL_CLOSE": "</function>",
                "KEY_OPEN": '<param name="',
                "VALUE_OPEN": '">',
                "VALUE_END": "</param>",
            }
        ),
        span="cdata_span",
        separator="\n",
        reasoning=_THINK,
        after_reasoning="\n\n",
    ),
    Dialect(
        name="qwen3-coder",
        grammar="elements",
        cues=("<tool_call>", "<function=", "<parameter="),
        markers=_between("<tool_call>", "</tool_call>"),
        unopened="unopened_span",
        gaps=_ELEMENT_GAPS,
        separator="\n",
        reasoning=_THINK,
        after_reasoning="\n\n",
    ),
    Dialect(
        name="longcat",
        grammar="json_object",
        cues=("<longcat_tool_call>",),
        markers=_between("<longcat_tool_call>", "</longcat_tool_call>"),
        gaps=_JSON_GAPS,
    ),
    HERMES,
    Dialect(
        name="gemma4",
        grammar="gemma",
        cues=("<|tool_call>call:",),
        markers=MappingProxyType({"OPEN": "<|tool_call>", "CLOSE": "<tool_call|>", "TEXT_QUOTE": '<|"|>'}),
        inner=("<|channel>",),
        reasoning=("<|channel>thought\n", "<channel|>"),
    ),
    Dialect(
        name="lfm2",
        grammar="pythonic",
        cues=("List of tools: ",),
        markers=_between("<|tool_call_start|>", "<|tool_call_end|>"),
        gaps=MappingProxyType({"gap_item": " "}),
        reasoning=_THINK,
        reasoning_cue="</think>",
    ),
    Dialect(
        name="harmony",
        grammar="name_json",
        cues=("<|channel|>", "<|message|>"),
        markers=MappingProxyType(
            {
                "OPEN": "<|channel|>commentary to=functions.",
                "ARGS": " <|constrain|>json<|message|>",
                "HEADER": "<|channel|>commentary <|constrain|>json<|message|>",
            }
        ),
        keys=MappingProxyType({"RECIPIENT": " to=functions."}),
        inner=("<|channel|>", "<|constrain|>", "<|message|>", "<|start|>", "<|end|>"),
        span="open_span",
        others=MappingProxyType({"RECIPIENT": "addressed_span"}),
        reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        text=(
            Segment("<|channel|>final<|message|>"),
            Segment("<|channel|>commentary<|message|>", "<|end|><|start|>assistant", onward=True),
        ),
        in_history=Dialect(
            name="harmony",
            grammar="name_json",
            cues=(),
            markers=MappingProxyType(
                {"OPEN": " to=functions.", "ARGS": "<|channel|>commentary json<|message|>"}
            ),
            span="open_span",
        ),
        parallel=False,
    ),
    Dialect(
        name="solar-open",
        grammar="name_json",
        cues=("<|tool_call:begin|>",),
        markers=MappingProxyType(
            {
                "OPEN": "<|tool_calls|>",
                "CALL_OPEN": "<|tool_call:begin|>",
                "CALL_ID": "<|tool_call:name|>",
                "ARGS": "<|tool_call:args|>",
                "CALL_CLOSE": "<|tool_call:end|>",
            }
        ),
        inner=_SOLAR,
        span="open_section",
        reasoning=("<|think|>", "<|end|><|begin|>assistant"),
        text=(Segment("<|content|>", "<|end|>"),),
    ),
    _cohere("cohere-text", "TEXT"),
    _cohere("cohere-response", "RESPONSE"),
    Dialect(
        name="command-r-plus",
        grammar="json_object",
        cues=("Action:\\n```json", "directly-answer"),
        markers=MappingProxyType({}),
        inner=("<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        keys=MappingProxyType(
            {
                "OPEN": _ACTION,
                "CLOSE": "```",
                "NAME_KEY": '"tool_name"',
                "ARGUMENTS_KEY": '"parameters"',
            }
        ),
        span="list",
        gaps=MappingProxyType(
            {
                **_JSON_GAPS,
                "gap_open": "\n",
                "gap_first": "\n    ",
                "gap_brace": "\n        ",
                "gap_arguments_key": "\n        ",
                "gap_end_brace": "\n    ",
                "gap_item": "\n    ",
                "gap_last": "\n",
            }
        ),
        text=(Segment(_DIRECTLY, _END_OF_TURN),),
        turn_end=_END_OF_TURN,
    ),
    Dialect(
        name="llama3-json",
        grammar="json_object",
        cues=('"parameters": ', "<|start_header_id|>"),
        markers=MappingProxyType({}),
        keys=MappingProxyType({"ARGUMENTS_KEY": '"parameters"'}),
        span="plain",
        gaps=_JSON_GAPS,
        parallel=False,
        bare=True,
    ),
    Dialect(
        name="kimi-k2",
        grammar="name_json",
        cues=("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        markers=MappingProxyType(
            {
                "OPEN": "<|tool_calls_section_begin|>",
                "CLOSE": "<|tool_calls_section_end|>",
                "CALL_OPEN": "<|tool_call_begin|>",
                "ARGS": "<|tool_call_argument_begin|>",
                "CALL_CLOSE": "<|tool_call_end|>",
            }
        ),
        span="index_section",
        unopened="unopened_index_section",
        indexed=True,
        reasoning=_THINK,
    ),
    Dialect(
        name="deepseek-r1",
        grammar="name_json",
        cues=("tool▁call▁begin", "```json"),
        markers=_DEEPSEEK,
        span="fenced_section",
        gaps=MappingProxyType(
            {"gap_line": "\n", "gap_fence": "\n", "gap_arguments": "\n", "gap_arguments_end": "\n"}
        ),
        reasoning=_THINK,
    ),
    Dialect(
        name="deepseek-v3.1",
        grammar="name_json",
        cues=("<｜tool▁calls▁begin｜>",),
        markers=_DEEPSEEK,
        span="section",
        reasoning=_THINK,
    ),
    Dialect(
        name="functionary-v3.1",
        grammar="name_json",
        cues=("<function=", "has_code_interpreter"),
        markers=_between("<function=", "</function>"),
        keys=MappingProxyType({"ARGS": ">"}),
    ),
    Dialect(
        name="functionary-v3.2",
        grammar="name_json",
        cues=(">>>all", ">>>"),
        markers=MappingProxyType({}),
        inner=(">>>",),
        keys=MappingProxyType({"OPEN": ">>>", "ARGS": "\n"}),
        span="open_span",
        text=(Segment(">>>all\n"), Segment(">>>all\n", onward=True)),
    ),
    GENERIC,
)
"""In order of detection; the last one takes what no other does."""

ALL_MARKERS: tuple[str, ...] = tuple(sorted({text for row in DIALECTS for text in row.marker_texts}))
"""Every marker of every row: what a vocabulary must know as tokens where it has them."""
