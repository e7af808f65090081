"""Which entry of a recording answers a request: that of the same request, and of several each in its turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from msgspec.structs import fields, replace

from server.turn import Message, Turn


class Requests:
    """Recorded requests with the numbers of their entries."""

    def __init__(self, requests: Iterable[tuple[int, Turn]]) -> None:
        numbers: dict[Turn, list[int]] = {}
        for number, turn in requests:
            numbers.setdefault(essence(turn), []).append(number)
        self._turns = {turn: itertools.cycle(found) for turn, found in numbers.items()}

    def __bool__(self) -> bool:
        return bool(self._turns)

    def entry(self, turn: Turn) -> int | None:
        """The next entry of this request, after its last one the first again."""
        found = self._turns.get(essence(turn))
        return None if found is None else next(found)

    def difference(self, turn: Turn) -> str:
        """Where a request that is not there departs from the most similar one that is, in words."""
        asked = essence(turn)
        alike = max(self._turns, key=lambda each: (_alike(asked, each), -len(list(_differing(asked, each)))))
        return ", ".join(_differing(asked, alike))


def essence(turn: Turn) -> Turn:
    """What of a request decides its answer. Ids of calls are drawn anew each time, so that only which call is
    meant counts; of which API and key it came, and what it wants to be told beside the answer, does not."""
    numbers: dict[str, str] = {}

    def number(identity: str) -> str:
        return numbers.setdefault(identity, str(len(numbers)))

    def numbered(message: Message) -> Message:
        calls = tuple(replace(each, id=number(each.id), place="") for each in message.tool_calls)
        of = message.tool_call_id
        return replace(message, tool_calls=calls, tool_call_id=None if of is None else number(of), place="")

    return replace(
        turn,
        messages=tuple(map(numbered, turn.messages)),
        tools=tuple(replace(each, place="") for each in turn.tools),
        response_format=replace(turn.response_format, place=""),
        partition="",
        reuse_prefix=True,
        debug=False,
        place="",
    )


def _alike(one: Turn, other: Turn) -> int:
    """How many messages two conversations have in common from their start."""
    pairs = zip(one.messages, other.messages, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _differing(one: Turn, other: Turn) -> Iterator[str]:
    if one.messages != other.messages:
        yield f"messages[{_alike(one, other)}]"
    for field in fields(Turn):
        if field.name != "messages" and getattr(one, field.name) != getattr(other, field.name):
            yield field.name
