"""The sampler over made-up logits and the byte vocabulary of ``fake_llama``."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from fake_llama import ANYTHING, END, SIZE, VOCABULARY
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.sampler import LOWEST_LOGPROB, Logits, Sampler, Workbench, draws_seed, token_logprob
from server.turn import Sampling

BENCH = Workbench(SIZE)
DIGIT = r"start: /[0-9]/"
A, B, C = b"abc"
ONE, TWO = b"12"


def logits(**values: float) -> Logits:
    """Zeros but for single letters and digits (``d1`` for 1)."""
    row = np.zeros(SIZE, np.float32)
    for name, value in values.items():
        row[ord(name[-1])] = value
    return row


def drawn(
    row: Logits,
    constraint: str = ANYTHING,
    times: int = 1,
    said: bytes = b"",
    prompt: int = 0,
    **sampling: object,
) -> Counter[int | None]:
    settings_ = Sampling(**({"seed": 1} | sampling))  # type: ignore[arg-type]
    sampler = Sampler(settings_, draws_seed(settings_, 0, 0), 0, BENCH)
    matcher = VOCABULARY.matcher(constraint)
    found = Counter(sampler.choose(row, matcher, list(said), prompt) for _ in range(times))
    sampler.close()
    return found


def only(found: Counter[int | None]) -> int | None:
    (token,) = found
    return token


rows = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(scale=5, size=SIZE).astype(np.float32)
)


@settings(max_examples=100, deadline=None)
@given(
    row=rows,
    temperature=st.sampled_from((0.0, 1e-40, 1e-6, 0.5, 1.0, 2.0)),
    top_k=st.sampled_from((0, 1, 5)),
    top_p=st.sampled_from((0.0, 0.3, 1.0)),
    min_p=st.sampled_from((0.0, 0.5, 1.0)),
    penalty=st.sampled_from((0.0, -2.0, 2.0)),
    bias=st.sampled_from(((), ((A, 100.0),), ((ONE, -100.0),))),
)
def test_whatever_the_settings_the_token_is_legal_and_the_logits_stay(
    row: Logits,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    bias: tuple[tuple[int, float], ...],
) -> None:
    before = row.copy()
    token = only(
        drawn(
            row,
            DIGIT,
            said=b"a123",
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            frequency_penalty=penalty,
            logit_bias=bias,
        )
    )
    assert token in b"0123456789"
    assert (row == before).all()
    if bias == ((ONE, -100.0),):
        assert token != ONE


@settings(max_examples=50, deadline=None)
@given(row=rows)
def test_greedy_is_the_best_legal_token(row: Logits) -> None:
    digits = np.arange(ord("0"), ord("9") + 1)
    assert only(drawn(row, DIGIT, temperature=0.0)) == digits[row[digits].argmax()]
    assert only(drawn(row, DIGIT, temperature=0.0, presence_penalty=0.1)) == digits[row[digits].argmax()]


def test_draws_follow_the_probabilities() -> None:
    row = np.full(SIZE, -np.inf, np.float32)
    row[[A, B, C]] = np.log([0.6, 0.3, 0.1])
    found = drawn(row, times=2000)
    assert [round(found[token] / 2000, 1) for token in (A, B, C)] == [0.6, 0.3, 0.1]


def test_only_differences_between_scores_count() -> None:
    for level in (-500.0, 0.0, 1e30):
        row = logits(a=3e30)
        row[list(b"0123456789")] = level
        found = drawn(row, DIGIT, times=100, temperature=1e-20)
        assert len(found) == 10


def test_truncation_counts_legal_tokens_only() -> None:
    row = logits(a=50.0, b=49.0, d1=10.0, d2=9.0)
    assert set(drawn(row, DIGIT, times=100, top_k=2)) == {ONE, TWO}
    assert set(drawn(row, DIGIT, times=100, top_k=1)) == {ONE}
    assert set(drawn(row, DIGIT, times=100, top_p=0.5)) == {ONE}
    assert set(drawn(row, DIGIT, times=100, min_p=0.1)) == {ONE, TWO}


def test_a_seed_repeats_and_another_differs() -> None:
    row = np.zeros(SIZE, np.float32)

    def draws(seed: int, attempt: int) -> list[int | None]:
        sampler = Sampler(Sampling(), seed, attempt, BENCH)
        matcher = VOCABULARY.matcher(ANYTHING)
        found = [sampler.choose(row, matcher, [], 0) for _ in range(8)]
        sampler.close()
        return found

    assert draws(7, 0) == draws(7, 0)
    assert draws(2**32 - 1, 0) == draws(2**32 - 1, 0)
    assert len({tuple(draws(seed, attempt)) for seed in (7, 8, 2**32 - 2) for attempt in (0, 1)}) == 6


@given(st.none() | st.integers(-(2**70), 2**70), st.integers(0, 2**32 - 1), st.integers(0, 7))
def test_any_seed_will_do(seed: int | None, drawn_seed: int, choice: int) -> None:
    sampling = Sampling(seed=seed)
    found = draws_seed(sampling, drawn_seed, choice)
    assert 0 <= found < 2**32 - 1  # the last one would mean "random" to llama.cpp
    if seed is not None:
        assert found == draws_seed(sampling, drawn_seed + 1, choice)
    assert found != draws_seed(sampling, drawn_seed, choice + 1)


def test_what_is_greedy_is_drawn_when_sampled_again() -> None:
    row = logits(d1=0.5)
    sampler = Sampler(Sampling(temperature=0.0), 1, 1, BENCH)
    matcher = VOCABULARY.matcher(DIGIT)
    assert len({sampler.choose(row, matcher, [], 0) for _ in range(50)}) > 5
    sampler.close()


def test_bias() -> None:
    row = logits(a=5.0, b=1.0)
    assert only(drawn(row, temperature=0.0, logit_bias=((A, -100.0),))) == B
    assert only(drawn(row, temperature=0.0, logit_bias=((C, 100.0),))) == C
    assert only(drawn(row, temperature=0.0, logit_bias=((C, 4.5), (C, 4.5)))) == C
    assert only(drawn(row, DIGIT, temperature=0.0, logit_bias=((A, 100.0),))) != A


def test_penalties() -> None:
    row = logits(a=5.0, b=4.5)
    assert only(drawn(row, said=b"a", temperature=0.0, presence_penalty=1.0)) == B
    assert only(drawn(row, said=b"a", temperature=0.0, frequency_penalty=0.3)) == A
    assert only(drawn(row, said=b"aa", temperature=0.0, frequency_penalty=0.3)) == B
    assert only(drawn(row, said=b"a", prompt=1, temperature=0.0, presence_penalty=1.0)) == A
    assert only(drawn(row, said=b"a", prompt=1, temperature=0.0, repeat_penalty=1.5)) == B
    assert only(drawn(row, said=b"a" + b"x" * 64, temperature=0.0, repeat_penalty=1.5)) == A
    below = np.full(SIZE, -9.0, np.float32)
    below[[A, B]] = -2.0, -2.1
    assert only(drawn(below, said=b"a", temperature=0.0, repeat_penalty=1.5)) == B


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_to_choose_from(value: float, temperature: float) -> None:
    row = np.full(SIZE, value, np.float32)
    assert only(drawn(row, DIGIT, temperature=temperature, logit_bias=((ONE, -100.0),))) is None
    everything = tuple((token, -100.0) for token in range(SIZE))
    assert only(drawn(logits(), temperature=temperature, logit_bias=everything)) is None


def test_the_end_is_legal_only_where_the_constraint_may_end() -> None:
    row = logits()
    row[END] = 9.0
    assert only(drawn(row, DIGIT, temperature=0.0)) != END
    assert only(drawn(row, ANYTHING, temperature=0.0)) == END


@settings(max_examples=50, deadline=None)
@given(row=rows, token=st.integers(0, 255), alternatives=st.integers(0, 20))
def test_logprobs_are_the_models_own(row: Logits, token: int, alternatives: int) -> None:
    found = token_logprob(row, token, alternatives, VOCABULARY)
    exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    assert found.logprob == pytest.approx(exact[token], abs=1e-4)
    assert [each.logprob for each in found.top] == pytest.approx(sorted(exact)[::-1][:alternatives], abs=1e-4)
    assert found.data == bytes([token])


def test_logprobs_are_finite() -> None:
    row = logits(a=1.0)
    row[B], row[C] = -np.inf, np.nan
    assert token_logprob(row, B, 0, VOCABULARY).logprob == LOWEST_LOGPROB
    assert token_logprob(row, C, 0, VOCABULARY).logprob == LOWEST_LOGPROB
    assert all(math.isfinite(each.logprob) for each in token_logprob(row, A, 20, VOCABULARY).top)
