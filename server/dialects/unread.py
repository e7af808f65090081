"""Text that is still to be read, some of it again."""

from __future__ import annotations

from collections import Counter

_AT_ONCE = 1024
_MOST_READINGS = 16


class Unread:
    """``add`` text, ``take`` the next part of it, ``put_back`` what is to be read again. Reading stays linear
    in the text: parts are of bounded length, and ``may_read_again`` bounds how often they come."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._place = 0
        self._ends: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, text: str) -> None:
        """Text that comes before all that waits."""
        if len(text) > _AT_ONCE:
            self._parts += reversed([text[at : at + _AT_ONCE] for at in range(0, len(text), _AT_ONCE)])
        elif text:
            self._parts.append(text)

    def take(self) -> str:
        text = self._parts.pop()
        self._place += len(text)
        return text

    def put_back(self, text: str) -> None:
        self._place -= len(text)
        self.add(text)

    def may_read_again(self, rest: int) -> bool:
        """Whether what came before the last ``rest`` characters taken may be put back, too. Readings from
        different beginnings that end at one place are limited in number."""
        end = self._place - rest
        self._ends[end] += 1
        return self._ends[end] < _MOST_READINGS
