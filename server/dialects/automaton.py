"""Runs the LALR automaton that lark makes of a grammar, on its states alone.

Lark's own parser also builds a tree of everything it has read. Nobody needs one of a span, which leaves as it
is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lark import Lark

_BENEATH = 4

State = int


class Reduce(NamedTuple):
    """Takes the last ``size`` symbols for one of ``rule``."""

    size: int
    rule: str


Action = State | Reduce
"""The state that a symbol leads to, or what to reduce before it."""


@dataclass(frozen=True, slots=True)
class Table:
    """The actions of each state by symbol, and the state in which each start symbol begins. ``reduced`` is
    what automata have found out for the next one: what becomes of the last states before a terminal."""

    actions: Mapping[State, Mapping[str, Action]]
    starts: Mapping[str, State]
    reduced: dict[tuple[str, tuple[State, ...]], list[State]] = field(default_factory=dict)


def table_of(lark: Lark, starts: Sequence[str]) -> Table:
    parsers = {start: lark.parse_interactive("", start=start).parser_state.parse_conf for start in starts}
    states = parsers[starts[0]].states
    return Table(
        {
            state: {symbol: _action(target) for symbol, (_, target) in row.items()}
            for state, row in states.items()
        },
        {start: parser.start_state for start, parser in parsers.items()},
    )


def _action(target: Any) -> Action:
    return target if isinstance(target, State) else Reduce(len(target.expansion), target.origin.name)


class Automaton:
    """What has been read so far, as a stack of states."""

    __slots__ = ("_stack", "_table")

    def __init__(self, table: Table, start: str) -> None:
        self._table = table
        self._stack = [table.starts[start]]

    @property
    def state(self) -> State:
        return self._stack[-1]

    @property
    def symbols(self) -> Mapping[str, Action]:
        """What may come next; terminals, and ``$END``, are among them."""
        return self._table.actions[self._stack[-1]]

    def shift(self, terminal: str) -> bool:
        """Goes on by a terminal. False if it can't come here."""
        stack, actions = self._stack, self._table.actions
        action = actions[stack[-1]].get(terminal)
        while isinstance(action, Reduce):
            depth = action.size + _BENEATH
            last = terminal, tuple(stack[-depth:])
            stack[-depth:] = self._table.reduced.get(last) or self._reduced(*last)
            action = actions[stack[-1]].get(terminal)
        if action is None:
            return False
        stack.append(action)
        return True

    def _reduced(self, terminal: str, last: tuple[State, ...]) -> list[State]:
        """What becomes of the last states before a terminal, as far as they tell."""
        actions, stack = self._table.actions, list(last)
        while isinstance(action := actions[stack[-1]].get(terminal), Reduce) and action.size < len(stack):
            del stack[len(stack) - action.size :]
            after = actions[stack[-1]][action.rule]
            assert isinstance(after, State)
            stack.append(after)
        self._table.reduced[terminal, last] = stack
        return stack

    def copy(self) -> Automaton:
        copied = object.__new__(Automaton)
        copied._table, copied._stack = self._table, self._stack[:]
        return copied
