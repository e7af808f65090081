from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.dialects.held import HeldText, overlap


def pushed(held: HeldText, chunks: list[str]) -> str:
    return "".join(map(held.push, chunks))


@given(st.lists(st.text("ab \n", max_size=5)))
def test_without_markup_all_text_leaves(chunks: list[str]) -> None:
    held = HeldText()
    assert pushed(held, chunks) + held.finish() == "".join(chunks)


@given(st.lists(st.text("abS ", max_size=4)), st.sampled_from([("Sa",), ("aSb", "S "), ("abab",)]))
def test_text_ends_at_the_first_stop_string(chunks: list[str], stop: tuple[str, ...]) -> None:
    held = HeldText(stop)
    text = ""
    for chunk in chunks:
        text += held.push(chunk)
        if held.stopped_by:
            break
    text += held.finish()
    whole = "".join(chunks)
    places = [whole.find(each) for each in stop if each in whole]
    assert bool(held.stopped_by) == bool(places)
    if places:
        assert text == whole[: len(text)]
        assert not any(each in text for each in stop)
        assert any(whole[len(text) :].startswith(each) for each in stop)
    else:
        assert text == whole


def test_space_before_markup_is_dropped() -> None:
    held = HeldText()
    assert held.push("Hello \n") == "Hello"
    assert held.end_before_markup() == ""
    held.push("x \n")
    assert held.push("y") == " \ny"


def test_a_long_run_of_space_is_not_held() -> None:
    held = HeldText()
    assert len(held.push(" " * 1000)) == 936


def test_space_after_markup_is_dropped() -> None:
    held = HeldText()
    held.skip_space = True
    assert pushed(held, ["\n", " \n", "a b"]) == "a b"


def test_overlap() -> None:
    assert overlap("ab<to", "<tool>") == 3
    assert overlap("<tool>", "<tool>") == 0
    assert overlap("<<", "<<<") == 2
