"""What a span of a dialect consists of, read off the rules of its grammar file.

The constraint, the writer of histories and the parser's idea of what closes a span all come from this one
reading, so they agree with the file and with each other.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

import msgspec
from lark.grammar import NonTerminal
from lark.grammar import Terminal as TerminalSymbol

from server.dialects.dialect import Dialect
from server.dialects.grammar import Grammar, Rule, grammar_of
from server.dialects.order import Gaps
from server.dialects.written import gemma_text, nested_text, pythonic_text, type_of
from server.turn import ToolCall

_GAP = "gap_"
_CALL = "call"
_CALLS = "calls"
_PARAMS = "params"
_KEYWORDS = "keywords"
_VALUE = "_value"
_ENCLOSED = frozenset("<&\n")
"""What makes a text stand in CDATA, where the dialect has that."""
_KIND = "kind"
_ASIDE = "aside"
_SLOTS = frozenset({"name", "recipient", "arguments", "id", "key", "kind", "value"})
_KINDS = {
    "TEXT_KIND": ("string",),
    "JSON_KIND": ("array", "boolean", "integer", "null", "number", "object"),
    "NUMBER_KIND": ("integer", "number"),
    "BOOLEAN_KIND": ("boolean",),
    "NULL_KIND": ("null",),
    "ARRAY_KIND": ("array",),
    "OBJECT_KIND": ("object",),
}
"""The types of values that a kind says."""


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that is always the same."""

    text: str


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker of the dialect: a token where the vocabulary has one, else text."""

    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Whitespace: this text when the dialect is written, any when it is read."""

    text: str


@dataclass(frozen=True, slots=True)
class Slot:
    """What differs from call to call: ``name``, ``recipient`` (the name once more), ``arguments`` or ``id``,
    in double quotes or without; and from parameter to parameter: ``key``, ``kind`` or ``value``."""

    name: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Aside:
    """Texts that some models write here and others don't, with any whitespace behind each."""

    texts: tuple[str, ...]

    @property
    def text(self) -> str:
        """What is written for it: nothing."""
        return ""


Item = Literal | Marker | Gap | Slot | Aside


class Notation(enum.Enum):
    """How the arguments of a call are written."""

    JSON = "one JSON object"
    ELEMENTS = "an element each"
    GEMMA = "Gemma's, with bare keys and raw texts"
    PYTHONIC = "keyword arguments of Python"
    NESTED = "an element each, and elements within"


_NOTATIONS = {
    "elements": Notation.ELEMENTS,
    "gemma": Notation.GEMMA,
    "pythonic": Notation.PYTHONIC,
    "nested": Notation.NESTED,
}
"""By grammar file; all others are JSON."""


@dataclass(frozen=True, slots=True)
class ElementForm:
    """The items of one parameter, where each stands by itself, and what closes its value. ``kinds`` say
    before a value which type it has, by type, empty where nothing does; ``cdata`` may stand around a text."""

    parameter: tuple[Item, ...]
    value_end: Literal | Marker
    kinds: Mapping[str, str]
    cdata: tuple[Literal | Marker, Literal | Marker] | None
    gaps: Gaps

    @property
    def opening(self) -> str:
        """The text before a key."""
        return self.parameter[0].text if isinstance(self.parameter[0], Literal | Marker) else ""


@dataclass(frozen=True, slots=True)
class SpanForm:
    """The items before, of, between and after the calls of a span. ``several``: it may hold many calls.
    ``notation`` is that of the arguments; ``elements`` belong to one of them, ``quote`` around texts to
    another, ``tag`` at the beginning of every tag to a third."""

    before: tuple[Item, ...]
    call: tuple[Item, ...]
    between: tuple[Item, ...]
    after: tuple[Item, ...]
    several: bool
    notation: Notation
    elements: ElementForm | None
    quote: str
    tag: str

    @property
    def ends_with_arguments(self) -> bool:
        """Whether a call is complete as soon as its arguments are."""
        return isinstance(self.call[-1], Slot)

    @property
    def call_marker(self) -> str:
        """The text that a call begins with; empty if that is its name."""
        first = self.call[0]
        return "" if isinstance(first, Slot) else first.text

    @property
    def text_ends(self) -> tuple[str, ...]:
        """What no text can hold, where texts stand as they are."""
        if self.elements is not None:
            return ((self.elements.cdata or (None, self.elements.value_end))[1].text,)
        return tuple(each for each in (self.quote, self.tag) if each)

    @property
    def closing(self) -> str:
        """The text that closes a span, without whitespace."""
        return "".join(item.text for item in self.after if isinstance(item, Literal | Marker))


@lru_cache(maxsize=256)
def span_form(dialect: Dialect) -> SpanForm:
    return _Reader(dialect).form(dialect.span)


@lru_cache(maxsize=256)
def other_forms(dialect: Dialect) -> tuple[SpanForm, ...]:
    """The forms of the other spans that models of the dialect write."""
    return tuple(_Reader(dialect).form(rule) for rule in dialect.others.values())


def behind_name(items: Sequence[Item]) -> int:
    """The place behind the name of a call, and behind the text by which it is told from longer names; 0 where
    there is none such, or the name is not the first slot."""
    place = next(at for at, item in enumerate(items) if isinstance(item, Slot))
    match items[place]:
        case Slot("name", True):
            return place + 1
        case Slot("name"):
            ends = (at for at in range(place + 1, len(items)) if not isinstance(items[at], Gap))
            end = next(ends, place)
            return end + 1 if isinstance(items[end], Literal | Marker) else 0
    return 0


def written_calls(dialect: Dialect, calls: Sequence[ToolCall]) -> str:
    """The calls as a model of this dialect writes them, for a history that the template can't render.
    Each ``arguments`` must be JSON text."""
    form = span_form(dialect)
    bodies = [_text(form.call, _slots(dialect, form, number, call)) for number, call in enumerate(calls)]
    before, between, after = (_text(items, {}) for items in (form.before, form.between, form.after))
    if form.several:
        return before + between.join(bodies) + after
    return dialect.separator.join(before + body + after for body in bodies)


@lru_cache(maxsize=256)
def part_names(dialect: Dialect) -> frozenset[str]:
    """Names that no tool can have: with what stands before the name of a call they begin another part."""
    form = span_form(dialect)
    items = (*form.before, *form.call)
    slot = next(item for item in items if isinstance(item, Slot))
    before = _text(items[: items.index(slot)], {}) + ('"' if slot.quoted else "")
    openers = (*(each.open for each in dialect.text), *(dialect.reasoning or ())[:1])
    rest = [each.removeprefix(before) for each in openers if before and each.startswith(before)]
    return frozenset("".join(takewhile(_in_name, each)) for each in rest)


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "_.-"


def _slots(dialect: Dialect, form: SpanForm, number: int, call: ToolCall) -> dict[str, str]:
    arguments = _arguments(form, call.arguments)
    return {"name": call.name, "recipient": call.name, "arguments": arguments, "id": _id(dialect, number)}


def _arguments(form: SpanForm, arguments: str) -> str:
    match form.notation:
        case Notation.JSON:
            return arguments
        case Notation.GEMMA:
            return gemma_text(form.quote, arguments)
        case Notation.PYTHONIC:
            return pythonic_text(arguments)
        case Notation.NESTED:
            return nested_text(form.tag, arguments)
    elements = form.elements
    assert elements is not None
    values = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    written = [_parameter(elements, key, bytes(value).decode()) for key, value in values.items()]
    gaps = elements.gaps
    return gaps.before + gaps.between.join(written) + gaps.last if written else gaps.empty


def _parameter(elements: ElementForm, key: str, json_text: str) -> str:
    """A parameter with the JSON of its value."""
    kind = type_of(json_text)
    is_text = kind == "string"
    slots = {"key": key, "value": json.loads(json_text) if is_text else json_text}
    slots["kind"] = elements.kinds.get(kind, "")
    end = elements.value_end.text
    if elements.cdata is not None and is_text and set(slots["value"]) & _ENCLOSED:
        slots["value"] = elements.cdata[0].text + slots["value"]
        end = elements.cdata[1].text
    return _text(elements.parameter, slots) + end


def _id(dialect: Dialect, number: int) -> str:
    """An id for a call whose own is not known."""
    return str(dialect.first_index + number) if dialect.indexed else f"call{number:05d}"


def _text(items: Sequence[Item], slots: Mapping[str, str]) -> str:
    return "".join(_slot_text(item, slots) if isinstance(item, Slot) else item.text for item in items)


def _slot_text(slot: Slot, slots: Mapping[str, str]) -> str:
    text = slots[slot.name]
    return json.dumps(text, ensure_ascii=False) if slot.quoted else text


class _Reader:
    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._grammar: Grammar = grammar_of(dialect)

    def form(self, span: str) -> SpanForm:
        symbols = self._sequence(self._grammar.rules[span])
        place = next(at for at, each in enumerate(symbols) if each.name.endswith((_CALL, _CALLS)))
        call, between = symbols[place].name, None
        if call.endswith(_CALLS):
            first, more = self._alternatives(self._grammar.rules[call])
            call, between = first[0].name, self._items(more[1:-1])
        return SpanForm(
            before=tuple(self._items(symbols[:place])),
            call=tuple(self._rule(call)),
            between=tuple(between or ()),
            after=tuple(self._items(symbols[place + 1 :])),
            several=between is not None,
            notation=_NOTATIONS.get(self._dialect.grammar, Notation.JSON),
            elements=self._elements(call),
            quote=self._dialect.markers.get("TEXT_QUOTE", ""),
            tag=self._dialect.markers.get("TAG", ""),
        )

    def _elements(self, call: str) -> ElementForm | None:
        """The form of the parameters of a call, unless its arguments are one JSON object."""
        symbols = self._sequence(self._grammar.rules[call])
        params = next((each.name for each in symbols if each.name.endswith(_PARAMS)), None)
        if params is None:
            return None
        _, more = self._alternatives(self._grammar.rules[params])
        gaps = self._dialect.gaps
        return ElementForm(
            parameter=tuple(self._rule(more[1].name)),
            value_end=self._terminal("VALUE_END"),
            kinds=self._kinds(),
            cdata=self._cdata(),
            gaps=Gaps(*(gaps.get(name, "") for name in ("gap_before", "gap_after", "gap_last", "gap_empty"))),
        )

    def _kinds(self) -> dict[str, str]:
        known = [name for name in _KINDS if name in self._grammar.terminals]
        return {each: self._terminal(name).text for name in known for each in _KINDS[name]}

    def _cdata(self) -> tuple[Literal | Marker, Literal | Marker] | None:
        if "CDATA_OPEN" not in self._grammar.terminals:
            return None
        return self._terminal("CDATA_OPEN"), self._terminal("CDATA_END")

    def _rule(self, name: str) -> list[Item]:
        return self._items(self._sequence(self._grammar.rules[name]))

    def _items(self, symbols: Sequence[TerminalSymbol | NonTerminal]) -> list[Item]:
        """Symbols as items: slots and gaps by their names, terminals as text, other rules inlined."""
        items: list[Item] = []
        for symbol in symbols:
            if isinstance(symbol, TerminalSymbol):
                items.append(self._terminal(symbol.name))
            elif symbol.name in _SLOTS:
                items.append(Slot(symbol.name, self._is_quoted(symbol.name)))
            elif symbol.name.startswith(_GAP):
                items.append(Gap(self._dialect.gaps.get(symbol.name, "")))
            elif symbol.name.endswith(_ASIDE):
                items.append(Aside(tuple(self._texts(symbol.name))))
            elif symbol.name.endswith(_KIND):
                items.append(Slot(_KIND))
            elif symbol.name.endswith(_PARAMS) or symbol.name == _KEYWORDS:
                items.append(Slot("arguments"))
            elif symbol.name.endswith(_VALUE):
                items.append(Slot("value"))
            else:
                items += self._rule(symbol.name)
        return items

    def _texts(self, rule: str) -> Iterator[str]:
        for symbol in self._grammar.rules[rule].scan_values(lambda each: isinstance(each, TerminalSymbol)):
            yield self._terminal(symbol.name).text

    def _is_quoted(self, slot: str) -> bool:
        return slot in ("name", "id") and self._sequence(self._grammar.rules[slot])[0].name == "QUOTE"

    def _terminal(self, name: str) -> Literal | Marker:
        if name in self._dialect.markers:
            return Marker(self._dialect.markers[name])
        text = self._grammar.terminals[name].text
        assert text is not None, f"{name} is a class in {self._dialect.grammar}"
        return Literal(text)

    def _sequence(self, rule: Rule) -> list[TerminalSymbol | NonTerminal]:
        """The symbols of a rule that is one plain sequence."""
        (symbols,) = self._alternatives(rule)
        return symbols

    def _alternatives(self, rule: Rule) -> list[list[TerminalSymbol | NonTerminal]]:
        return [
            [
                each
                for value in expansion.children
                if isinstance(each := value.children[0], TerminalSymbol | NonTerminal)
            ]
            for expansion in rule.children
        ]
