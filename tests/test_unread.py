"""Text still to be read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.dialects.unread import Unread


@given(st.text(), st.integers(0, 5000), st.lists(st.integers(0, 2000), max_size=20))
def test_text_comes_in_its_order_however_much_is_put_back(text: str, length: int, backs: list[int]) -> None:
    text = (text * length)[:length]
    unread, read = Unread(), ""
    unread.add(text)
    while unread:
        read += unread.take()
        back = min(len(read), backs.pop() if backs else 0)
        unread.put_back(read[len(read) - back :])
        read = read[: len(read) - back]
    assert read == text


def test_a_long_text_comes_in_parts() -> None:
    unread = Unread()
    unread.add("x" * 100_000)
    assert len(unread.take()) < 10_000


def test_readings_that_end_at_one_place_are_limited() -> None:
    unread = Unread()
    unread.add("a call that is none, and more")
    unread.take()
    rest = len(", and more")
    assert not all(unread.may_read_again(rest) for _ in range(1000))
    assert unread.may_read_again(rest - 1)
