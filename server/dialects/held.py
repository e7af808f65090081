"""Text that leaves as soon as it is certain to be text: not before markup, not part of a stop string."""

from __future__ import annotations

from collections.abc import Iterable

SPACE = " \t\n\r"
_HELD_SPACE = 64


class HeldText:
    """``push`` text and get what may leave; ``end_before_markup`` or ``finish`` gives the rest.

    Whitespace at the end waits (up to 64 characters), since beside a marker it belongs to the markup;
    so does the beginning of a stop string. ``skip_space`` drops whitespace until other text comes.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self._stop = stop
        self._held = ""
        self.skip_space = False
        self.stopped_by = ""

    def push(self, text: str) -> str:
        if not text:
            return ""
        if self.skip_space:
            text = text.lstrip(SPACE)
            self.skip_space = not text
        text = self._held + text
        ends = [(place, stop) for stop in self._stop if (place := text.find(stop)) >= 0]
        if ends:
            end, self.stopped_by = min(ends)
            self._held = ""
            return text[:end]
        kept = min(_HELD_SPACE, len(text) - len(text.rstrip(SPACE)))
        kept = max([kept, *(overlap(text, stop) for stop in self._stop)])
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def end_before_markup(self) -> str:
        rest, self._held = self._held.rstrip(SPACE), ""
        return rest

    def finish(self) -> str:
        rest, self._held = self._held, ""
        return rest


def leading(text: str, markers: Iterable[str]) -> tuple[str, int] | None:
    """The longest marker that a text begins with and where it ends, whitespace before it aside; none and 0 if
    it begins with no marker, None while more text may tell."""
    begun = text.lstrip(SPACE)
    known = {each.lstrip(SPACE): each for each in markers}
    found = max((each for each in known if begun.startswith(each)), key=len, default="")
    if any(each.startswith(begun) and each != found for each in known):
        return None
    return (known[found], len(text) - len(begun) + len(found)) if found else ("", 0)


def overlap(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that is a proper beginning of ``marker``."""
    start = text.find(marker[:1], max(0, len(text) - len(marker) + 1))
    while 0 <= start < len(text) and not marker.startswith(text[start:]):
        start = text.find(marker[0], start + 1)
    return len(text) - start if start >= 0 else 0
