"""The log's one form: an event is a line, whatever clients put into it, and exceptions are told without
their own words, which may quote a request."""

from __future__ import annotations

import logging
import traceback


class OneLine(logging.Formatter):
    """Escapes control characters and line separators, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(_ESCAPES)


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    10: " | ",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def configure(level: str) -> None:
    """Sends everything from ``level`` up to standard error. Only at ``debug`` may that hold what clients
    sent and models wrote."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def where(error: BaseException) -> str:
    """An exception's type and place, on one line."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return f"{type(error).__name__} in " + " < ".join(
        f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in reversed(frames)
    )
