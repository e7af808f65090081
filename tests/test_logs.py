"""The log: one event a line, and exceptions without their own words."""

from __future__ import annotations

import io
import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from server.logs import OneLine, where


@given(st.text(st.characters(codec="utf-8")))
def test_an_event_is_one_printable_line(text: str) -> None:
    line = OneLine("%(message)s").format(logging.LogRecord("x", logging.INFO, "", 0, text, None, None))
    assert len(line.splitlines()) <= 1
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 for each in line)


def test_a_traceback_is_one_line_too() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(message)s"))
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "broke", None, sys.exc_info())
    handler.emit(record)
    assert stream.getvalue().count("\n") == 1
    assert "broke | Traceback" in stream.getvalue()


def test_an_exception_is_told_without_its_words() -> None:
    try:
        _inner()
    except KeyError as error:
        told = where(error)
    assert told.startswith("KeyError in _inner (test_logs.py:")
    assert " < test_an_exception_is_told_without_its_words (" in told
    assert "secret" not in told


def _inner() -> None:
    raise KeyError("secret")
