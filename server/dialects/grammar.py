"""Loads the grammar files: as a parser, and as rule trees for the constraint.

A file is in the house subset of Lark that its test checks: terminals are one line each, a string or one
character class, so that a dialect's markers can take their places by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from lark import Lark, Tree
from lark.load_grammar import load_grammar

from server.dialects.automaton import State, Table, table_of
from server.dialects.dialect import Dialect

Rule = Tree[Any]
BARE = "bare"
"""The rule of calls without markers."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal of the house subset: a literal text, or a character class, once or one and more."""

    name: str
    text: str | None
    character_class: re.Pattern[str] | None

    @property
    def repeats(self) -> bool:
        return self.character_class is not None and self.character_class.pattern.endswith("+")


@dataclass(frozen=True)
class Grammar:
    """A grammar file with one dialect's texts: ``lark`` parses (LALR), ``rules`` are the trees as written,
    ``table`` is that of its automaton, ``terminals`` by name. ``acceptable`` is what span
    parsers have found out about its states, for the next one."""

    text: str
    lark: Lark
    table: Table
    rules: Mapping[str, Rule]
    terminals: Mapping[str, Terminal]
    acceptable: dict[frozenset[str], dict[State, Any]] = field(default_factory=dict)


def grammar_of(dialect: Dialect) -> Grammar:
    """The dialect's grammar, built once. Start symbols are its span rule and, where it has them, the one of
    spans without an opener, those of others, and ``BARE``."""
    texts = tuple(sorted((*dialect.markers.items(), *dialect.keys.items())))
    more = (dialect.unopened, *dialect.others.values(), BARE if dialect.bare else "")
    starts = (dialect.span, *filter(None, more))
    return _loaded(dialect.grammar, starts, texts)


@lru_cache(maxsize=128)
def _loaded(file: str, starts: tuple[str, ...], texts: tuple[tuple[str, str], ...]) -> Grammar:
    source = resources.files("grammars").joinpath(f"{file}.lark").read_text(encoding="utf-8")
    text = _with_texts(source, dict(texts))
    tree, _ = load_grammar(text, file, [], global_keep_all_tokens=False)
    rules = {str(name): expansions for name, _, expansions, _ in tree.rule_defs}
    lark = Lark(text, parser="lalr", start=list(starts), lexer="contextual")
    terminals = {each.name: _terminal(each.name, each.pattern) for each in lark.terminals}
    return Grammar(text, lark, table_of(lark, starts), rules, terminals)


def _with_texts(source: str, texts: Mapping[str, str]) -> str:
    """The file with the dialect's own texts for its terminals."""
    lines = []
    for line in source.splitlines():
        name, colon, _ = line.partition(":")
        lines.append(f"{name}: {lark_string(texts[name])}" if colon and name in texts else line)
    return "\n".join(lines) + "\n"


def _terminal(name: str, pattern: Any) -> Terminal:
    if pattern.type == "str":
        return Terminal(name, pattern.value, None)
    return Terminal(name, None, re.compile(pattern.value))


def lark_string(text: str) -> str:
    """``text`` as a string literal that lark and llguidance read alike."""
    escaped = "".join(_escaped(character) for character in text)
    return f'"{escaped}"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escaped(character: str) -> str:
    if character.isprintable() or character > "\uffff":
        return _ESCAPES.get(character, character)
    return _ESCAPES.get(character, f"\\u{ord(character):04x}")


_PATTERN_SPECIAL = frozenset("\\.+*?()|[]{}^$/#&-~<>\"'`= ")


def pattern_of(text: str) -> str:
    """``text`` as a pattern that matches just it, between the slashes of a Lark terminal."""
    return "".join(f"\\x{ord(c):02x}" if c in _PATTERN_SPECIAL or c < " " else c for c in text)


def between_slashes(pattern: str) -> str:
    """A regular expression as it stands between the slashes of a Lark terminal."""
    written: list[str] = []
    escaped = False
    for each in pattern:
        if each == "/" or each < " ":
            if escaped:
                written.pop()
            each = f"\\x{ord(each):02x}"
            escaped = False
        else:
            escaped = each == "\\" and not escaped
        written.append(each)
    return "".join(written)
