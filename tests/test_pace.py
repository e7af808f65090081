from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from server.engine.pace import ALONE_S, BESIDE_S, LEAST, MOST, Pace

SECONDS = {False: ALONE_S, True: BESIDE_S}


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 100))), st.booleans())
def test_a_power_of_two_within_bounds(batches: list[tuple[int, float]], answers: bool) -> None:
    pace = Pace()
    for count, seconds in batches:
        pace.measured(count, seconds)
        tokens = pace.tokens(answers=answers)
        assert LEAST <= tokens <= MOST
        assert tokens & (tokens - 1) == 0


@given(st.floats(150, 1200), st.booleans())
def test_settles_near_the_time_wanted(speed: float, answers: bool) -> None:
    pace = Pace()
    for _ in range(5):
        pace.measured(256, 256 / speed)
    assert 1 / 2 <= pace.tokens(answers=answers) / speed / SECONDS[answers] <= 1.7


@given(st.floats(150, 7000), st.lists(st.floats(0.8, 1.25), min_size=5, max_size=20), st.booleans())
def test_noise_does_not_make_it_swing(speed: float, noise: list[float], answers: bool) -> None:
    pace = Pace()
    seen = []
    for each in [1.0, *noise]:
        pace.measured(256, each * 256 / speed)
        seen.append(pace.tokens(answers=answers))
    assert sum(left != right for left, right in pairwise(seen)) <= 1


def test_a_slow_start_is_forgotten() -> None:
    pace = Pace()
    pace.measured(256, 256 / 80)
    assert pace.tokens(answers=False) == 128
    for _ in range(5):
        pace.measured(128, 128 / 180)
    assert pace.tokens(answers=False) == 256


def test_prompts_alone_are_cut_less_often_than_beside_answers() -> None:
    pace = Pace()
    assert pace.tokens(answers=False) > pace.tokens(answers=True)


def test_single_tokens_tell_nothing() -> None:
    pace, new = Pace(), Pace()
    pace.measured(4, 10.0)
    assert pace.tokens(answers=False) == new.tokens(answers=False)


@given(st.floats(0.001, 0.2), st.floats(0.001, 1.0), st.integers(1, 4))
def test_answers_keep_half_their_speed_beside_prompts(step: float, prompt: float, prompts: int) -> None:
    pace = Pace()
    elapsed, tokens = 0.0, 0
    while elapsed < 20 or pace.prompts_wait:
        took = step if pace.prompts_wait else step + prompt
        pace.measured(0 if pace.prompts_wait else prompts, took, answers=True)
        elapsed += took
        tokens += 1
    assert tokens / elapsed >= 0.5 / step * (1 - 1e-6)


def test_what_answers_are_owed_ends_with_them() -> None:
    pace = Pace()
    pace.measured(100, 5.0, answers=True)
    assert pace.prompts_wait
    pace.measured(100, 0.1, answers=False)
    assert not pace.prompts_wait
