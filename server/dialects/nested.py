"""The rules of nested elements, for the constraint: one for each argument, key of an object, and item of an
array; texts raw, other values as JSON writes them.

A value goes up to and with the marker that begins its closing tag, which is part of a text's terminal: see
``raw_text``. The key that closes an element is forced where it is declared; where any key may come, any
closes. Where the marker is text, a place that may hold any text in one branch of a union holds nothing else
in the others, since the longest terminal wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from server.dialects.grammar import lark_string, pattern_of
from server.dialects.lowering import Extent, Lowering, one_of
from server.dialects.order import any_order_limit
from server.dialects.raw_text import NESTED_KEYS, Split, free_key, text_until
from server.dialects.written import ITEM
from server.schema.parameters import Parameters
from server.schema.patterns import literal

_WORDS = {"null": '"null"', "boolean": '("true" | "false")'}


class NestedRules:
    """Writes the rules for the arguments of the tools of an answer. ``tag`` is the marker that begins every
    tag, ``split`` the same as tokens and text."""

    def __init__(self, tag: str, split: Split, tools: Iterable[Parameters]) -> None:
        self._tag = tag
        self._split = split
        self._any_order = any_order_limit(sum(nested_extent(tool).objects for tool in tools))

    def rules(self, name: str, parameters: Parameters) -> list[str]:
        """The rules of one tool's arguments; ``name`` is the first one's."""
        return _Lowering(self._tag, self._split, self._any_order, name, parameters.schema).lines


@lru_cache(maxsize=256)
def nested_extent(parameters: Parameters) -> Extent:
    return _Lowering("<", Split("<", ""), 0, "arguments", parameters.schema).extent


class _Lowering(Lowering):
    separator = ""

    def __init__(
        self, tag: str, split: Split, any_order: int, prefix: str, schema: Mapping[str, object]
    ) -> None:
        self._marker = tag
        self._split = split
        self._tag = split.rule_text
        super().__init__(any_order, prefix, schema)

    def writable(self, key: str) -> bool:
        return NESTED_KEYS.writable(key)

    def listed(self, values: Sequence[object]) -> str:
        """Texts are in one terminal, since one of them may begin as another with its marker."""
        texts = [each for each in values if isinstance(each, str)]
        forms = [self._literal(each) for each in values if not isinstance(each, str)]
        if texts:
            forms.append(self.text(["|".join(map(literal, texts))]))
        return one_of(forms)

    def _literal(self, value: object) -> str:
        match value:
            case str():
                return self.text([literal(value)])
            case list():
                return self._closed("".join(f"{self.item(self._literal(each))} " for each in value))
            case dict():
                self.needs(list(value))
                members = (self.member(key, self._literal(each)) for key, each in value.items())
                return self._closed(" ".join(members))
        return self._closed(lark_string(json.dumps(value)))

    def plain(self, kind: str, rule: str) -> str:
        return self._closed(rule or _WORDS[kind])

    def text(self, patterns: Sequence[str]) -> str:
        """A text of any kind may stand where an element may: then it does not begin with one."""
        name = self.new()
        excluded = [] if patterns or not self._split.lead else [f"/{pattern_of(self._marker)}(?s:.*)/"]
        self.lines += text_until(name, self._marker, self._split, patterns, excluded)
        return f"({name} | {self._tag})" if excluded else name

    def enclosed(self, kind: str, content: str) -> str:
        return self._closed(content)

    def item(self, value: str) -> str:
        return self.member(ITEM, value)

    def member(self, key: str, value: str) -> str:
        return f"{self._tag} {lark_string(f'{key}>')} {value} {lark_string(f'/{key}>')}"

    def free_member(self, name: str, declared: Sequence[str], value: str) -> str:
        key, closing = f"{name.upper()}_KEY", f"{name.upper()}_CLOSING"
        self.lines.append(free_key(key, NESTED_KEYS, declared))
        self.lines.append(free_key(closing, NESTED_KEYS, declared))
        return f'{self._tag} {key} ">" {value} "/" {closing} ">"'

    def any_value(self, name: str) -> None:
        items, members = (f"({each})+" for each in (self.item(name), self.free_member(name, (), name)))
        self.lines.append(f"{name}: {self.text(())} | {self._closed(items)} | {self._closed(members)}")

    def _closed(self, content: str) -> str:
        return f"{content} {self._tag}".strip()
