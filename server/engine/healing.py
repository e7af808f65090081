"""Token healing: forced text joined to the token before it as the tokenizer would write both.

A constraint forces text, and its tokens begin where the sampled one ended. The tokenizer often has one token
for the end of that and the beginning of this (``"}`` and ``}`` are ``"}}``). A client sends the text back,
and only where the ids are the tokenizer's own is the turn found in the cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from server.engine.protocol import Vocabulary

LOOKED_BACK = 8
"""Tokens that are looked at before those that are healed."""


def healed(tokens: array[int], start: int, first: int, vocabulary: Vocabulary) -> array[int]:
    """What the tokens from ``start`` on should be, given those from ``first`` on: the same text up to the
    next control token or marker, as it is tokenized there. They stay as they are where their text ends
    within a code point, where the tokenizer would write the tokens before them otherwise too, and where it
    would need more tokens."""
    before = _plain(reversed(tokens[max(first, start - LOOKED_BACK) : start]), vocabulary)[::-1]
    after = _plain(tokens[start:], vocabulary)
    try:
        text = b"".join(map(vocabulary.data, before + after)).decode()
    except UnicodeDecodeError:
        return tokens[start:]
    ids = array("i", vocabulary.tokenize(text, markup=False, continued=True))
    if ids[: len(before)] != before or len(ids) > len(before) + len(after):
        return tokens[start:]
    return ids[len(before) :] + tokens[start + len(after) :]


def _plain(tokens: Iterable[int], vocabulary: Vocabulary) -> array[int]:
    """The tokens before the first one that is markup."""
    plain = array("i")
    for token in tokens:
        if vocabulary.single_token(vocabulary.data(token).decode("utf-8", "replace")) == token:
            break
        plain.append(token)
    return plain
