"""Drafts: what is likely to follow, looked up in the prompt and the answer so far.

Agents copy: file names, lines of code, values of a result. Where the last tokens stood before, what followed
them there is evaluated together with them, so that one batch may yield several tokens. A draft decides
nothing: each of its tokens is sampled as it would be without it, and the first that differs ends it. The
field's name for this is prompt lookup decoding.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

LONGEST = 15
"""Tokens of a draft, at most: 16 with the one before it, since a CPU evaluates tokens four at a time."""
FIRST = 3
"""Tokens of an answer's first draft."""
MATCH = 3
"""Tokens that must have stood there before; the place where most did is taken."""
PLACES = 16
"""Places that are compared, the latest ones."""
PAUSE, LONGEST_PAUSE = 4, 64
"""Steps without a draft after one that was wrong from its first token on, and after many."""


class Drafter:
    """Drafts for one answer, as long as earlier ones were good for: a right one doubles the length, a wrong
    one cuts it down to what was right in it, and useless ones are followed by longer and longer pauses."""

    def __init__(self) -> None:
        self._length = FIRST
        self._pause = 0
        self._waiting = 0

    def draft(self, tokens: array[int], room: int) -> array[int]:
        """What may follow ``tokens``, ``room`` tokens of it at most; often nothing."""
        if self._waiting:
            self._waiting -= 1
            return _nothing
        return continuation(tokens, min(self._length, room))

    def judge(self, drafted: int, taken: int) -> None:
        """The first ``taken`` of ``drafted`` tokens, not none, were right."""
        if taken:
            self._pause = 0
            self._length = min(2 * self._length + 1, LONGEST) if taken == drafted else max(taken, FIRST)
        else:
            self._pause = min(2 * self._pause or PAUSE, LONGEST_PAUSE)
            self._waiting, self._length = self._pause, FIRST


def continuation(tokens: array[int], length: int) -> array[int]:
    """Up to ``length`` tokens that followed the last ones where these stood before, and no more than were
    alike there."""
    if length <= 0 or len(tokens) <= MATCH:
        return _nothing
    place, alike = _place(tokens)
    return tokens[place : place + min(length, alike)]


def _place(tokens: array[int]) -> tuple[int, int]:
    """Behind which place most of the last tokens stand, the latest of several, and how many (of ``LONGEST``);
    none if they are fewer than ``MATCH``."""
    view = np.frombuffer(tokens, np.int32)
    last = view[: -LONGEST - 1 : -1]
    found = np.flatnonzero(view[:-1] == last[0]) + 1
    for back in range(1, MATCH):
        found = found[found > back]
        found = found[view[found - 1 - back] == last[back]]
    best, place = 0, 0
    for each in found[: -PLACES - 1 : -1].tolist():
        before = view[max(each - LONGEST, 0) : each][::-1]
        differs = np.flatnonzero(before != last[: len(before)])
        alike = int(differs[0]) if len(differs) else len(before)
        if alike > best:
            best, place = alike, each
    return place, best


def agreement(said: Sequence[int], drafted: Sequence[int]) -> int:
    """How many tokens two runs begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(said, drafted, strict=False)))


_nothing: array[int] = array("i")
