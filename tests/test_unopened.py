"""Calls whose span lacks its opening marker, as some models write them at times."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import Case, fed, folded
from hypothesis import given
from hypothesis import strategies as st
from languages import Language
from test_dialects import ADD, GET, GET_ALL, TOOLS, bound_to, lines, parsed

from server.dialects.constrain import AnswerForm, compose
from server.dialects.form import span_form, written_calls
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS

UNOPENED = [row for row in DIALECTS if row.unopened]
ROWS = pytest.mark.parametrize("row", UNOPENED, ids=lambda row: row.name)
TOKENS = pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])


def unopened(row: Any, *calls: Any) -> str:
    """The calls without what opens their span."""
    before = "".join(item.text for item in span_form(row).before)
    return written_calls(row, calls).removeprefix(before)


@ROWS
@TOKENS
@pytest.mark.parametrize("calls", [(ADD,), (GET,), (GET_ALL,), (GET_ALL, GET)])
@pytest.mark.parametrize("said", ["", "I look. ", "See <function=x> and <tool_call.\n"])
def test_they_are_calls(row: Any, tokens: bool, calls: Any, said: str) -> None:
    bound, form = bound_to(row, tokens), AnswerForm(TOOLS)
    answers = Language(compose(bound, form), tuple(bound.tokens))
    text = said + unopened(row, *calls)
    assert answers.has(text)
    events = parsed(bound, form, answers, answers.ids(text))
    expected = [f"text {said.strip()!r}".replace("'", '"')] if said else []
    assert [line.replace("\\n", "") for line in folded(events)] == [*expected, *lines(*calls)]


@ROWS
@TOKENS
def test_only_a_free_answer_may_have_them(row: Any, tokens: bool) -> None:
    bound, text = bound_to(row, tokens), unopened(row, ADD)
    for form in (AnswerForm(TOOLS, must_call=True), AnswerForm(TOOLS, response='{"type": "string"}')):
        assert not Language(compose(bound, form), tuple(bound.tokens)).has(text)
    single = Language(compose(bound, AnswerForm(TOOLS, parallel=False)), tuple(bound.tokens))
    assert single.has(text)
    assert not single.has(unopened(row, ADD, GET))


@ROWS
def test_an_unknown_name_is_text(row: Any) -> None:
    text = f"So {unopened(row, ADD)} it is"
    for names in (("get",), ()):
        case = Case(row, text, [], names, trusted=False)
        whole = folded(fed(case.parser(), [text.encode()]))
        assert whole == folded(fed(case.parser(), [bytes([each]) for each in text.encode()]))
        assert len(whole) == 1
        assert whole[0].startswith('text "So ')
        assert whole[0].count("add") == 1


@ROWS
@given(st.lists(st.sampled_from(["x", " ", "\n", "OPENER", "CALL", "NAME", "WHOLE"]), max_size=12))
def test_pieces_of_them_are_read_alike_in_any_chunks(row: Any, words: list[str]) -> None:
    marker = span_form(row).call_marker
    parts = {"OPENER": row.opener, "CALL": marker, "NAME": marker + "add", "WHOLE": unopened(row, ADD)}
    text = "".join(parts.get(word, word) for word in words)
    case = Case(row, text, [], ("add",), trusted=False)
    whole = folded(fed(case.parser(), [text.encode()]))
    assert folded(fed(case.parser(), [bytes([each]) for each in text.encode()])) == whole


def test_whitespace_after_the_marker_counts_as_none() -> None:
    row = next(each for each in DIALECTS if each.name == "kimi-k2")
    bound, form = bound_to(row, False), AnswerForm(TOOLS)
    answers = Language(compose(bound, form), ())
    spaced = unopened(row, ADD).replace("functions.", "\n functions.")
    assert answers.has(spaced)
    assert folded(parsed(bound, form, answers, answers.ids(spaced))) == lines(ADD)
    assert not answers.has("So <|tool_call_begin|> functions.get:0 is how")


@pytest.mark.parametrize("name", ["qwen3-coder", "kimi-k2", "hermes", "gemma4"])
@TOKENS
def test_text_that_has_a_schema_holds_no_call(name: str, tokens: bool) -> None:
    row = next(each for each in DIALECTS if each.name == name)
    schema = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}'
    bound, form = bound_to(row, tokens), AnswerForm(TOOLS, response=schema)
    answers = Language(compose(bound, form), tuple(bound.tokens))
    for inner in (written_calls(row, [GET]), unopened(row, GET)):
        said = json.dumps({"a": inner}, ensure_ascii=False)
        tokens_of_text = list(said.encode())
        parser = TurnParser(bound, ["get"], calls_first=True, new_id=str)
        events = [e for each in tokens_of_text for e in parser.feed(each, bytes([each]))] + parser.flush()
        assert folded(events) == [f"text {json.dumps(said, ensure_ascii=False)}"]
    call = written_calls(row, [GET])
    assert answers.has(call)
    parser = TurnParser(bound, ["get"], calls_first=True, new_id=str)
    ids = answers.ids(call)
    events = [e for each in ids for e in parser.feed(each, answers.data(each))] + parser.flush()
    assert folded(events) == lines(GET)


def test_a_character_that_is_cut_within_a_call_is_nothing() -> None:
    row = next(each for each in DIALECTS if each.name == "dsml-v4")
    begun = written_calls(row, [ADD]).partition("<｜DSML｜parameter")[0].encode()
    for cut in (True, False):
        parser = TurnParser(bound_to(row, False), ["add"], new_id=str)
        events = parser.feed(-1, begun + "<｜".encode()[:2]) + parser.flush(cut=cut)
        assert folded(events) == ["cut add "]
