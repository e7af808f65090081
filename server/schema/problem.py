"""Why a schema is refused, and where."""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import quoted


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a schema is refused. ``code`` is the API's error code, ``pointer`` a JSON pointer to the
    schema that holds ``keyword`` (empty where no keyword is at fault)."""

    code: str
    pointer: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        place = quoted(self.pointer) if self.pointer else "the root"
        return f"{self.keyword + ' ' if self.keyword else ''}at {place}: {self.reason}"


class Refused(Exception):
    """A schema can't be held to."""

    def __init__(self, pointer: str, keyword: str, reason: str, code: str = "invalid_schema") -> None:
        super().__init__(reason)
        self.problem = Problem(code, pointer, keyword, reason)
