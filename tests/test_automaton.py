"""The automaton against lark's own parser, symbol by symbol."""

from __future__ import annotations

import random

import pytest
from lark import Token

from server.dialects.automaton import Automaton
from server.dialects.dialect import Dialect
from server.dialects.grammar import BARE, grammar_of
from server.dialects.table import DIALECTS


@pytest.mark.parametrize("row", DIALECTS, ids=lambda row: row.name)
def test_it_goes_where_lark_goes(row: Dialect) -> None:
    grammar, chance = grammar_of(row), random.Random(row.name)
    for start in [row.span, BARE] if row.bare else [row.span]:
        for _ in range(20):
            automaton = Automaton(grammar.table, start)
            lark = grammar.lark.parse_interactive("", start=start)
            for _ in range(200):
                terminals = sorted(lark.accepts() & grammar.terminals.keys())
                if not terminals:
                    break
                terminal = chance.choice(terminals)
                lark.feed_token(Token(terminal, ""))
                assert automaton.shift(terminal)
                assert automaton.symbols.keys() == lark.choices().keys()


@pytest.mark.parametrize("row", DIALECTS, ids=lambda row: row.name)
def test_what_lark_refuses_is_refused(row: Dialect) -> None:
    grammar = grammar_of(row)
    automaton = Automaton(grammar.table, row.span)
    lark = grammar.lark.parse_interactive("", start=row.span)
    taken = {each for each in grammar.terminals if automaton.copy().shift(each)}
    assert taken == lark.accepts()
