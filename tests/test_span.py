"""The incremental span parser against lark's own reading of the whole text."""

from __future__ import annotations

import json

import pytest
from answers import TEXTS, cut_at
from hypothesis import given
from hypothesis import strategies as st
from lark import UnexpectedInput

from server.dialects.grammar import grammar_of
from server.dialects.span import NotASpan, SpanParser
from server.dialects.table import HERMES

GRAMMAR = grammar_of(HERMES)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(text: str, places: list[int]) -> list[tuple[str, str]] | None:
    """The lexemes of a whole span that comes in parts, pieces of one run joined; None if it is none."""
    parser = SpanParser(GRAMMAR, "span")
    lexemes: list[tuple[str, str]] = []
    try:
        for chunk in cut_at(text.encode(), places):
            for terminal, piece in parser.feed(chunk.decode()):
                if lexemes and lexemes[-1][0] == terminal and GRAMMAR.terminals[terminal].repeats:
                    lexemes[-1] = (terminal, lexemes[-1][1] + piece)
                else:
                    lexemes.append((terminal, piece))
    except NotASpan:
        return None
    return lexemes if parser.complete and not parser.pending else None


def oracle(text: str) -> bool:
    try:
        GRAMMAR.lark.parse(text, start="span")
    except UnexpectedInput:
        return False
    return True


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans(), st.integers(0, 4))
def test_every_json_object_is_read_and_nothing_is_lost(value: object, ascii: bool, indent: int) -> None:
    arguments = json.dumps(value, ensure_ascii=ascii, indent=indent or None)
    text = f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>'
    lexemes = read(text, [])
    assert lexemes is not None
    assert "".join(piece for _, piece in lexemes) == text
    assert oracle(text)


@given(TEXTS.filter(str.isascii), st.lists(st.integers(0, 300), max_size=8))
def test_the_same_texts_are_spans_as_for_lark(middle: str, places: list[int]) -> None:
    for text in (middle, f'<tool_call>{{"name":"add","arguments":{{{middle}}}}}</tool_call>'):
        assert (read(text, places) is not None) == oracle(text)


@pytest.mark.parametrize(
    "number", ["0", "-0", "10", "1.5", "0.50", "1e5", "1E+05", "-2.5e-3", "12345678901234567890"]
)
def test_numbers_keep_their_digits(number: str) -> None:
    assert read(f'<tool_call>{{"name":"a","arguments":{{"n":{number}}}}}</tool_call>', [])


@pytest.mark.parametrize("number", ["01", ".5", "1.", "+1", "1e", "--1", "0x1", "NaN", "1e+", "- 1"])
def test_what_is_no_number_is_no_span(number: str) -> None:
    assert not read(f'<tool_call>{{"name":"a","arguments":{{"n":{number}}}}}</tool_call>', [])
    assert not oracle(f'<tool_call>{{"name":"a","arguments":{{"n":{number}}}}}</tool_call>')
