"""Drafts: what is likely to follow, looked up in the prompt and the answer so far.

Agents copy: file names, lines of code, values of a result. Where the last tokens stood before, what followed
them there is evaluated together with them, so that one batch may yield several tokens. A draft decides
nothing: each of its tokens is sampled as it would be without it, and the first that differs ends it. The
field's name for this is prompt lookup decoding.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher

from server.engine.protocol import Vocabulary

LONGEST = 15
"""Tokens of a draft, at most: 16 with the one before it, since a CPU evaluates tokens four at a time."""
FIRST = 3
"""Tokens of an answer's first draft."""
MATCH = 3
"""Tokens that must have stood there before; the place where most did is taken."""
PLACES = 16
"""Places that are compared, the latest ones."""
AHEAD = 64
"""Tokens that are looked up at a time; drafts go on in them while they come true."""
PAUSE, LONGEST_PAUSE = 4, 64
"""Steps without a draft after one that was wrong from its first token on, and after many."""


class Drafter:
    """Drafts for one answer, as long as earlier ones were good for: a right one doubles the length, a wrong
    one cuts it down to what was right in it, and useless ones are followed by longer and longer pauses."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ahead: list[int] = []
        self._begun = 0
        self._length = FIRST
        self._pause = 0
        self._waiting = 0

    def draft(self, tokens: array[int], room: int, matcher: LLMatcher) -> list[int]:
        """What may follow ``tokens``, ``room`` tokens of it at most, of those that the constraint allows."""
        if self._waiting:
            self._waiting -= 1
            return []
        guess = self._going_on(tokens) or self._looked_up(tokens, matcher)
        guess = guess[: max(min(self._length, room), 0)]
        return guess[: matcher.validate_tokens(guess)] if guess else guess

    def judge(self, drafted: int, taken: int) -> None:
        """The first ``taken`` of ``drafted`` tokens, not none, were right."""
        if taken:
            self._pause = 0
            self._length = min(2 * self._length + 1, LONGEST) if taken == drafted else max(taken, FIRST)
        else:
            self._pause = min(2 * self._pause or PAUSE, LONGEST_PAUSE)
            self._waiting, self._length = self._pause, FIRST

    def _going_on(self, tokens: array[int]) -> list[int]:
        """The rest of what was looked up, if all that was said since is as it stands there."""
        said = tokens[self._begun :]
        return self._ahead[len(said) :] if agreement(said, self._ahead) == len(said) else []

    def _looked_up(self, tokens: array[int], matcher: LLMatcher) -> list[int]:
        """What followed: as it stands there or, if the constraint forbids that, as it stands in a JSON
        string."""
        found = continuation(tokens, AHEAD).tolist()
        if found and matcher.validate_tokens(found) < len(found):
            found = [each for token in found for each in self._quoted(token)]
        self._ahead, self._begun = found, len(tokens)
        return found

    def _quoted(self, token: int) -> list[int]:
        """A token within a JSON string. Each is spelled by itself, as models do it."""
        data = self._vocabulary.data(token)
        if not any(byte in b'"\\' or byte < 0x20 for byte in data):
            return [token]
        text = json.dumps(data.decode("utf-8", "ignore"), ensure_ascii=False)[1:-1]
        return self._vocabulary.tokenize(text, markup=False, continued=True)


def continuation(tokens: array[int], length: int) -> array[int]:
    """Up to ``length`` tokens that followed the last ones where these stood before."""
    if len(tokens) <= MATCH:
        return array("i")
    place = _place(tokens)
    return tokens[place : place + length] if place else array("i")


def agreement(said: Sequence[int], drafted: Sequence[int]) -> int:
    """How many tokens two runs begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(said, drafted, strict=False)))


def _place(tokens: array[int]) -> int:
    """Behind which place most of the last tokens stand, the latest of several; 0 if they are fewer than
    ``MATCH`` everywhere."""
    view = np.frombuffer(tokens, np.int32)
    last = view[: -LONGEST - 1 : -1]
    found = np.flatnonzero(view[:-1] == last[0]) + 1
    for back in range(1, MATCH):
        found = found[found > back]
        found = found[view[found - 1 - back] == last[back]]
    best, place = 0, 0
    for each in found[: -PLACES - 1 : -1].tolist():
        alike = agreement(view[max(each - LONGEST, 0) : each][::-1].tolist(), last.tolist())
        if alike > best:
            best, place = alike, each
    return place
