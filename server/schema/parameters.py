"""A lowered object schema as a list of parameters, for dialects that write every argument by itself, text as
it stands and any other value as JSON.

Where a value may be text or something else, the same characters may mean either. They are the other value
where they are its JSON and valid as that, else they are text. What can't be held to while generating is
loosened, as in ``lower``, and verified on the finished call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from server.schema import compiling
from server.schema.check import NESTING_LEAST, NESTING_MOST
from server.schema.drafts import Draft
from server.schema.patterns import any_text, literal
from server.schema.verify import Verifier, compiled

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
"""All types of JSON values; an integer is a number, too."""

_ABOUT_TEXT = frozenset({"type", "enum", "const", "pattern", "minLength", "maxLength", "allOf", "anyOf"})
_ABOUT_KEYS = frozenset({"type", "properties", "required", "additionalProperties"})
_WORDS = {"null": ("null",), "boolean": ("true", "false")}
NOTES = frozenset({"$comment", "$defs", "default", "deprecated", "description", "examples", "title"})


@dataclass(frozen=True)
class Value:
    """What a parameter may be. ``types`` are those of its values. ``only_texts`` are patterns that a text has
    to match, all of them and as a whole; none: any text. ``texts`` are the same for characters that may be a
    text or another value. ``exact``: whatever they match is valid. ``schema`` is that of the values that are
    no text, ``whole`` that of all. ``nesting`` is how deep a value may nest to be checked."""

    types: frozenset[str]
    only_texts: tuple[str, ...]
    texts: tuple[str, ...]
    exact: bool
    schema: Mapping[str, object]
    whole: Mapping[str, object]
    nesting: int

    @property
    def may_be_text(self) -> bool:
        return "string" in self.types

    @property
    def may_be_other(self) -> bool:
        return bool(self.types - {"string"})

    @property
    def plain(self) -> bool:
        """Whether all values of its types are meant, so that they need no schema."""
        return not set(self.whole) - NOTES - {"type"}

    @cached_property
    def engine_text(self) -> str:
        """The schema of the values that are no text, as the constraint engine is given it."""
        return compiling.engine_text(dict(self.schema))

    def engine_text_of(self, types: Collection[str]) -> str:
        """The same for those of some of its types only; empty if there are none."""
        narrowed = {**self.schema, "type": sorted(types)}
        return compiling.engine_text(narrowed) if compiling.takes(narrowed) else ""

    @cached_property
    def _verifier(self) -> Verifier:
        return Verifier(compiled(dict(self.schema), Draft.DRAFT202012), self.nesting)

    @cached_property
    def _whole_verifier(self) -> Verifier:
        return Verifier(compiled(dict(self.whole), Draft.DRAFT202012), self.nesting)

    def is_valid(self, json_text: str) -> bool:
        """Whether this is the JSON of a valid value, be it text or not."""
        return bool(self.types) and self._whole_verifier.failure(json_text) is None

    def is_other(self, characters: str) -> bool:
        """Whether the characters are the JSON of a valid value that is no text."""
        begins_text = characters.lstrip(" \t\n\r").startswith('"')
        return self.may_be_other and not begins_text and self._verifier.failure(characters) is None

    def may_become_other(self, characters: str) -> bool:
        """Whether these may be the beginning of the JSON of a value that is no text."""
        begun = characters.lstrip(" \t\n\r")
        words = [word for kind, words in _WORDS.items() if kind in self.types for word in words]
        if any(word.startswith(begun.rstrip(" \t\n\r")) for word in words):
            return True
        openers = {"{": "object", "[": "array"}
        if begun[:1] in openers:
            return openers[begun[:1]] in self.types
        numbers = self.types & {"integer", "number"}
        return not begun or (bool(numbers) and set(begun) <= set("+-.0123456789eE \t\n\r"))


@dataclass(frozen=True, slots=True)
class Parameter:
    key: str
    required: bool
    value: Value


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters of a tool, in the order of its schema; compared by identity. ``rest`` is the value of
    keys that are not declared, None where there can't be any. ``exact``: what is within all of this is
    valid. ``schema`` is what it was read off, and ``nesting`` how deep a value may nest to be checked."""

    declared: tuple[Parameter, ...] = ()
    rest: Value | None = None
    exact: bool = True
    schema: Mapping[str, object] = field(default_factory=dict, repr=False)
    nesting: int = NESTING_MOST
    _values: Mapping[str, Value] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", {each.key: each.value for each in self.declared})

    def value(self, key: str) -> Value:
        """What the value of a key may be: anything, if nothing is known of it."""
        return self._values.get(key) or self.rest or ANY


def parameters(schema: Mapping[str, object], nesting: int = NESTING_LEAST) -> Parameters:
    """Reads a lowered schema of objects, against which values that nest so deep can be checked."""
    return Reader(schema, nesting).parameters()


def properties_of(node: Mapping[str, object]) -> list[tuple[str, object, bool]]:
    """The properties of a schema of objects: key, schema, and whether it is required. Required keys that are
    not declared may be anything."""
    properties, required = node.get("properties", {}), node.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    nodes = properties | {key: True for key in required if key not in properties}
    return [(key, each, key in required) for key, each in nodes.items()]


class Reader:
    """Reads one document, and what it says of texts and types."""

    def __init__(self, schema: Mapping[str, object], nesting: int = NESTING_LEAST) -> None:
        definitions = schema.get("$defs", {})
        assert isinstance(definitions, dict)
        self._definitions = definitions
        self._root = schema
        self._nesting = nesting

    def parameters(self) -> Parameters:
        root = self.resolved(self._root)
        plain = not set(root) - _ABOUT_KEYS - NOTES
        declared = tuple(Parameter(key, must, self.value(node)) for key, node, must in properties_of(root))
        others = root.get("additionalProperties", True)
        closed = others is False and (plain or "patternProperties" not in root)
        rest = None if closed else self.value(others if plain else True)
        values = [each.value for each in declared] + ([rest] if rest else [])
        exact = plain and all(each.exact for each in values)
        exact = exact and all(each.value.types for each in declared if each.required)
        return Parameters(declared, rest, exact, self._root, self._nesting)

    def value(self, node: object) -> Value:
        types = self.types(node)
        only, exact = self.texts(node) if "string" in types else ((), True)
        texts = only
        others = types - {"string"}
        if texts and others:
            words = self._words(node, others)
            if words is None:
                texts, exact = (), False
            else:
                texts = tuple(f"(?:{each})|{'|'.join(map(literal, words))}" for each in texts)
        schema = self._schema_of_others(node, others) if others else {}
        return Value(types, only, texts, exact, schema, self._with_definitions(node), self._nesting)

    def _with_definitions(self, node: object) -> dict[str, object]:
        plain = dict(node) if isinstance(node, dict) else {}
        return plain | ({"$defs": self._definitions} if self._definitions else {})

    def _schema_of_others(self, node: object, others: frozenset[str]) -> dict[str, object]:
        """The schema of the values that are no text, with the definitions it refers to."""
        plain: dict[str, object] = dict(node) if isinstance(node, dict) else {}
        if "string" in self.types(node):
            plain = {"allOf": [node]} if plain else {}
            plain["type"] = sorted(others - ({"integer"} if "number" in others else set()))
        whole = self._with_definitions(plain)
        return whole if "allOf" not in plain or compiling.takes(whole) else plain | {"allOf": []}

    # Types.

    def types(self, node: object, followed: frozenset[str] = frozenset()) -> frozenset[str]:
        """The types of the values that a schema may have; too many rather than too few."""
        if not isinstance(node, dict):
            return frozenset() if node is False else TYPES
        found = TYPES
        for keyword, value in node.items():
            match keyword:
                case "type":
                    found &= _named(value)
                case "const":
                    found &= _types_of([value])
                case "enum":
                    assert isinstance(value, list)
                    found &= _types_of(value)
                case "$ref" if value not in followed:
                    found &= self.types(self.definition(value), followed | {str(value)})
                case "allOf":
                    for each in value:
                        found &= self.types(each, followed)
                case "anyOf":
                    found &= frozenset().union(*(self.types(each, followed) for each in value))
        return found

    def definition(self, reference: object) -> object:
        return self._definitions.get(str(reference).removeprefix("#/$defs/"), True)

    def resolved(self, node: Mapping[str, object]) -> Mapping[str, object]:
        """The schema itself where this is only a reference to it, or a list of one."""
        for _ in range(8):
            said = {key: value for key, value in node.items() if key not in NOTES}
            target = self.definition(said["$ref"]) if set(said) in ({"$ref"}, {"$ref", "type"}) else None
            alone = said.get("allOf") if set(said) in ({"allOf"}, {"allOf", "type"}) else None
            if isinstance(alone, list) and len(alone) == 1:
                target = alone[0]
            if not isinstance(target, dict):
                break
            node = target
        return node

    # Texts.

    def texts(self, node: object) -> tuple[tuple[str, ...], bool]:
        """Patterns for the texts of a schema, and whether they are all that it says of texts."""
        if not isinstance(node, dict):
            return (), True
        node = self.resolved(node)
        exact = not set(node) - _ABOUT_TEXT - NOTES or not self._limits_text(node)
        patterns: list[str] = []
        if (listed := _listed(node)) is not None:
            patterns.append("|".join(literal(each) for each in listed if isinstance(each, str)))
        if "minLength" in node or "maxLength" in node:
            least, most = node.get("minLength", 0), node.get("maxLength", "")
            patterns.append(_whole(any_text(int(str(least)), str(most))) or "")
        if "pattern" in node:
            whole = _whole(str(node["pattern"]))
            patterns += [whole] if whole is not None else []
            exact = exact and whole is not None
        for each in _schemas(node, "allOf"):
            texts, known = self.texts(each)
            patterns += texts
            exact = exact and known
        if "anyOf" in node:
            one, known = self._texts_of_any(_schemas(node, "anyOf"))
            patterns += one
            exact = exact and known
        return tuple(dict.fromkeys(patterns)), exact

    def _limits_text(self, node: Mapping[str, object]) -> bool:
        return bool(set(node) & {"format", "not", "oneOf", "$ref", "if"})

    def _texts_of_any(self, branches: Iterable[object]) -> tuple[tuple[str, ...], bool]:
        """One pattern for the texts of all branches that have texts, none if one of them has any."""
        found = [self.texts(each) for each in branches if "string" in self.types(each)]
        if any(not texts for texts, _ in found):
            return (), all(exact for texts, exact in found if not texts)
        if any(len(texts) > 1 for texts, _ in found):
            return (), False
        return ("|".join(f"(?:{texts[0]})" for texts, _ in found),), all(exact for _, exact in found)

    def _words(self, node: object, others: frozenset[str]) -> list[str] | None:
        """All valid values that are no text, as JSON; None where they can't be listed."""
        if not isinstance(node, dict):
            return None
        if _listed(node) is not None:
            return [
                json.dumps(each, ensure_ascii=False)
                for each in self.listed(node)
                if not isinstance(each, str)
            ]
        if others - set(_WORDS):
            return None
        verifier = self._verifier(node)
        words = (word for kind in sorted(others) for word in _WORDS[kind])
        return [word for word in words if verifier.failure(word) is None]

    def listed(self, node: Mapping[str, object]) -> list[object]:
        """The values that a schema lists and that are valid."""
        listed = _listed(node) or []
        if not set(node) - {"const", "enum"} - NOTES:
            return listed
        verifier = self._verifier(node)
        return [each for each in listed if verifier.failure(json.dumps(each)) is None]

    def _verifier(self, node: object) -> Verifier:
        return Verifier(compiled(self._with_definitions(node), Draft.DRAFT202012), self._nesting)


def _listed(node: Mapping[str, object]) -> list[object] | None:
    if "const" in node:
        return [node["const"]]
    listed = node.get("enum")
    return listed if isinstance(listed, list) else None


def _schemas(node: Mapping[str, object], keyword: str) -> list[object]:
    listed = node.get(keyword, [])
    assert isinstance(listed, list)
    return listed


def _named(value: object) -> frozenset[str]:
    names = {value} if isinstance(value, str) else set(value) if isinstance(value, list) else set()
    return frozenset(names | ({"integer"} if "number" in names else set())) & TYPES


def _types_of(values: Iterable[object]) -> frozenset[str]:
    return frozenset().union(*(_type_names(each) for each in values))


def _type_names(value: object) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer"})
        case float():
            return frozenset({"integer", "number"})
        case str():
            return frozenset({"string"})
    return frozenset({"array" if isinstance(value, list) else "object"})


_ANY_BEFORE, _ANY_AFTER = "(?s:.*)", "(?s:.*)"


def _whole(pattern: str) -> str | None:
    """A pattern that is searched for, as one for the whole text; None where an anchor stands elsewhere than
    at its ends."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not _escaped_end(pattern)
    inner = pattern[begins : len(pattern) - ends]
    parts = list(_outside_classes(inner))
    if "^" in parts or "$" in parts or ((begins or ends) and _alternates(parts)):
        return None
    return f"{'' if begins else _ANY_BEFORE}(?:{inner}){'' if ends else _ANY_AFTER}"


def _escaped_end(pattern: str) -> bool:
    stem = pattern[:-1]
    return (len(stem) - len(stem.rstrip("\\"))) % 2 == 1


def _outside_classes(pattern: str) -> Iterator[str]:
    """The characters of a pattern that are neither escaped nor within a class."""
    escaped = inside = False
    for each in pattern:
        if escaped:
            escaped = False
        elif each == "\\":
            escaped = True
        elif inside:
            inside = each != "]"
        elif each == "[":
            inside = True
        else:
            yield each


def _alternates(parts: Iterable[str]) -> bool:
    depth = 0
    for each in parts:
        depth += (each == "(") - (each == ")")
        if each == "|" and depth == 0:
            return True
    return False


ANY = Value(TYPES, (), (), True, {"type": ["array", "boolean", "null", "number", "object"]}, {}, NESTING_MOST)
"""Any value: text, if it is no JSON."""
UNKNOWN = Parameters()
"""What is known of the parameters of a tool without a schema."""
