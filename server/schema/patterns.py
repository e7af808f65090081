"""Regular expressions inside schemas: how large one is, what it is to the constraint engine, and the ones
that say "any text but these".

A schema's pattern is ECMA 262; the engine reads another language, in which classes have set operators and
``.`` and ``\\s`` mean other characters. So patterns are written anew from their parts, classes as plain
ranges. Whether one is well formed is the validator's to say. Never used on what a model wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]
"""A set of code points: disjoint, sorted, inclusive ranges."""

_LAST = 0x10FFFF
_SURROGATES = ((0xD800, 0xDFFF),)
_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_LINE_END: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_SPACE: Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
# Control characters that JSON has no short escape for: no text needs them, the engine is told not to write
# them, and a class with them, but without the quote or the backslash, lets it write these two all the same.
_UNSAID: Ranges = ((0x00, 0x07), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F))

_SPECIAL = frozenset("\\^$.|?*+()[]{}/-&~#")
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_PART = re.compile(
    r"\\(?:x(?P<hex>[0-9A-Fa-f]{2})|u(?P<unicode>[0-9A-Fa-f]{4})|(?P<control>[tnvfr])"
    r"|(?P<set>[dDwWsS])|(?P<itself>[^0-9A-Za-z]))"
)
_GROUP = re.compile(r"\((?:\?(?::|<[A-Za-z_]\w*>))?(?!\?)")
_BOUNDS = re.compile(r"\{([0-9]{0,9})[0-9]*(?:,([0-9]{0,9})[0-9]*)?\}?")
_COUNT = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})")


@dataclass(frozen=True, slots=True)
class Extent:
    """How deep a pattern's groups nest, how often its most repeated character must at least occur
    (nested counts multiply), and about how many characters it has with all repetitions written out."""

    nesting: int
    repeats: int
    size: int


def extent(pattern: str) -> Extent:
    """Measures a pattern in one pass. A malformed one gets some figure; it is refused elsewhere."""
    deepest = 0
    most, sizes = [1], [0]  # per open group: the largest count inside it, and its size
    atom, length = 1, 0  # of what was read last
    place = 0
    while place < len(pattern):
        character = pattern[place]
        if character == "(":
            most.append(1)
            sizes.append(0)
            deepest = max(deepest, len(most) - 1)
        elif character == ")" and len(most) > 1:
            atom, length = most.pop(), sizes.pop()
            sizes[-1] += length
        elif character == "{":
            low, high, place = _counts(pattern, place)
            atom *= max(1, low)
            sizes[-1] += length * (max(1, low, high) - 1)
        elif character not in "*+?":
            atom, length = 1, 1
            sizes[-1] += 1
            place = _atom_end(pattern, place)
        most[-1] = max(most[-1], atom)
        place += 1
    return Extent(deepest, max(most), sum(sizes))


def translated(pattern: str) -> str | None:
    """The pattern as the constraint engine has to be given it. None where a part is not known to mean
    the same there (look-around, back references, word boundaries, flags, properties)."""
    parts: list[str] = []
    place = 0
    while place < len(pattern):
        found = _next_part(pattern, place)
        if found is None:
            return None
        written, place = found
        if unsaid(written):
            return None
        parts.append(written)
    return "".join(parts)


def unsaid(text: str) -> bool:
    """Whether a text has a character that the engine does not write inside a string."""
    return any(low <= ord(each) <= high for each in text for low, high in _UNSAID)


def literal(text: str) -> str:
    """A pattern that matches exactly this text, without anchors."""
    return "".join("\\" + each if each in _SPECIAL else each for each in text)


def other_than(values: Iterable[str]) -> str:
    """A pattern, for the engine, that matches every text but the given ones: the complement of a
    prefix tree, since the engine knows no look-ahead."""
    tree: _Tree = {}
    for value in values:
        branch = tree
        for character in value:
            branch = branch.setdefault(character, {})
        branch[""] = {}
    return f"^(?:{_complement(tree)})$"


_Tree = dict[str, "_Tree"]


def any_text(least: int, most: int | str) -> str:
    """A pattern, for the engine, that matches every text of so many characters."""
    return f"^{_ANY}{{{least},{most}}}$"


def _complement(branch: _Tree) -> str:
    onward = [(character, below) for character, below in branch.items() if character]
    choices = [] if "" in branch else [""]
    other = _written_class(_outside(_merged((ord(each), ord(each)) for each, _ in onward)))
    choices.append(f"{other}{_ANY}*")
    choices += [f"{literal(each)}(?:{_complement(below)})" for each, below in onward if not unsaid(each)]
    return "|".join(choices)


# Parts of a pattern.


def _next_part(pattern: str, place: int) -> tuple[str, int] | None:
    """The part at ``place``, for the engine, and where the next one begins."""
    character = pattern[place]
    if character == "\\":
        return _escape(pattern, place)
    if character == "[":
        return _class(pattern, place)
    if character == ".":
        return _written_class(_outside(_LINE_END)), place + 1
    if character == "(":
        group = _GROUP.match(pattern, place)
        return ("(?:", group.end()) if group else None
    if character in "*+?{":
        count = _COUNT.match(pattern, place)
        if count is None:
            return None
        # Whether a repetition is lazy does not change the language.
        return count[0], count.end() + pattern.startswith("?", count.end())
    return (character if character in "^$|)" else literal(character)), place + 1


def _escape(pattern: str, place: int) -> tuple[str, int] | None:
    found = _point_or_set(pattern, place)
    if found is None:
        return None
    value, end = found
    return (literal(chr(value)) if isinstance(value, int) else _written_class(value)), end


def _point_or_set(pattern: str, place: int) -> tuple[int | Ranges, int] | None:
    """The code point or the set that an escape stands for, and where it ends."""
    match = _PART.match(pattern, place)
    if match is None:
        return None
    kind, text = match.lastgroup, match[match.lastgroup or 0]
    if kind == "set":
        named = {"d": _DIGIT, "w": _WORD, "s": _SPACE}[text.lower()]
        return (named if text.islower() else _outside(named)), match.end()
    point = _CONTROLS[text] if kind == "control" else ord(text) if kind == "itself" else int(text, 16)
    return None if _SURROGATES[0][0] <= point <= _SURROGATES[0][1] else (point, match.end())


def _class(pattern: str, place: int) -> tuple[str, int] | None:
    negated = pattern.startswith("^", place + 1)
    place += 1 + negated
    if pattern.startswith("]", place):
        return None  # an empty class, or a bracket in one: readers differ
    members: list[tuple[int, int]] = []
    while place < len(pattern) and pattern[place] != "]":
        first = _member(pattern, place)
        if first is None:
            return None
        low, place = first
        if pattern.startswith("-", place) and not pattern.startswith("]", place + 1):
            second = _member(pattern, place + 1)
            if second is None or not isinstance(low, int) or not isinstance(second[0], int):
                return None
            members.append((low, second[0]))
            place = second[1]
        else:
            members += [(low, low)] if isinstance(low, int) else low
    within = _merged(members)
    written = _written_class(_outside(within) if negated else _outside(_outside(within)))
    return (written, place + 1) if written else None


def _member(pattern: str, place: int) -> tuple[int | Ranges, int] | None:
    if place >= len(pattern):
        return None
    return _point_or_set(pattern, place) if pattern[place] == "\\" else (ord(pattern[place]), place + 1)


# Sets of code points.


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        elif low <= high:
            merged.append((low, high))
    return tuple(merged)


def _outside(ranges: Ranges) -> Ranges:
    """All code points a text can have but these."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in _merged([*ranges, *_SURROGATES]):
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    return (*gaps, (start, _LAST)) if start <= _LAST else tuple(gaps)


def _written_class(ranges: Ranges) -> str:
    """The class of these, without control characters that no text needs; empty if none are left."""
    said = _outside(_merged([*_outside(ranges), *_UNSAID]))
    members = (_point(low) if low == high else f"{_point(low)}-{_point(high)}" for low, high in said)
    return f"[{''.join(members)}]" if said else ""


def _point(code: int) -> str:
    shown = chr(code)
    return shown if shown.isascii() and shown.isalnum() else f"\\u{{{code:x}}}"


_ANY = _written_class(_outside(()))


# Extent.


def _atom_end(pattern: str, place: int) -> int:
    """The last character of an escape, a class, or a plain character."""
    if pattern[place] == "\\":
        return place + 1
    if pattern[place] != "[":
        return place
    place += 1
    while place < len(pattern) and pattern[place] != "]":
        place += 2 if pattern[place] == "\\" else 1
    return place


def _counts(pattern: str, place: int) -> tuple[int, int, int]:
    """The bounds of a repetition, and its last character."""
    match = _BOUNDS.match(pattern, place)
    return (int(match[1] or 0), int(match[2] or 0), match.end() - 1) if match else (0, 0, place)
