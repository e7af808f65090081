"""The rules of arguments in Gemma's notation, for the constraint: JSON with bare keys and raw texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from server.dialects.grammar import lark_string
from server.dialects.lowering import Extent, Lowering, one_of
from server.dialects.order import any_order_limit
from server.dialects.raw_text import BARE_KEYS, Split, free_key, text_until
from server.schema.parameters import Parameters

_WORDS = {"null": '("null" | "None")', "boolean": '("true" | "false")'}


class GemmaRules:
    """Writes the rules for the arguments of the tools of an answer. ``quote`` is the marker around texts,
    ``split`` the same as tokens and text."""

    def __init__(self, quote: str, split: Split, tools: Iterable[Parameters]) -> None:
        self._quote = quote
        self._split = split
        self._any_order = any_order_limit(sum(gemma_extent(tool).objects for tool in tools))

    def rules(self, name: str, parameters: Parameters) -> list[str]:
        """The rules of one tool's arguments; ``name`` is the first one's."""
        return _Lowering(self._quote, self._split, self._any_order, name, parameters.schema).lines


@lru_cache(maxsize=256)
def gemma_extent(parameters: Parameters) -> Extent:
    return _Lowering('"', Split('"', ""), 0, "arguments", parameters.schema).extent


class _Lowering(Lowering):
    separator = ","

    def __init__(
        self, quote: str, split: Split, any_order: int, prefix: str, schema: Mapping[str, object]
    ) -> None:
        self._marker = quote
        self._split = split
        self._quote = split.rule_text
        super().__init__(any_order, prefix, schema)

    def writable(self, key: str) -> bool:
        return BARE_KEYS.writable(key)

    def listed(self, values: Sequence[object]) -> str:
        return one_of([self._literal(each) for each in values])

    def _literal(self, value: object) -> str:
        match value:
            case str():
                return " ".join([self._quote, *([lark_string(value)] if value else []), self._quote])
            case None:
                return _WORDS["null"]
            case list():
                return " ".join(['"["', *_parted([self._literal(each) for each in value]), '"]"'])
            case dict():
                self.needs(list(value))
                pairs = [f"{lark_string(key + ':')} {self._literal(each)}" for key, each in value.items()]
                return " ".join(['"{"', *_parted(pairs), '"}"'])
        return lark_string(json.dumps(value))

    def plain(self, kind: str, rule: str) -> str:
        return rule or _WORDS[kind]

    def text(self, patterns: Sequence[str]) -> str:
        name = self.new()
        self.lines += text_until(name, self._marker, self._split, patterns)
        return f"{self._quote} {name}"

    def enclosed(self, kind: str, content: str) -> str:
        before, after = ("[", "]") if kind == "array" else ("{", "}")
        return " ".join(part for part in (f'"{before}"', content, f'"{after}"') if part)

    def item(self, value: str) -> str:
        return value

    def member(self, key: str, value: str) -> str:
        return f"{lark_string(f'{key}:')} {value}"

    def free_member(self, name: str, declared: Sequence[str], value: str) -> str:
        self.lines.append(free_key(f"{name.upper()}_KEY", BARE_KEYS, declared))
        return f'{name.upper()}_KEY ":" {value}'

    def any_value(self, name: str) -> None:
        plain = [self.of_type(kind, {}) for kind in ("string", "number", "boolean", "null")]
        self.lines.append(f"{name}: {' | '.join([*plain, f'{name}_list', f'{name}_map'])}")
        self.lines.append(f'{name}_list: "[" ({name} ("," {name})*)? "]"')
        pair = self.free_member(name, (), name)
        self.lines.append(f'{name}_map: "{{" ({pair} ("," {pair})*)? "}}"')


def _parted(texts: list[str]) -> Iterator[str]:
    for place, each in enumerate(texts):
        if place:
            yield '","'
        yield each
