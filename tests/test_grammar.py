"""The grammar files: each is in the house subset, so that code and constraint can rely on it."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from languages import Language
from lark import Lark

from server.dialects.dialect import Dialect
from server.dialects.form import Notation, span_form
from server.dialects.grammar import Grammar, Terminal, grammar_of, lark_string
from server.dialects.span import RAW
from server.dialects.table import DIALECTS, HERMES

ROWS = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda row: row.name)
ALPHABET = [chr(code) for code in range(0x180)] + ["\u2028", "\ud7ff", "\ue000", "\uffff", "\U0001f98a"]


def states(grammar: Grammar) -> list[list[Terminal]]:
    """The terminals that may come in each state of the parser, from lark's own table."""
    table = grammar.lark.parser.parser._parse_table.states
    return [
        [grammar.terminals[name] for name in actions if name in grammar.terminals]
        for actions in table.values()
    ]


def characters(terminal: Terminal) -> set[str]:
    assert terminal.character_class is not None
    return {each for each in ALPHABET if terminal.character_class.fullmatch(each)}


@ROWS
def test_terminals_are_literals_or_one_character_class(dialect: Dialect) -> None:
    for terminal in grammar_of(dialect).terminals.values():
        if terminal.character_class is None:
            assert terminal.text
        else:
            pattern = terminal.character_class.pattern
            assert pattern.startswith("[")
            assert pattern.removesuffix("+").endswith("]")
            assert len(characters(terminal)) > 1


@ROWS
def test_in_no_state_two_terminals_begin_alike(dialect: Dialect) -> None:
    """A class holds no first character of a literal, classes are disjoint, no literal begins another. Raw
    text gives way to literals, and no other class comes in its place."""
    for acceptable in states(grammar_of(dialect)):
        literals = [each.text or "" for each in acceptable if each.text is not None]
        classes = [characters(each) for each in acceptable if each.text is None]
        raw = [each for each in acceptable if each.name == RAW]
        assert not raw or len(classes) == 1
        assert raw or not any(text[0] in each for text in literals for each in classes)
        assert all(one.isdisjoint(other) for one, other in combinations(classes, 2))
        assert not any(one.startswith(other) for one in literals for other in literals if one is not other)


@ROWS
def test_nothing_outside_the_house_subset_is_used(dialect: Dialect) -> None:
    text = grammar_of(dialect).text
    lines = [line for line in text.splitlines() if line and not line.startswith("//")]
    assert not any(line.startswith("%") for line in lines)
    for line in lines:
        name, _, body = line.partition(":")
        if name.strip("?").islower():
            assert "->" not in body
            assert "~" not in body


@ROWS
def test_the_opener_is_the_first_symbol_of_a_span_and_occurs_once(dialect: Dialect) -> None:
    rules = grammar_of(dialect).rules
    for tree in rules.values():
        named = [leaf.name for leaf in tree.scan_values(lambda leaf: hasattr(leaf, "name"))]
        assert "OPEN" not in named[1:]
        assert tree is not rules[dialect.span] or named[0] == "OPEN" or not dialect.opener


@ROWS
def test_the_names_that_code_relies_on_are_there(dialect: Dialect) -> None:
    grammar = grammar_of(dialect)
    elements = {"NAME", "KEY", RAW, "VALUE_END", "CALL_CLOSE"}
    literal = {"NAME", "KEY", "LBRACE", "RBRACE", "LSQB", "RSQB", "COLON", "COMMA"}
    json_object = {"NAME", "QUOTE", "LBRACE", "RBRACE", "LSQB", "RSQB"}
    wanted = {
        Notation.JSON: json_object,
        Notation.ELEMENTS: elements,
        Notation.GEMMA: literal | {RAW, "TEXT_QUOTE"},
        Notation.PYTHONIC: literal | {"QUOTE", "APOSTROPHE", "EQUALS"},
        Notation.NESTED: {"NAME", "TAG", "TAG_END", "END", "KEY_START", "KEY", RAW, "CALL_CLOSE"},
    }
    assert {dialect.span, "name"} <= set(grammar.rules)
    assert wanted[span_form(dialect).notation] <= set(grammar.terminals)
    assert set(dialect.markers) | set(dialect.keys) <= set(grammar.terminals)
    assert set(dialect.gaps) <= set(grammar.rules) | {"gap_last", "gap_empty"}


def test_a_dialect_puts_its_own_markers_in() -> None:
    import dataclasses

    row = dataclasses.replace(HERMES, markers={"OPEN": '["\n\\', "CLOSE": "]"})
    grammar = grammar_of(row)
    grammar.lark.parse('["\n\\{"name": "a", "arguments": {}}]', start="span")


@given(st.text(min_size=1, max_size=12))
def test_lark_and_llguidance_read_a_string_alike(text: str) -> None:
    grammar = f"start: MARKER\nMARKER: {lark_string(text)}"
    Lark(grammar, parser="lalr").parse(text)
    assert Language(grammar).has(text)
