"""A dialect with one vocabulary, and the rule text of what its calls consist of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from server.dialects.dialect import Dialect
from server.dialects.form import Aside, Gap, Item, Literal, Marker, Slot
from server.dialects.grammar import lark_string
from server.dialects.raw_text import Split


@dataclass(frozen=True, slots=True)
class BoundDialect:
    """A dialect with one vocabulary: ``tokens`` gives the id of each marker that is a single token."""

    dialect: Dialect
    tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def opener_token(self) -> int | None:
        return self.tokens.get(self.dialect.opener)

    def split(self, marker: str) -> Split:
        if marker in self.tokens:
            return Split("", f"<[{self.tokens[marker]}]>")
        lead, *rest = self._parts(marker)
        parts = (f"<[{part}]>" if isinstance(part, int) else lark_string(part) for part in rest if part != "")
        return Split(str(lead), " ".join(parts))

    def written(self, marker: str, spelled: Callable[[str], Iterable[int]]) -> Iterator[int]:
        """The tokens of a marker; ``spelled`` gives those of text."""
        for part in [self.tokens[marker]] if marker in self.tokens else self._parts(marker):
            yield from [part] if isinstance(part, int) else spelled(part) if part else ()

    def _parts(self, marker: str) -> list[str | int]:
        """The text before the first inner token, that token, and so on."""
        for inner in self.dialect.inner:
            if inner in self.tokens and inner in marker:
                before, _, after = marker.partition(inner)
                return [*self._parts(before), self.tokens[inner], *self._parts(after)]
        return [marker]

    def rule_text(
        self, items: Sequence[Item], slots: Mapping[str, str] | None = None, gap: str | None = None
    ) -> str:
        """Items as rule text; neighbouring literals become one, so that they are forced in one go. ``slots``
        has the name of a tool and the rule of its arguments. ``gap`` stands for every gap, where not each
        has its own text."""
        parts: list[str] = []
        run = ""
        for item in items:
            text, symbol = self._symbol(item, slots or {}, gap)
            run += text
            if symbol:
                parts += [lark_string(run), symbol] if run else [symbol]
                run = ""
        parts += [lark_string(run)] if run else []
        return " ".join(parts)

    def _symbol(self, item: Item, slots: Mapping[str, str], gap: str | None) -> tuple[str, str]:
        """What an item is in rule text: a literal, or else a symbol."""
        match item:
            case Gap() if gap is not None:
                return "", gap
            case Gap() | Aside():
                return item.text, ""
            case Literal(text) if text not in self.tokens:
                return text, ""
            case Marker(text) | Literal(text):
                return "", self.split(text).rule_text
            case Slot("key"):
                return slots["key"], ""
            case Slot("kind"):
                lead, rest = self.split(slots["kind"])
                return ("", self.split(slots["kind"]).rule_text) if rest else (lead, "")
            case Slot("recipient"):
                return slots["name"], ""
            case Slot("name", quoted):
                return json.dumps(slots["name"]) if quoted else slots["name"], ""
            case Slot("id", quoted):
                return "", _id(self.dialect, quoted)
            case Slot(name):
                return "", slots[name]


PLAIN = BoundDialect(Dialect("plain", "json_object", (), {}))
"""For answers to raw prompts: nothing in them is a marker, and no calls are."""


def _id(dialect: Dialect, quoted: bool) -> str:
    """The pattern of a call's id: its number, or nine letters and digits, which is what every template that
    shows ids takes."""
    quote = '"' if quoted else ""
    return f"/{quote}{'[0-9]{1,2}' if dialect.indexed else '[a-zA-Z0-9]{9}'}{quote}/"
