"""Runs the LALR automaton that lark makes of a grammar, on its states alone.

Lark's own parser also builds a tree of everything it has read. Nobody needs one of a span, which leaves as it
is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lark import Lark

State = int


class Reduce(NamedTuple):
    """Takes the last ``size`` symbols for one of ``rule``."""

    size: int
    rule: str


Action = State | Reduce
"""The state that a symbol leads to, or what to reduce before it."""


@dataclass(frozen=True, slots=True)
class Table:
    """The actions of each state by symbol, and the state in which each start symbol begins."""

    actions: Mapping[State, Mapping[str, Action]]
    starts: Mapping[str, State]


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

    __slots__ = ("_actions", "_stack")

    def __init__(self, table: Table, start: str) -> None:
        self._actions = table.actions
        self._stack = [table.starts[start]]

    @property
    def state(self) -> State:
        return self._stack[-1]

    @property
    def symbols(self) -> Mapping[str, Action]:
        """What may come next; terminals, and ``$END``, are among them."""
        return self._actions[self._stack[-1]]

    def shift(self, terminal: str) -> bool:
        """Goes on by a terminal. False if it can't come here."""
        actions, stack = self._actions, self._stack
        while True:
            action = actions[stack[-1]].get(terminal)
            if not isinstance(action, Reduce):
                break
            size, rule = action
            if size:
                del stack[-size:]
            stack.append(actions[stack[-1]][rule])  # type: ignore[arg-type]
        if action is not None:
            stack.append(action)
        return action is not None

    def copy(self) -> Automaton:
        copied = object.__new__(Automaton)
        copied._actions, copied._stack = self._actions, self._stack[:]
        return copied
