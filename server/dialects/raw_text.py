"""The rules of a raw text and what closes it, and of a key that is not declared, for the constraint.

The lexer of the constraint engine never backs up, so a closing marker that is text belongs to the same
terminal as the text before it: a lazy one for any text, one that excludes the marker further in where
patterns limit the text. A marker that is a token can't be spelled, one around a token must not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from server.dialects.grammar import between_slashes, lark_string, pattern_of


class Split(NamedTuple):
    """A marker as the text before its first token, and the rest as rule text; one or the other is empty where
    it is all text or one token."""

    lead: str
    rest: str

    @property
    def is_token(self) -> bool:
        return not self.lead and self.rest.startswith("<[") and " " not in self.rest

    @property
    def rule_text(self) -> str:
        return " ".join(part for part in (lark_string(self.lead) if self.lead else "", self.rest) if part)


def text_until(
    name: str, marker: str, split: Split, patterns: Sequence[str] = (), excluded: Sequence[str] = ()
) -> Iterator[str]:
    """The rule ``name`` for a text up to and with a marker, and its terminal. The text matches all
    ``patterns``, any does if there are none, and none of ``excluded``. An empty marker is the end of the
    turn."""
    close = pattern_of(split.lead)
    parts = [f"/(?:{between_slashes(each)}){close}/" for each in patterns] or [f"/(?s:.*){close}/"]
    if split.rest and not split.is_token:
        parts.append(f"~/(?s:.*){pattern_of(marker)}(?s:.*)/")
    elif close and patterns:
        parts.append(f"~/(?s:.*){close}(?s:.+)/")
    parts += [f"~{each}" for each in excluded]
    lazy = "[lazy]" if marker and not split.rest and not patterns else ""
    yield f"{name}{lazy}: {name.upper()} {split.rest}".rstrip()
    yield f"{name.upper()}: {' & '.join(parts)}"


BARE_KEY_ENDS = frozenset(":{}[],<>\"'=() \t\n\r")
"""Characters that no key has where keys stand without quotes, beside control characters."""


ELEMENT_KEY_ENDS = frozenset('<>"')
"""The same for keys in tags."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Which keys can be written: not those with one of the ``ends``, with control characters, or with one of
    ``not_first`` at their beginning."""

    ends: frozenset[str]
    not_first: str = ""

    def writable(self, key: str) -> bool:
        said = bool(key) and not set(key) & self.ends and all(each >= " " for each in key)
        return said and key[0] not in self.not_first


BARE_KEYS = Keys(BARE_KEY_ENDS)
ELEMENT_KEYS = Keys(ELEMENT_KEY_ENDS)
NESTED_KEYS = Keys(ELEMENT_KEY_ENDS, not_first="/")
"""A closing tag begins with a slash."""


def free_key(terminal: str, keys: Keys, declared: Sequence[str]) -> str:
    """The terminal of a key that can be written and is none of the declared ones."""
    first, others = (_but({*keys.ends, *more}) for more in (keys.not_first, ""))
    but = f" & ~/({'|'.join(map(pattern_of, declared))})/" if declared else ""
    return f"{terminal}: /{others}+/{but}" if first == others else f"{terminal}: /{first}{others}*/{but}"


def _but(characters: Iterable[str]) -> str:
    """The class of all characters but these, and control characters."""
    return f"[^{''.join(pattern_of(each) for each in sorted(characters) if each >= ' ')}\\x00-\\x1f]"
