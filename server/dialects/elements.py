"""The rules of arguments that are written one by one, for the constraint.

A value of text ends at the first full closing marker, which is part of its terminal: see ``raw_text``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from server.dialects.form import ElementForm, Item, Literal, Marker, Slot
from server.dialects.grammar import pattern_of
from server.dialects.order import any_order_limit, order_rules
from server.dialects.raw_text import ELEMENT_KEYS, Split, free_key, text_until
from server.schema.parameters import Parameters, Value

Joined = Callable[..., str]


class ElementRules:
    """Writes the rules for the arguments of one tool after another. ``joined`` gives items as rule text,
    ``split`` takes a marker apart; ``tools`` is how many there will be."""

    def __init__(self, form: ElementForm, joined: Joined, split: Callable[[str], Split], tools: int) -> None:
        self._form = form
        self._joined = joined
        self._split = split
        self._any_order = any_order_limit(tools)

    def rules(self, name: str, parameters: Parameters) -> Iterator[str]:
        """The rules of one tool's arguments; ``name`` is the first one's."""
        possible = [each for each in parameters.declared if each.value.types]
        for place, each in enumerate(possible):
            yield from self._parameter(f"{name}_{place}", each.key, each.value)
        free = f"{name}_free" if parameters.rest else ""
        if parameters.rest:
            yield from self._free(free, [each.key for each in parameters.declared], parameters.rest)
        required = [each.required for each in possible]
        yield from order_rules(name, required, free, self._form.gaps, self._any_order)

    # One parameter.

    def _parameter(self, name: str, key: str, value: Value) -> Iterator[str]:
        forms = []
        for kind, body, lines in self._bodies(name, value):
            yield from lines
            forms.append(f"{self._before_value({'key': key, 'kind': kind})} {body}")
        yield f"{name}: {' | '.join(forms)}"

    def _free(self, name: str, declared: Sequence[str], value: Value) -> Iterator[str]:
        """A parameter with any key but the declared ones."""
        terminal = f"{name.upper()}_KEY"
        yield free_key(terminal, ELEMENT_KEYS, declared)
        forms = []
        place = next(at for at, item in enumerate(self._form.parameter) if item == Slot("key"))
        before = self._joined(self._form.parameter[:place])
        for kind, body, lines in self._bodies(name, value):
            yield from lines
            after = self._before_value({"kind": kind}, self._form.parameter[place + 1 :])
            forms.append(f"{before} {terminal} {after} {body}")
        yield f"{name}: {' | '.join(forms)}"

    def _before_value(self, slots: dict[str, str], items: Sequence[Item] | None = None) -> str:
        return self._joined((self._form.parameter if items is None else items)[:-1], slots)

    # Its value, with what closes it.

    def _bodies(self, name: str, value: Value) -> Iterator[tuple[str, str, list[str]]]:
        """The forms of a value: its kind, rule text, and the rules and terminals for that."""
        kinds = self._form.kinds
        if value.may_be_text:
            text, texts = kinds.get("string", ""), value.only_texts if kinds else value.texts
            yield text, f"{name}_text", [*self._text(f"{name}_text", texts)]
            if self._form.cdata is not None:
                yield text, f"{name}_cdata", [*self._cdata(f"{name}_cdata", value.only_texts)]
        if value.may_be_other and (kinds or not value.may_be_text):
            for number, (kind, schema) in enumerate(self._others(value)):
                rule = f"{name}_json{number or ''}"
                yield kind, f"{rule} {self._joined([self._form.value_end])}", [f"{rule}: %json {schema}"]

    def _others(self, value: Value) -> Iterator[tuple[str, str]]:
        """The values that are no text, by what says their kind: that, and their schema for the engine."""
        kinds: dict[str, set[str]] = {}
        for each in value.types - {"string"}:
            kinds.setdefault(self._form.kinds.get(each, ""), set()).add(each)
        if len(kinds) == 1:
            yield next(iter(kinds)), value.engine_text
            return
        for kind, types in sorted(kinds.items()):
            if narrowed := value.engine_text_of(types):
                yield kind, narrowed

    def _text(self, name: str, texts: Sequence[str]) -> Iterator[str]:
        excluded = []
        if self._form.cdata is not None:
            excluded = [f"/{pattern_of(self._form.cdata[0].text)}(?s:.*)/"]
        yield from self._until(name, self._form.value_end, texts, excluded)

    def _cdata(self, name: str, texts: Sequence[str]) -> Iterator[str]:
        assert self._form.cdata is not None
        opener, closer = self._form.cdata
        yield f"{name}: {self._joined([opener])} {name}_body"
        yield from self._until(f"{name}_body", closer, texts)

    def _until(
        self, name: str, end: Literal | Marker, texts: Sequence[str], excluded: Sequence[str] = ()
    ) -> Iterator[str]:
        return text_until(name, end.text, self._split(end.text), texts, excluded)
