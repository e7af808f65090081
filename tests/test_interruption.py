"""Calls within a thought that nothing has closed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import Case, fed, folded, texts_of
from hypothesis import given
from hypothesis import strategies as st
from languages import Language
from test_dialects import ADD, GET, GET_ALL, TOKENS, TOOLS, bound_to, lines, tool

from server.dialects.bound import BoundDialect
from server.dialects.constrain import AnswerForm, ReasoningState, compose
from server.dialects.form import span_form, written_calls
from server.dialects.interruption import Interruption, interruption
from server.dialects.parse import TurnParser
from server.dialects.table import DIALECTS
from server.turn import ToolCall

THOUGHTFUL = [row for row in DIALECTS if row.reasoning]
ROWS = pytest.mark.parametrize("row", THOUGHTFUL, ids=lambda row: row.name)
OPENS, OPEN = ReasoningState.POSSIBLE, ReasoningState.OPEN


class Model:
    """One dialect that thinks: its markers are tokens or text."""

    def __init__(self, row: Any, tokens: bool, **form: Any) -> None:
        self.bound = bound_to(row, tokens)
        self.form = AnswerForm(TOOLS, **form)
        self.language = Language(compose(self.bound, self.form), tuple(self.bound.tokens))
        self.has, self.ids = self.language.has, self.language.ids

    def read(self, tokens: list[int], *, trusted: bool = True) -> list[str]:
        parser = TurnParser(
            self.bound,
            [each.name for each in TOOLS],
            reasoning=self.form.reasoning,
            calls_only=self.form.must_call,
            trusted=trusted,
            new_id=str,
            parameters={each.name: each.parameters for each in TOOLS},
        )
        return folded(
            [e for each in tokens for e in parser.feed(each, self.language.data(each))] + parser.flush()
        )


@ROWS
@TOKENS
@pytest.mark.parametrize("state", [OPENS, OPEN])
@pytest.mark.parametrize("must_call", [False, True])
def test_a_call_ends_a_thought_where_it_can_be_told(
    row: Any, tokens: bool, state: ReasoningState, must_call: bool
) -> None:
    model = Model(row, tokens, reasoning=state, must_call=must_call)
    how = interruption(model.bound)
    if how is None:
        pytest.skip("here nothing tells a call")
    start = row.reasoning[0] if state is OPENS else ""
    for calls in ((ADD,), (GET_ALL, GET), (GET,)):
        text = f"{start}One.\n{written_calls(row, calls)}"
        several = len(calls) == 1 or row.parallel
        allowed = several and not (row.text and how is Interruption.TOKEN)
        assert model.has(text) is allowed
        if several:
            assert model.read(model.ids(text), trusted=allowed) == ['reasoning "One."', *lines(*calls)]


@ROWS
@TOKENS
def test_a_quoted_call_is_thought(row: Any, tokens: bool) -> None:
    model = Model(row, tokens, reasoning=OPEN)
    if interruption(model.bound) is not Interruption.NAME:
        pytest.skip("here the opener says all")
    opener, close = row.opener, row.reasoning[1]
    other = written_calls(row, [ADD]).replace("add", "delete")
    for thought in (opener, f"{opener}\n", f"{opener} {opener}{opener}.", other, f"{opener[:-1]} {other}"):
        said = f"One {thought} two{close}{row.after_reasoning}{written_calls(row, [GET])}"
        assert model.has(said)
        read = model.read(model.ids(said))
        assert read == [f"reasoning {json.dumps(f'One {thought} two', ensure_ascii=False)}", *lines(GET)]


@ROWS
@TOKENS
def test_whatever_the_constraint_lets_through_is_read(row: Any, tokens: bool) -> None:
    for state in (OPENS, OPEN):
        model = Model(row, tokens, reasoning=state)
        opener, close = row.reasoning
        loose = written_calls(row, [ADD]).replace(" ", "").replace("\n", "")
        hints = (written_calls(row, [ADD]), loose, loose[:-8], row.opener, opener, close, *model.bound.tokens)
        samples = list(model.language.samples(20, 3, [each for each in hints if each]))
        assert samples
        for sample in samples:
            assert not any(line.startswith("cut") for line in model.read(sample))


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "kimi-k2", "dsml-v4", "gemma4"])
def test_text_may_turn_into_a_call_of_many_tools(name: str) -> None:
    row = next(row for row in DIALECTS if row.name == name)
    names = [f"server__tool_number_{number}_of_many" for number in range(128)]
    form = AnswerForm(tuple(tool(each, a={"type": "integer"}) for each in names), reasoning=OPENS)
    language = Language(compose(BoundDialect(row), form))
    call = written_calls(row, [ToolCall("", names[70], '{"a": 1}')])
    for said in (f"One <x {{ two. {call}", f"{row.reasoning[0]}One <x {{ two. {call}"):
        assert language.has(said)


@ROWS
@given(st.data())
def test_thoughts_are_read_alike_in_any_chunks(row: Any, data: st.DataObject) -> None:
    text = data.draw(texts_of(row))
    case = Case(row, text, [], ("add", "add_all"), trusted=False, reasoning=OPEN)
    whole = folded(fed(case.parser(), [text.encode()]))
    assert folded(fed(case.parser(), [bytes([each]) for each in text.encode()])) == whole


def test_a_thought_that_is_cut_within_a_call_without_a_name_is_kept() -> None:
    hermes = next(row for row in DIALECTS if row.name == "hermes")
    for must_call in (False, True):
        for cut in (False, True):
            parser = TurnParser(
                BoundDialect(hermes), ["add"], reasoning=OPEN, calls_only=must_call, new_id=str
            )
            events = parser.feed(-1, b'One. <tool_call>\n{"name": "ad')
            assert parser.in_reasoning
            events += parser.flush(cut=cut)
            assert folded(events) == ['reasoning "One. <tool_call>\\n{\\"name\\": \\"ad"']


def test_only_markers_of_their_own_open_calls_in_thoughts() -> None:
    muse = next(row for row in DIALECTS if row.name == "muse")
    assert span_form(muse).before[0].text == " to="
    assert interruption(BoundDialect(muse)) is None
