"""The dialects: one row each. Everything that differs between two models of one grammar family is here.

A row names its grammar file and gives the texts of that file's markers and gaps for this dialect. Gaps
are exact on the constraint side; the parser reads any whitespace in their places. ``cues`` are texts
that must all occur in a chat template for the row to be taken; rows are tried in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model writes calls and reasoning.

    ``span`` names the rule of the grammar file that a span is. ``markers`` take the place of the file's
    terminals of the same name: a token where the vocabulary has one, and hidden in what clients send.
    ``keys`` do too, and are only text. A gap that is not named in ``gaps`` is empty; those of a template are
    measured when it is loaded. ``separator`` stands between two spans. Where calls have ids in the text, they
    are nine letters and digits, or, ``indexed``, the running number of the call. ``reasoning`` is the pair
    of markers around a thought and ``after_reasoning`` what the model writes between a thought and a call.
    ``tools_in_template`` is False where the template knows no tools and the system text has to describe
    them. ``bare`` says that such a model may forget the markers around a call.
    """

    name: str
    grammar: str
    cues: tuple[str, ...]
    markers: Mapping[str, str]
    span: str = "span"
    keys: Mapping[str, str] = field(default_factory=dict)
    gaps: Mapping[str, str] = field(default_factory=dict)
    separator: str = ""
    indexed: bool = False
    reasoning: tuple[str, str] | None = None
    after_reasoning: str = ""
    tools_in_template: bool = True
    parallel: bool = True
    bare: bool = False

    @property
    def opener(self) -> str:
        """The text that opens a span."""
        return self.markers["OPEN"]

    @property
    def marker_texts(self) -> tuple[str, ...]:
        """Every marker of the dialect, those of reasoning included."""
        return (*self.markers.values(), *(self.reasoning or ()))


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
    HERMES,
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
    GENERIC,
)
"""In order of detection; the last one takes what no other does."""

ALL_MARKERS: tuple[str, ...] = tuple(sorted({text for row in DIALECTS for text in row.marker_texts}))
"""Every marker of every row: what a vocabulary must know as tokens where it has them."""
