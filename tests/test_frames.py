"""Frames: what goes in comes out, however the bytes are cut; what is no frame is refused."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from server import frames
from server.frames import BrokenFrame, Cancel, Decoder, FromRunner, Generate, Shutdown, Status, ToRunner
from server.turn import Turn

INTEGERS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(max_size=20)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a message type, made from its definition, so that a new field is covered at once."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: values(field.type) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of([values(each) for each in types])
        case inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=3).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*[values(each) for each in items])
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.LiteralType(values=constants):
            return st.sampled_from(constants)
    simple: dict[type, st.SearchStrategy[Any]] = {
        inspect.StrType: TEXTS,
        inspect.IntType: INTEGERS,
        inspect.FloatType: st.floats(allow_nan=False),
        inspect.BoolType: st.booleans(),
        inspect.BytesType: st.binary(max_size=20),
        inspect.NoneType: st.none(),
    }
    return simple[type(kind)]


FRAMES = {
    direction: st.one_of([values(inspect.type_info(each)) for each in get_args(direction)])
    for direction in (ToRunner, FromRunner)
}


def decoded(direction: Any, *chunks: bytes) -> list[Any]:
    decoder: Decoder[Any] = Decoder(direction)
    return [frame for chunk in chunks for frame in decoder.feed(chunk)]


@pytest.mark.parametrize("direction", [ToRunner, FromRunner])
@given(data=st.data())
def test_what_goes_in_comes_out_however_it_is_cut(direction: Any, data: st.DataObject) -> None:
    sent = data.draw(st.lists(FRAMES[direction], max_size=4))
    wire = b"".join(map(frames.encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    edges = [0, *cuts, len(wire)]
    chunks = [wire[start:end] for start, end in pairwise(edges)]
    assert decoded(direction, *chunks) == sent


def test_single_bytes_suffice() -> None:
    wire = frames.encode(Cancel(1)) + frames.encode(Shutdown())
    assert decoded(ToRunner, *(bytes([byte]) for byte in wire)) == [Cancel(1), Shutdown()]


@pytest.mark.parametrize("direction", [ToRunner, FromRunner])
def test_tags_are_unique_in_a_direction(direction: Any) -> None:
    tags = [each.__struct_config__.tag for each in get_args(direction)]
    assert len(set(tags)) == len(tags)
    assert all(tags)


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_other_bytes_are_broken_or_a_frame_of_that_direction(body: bytes) -> None:
    wire = struct.pack(">I", len(body)) + body
    try:
        found = decoded(ToRunner, wire)
    except BrokenFrame:
        return
    assert all(isinstance(frame, get_args(ToRunner)) for frame in found)


def test_a_frame_of_the_other_direction_is_refused() -> None:
    with pytest.raises(BrokenFrame):
        decoded(ToRunner, frames.encode(Status(active=1, waiting=0)))


def test_a_length_over_the_limit_is_refused_before_its_bytes_come() -> None:
    assert decoded(ToRunner, struct.pack(">I", frames.FRAME_LIMIT)) == []
    with pytest.raises(BrokenFrame, match="over the limit"):
        decoded(ToRunner, struct.pack(">I", frames.FRAME_LIMIT + 1))


def test_a_frame_over_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(frames.encode(Cancel(1))) - 4
    monkeypatch.setattr(frames, "FRAME_LIMIT", size)
    assert frames.encode(Cancel(1))
    monkeypatch.setattr(frames, "FRAME_LIMIT", size - 1)
    with pytest.raises(BrokenFrame, match="over the limit"):
        frames.encode(Cancel(1))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", frames.encode(Generate(1, Turn(())))[4:-1]])
def test_what_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(BrokenFrame, match="not a frame"):
        decoded(ToRunner, struct.pack(">I", len(body)) + body)
