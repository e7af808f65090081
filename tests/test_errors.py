"""The error tree: its picture is the truth, and every error survives the way between the processes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server import errors
from server.errors import ErrorData, Remote, ToolspanError, quoted

PICTURED_ONLY_IN_CODE = {"Remote"}
"""Not a kind of its own: it carries what another kind was."""


def tree(kind: type[ToolspanError], depth: int = 0) -> Iterator[tuple[str, int]]:
    yield kind.__name__, depth
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__ and child.__name__ not in PICTURED_ONLY_IN_CODE:
            yield from tree(child, depth + 1)


def pictured() -> list[tuple[int, str, list[str]]]:
    """The docstring's lines: depth, name, and the words after it."""
    lines = [line for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    return [
        (len(line.split(word)[0]) // 4 - 1, word, rest) for line in lines for word, *rest in [words(line)]
    ]


def words(line: str) -> list[str]:
    return line.translate(dict.fromkeys(map(ord, "│├└─"))).split()


def kinds() -> dict[str, type[ToolspanError]]:
    return {name: getattr(errors, name) for name, _ in tree(ToolspanError)}


def test_the_picture_shows_every_class_in_its_place() -> None:
    assert [(name, depth) for depth, name, _ in pictured()] == list(tree(ToolspanError))


@pytest.mark.parametrize(("name", "rest"), [(name, rest) for _, name, rest in pictured()])
def test_the_picture_shows_status_type_and_code(name: str, rest: list[str]) -> None:
    kind = kinds()[name]
    if name == "StartupFailed":
        assert rest[:2] == ["(no", "status:"]
        return
    assert rest[:2] == [str(kind.status), kind.type]
    codes = " ".join(rest[2:])
    assert kind.default_code in codes or codes == "(code says which rule)"


@pytest.mark.parametrize("kind", kinds().values(), ids=kinds())
def test_every_error_goes_through_a_frame_and_comes_back(kind: type[ToolspanError]) -> None:
    error = kind("why", code="own_code", param="tools[0]", retry_after=3)
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(error.data), type=ErrorData)
    assert Remote(data).data == error.data
    assert data == ErrorData(kind.status, kind.type, "own_code", "why", "tools[0]", 3)


def test_messages_are_bounded() -> None:
    assert len(ToolspanError("x" * 10_000).message) == errors.MESSAGE_LIMIT


@given(st.text(max_size=200))
def test_quoted_text_is_one_short_printable_line(text: str) -> None:
    shown = quoted(text)
    assert len(shown) <= errors.QUOTE_LIMIT + 3
    assert shown.replace("…", "").isprintable()
    assert shown.replace("…", "").isascii()
    assert shown.startswith("'")
    assert shown.endswith("'")


@given(st.text(st.characters(codec="ascii", exclude_characters="'\\", exclude_categories=["C"]), max_size=64))
def test_plain_text_is_quoted_as_it_is(text: str) -> None:
    assert quoted(text) == f"'{text}'"
