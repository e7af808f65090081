"""Strict decoding of bodies: JSON as everyone reads it, or a refusal; bounded in bytes, depth and time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from server.api import limits
from server.api.body import ClientGone, nested_deeper, parse, read
from server.errors import InvalidRequest, RequestTimeout, TooLarge, ToolspanError, UnsupportedMediaType

texts = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans())
def test_every_json_value_is_read_as_it_is(value: Any, escaped: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=escaped).encode()) == value


@given(st.binary(max_size=40) | st.text(alphabet='[]{}",:\\ud8a01eE.-+ntf', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert outcome(data) in ("read", "invalid_json", "invalid_unicode")


def outcome(data: bytes) -> str:
    try:
        parse(data)
    except InvalidRequest as error:
        return error.code
    return "read"


REFUSED = {
    "nothing": b"",
    "NaN": b'{"a": NaN}',
    "Infinity": b"[Infinity]",
    "minus-Infinity": b"[-Infinity]",
    "overflow": b"[1e999]",
    "minus-overflow": b"[-1e999]",
    "digits": b"[" + b"9" * 5000 + b"]",
    "twice": b'{"n": 1, "n": 2}',
    "twice-inside": b'{"a": [{"b": 1, "b": 1}]}',
    "twice-by-escape": rb'{"a": 1, "\u0061": 1}',
    "trailing": b"{} x",
    "two": b"{}{}",
    "comment": b"{} // x",
    "trailing-comma": b"[1,]",
    "single-quotes": b"{'a': 1}",
    "control-character": b'"a\nb"',
    "not-utf-8": b'"\xff"',
    "overlong": b'"\xc0\x80"',
    "surrogate-bytes": b'"\xed\xa0\x80"',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "utf-16-le": '{"a": 1}'.encode("utf-16-le"),
    "bom": b"\xef\xbb\xbf{}",
    "half-open": b'{"a": [',
    "deep-array": b"[" * 100_000 + b"]" * 100_000,
    "deep-open": b"[" * 100_000,
    "deep-object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "one-too-deep": b"[" * (limits.JSON_DEPTH + 1) + b"]" * (limits.JSON_DEPTH + 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_strict_json_is_refused(name: str) -> None:
    assert outcome(REFUSED[name]) == "invalid_json"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'"\ud800"', None),
        (rb'{"a": ["x", "\udc00"]}', "a[1]"),
        (rb'{"a": {"\ud800": 1}}', "a"),
        (rb'{"a": [{"b": "\ud800x"}]}', "a[0].b"),
        (rb'"\ud800\ud800"', None),
        (rb'"\ud83d \ude00"', None),
    ],
)
def test_half_a_surrogate_pair_is_refused_where_it_stands(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert (caught.value.code, caught.value.param) == ("invalid_unicode", param)


def test_what_looks_dangerous_and_is_not_is_read() -> None:
    assert parse(rb'"\ud83d\ude00"') == "😀"
    assert parse(b'["' + b"[" * 1000 + b'"]') == ["[" * 1000]
    assert parse(rb'["\\", "\"[", "\\\\\"{"]') == ["\\", '"[', '\\\\"{']
    assert parse(b"[" * limits.JSON_DEPTH + b"]" * limits.JSON_DEPTH)
    assert parse(b"1e-400") == 0
    assert parse(rb'"\u0000"') == "\0"


def depth(value: Any) -> int:
    children = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return 1 + max(map(depth, children), default=0) if isinstance(value, list | dict) else 0


@given(values, st.integers(0, 5))
def test_nesting_is_measured_exactly(value: Any, most: int) -> None:
    assert nested_deeper(json.dumps(value).encode(), most) == (depth(value) > most)


# Receiving.


def received(
    *messages: dict[str, Any], most: int = 10, timeout: float = 30, **headers: str
) -> bytes | Exception:
    """What ``read`` makes of ASGI messages; after them nothing comes."""
    waiting = [{"type": "http.request", "more_body": True, **each} for each in messages]
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        if taken == len(waiting):
            await asyncio.Future()
        taken += 1
        return waiting[taken - 1]

    sent = {"content_type": "application/json", **headers}
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items() if value]
    request = Request({"type": "http", "method": "POST", "headers": lines}, receive)
    try:
        return asyncio.run(read(request, most, timeout))
    except (ToolspanError, ClientGone) as error:
        return error


def last(data: bytes) -> dict[str, Any]:
    return {"body": data, "more_body": False}


def test_a_body_in_pieces() -> None:
    assert received({"body": b"01234"}, {}, last(b"56789")) == b"0123456789"


def test_too_much_is_noticed_while_it_arrives() -> None:
    assert isinstance(received({"body": b"01234"}, {"body": b"567890"}, timeout=3600), TooLarge)


@pytest.mark.parametrize("length", ["11", "9" * 30])
def test_an_announced_length_is_enough_to_refuse(length: str) -> None:
    assert isinstance(received(timeout=3600, content_length=length), TooLarge)


def test_a_body_that_does_not_come_is_a_timeout() -> None:
    assert isinstance(received({"body": b"0"}, timeout=0.01), RequestTimeout)


def test_a_client_that_leaves_is_gone() -> None:
    assert isinstance(received({"body": b"0"}, {"type": "http.disconnect"}), ClientGone)


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": ""},
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
        {"content_type": "multipart/form-data; boundary=x"},
        {"content_type": "application/json; charset=utf-16"},
        {"content_type": "application/jsonx"},
        {"content_encoding": "gzip"},
        {"content_encoding": "br, gzip"},
    ],
)
def test_other_media_are_refused_unread(headers: dict[str, str]) -> None:
    assert isinstance(received(timeout=3600, **headers), UnsupportedMediaType)


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
    ],
)
def test_json_has_several_spellings(kind: str) -> None:
    assert received(last(b"{}"), content_type=kind, content_encoding="identity") == b"{}"
