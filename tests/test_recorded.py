"""Takes: what is recorded of steps is what is played, piece by piece."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.protocol import Ended, Piece
from server.engine.scripted import NEVER, TimedText
from server.events import Source
from server.runner.recorded import Take, Taking

MARKUP = {"<a>": 7}
DATA = st.one_of(st.binary(min_size=1, max_size=4), st.text("a<é😀", min_size=1).map(str.encode))
PIECES = st.builds(Piece, st.just(-1), DATA, st.sampled_from(Source)) | st.just(Piece(7, b"<a>"))
STEPS = st.lists(st.tuples(st.floats(0, 100), st.lists(PIECES, max_size=3)), max_size=6)


def taken(steps: list[tuple[float, list[Piece]]], ended: Ended | None) -> Taking:
    taking, now = Taking(MARKUP.get, 0.0), 0.0
    for place, (silence, pieces) in enumerate(steps):
        now += silence
        taking.add(pieces, ended if place == len(steps) - 1 else None, now)
    return taking


def read(taking: Taking) -> tuple[TimedText, ...]:
    """What is played of a take, once it has been in a file."""
    take = msgspec.json.decode(msgspec.json.encode(taking.take), type=Take)
    assert take == taking.take
    return take.moments(MARKUP.get)


@given(STEPS, st.sampled_from([None, *Ended]))
def test_what_is_played_is_what_was_recorded(
    steps: list[tuple[float, list[Piece]]], ended: Ended | None
) -> None:
    moments = read(taken(steps, ended))
    played: list[list[TimedText]] = []
    for each in moments:
        if each.joined:
            played[-1].append(each)
        else:
            played.append([each])
    made = [Piece(each.token, each.data, each.source) for each in moments if each.text]
    assert made == [piece for _, pieces in steps for piece in pieces]
    assert [len(each) for each in played if each[0].text] == [len(pieces) for _, pieces in steps if pieces]
    if not steps or ended is None:
        assert moments[-1] == TimedText("", NEVER)
    else:
        assert moments[-1].ended is ended
        told = sum(silence for silence, _ in steps)
        assert sum(each.silence for each in moments) == pytest.approx(told, abs=0.000_002)


def test_a_piece_that_is_no_text_is_bytes_in_the_file() -> None:
    steps = [(0.5, [Piece(-1, b"\xf0\x9f", Source.FORCED), Piece(7, b"<a>")]), (0.25, [Piece(-1, b"<a>")])]
    assert msgspec.to_builtins(taken(steps, Ended.STOP).take) == {
        "pieces": (500.0, {"bytes": "8J8="}, "<a>", 250.0, "<a>"),
        "kinds": "fSs",
    }


def test_the_next_take_begins_with_what_was_kept() -> None:
    letters = [Piece(-1, each, Source.FORCED) for each in (b"a", b"b", b"c")]
    again = taken([(1.0, letters[:2]), (1.0, letters[2:])], Ended.STOP).again(1)
    again.add([Piece(-1, b"x")], Ended.LENGTH, 2.5)
    assert again.take == Take((1000.0, "a", 500.0, "x"), "fs", "length")


def test_an_end_that_the_engine_did_not_make_is_one() -> None:
    taking = taken([(1.0, [Piece(-1, b"a")])], None)
    assert taking.take.ended == "never"
    taking.end()
    assert taking.take.ended == "stop"


@pytest.mark.parametrize(
    "text",
    [
        '{"pieces": ["a"], "kinds": "ss"}',
        '{"pieces": ["a", 1], "kinds": "x"}',
        '{"pieces": [{"bytes": ""}]}',
        '{"pieces": [{"bytes": "?"}]}',
        '{"pieces": [[]]}',
        '{"ended": "now"}',
        '{"text": "a"}',
    ],
)
def test_a_take_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Take)
