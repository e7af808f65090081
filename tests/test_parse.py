"""The parser of answers: golden files, then the properties that any text must keep."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from answers import Case, cut_at, fed, folded, golden_files, random_cuts, read_case, texts_of
from hypothesis import example, given
from hypothesis import strategies as st

from server.dialects.constrain import ReasoningState
from server.dialects.dialect import Dialect
from server.dialects.form import Notation, span_form, written_calls
from server.dialects.grammar import grammar_of
from server.dialects.table import DIALECTS, HERMES
from server.events import CallArguments, Event, Text, TokenLogprob
from server.turn import ToolCall

SPELLED = (
    "plain_text",
    "unicode_and_escapes",
    "no_tools",
    "own_markers_in_a_string",
    "cut_before_the_close",
    "dsml-v3.2-cut_in_the_opener",
    "dsml-v4-cut_in_the_opener",
    "gigachat3-cut_in_the_opener",
    "minimax-m3-cut_in_the_opener",
)
SOLAR = next(row for row in DIALECTS if row.name == "solar-open")
CALLED = 2 * written_calls(SOLAR, [ToolCall("", "add", '{"a": [1]}')])
PLACES = st.lists(st.integers(0, 500), max_size=12)


def cases(row: Dialect) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        dialect=st.just(row),
        raw=texts_of(row),
        expected=st.just([]),
        names=st.sampled_from([(), ("add",), ("add", "add_all")]),
        bare=st.just(False) if not row.bare else st.booleans(),
        trusted=st.just(False),
        reasoning=st.sampled_from(list(ReasoningState)),
        stop=st.sampled_from([(), ("STOP",), ("STOP", "word", "é")]),
    )


CASES = st.sampled_from(DIALECTS).flatmap(cases)


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden(path: Path) -> None:
    case = read_case(path)
    assert folded(fed(case.parser(), [case.raw.encode()])) == case.expected


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_byte_by_byte(path: Path) -> None:
    case = read_case(path)
    assert folded(fed(case.parser(), [bytes([each]) for each in case.raw.encode()])) == case.expected


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_cut_at_random(path: Path) -> None:
    """``scripts/fuzz`` does this a million times."""
    case, chance = read_case(path), random.Random(path.stem)
    for _ in range(200):
        assert folded(fed(case.parser(), random_cuts(case.raw.encode(), chance))) == case.expected


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_with_markers_as_tokens(path: Path) -> None:
    """Where markers are tokens of the vocabulary, the same turn gives the same events."""
    case = read_case(path)
    if path.stem in SPELLED or f"{path.parent.name}-{path.stem}" in SPELLED:
        pytest.skip("spells a marker, or a part of it, as text")
    tokens = {marker: place for place, marker in enumerate(sorted(set(case.dialect.hidden_texts)))}
    parser = case.parser(tokens)
    parts = re.split("(" + "|".join(map(re.escape, tokens)) + ")", case.raw)
    events = [event for part in parts for event in parser.feed(tokens.get(part, -1), part.encode())]
    assert folded(events + parser.flush()) == case.expected


def test_marker_text_is_only_text_where_the_marker_is_a_token() -> None:
    case = Case(HERMES, "", [], names=("add",), trusted=False)
    parser = case.parser({"<tool_call>": 1, "</tool_call>": 2})
    text = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    assert folded(fed(parser, [text.encode()])) == folded([Text(text)])


@given(CASES, PLACES)
@example(Case(SOLAR, CALLED, [], ("add",), trusted=False), [])
@example(Case(HERMES, 'a <tool_call>{"name": "add", "arguments": {}} x', [], ("add",), trusted=False), [3])
def test_chunks_make_no_difference(case: Case, places: list[int]) -> None:
    data = case.raw.encode()
    whole = folded(fed(case.parser(), [data]))
    assert folded(fed(case.parser(), cut_at(data, places))) == whole
    assert folded(fed(case.parser(), [bytes([each]) for each in data])) == whole


BEFORE_ID = ("(?<=:)", r"(?<=CALL_ID\])", "(?<=begin[|]>)")


def elements_markup(row: Dialect) -> list[str]:
    names = "CALL_OPEN NAME_END CALL_CLOSE KEY_OPEN KEY_END VALUE_OPEN VALUE_END TEXT_KIND JSON_KIND"
    terminals = grammar_of(row).terminals
    used = [*names.split(), "CDATA_OPEN", "CDATA_END"]
    return [terminals[name].text or "" for name in used if name in terminals]


def said(row: Dialect, event: Event) -> list[str]:
    """Patterns of what stands in the answer for an event, in order."""
    if not isinstance(event, CallArguments) or span_form(row).notation is Notation.JSON:
        return [re.escape(getattr(event, "text", ""))]
    pairs = json.loads(event.text).items()
    return [re.escape(each) if isinstance(each, str) else ".*?" for pair in pairs for each in pair]


def markup(row: Dialect) -> str:
    """A pattern of what may stand between texts, thoughts and arguments."""
    markers = "|".join(map(re.escape, (*row.marker_texts, *row.keys.values())))
    ids = '|"id"|"[a-zA-Z0-9]+"' if row.span in ("open_id_list", "action_list") else ""
    words = {
        "json_object": '|"name"|"arguments"|"add"|"add_all"',
        "name_json": rf"|functions[.]|function|add|add_all|(?:{'|'.join(BEFORE_ID)})[0-9a-zA-Z]+|>",
        "gemma": "|call:|add|add_all",
        "pythonic": '|add|add_all|[()="]',
        "nested": '|[">]|/[^<>"]*>|add|add_all',
        "elements": "|" + "|".join(["add", "add_all", *map(re.escape, elements_markup(row))]),
    }[row.grammar]
    return rf"(?:\s|{markers}|```json|```|[{{}}:,\[\]]{words}{ids})*"


@given(CASES)
def test_every_character_lands_in_one_place(case: Case) -> None:
    """What is neither text, thought nor arguments is markup, and the order is kept."""
    marks = [
        *(case.dialect.reasoning or ("<think>", "</think>")),
        *(each.close for each in case.dialect.text),
    ]
    pattern = "|".join(re.escape(each) for each in marks if each)
    parts = re.split(f"({pattern})", case.raw)  # two thoughts, or texts, are two events
    events = fed(case.parser(), [part.encode() for part in parts])
    texts = [text for event in events for text in said(case.dialect, event)]
    between = markup(case.dialect)
    pattern = between + between.join(texts) + between
    raw = case.raw
    stops = [raw.find(stop) for stop in case.stop if stop in raw]
    if not stops:
        assert re.fullmatch(pattern, raw, re.DOTALL)
    else:  # a stop string may end the text anywhere from its first occurrence on
        ends = [match.start() for stop in case.stop for match in re.finditer(re.escape(stop), raw)]
        assert any(re.fullmatch(pattern, raw[:end], re.DOTALL) for end in [*ends, len(raw)])


@pytest.mark.parametrize("row", DIALECTS, ids=lambda row: row.name)
@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_calls_that_are_never_finished_are_text(row: Dialect, chunk: int) -> None:
    """However many have begun, and whatever they hold."""
    call = written_calls(row, [ToolCall("", "add", '{"a": "x y"}')])
    begun = "".join(call[:length] for length in range(len(row.opener), call.index("y"), 3))
    case = Case(row, begun, [], ("add",), trusted=False)
    data = case.raw.encode()
    lines = folded(fed(case.parser(), [data[at : at + chunk] for at in range(0, len(data), chunk)]))
    said = "".join(json.loads(line.split(" ", 1)[1]) for line in lines)
    assert "".join(said.split()) == "".join(begun.split())


@given(CASES)
def test_calls_come_after_text_and_are_json(case: Case) -> None:
    for line in folded(fed(case.parser(), [case.raw.encode()])):
        kind, _, rest = line.partition(" ")
        if kind == "call":
            name, _, arguments = rest.partition(" ")
            assert name in case.names
            assert isinstance(json.loads(arguments.replace("\\n", " "), strict=False), dict)
        assert kind != "cut", "an unconstrained call is announced only when complete"


@given(st.binary(max_size=80), PLACES)
def test_any_bytes_are_read(data: bytes, places: list[int]) -> None:
    case = Case(HERMES, "", [], names=("add",), bare=True, trusted=False)
    whole = folded(fed(case.parser(), [data]))
    assert folded(fed(case.parser(), cut_at(data, places))) == whole


@pytest.mark.parametrize("row", DIALECTS, ids=lambda row: row.name)
def test_long_whitespace_is_read_alike_in_any_pieces(row: Dialect) -> None:
    for length in (4000, 4096, 5000):
        raw = (" " * length + written_calls(row, [ToolCall("", "add", "{}")])).encode()
        parts = [[raw[at : at + size] for at in range(0, len(raw), size)] for size in (4, 1000, len(raw))]
        case = Case(row, "", [], ("add",), bare=row.bare, trusted=False)
        one, *others = (folded(fed(case.parser(), each)) for each in parts)
        assert [one] * len(others) == others


def test_nothing_is_held_but_what_may_become_a_marker() -> None:
    parser = Case(HERMES, "", [], names=("add",)).parser()
    assert parser.feed(-1, b"Hi <tool") == [Text("Hi")]
    assert parser.feed(-1, b"box>. ") == [Text(" <toolbox>.")]
    assert parser.feed(-1, b"Bye") == [Text(" Bye")]


def test_arguments_stream_as_they_come() -> None:
    parser = Case(HERMES, "", [], names=("add",)).parser()
    parser.feed(-1, b'<tool_call>\n{"name": "add", "arguments": ')
    assert [e.text for e in parser.feed(-1, b'{"a": "on')] == ['{"a": "on']  # type: ignore[union-attr]
    assert [e.text for e in parser.feed(-1, b"e tw")] == ["e tw"]  # type: ignore[union-attr]


def test_logprobs_stay_with_their_text() -> None:
    parser = Case(HERMES, "", [], names=("add",), stop=("STOP",)).parser()
    events = []
    for word in ("One", " two", " ST", "UP", "\n", "<tool_call>"):
        events += parser.feed(-1, word.encode(), TokenLogprob(word, word.encode(), -0.5))
    texts = [event for event in events if isinstance(event, Text)]
    assert "".join(event.text for event in texts) == "One two STUP"
    tokens = [each.token for event in texts for each in event.logprobs]
    assert tokens == ["One", " two", " ST", "UP"]


def hostile_texts(row: Dialect) -> list[tuple[str, str, str]]:
    """What comes once, then many times, then once."""
    text, array = (
        written_calls(row, [ToolCall("", "add", argument)]) for argument in ('{"a": "TEXT"}', '{"a": [0]}')
    )
    begun, ended = text.split("TEXT")
    in_array = array[: array.index("0")]
    closed = ended[: len(ended) // 2] + "<>"
    anywhere = ["<", " ", "{", "[", "<tool_call>", row.opener, row.opener[:-1], begun, in_array, text]
    return [
        *(("", many, "") for many in dict.fromkeys(anywhere)),
        *((begun, many, "") for many in ("\\\\", '\\"', "\\u00e9", "\\u", "word ", "<", "\n")),
        *((in_array, many, "") for many in ("[", "1,", "{},", "{", '"",', " ", "1")),
        (begun, begun, closed),
        ("", text + "<", closed),
    ]


@pytest.mark.parametrize(
    ("row", "before", "bomb", "after"),
    [
        pytest.param(row, *text, id=f"{row.name}-{'...'.join(text)}")
        for row in {row.grammar: row for row in DIALECTS}.values()
        for text in hostile_texts(row)
    ],
)
def test_hostile_text_takes_linear_work(row: Dialect, before: str, bomb: str, after: str) -> None:
    """Counted in steps of the interpreter, not in seconds: twice the text, about twice the steps."""
    import sys

    def steps(count: int) -> int:
        case = Case(row, "", [], names=("add",), bare=row.bare, trusted=False)
        counted = 0

        def count_calls(*_: object) -> None:
            nonlocal counted
            counted += 1

        parser = case.parser()
        sys.setprofile(count_calls)
        try:
            fed(parser, [before.encode(), *[bomb.encode()] * count, after.encode()])
        finally:
            sys.setprofile(None)
        return counted

    assert steps(1200) < 2.6 * steps(600)
