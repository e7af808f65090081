"""Drafts: what is guessed, how that adapts, and that it never shows in what is said (over ``fake_llama``)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from driving import Said, answer
from fake_llama import ANYTHING, BINARY, VOCABULARY, FakeLlama, engine, job
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.draft import FIRST, LONGEST, LONGEST_PAUSE, MATCH, PAUSE, Drafter, agreement, continuation
from server.engine.protocol import Ended, Source, Tally

FRUIT = "apple banana cherry damson elder fig grape"
COPY = r'start: "{" /[a-z ]*/ "}"'
PAIRS = r'start: ("<" /[ab]/ ">;")* "."'
"""What is sampled stands between what is forced."""


def array_of(text: str) -> array[int]:
    return array("i", list(text.encode()))


def drafted(text: str, length: int = 99) -> str:
    return bytes(list(continuation(array_of(text), length))).decode()


def spoken(llama: FakeLlama, *, drafts: bool, **request: object) -> tuple[Said, Tally]:
    scheduler = engine(llama)
    said = answer(scheduler, job(1, drafts=drafts, **request))  # type: ignore[arg-type]
    assert scheduler.load.used_cells == 0
    kept = scheduler.load.cached_tokens  # several kept states may share cells
    assert len(llama.cells) == kept if llama.partial else len(llama.cells) <= kept
    return said, scheduler.tally(1)


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("one two three one t", "wo three one t"),
        ("abc1 abc2 abc", "2 abc"),  # the latest place
        ("xabc1 abc2 xabc", "1 abc2 xabc"),  # but rather where more is alike
        ("aaaa", "a"),
        ("abcdab", ""),
        ("abc", ""),
        ("", ""),
    ],
)
def test_what_followed_before_is_guessed(text: str, follows: str) -> None:
    assert drafted(text) == follows
    assert drafted(text, 1) == follows[:1]
    assert drafted(text, 0) == ""


@given(st.lists(st.integers(0, 3), max_size=200), st.integers(0, LONGEST))
def test_a_guess_stood_behind_the_same_tokens(tokens: list[int], length: int) -> None:
    guess = list(continuation(array("i", tokens), length))
    assert len(guess) <= length
    if guess:
        run = [*tokens[-MATCH:], *guess]
        assert any(tokens[at : at + len(run)] == run for at in range(len(tokens) - len(run) + 1))


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_agreement(left: Sequence[int], right: Sequence[int]) -> None:
    count = agreement(left, right)
    assert left[:count] == right[:count]
    assert left[count : count + 1] != right[count : count + 1] or not left[count:]


def test_the_length_follows_what_came_true() -> None:
    tokens = array_of(2 * "abcdefghijklmnopqrstuvwxyz")
    drafter, free = Drafter(VOCABULARY), VOCABULARY.matcher(ANYTHING)
    lengths = []
    for _ in range(4):
        lengths.append(len(drafter.draft(tokens, 99, free)))
        drafter.judge(lengths[-1], lengths[-1])
    assert lengths == [FIRST, 2 * FIRST + 1, LONGEST, LONGEST]
    drafter.judge(LONGEST, 5)
    assert len(drafter.draft(tokens, 99, free)) == 5
    assert len(drafter.draft(tokens, 2, free)) == 2
    assert drafter.draft(tokens, -1, free) == []


def test_useless_drafts_are_followed_by_longer_and_longer_pauses() -> None:
    tokens = array_of("abcd abc")
    drafter, free = Drafter(VOCABULARY), VOCABULARY.matcher(ANYTHING)
    pauses = []
    for _ in range(6):
        drafter.judge(len(drafter.draft(tokens, 99, free)), 0)
        pauses.append(0)
        while not drafter.draft(tokens, 99, free):
            pauses[-1] += 1
    assert pauses == [PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    drafter.judge(FIRST, 1)
    drafter.judge(FIRST, 0)
    assert [bool(drafter.draft(tokens, 99, free)) for _ in range(PAUSE + 1)] == [False] * PAUSE + [True]


STRING = r'start: "\"" /([^"\\\x00-\x1f]|\\[nt"\\])*/ "\""'


def test_a_draft_goes_on_where_the_one_before_it_stopped() -> None:
    drafter, string = Drafter(VOCABULARY), VOCABULARY.matcher(STRING)
    tokens = array_of('abc\nlast "abc')
    assert string.consume_tokens(list(b'"abc'))
    assert bytes(drafter.draft(tokens, 99, string)) == rb"\nl"
    assert string.consume_tokens(list(rb"\nl"))
    tokens.extend(rb"\nl")  # this stands nowhere else
    assert bytes(drafter.draft(tokens, 99, string)) == b"ast"
    tokens[-1] = ord("m")
    assert not drafter.draft(tokens, 99, string)


@pytest.mark.parametrize(
    ("source", "expected"), [("go\n", r"go\n"), ('"x"', r"\"x\""), ("a\\\tb", r"a\\\tb"), ("é\n", r"é\n")]
)
def test_what_is_copied_into_a_json_string_is_quoted(source: str, expected: str) -> None:
    drafter = Drafter(VOCABULARY)
    drafter.judge(LONGEST, LONGEST)
    drafter.judge(LONGEST, LONGEST)
    string = VOCABULARY.matcher(STRING)
    assert string.consume_tokens(list(b'"abc'))
    guess = drafter.draft(array_of(f'abc{source}end "abc'), 99, string)
    assert bytes(guess).decode().startswith(expected)


@settings(max_examples=150, deadline=None)
@given(
    constraint=st.sampled_from((BINARY, PAIRS)),
    prompt=st.text("ab<>;", min_size=1, max_size=40),
    max_tokens=st.integers(1, 60),
    temperature=st.sampled_from((0.0, 0.7, 1.5)),
    seed=st.integers(0, 99),
    penalty=st.sampled_from((0.0, 1.0)),
    logprobs=st.sampled_from((None, 2)),
    partial=st.booleans(),
)
def test_drafts_change_nothing_that_is_said(partial: bool, **request: object) -> None:
    """The model is random: about half of what is drafted comes true."""
    request["frequency_penalty"], request["top_logprobs"] = request.pop("penalty"), request.pop("logprobs")
    llama = FakeLlama(partial=partial)
    with_drafts, tally = spoken(llama, drafts=True, **request)
    without, _ = spoken(FakeLlama(partial=partial), drafts=False, **request)
    assert with_drafts.undrafted == without
    assert tally.completion_tokens == len(without.pieces)
    assert partial or not (tally.drafted_tokens or tally.rejected_tokens)


def test_random_text_has_drafts_of_both_kinds() -> None:
    said, tally = spoken(FakeLlama(), drafts=True, constraint=BINARY, max_tokens=300)
    assert tally.drafted_tokens == len(said.of(Source.DRAFTED)) > 5
    assert tally.rejected_tokens > 5


def test_a_copy_takes_few_batches() -> None:
    request = {"prompt": FRUIT + " Say it again: ", "constraint": COPY, "max_tokens": 60}
    llama, plain = FakeLlama(likes=FRUIT.encode()), FakeLlama(likes=FRUIT.encode())
    said, tally = spoken(llama, drafts=True, **request)
    expected, _ = spoken(plain, drafts=False, **request)
    assert said.undrafted == expected
    assert FRUIT in said.text
    assert tally.drafted_tokens > 30
    assert len(llama.batches) < len(plain.batches) / 3


def test_what_the_constraint_forbids_is_not_drafted() -> None:
    request = {"prompt": "abc12345678", "constraint": r'start: /[xy]/ "abc" /[d-z]{3}/', "max_tokens": 20}
    said, tally = spoken(FakeLlama(), drafts=True, **request)
    assert "abc" in said.text
    assert tally.drafted_tokens == tally.rejected_tokens == 0


def test_a_draft_ends_with_the_room_of_its_answer() -> None:
    """The context has not one cell more."""
    prompt = FRUIT + " Again: "
    for limit in range(1, 20):
        llama = FakeLlama(likes=FRUIT.encode(), context=len(prompt) + limit)
        said, _ = spoken(llama, drafts=True, prompt=prompt, constraint=COPY, max_tokens=limit)
        assert len(said.pieces) == limit
        assert said.ended is Ended.LENGTH


def test_a_batch_has_no_more_rows_than_there_are() -> None:
    """``fake_llama`` counts them."""
    llama = FakeLlama(likes=FRUIT.encode(), slots=4, context=2000)
    llama.spare_rows = 3
    said, tally = spoken(llama, drafts=True, prompt=FRUIT + " Again: ", constraint=COPY, max_tokens=60)
    assert FRUIT in said.text
    assert tally.drafted_tokens > 10
