"""The rules of which parameters come, and in which order."""

from __future__ import annotations

import itertools

import pytest
from llguidance import LLMatcher
from schemas import BYTES

from server.dialects.order import Gaps, order_rules
from server.schema.compiling import ENGINE_LIMITS

GAPS = Gaps(before="<", between=",", last=">", empty="0")


def language(required: list[bool], *, free: bool, limit: int) -> LLMatcher:
    """Each parameter is a letter, a free one is a digit."""
    lines = [f"p_{place}: {chr(97 + place)!r}".replace("'", '"') for place in range(len(required))]
    lines += ["other: /[1-9]/"] if free else []
    lines += order_rules("p", required, "other" if free else "", GAPS, limit)
    grammar = LLMatcher.grammar_from_lark("\n".join(["start: p", *lines]))
    made = LLMatcher(BYTES, grammar, log_level=0, limits=ENGINE_LIMITS)
    assert not made.is_error(), made.get_error()
    return made


def has(start: LLMatcher, text: str) -> bool:
    trial, data = start.deep_copy(), list(text.encode())
    return trial.try_consume_tokens(data) == len(data) and trial.is_accepting()


def written(letters: str) -> str:
    return f"<{','.join(letters)}>" if letters else "0"


@pytest.mark.parametrize("required", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("limit", [0, 3])
def test_which_parameters_come(required: tuple[bool, ...], free: bool, limit: int) -> None:
    start = language(list(required), free=free, limit=limit)
    needed = {letter for letter, each in zip("abc", required, strict=True) if each}
    for count in range(4):
        for letters in itertools.permutations("abc", count):
            complete = needed <= set(letters)
            in_order = limit > 0 or list(letters) == sorted(letters)
            assert has(start, written("".join(letters))) == (complete and in_order), letters
            assert has(start, written("".join((*letters, "1", "2")))) == (free and complete and in_order)


def test_the_rules_of_many_parameters_are_short() -> None:
    text = "\n".join(order_rules("p", [False] * 1_000, "", GAPS, 7))
    assert len(text) < 100 * 1_000


def test_many_optional_parameters() -> None:
    required = [False] * 1_000
    lines = [f'p_{place}: "p{place}="' for place in range(1_000)]
    lines += order_rules("p", required, "", GAPS, 7)
    grammar = LLMatcher.grammar_from_lark("\n".join(["start: p", *lines]))
    start = LLMatcher(BYTES, grammar, log_level=0, limits=ENGINE_LIMITS)
    for text in ("0", "<p0=>", "<p999=>", "<p7=,p8=,p998=>"):
        assert has(start, text)
    for text in ("<>", "<p8=,p7=>", "<p7=,>", "<p1000=>"):
        assert not has(start, text)
