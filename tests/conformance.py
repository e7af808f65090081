"""How values are decided, by the constraint and by the check of the finished value, and whether rightly."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from writings import Writings, plain

from server.errors import InvalidSchema
from server.schema.cache import Cache, Prepared
from server.schema.problem import Problem, Refused


class Outcome(enum.Enum):
    """What came of one value."""

    RIGHT = "right"
    LOOSENED = "loosened"
    """Invalid, and only the check afterwards says so."""
    NOT_ADMITTED = "not admitted"
    """Valid, and the constraint has no writing of it."""
    DENIED = "denied"
    """Valid, and the check afterwards says it is not."""
    ACCEPTED = "accepted"
    """Invalid, and the check afterwards says it is valid."""

    @property
    def decided(self) -> bool:
        """Whether constraint and check together are right."""
        return self in (Outcome.RIGHT, Outcome.LOOSENED)


@dataclass(frozen=True, slots=True)
class Decided:
    """A value's outcome, and the keyword that it fails, if any."""

    outcome: Outcome
    keyword: str | None


def answered(schema: object, *, as_object: bool = False) -> Prepared | Problem:
    """The schema prepared as for an answer (or, ``as_object``, for a tool), or why it is refused."""
    try:
        return Cache().prepared(plain(schema), "response_format", as_object)
    except InvalidSchema as error:
        refused = error.__context__
    assert isinstance(refused, Refused)
    return refused.problem


def named(problem: Problem, schema: object) -> bool:
    """Whether a refusal says where and why. No keyword is at fault where the place is ``true`` or ``false``,
    or where the whole document is too large."""
    found: object = schema
    for step in problem.pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]  # type: ignore[index]
    unkeyed = isinstance(found, bool) or problem.code == "schema_too_large"
    return len(problem.reason) > 8 and bool(problem.keyword or unkeyed)


def decided(made: Prepared, cases: list[tuple[object, bool]]) -> Iterator[Decided]:
    """What comes of each (value, whether it is valid). One that has too many writings to be tried counts as
    not admitted where it is valid, and as admitted where it is not."""
    writings = Writings(made.lowered)
    for value, valid in cases:
        admitted = writings.admit(value)
        failure = made.verifier.failure(plain(value))
        yield Decided(
            _outcome(admitted, failure is None, valid), None if failure is None else failure.keyword
        )


def _outcome(admitted: bool | None, passed: bool, valid: bool) -> Outcome:
    if valid != passed:
        return Outcome.ACCEPTED if passed else Outcome.DENIED
    if valid:
        return Outcome.RIGHT if admitted else Outcome.NOT_ADMITTED
    return Outcome.RIGHT if admitted is False else Outcome.LOOSENED
