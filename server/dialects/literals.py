"""The rules of arguments in notations that are nearly JSON, for the constraint: Gemma's and Python's.

Python's values are written as JSON, which its readers take too; true, false and null of a parameter also in
Python's spelling. Gemma's have bare keys and raw texts, so the schema is lowered into that syntax: types,
lists of values, texts with patterns, numbers with bounds, arrays and objects at any depth, and references.
What else a schema says is loosened, and verified on the finished call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from server.dialects.grammar import lark_string
from server.dialects.order import Gaps, any_order_limit, order_rules
from server.dialects.raw_text import Split, free_key, text_until
from server.schema import compiling
from server.schema.parameters import TYPES, Parameters, Reader, Value, properties_of

NO_KEY = frozenset(":{}[],<>\"'=() \t\n\r")
"""Characters that no key of these notations has, beside control characters."""

_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ABOUT = {
    "string": frozenset({"pattern", "minLength", "maxLength", "allOf", "format"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "number": frozenset(_NUMERIC),
    "integer": frozenset(_NUMERIC),
}
"""The keywords about values of one type that its rules hold to."""
_SAYS_NOTHING = frozenset({"type", "$defs", "description", "title", "default", "examples"})
_SPELLED = {"boolean": ("True", "False"), "null": ("None",)}
_WORDS = {"null": '("null" | "None")', "boolean": '("true" | "false")'}
_IN_APOSTROPHES = "/'([^'\\\\\\x00-\\x1f]|\\\\['\"\\\\nrtbf])*'/"


class PythonicRules:
    """Writes the rules for the keyword arguments of one tool after another."""

    def __init__(self, tools: int) -> None:
        self._limit = any_order_limit(tools)

    def rules(self, name: str, parameters: Parameters) -> Iterator[str]:
        for place, each in enumerate(parameters.declared):
            yield from self._parameter(f"{name}_{place}", lark_string(f"{each.key}="), each.value)
        free = ""
        if parameters.rest is not None:
            free = f"{name}_free"
            yield free_key(f"{free.upper()}_KEY", NO_KEY, [each.key for each in parameters.declared])
            yield from self._parameter(free, f'{free.upper()}_KEY "="', parameters.rest)
        required = [each.required for each in parameters.declared]
        yield from order_rules(name, required, free, Gaps(between=", "), self._limit)

    def _parameter(self, name: str, before: str, value: Value) -> Iterator[str]:
        yield f"{name}_json: %json {compiling.engine_text(dict(value.whole))}"
        forms = [f"{name}_json"]
        if value.plain:
            words = [word for kind, spelled in _SPELLED.items() if kind in value.types for word in spelled]
            forms += map(lark_string, words)
            forms += [_IN_APOSTROPHES] if "string" in value.types else []
        yield f"{name}: {before} ({' | '.join(forms)})"


class GemmaRules:
    """Writes the rules for the arguments of one tool after another. ``quote`` is the marker around texts,
    ``split`` the same as tokens and text. ``exact``: nothing of a schema has been loosened so far."""

    def __init__(self, quote: str, split: Split, tools: int) -> None:
        self.quote = quote
        self.split = split
        self.limit = any_order_limit(tools)
        self.exact = True

    def rules(self, name: str, schema: Mapping[str, object]) -> list[str]:
        """The rules for the values of a schema; ``name`` is the first one's."""
        return _Lowering(self, name, schema).lines


@lru_cache(maxsize=256)
def gemma_exact(parameters: Parameters) -> bool:
    """Whether the rules for a schema admit valid values only."""
    rules = GemmaRules('"', Split('"', ""), 1)
    rules.rules("arguments", parameters.schema)
    return rules.exact


class _Lowering:
    """One schema, with rules named after ``prefix``."""

    def __init__(self, rules: GemmaRules, prefix: str, schema: Mapping[str, object]) -> None:
        self.lines: list[str] = []
        self._rules = rules
        self._quote = rules.split.rule_text
        self._prefix = prefix
        self._reader = Reader(schema)
        self._named: dict[str, str] = {}
        self._waiting: list[tuple[str, object]] = []
        self._any = ""
        self._count = 0
        self._add(prefix, schema)
        while self._waiting:
            self._add(*self._waiting.pop())

    def _new(self) -> str:
        self._count += 1
        return f"{self._prefix}_v{self._count}"

    def _add(self, name: str, node: object) -> None:
        self.lines.append(f"{name}: {self._value(node)}")

    def _loosen_but(self, node: Mapping[str, object], held: frozenset[str]) -> None:
        """Notes whether a schema says more than what is held to."""
        self._rules.exact &= not set(node) - held - _SAYS_NOTHING

    def _value(self, node: object) -> str:
        """Rule text for the values of a schema."""
        if not isinstance(node, dict):
            return self._any_value()
        if "$ref" in node:
            self._loosen_but(node, frozenset({"$ref"}))
            return self._reference(str(node["$ref"]))
        whole = node.get("allOf", [])
        if len(whole) == 1 and not set(node) - {"allOf"} - _SAYS_NOTHING:
            return self._value(whole[0])
        if "const" in node or "enum" in node:
            self._loosen_but(node, frozenset({"const", "enum"}))
            return self._listed([node["const"]] if "const" in node else node["enum"])
        if "anyOf" in node:
            self._loosen_but(node, frozenset({"anyOf"}))
            branches = node["anyOf"]
            assert isinstance(branches, list)
            return _one_of([self._value(each) for each in branches])
        types = self._reader.types(node)
        if not types or (types == TYPES and not set(node) - _SAYS_NOTHING):
            return self._any_value()
        kinds = types - {"integer"} if "number" in types else types
        self._loosen_but(node, frozenset().union(*_ABOUT.values()))
        self._rules.exact &= kinds == {"string"} or "allOf" not in node
        return _one_of([self._of_type(kind, node) for kind in sorted(kinds)])

    def _listed(self, values: object) -> str:
        assert isinstance(values, list)
        return _one_of([self._literal(each) for each in values])

    def _literal(self, value: object) -> str:
        match value:
            case str():
                return " ".join([self._quote, *([lark_string(value)] if value else []), self._quote])
            case None:
                return _WORDS["null"]
            case list():
                return " ".join(['"["', *_parted([self._literal(each) for each in value]), '"]"'])
            case dict():
                pairs = [f"{lark_string(key + ':')} {self._literal(each)}" for key, each in value.items()]
                return " ".join(['"{"', *_parted(pairs), '"}"'])
        return lark_string(json.dumps(value))

    def _of_type(self, kind: str, node: Mapping[str, object]) -> str:
        match kind:
            case "string":
                return self._text(node)
            case "null" | "boolean":
                return _WORDS[kind]
            case "array":
                return self._array(node)
            case "object":
                return self._object(node)
        name = self._new()
        numeric = {key: node[key] for key in _NUMERIC if key in node} | {"type": kind}
        self.lines.append(f"{name}: %json {compiling.engine_text(numeric)}")
        return name

    def _text(self, node: Mapping[str, object]) -> str:
        patterns, exact = self._reader.texts(node)
        self._rules.exact &= exact
        name = self._new()
        self.lines += text_until(name, self._rules.quote, self._rules.split, patterns)
        return f"{self._quote} {name}"

    def _array(self, node: Mapping[str, object]) -> str:
        least, most = node.get("minItems", 0), node.get("maxItems")
        assert isinstance(least, int)
        assert most is None or isinstance(most, int)
        if most == 0:
            return '"[" "]"'
        name = self._new()
        self._add(name, node.get("items", True))
        more = f'("," {name}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" {name} {more} "]"' if least else f'"[" ({name} {more})? "]"'

    def _object(self, node: Mapping[str, object]) -> str:
        name = self._new()
        properties = properties_of(node)
        sayable = [each for each in properties if each[0] and not set(each[0]) & NO_KEY]
        self._rules.exact &= len(sayable) == len(properties)
        for place, (key, value, _) in enumerate(sayable):
            self.lines.append(f"{name}_{place}: {lark_string(f'{key}:')} {self._value(value)}")
        free, others = "", node.get("additionalProperties", True)
        if others is not False:
            free = f"{name}_free"
            self.lines.append(free_key(f"{free.upper()}_KEY", NO_KEY, [key for key, _, _ in sayable]))
            self.lines.append(f'{free}: {free.upper()}_KEY ":" {self._value(others)}')
        required = [must for _, _, must in sayable]
        self.lines += order_rules(name, required, free, Gaps(between=","), self._rules.limit)
        return f'"{{" {name} "}}"'

    def _reference(self, reference: str) -> str:
        if reference not in self._named:
            self._named[reference] = self._new()
            self._waiting.append((self._named[reference], self._reader.definition(reference)))
        return self._named[reference]

    def _any_value(self) -> str:
        if not self._any:
            self._any = f"{self._prefix}_any"
            plain = [self._of_type(kind, {}) for kind in ("string", "number", "boolean", "null")]
            self.lines.append(f"{self._any}: {' | '.join([*plain, f'{self._any}_list', f'{self._any}_map'])}")
            self.lines.append(f'{self._any}_list: "[" ({self._any} ("," {self._any})*)? "]"')
            self.lines.append(free_key(f"{self._any.upper()}_KEY", NO_KEY, ()))
            pair = f'{self._any.upper()}_KEY ":" {self._any}'
            self.lines.append(f'{self._any}_map: "{{" ({pair} ("," {pair})*)? "}}"')
        return self._any


def _one_of(forms: Sequence[str]) -> str:
    return f"({' | '.join(forms)})"


def _parted(texts: list[str]) -> Iterator[str]:
    for place, each in enumerate(texts):
        if place:
            yield '","'
        yield each
