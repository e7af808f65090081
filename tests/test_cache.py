"""The cache alone, over the books of ``fake_llama``."""

from __future__ import annotations

from array import array
from itertools import pairwise

from fake_llama import FakeLlama
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.cache import Cache, Cells, Owner, Sequence, State

OWNER = Owner(1)


def tokens(text: str) -> array[int]:
    return array("i", list(text.encode()))


def compute(llama: FakeLlama, cache: Cache, sequence: Sequence, count: int | None = None) -> None:
    """Evaluates the next ``count`` tokens (None: all) of a sequence."""
    pending = sequence.tokens[sequence.evaluated :][:count]
    llama.batch.clear()
    llama.batch.add(sequence.number, sequence.evaluated, pending, output=False)
    assert llama.decode()
    cache.advance(sequence, len(pending))


def opened(cache: Cache, text: str, length: int | None = None, owner: Owner = OWNER) -> Sequence:
    sequence = cache.open(tokens(text), length or len(text) + 4, len(text), owner)
    assert sequence is not None
    return sequence


def computed(llama: FakeLlama, cache: Cache, text: str, owner: Owner = OWNER) -> Sequence:
    sequence = opened(cache, text, owner=owner)
    compute(llama, cache, sequence)
    return sequence


texts = st.builds(
    lambda head, tail: head + tail, st.sampled_from(("a", "a" * 40, "ab" * 25)), st.text("ab", max_size=20)
)


@settings(max_examples=200, deadline=None)
@given(
    partial=st.booleans(),
    actions=st.lists(st.tuples(st.sampled_from(("open", "compute", "close")), texts, st.integers(0, 9))),
    partitions=st.integers(1, 2),
)
def test_books_agree(partial: bool, actions: list[tuple[str, str, int]], partitions: int) -> None:
    """No sequence ever lacks a cell it reserved, holds what it should, and nothing leaks."""
    llama = FakeLlama(context=150, slots=3, cached=2, partial=partial)
    cache = Cache(llama)
    running: list[Sequence] = []
    for request, (action, text, which) in enumerate(actions):
        if action == "open" and len(running) < 3:
            owner, boundaries = Owner(request, str(which % partitions)), (len(text) // 2, len(text) - 1)
            sequence = cache.open(tokens(text), len(text) + 5, len(text), owner, boundaries)
            running += [sequence] if sequence is not None else []
        elif running and action == "compute":
            sequence = running[which % len(running)]
            if sequence.state is State.READY and sequence.evaluated < len(sequence.tokens):
                compute(llama, cache, sequence, len(sequence.due(1 + which)))
        elif running:
            cache.close(running.pop(which % len(running)))
        for sequence in running:
            assert llama.held(sequence.number) == list(sequence.tokens[: sequence.evaluated])
            assert len(sequence.cells) >= len(sequence.tokens)
    for sequence in running:
        cache.close(sequence)
    assert cache.used_cells == 0
    cache.clear()
    assert llama.cells == []
    assert opened(cache, "z" * 140, 150) is not None  # every cell and number is back


@given(st.lists(st.integers(0, 10), max_size=8))
def test_cells(counts: list[int]) -> None:
    cells = Cells(100)
    taken = [cells.take(count) for count in counts]
    assert cells.free == 100 - sum(counts)
    for each in taken:
        cells.share(each)
        cells.release(each)
    assert cells.free == 100 - sum(counts)
    assert all(not set(left) & set(right) for left, right in pairwise(map(set, taken)))
    for each in taken:
        cells.release(each)
    assert cells.free == 100


def test_the_longest_prefix_is_taken_but_never_the_last_token() -> None:
    llama = FakeLlama()
    cache = Cache(llama)
    for text in ("abc", "abcdef", "abx"):
        cache.close(computed(llama, cache, text))
    assert opened(cache, "abcdefgh").evaluated == 6
    assert opened(cache, "abcdef").evaluated == 5
    assert opened(cache, "q").evaluated == 0


def test_the_longer_of_two_is_enough() -> None:
    llama = FakeLlama()
    cache = Cache(llama)
    for text in ("abc", "abcdef", "abcd"):
        cache.close(computed(llama, cache, text))
    assert cache.cached_tokens == 6


def test_what_may_be_taken_back_is_not_shared() -> None:
    llama = FakeLlama()
    cache = Cache(llama)
    sequence = computed(llama, cache, "abc")
    sequence.tokens.extend(b"defgh")
    compute(llama, cache, sequence)
    assert opened(cache, "abcdefgh").evaluated == 3
    cache.close(sequence)
    assert opened(cache, "abcdefgh").evaluated == 7


def test_a_long_prefix_is_waited_for_and_a_short_one_is_not() -> None:
    llama = FakeLlama()
    cache = Cache(llama)
    leader = opened(cache, "a" * 50)
    assert opened(cache, "a" * 20 + "b").state is State.READY
    follower = opened(cache, "a" * 40 + "b")
    assert follower.state is State.FOLLOWING
    compute(llama, cache, leader, 39)
    assert follower.state is State.FOLLOWING
    compute(llama, cache, leader, 1)
    assert (follower.state, follower.evaluated) == (State.READY, 40)


def test_a_leader_that_ends_early_orphans() -> None:
    cache = Cache(FakeLlama())
    leader = opened(cache, "a" * 50)
    follower = opened(cache, "a" * 50 + "b")
    cache.close(leader)
    assert follower.state is State.ORPHANED


def test_the_least_recently_used_goes_first() -> None:
    llama = FakeLlama(slots=1, cached=2)
    cache = Cache(llama)
    for text in ("aaaa", "bbbb", "cccc"):
        cache.close(computed(llama, cache, text))
    cache.close(computed(llama, cache, "aaaaaa"))
    cache.close(computed(llama, cache, "dddd"))  # there are three numbers: b goes
    assert opened(cache, "bbbbb").evaluated == 0


def whole(llama: FakeLlama, cache: Cache, text: str, *boundaries: int) -> Sequence:
    """A sequence that is computed in parts that end at the boundaries at least."""
    sequence = cache.open(tokens(text), len(text) + 4, len(text), OWNER, boundaries)
    assert sequence is not None
    while sequence.evaluated < len(text):
        compute(llama, cache, sequence, len(sequence.due(len(text))))
    return sequence


def test_a_state_that_is_only_had_whole_is_kept_at_boundaries() -> None:
    llama = FakeLlama(partial=False)
    cache = Cache(llama)
    sequence = whole(llama, cache, "abcdefgh", 3, 6)
    sequence.tokens.extend(b"ij")
    compute(llama, cache, sequence)
    cache.close(sequence)
    assert cache.cached_tokens == 3 + 6 + 10
    assert opened(cache, "abcxyz").evaluated == 3
    assert opened(cache, "abcdxyz").evaluated == 3
    assert opened(cache, "abcdefghx").evaluated == 6
    assert opened(cache, "abcdefghijk").evaluated == 10
    assert opened(cache, "abcdefghij").evaluated == 6


def test_a_state_that_is_kept_is_kept_once() -> None:
    llama = FakeLlama(partial=False)
    cache = Cache(llama)
    shy = Owner(2, reuse=False)
    for owner in (OWNER, shy):  # the second takes nothing over, so it comes past the boundary as well
        sequence = cache.open(tokens("abcdef"), 10, 6, owner, (3,))
        assert sequence is not None
        compute(llama, cache, sequence, 3)
        compute(llama, cache, sequence)
        cache.close(sequence)
    assert cache.cached_tokens == 3 + 6


def test_states_are_waited_for_at_boundaries_only() -> None:
    llama = FakeLlama(partial=False)
    cache = Cache(llama)
    leader = cache.open(tokens("a" * 60), 64, 60, OWNER, (40, 50))
    assert leader is not None
    follower, other = opened(cache, "a" * 45 + "b"), opened(cache, "a" * 39 + "b")
    assert (follower.state, follower.shared) == (State.FOLLOWING, 40)
    assert (other.state, other.shared) == (State.READY, 0)
    compute(llama, cache, leader, 39)
    assert follower.state is State.FOLLOWING
    compute(llama, cache, leader, 1)
    assert (follower.state, follower.evaluated) == (State.READY, 40)


def test_a_state_that_cannot_be_taken_back_is_opened_again() -> None:
    llama = FakeLlama(partial=False)
    cache = Cache(llama)
    sequence = whole(llama, cache, "abcdef", 4)
    cache.rewind(sequence, 6)
    assert (sequence.evaluated, sequence.state) == (0, State.ORPHANED)
    cache.close(sequence)
    assert opened(cache, "abcdef").evaluated == 4


def test_a_prefix_that_lost_cells_of_its_window_is_not_taken() -> None:
    llama = FakeLlama()
    cache = Cache(llama)
    source = computed(llama, cache, "abcdefgh")
    cache.close(source)
    llama.lost[source.number] = 6
    assert opened(cache, "abcdexyz").evaluated == 0
    assert opened(cache, "abcdefxyz").evaluated == 6
    cache.close(computed(llama, cache, "abcd"))
    assert cache.cached_tokens == 8 + 4  # the longer one does not serve for it


def test_a_leader_that_lost_the_prefix_orphans() -> None:
    llama = FakeLlama()
    cache = Cache(llama)
    leader = opened(cache, "a" * 50)
    follower = opened(cache, "a" * 40 + "b")
    llama.lost[leader.number] = 45
    compute(llama, cache, leader)
    assert (follower.state, follower.evaluated) == (State.ORPHANED, 0)


def test_what_lost_cells_of_its_window_is_not_gone_on_from_earlier() -> None:
    llama = FakeLlama()
    cache = Cache(llama)
    sequence = computed(llama, cache, "abcdefgh")
    llama.lost[sequence.number] = 6
    cache.rewind(sequence, 8)
    assert (sequence.evaluated, sequence.state) == (7, State.READY)
    cache.rewind(sequence, 6)
    assert (sequence.evaluated, sequence.state) == (0, State.ORPHANED)


def test_partitions() -> None:
    mine, shy = Owner(1, "me"), Owner(2, "me", reuse=False)
    assert mine.may_read(shy)
    assert not shy.may_read(mine)
    assert shy.may_read(Owner(2, "me"))
    assert not mine.may_read(Owner(3, "you"))
