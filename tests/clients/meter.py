"""What the clients have in common: a tool whose result nobody can guess, a question that needs it, and the
run of several conversations, each twice. They have their own environment: nothing of the project is imported.

A client is started with the server's base URL, which ends in ``/v1``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

BASE_URL = sys.argv[1]
KEY = "none"
MODEL = "scripted"
ROOM = "boiler room"
QUESTION = f"Call read_meter for the `{ROOM}` and tell me the number."
DESCRIPTION = "Reads the meter of a room."
PARAMETERS = {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "read_meter", "description": DESCRIPTION, "parameters": PARAMETERS},
}
RESPONSES_TOOL = {
    "type": "function",
    "name": "read_meter",
    "description": DESCRIPTION,
    "parameters": PARAMETERS,
    "strict": False,
}

_read: list[int] = []


def read_meter(room: str) -> str:
    """Reads the meter of a room."""
    assert room == ROOM, room
    _read.append(random.randrange(10_000, 100_000))
    return f"the meter shows {_read[-1]}"


def run(*conversations: Callable[[], object]) -> None:
    """Has each conversation twice. It returns what the model said last, the result of its one call."""
    for conversation in conversations * 2:
        _read.clear()
        said = conversation()
        assert len(_read) == 1, f"{conversation.__name__}: the tool was called {len(_read)} times"
        assert str(said) == f"the meter shows {_read[0]}", f"{conversation.__name__}: {said!r}"
        print(conversation.__name__)
