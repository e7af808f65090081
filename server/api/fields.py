"""Strict reading of decoded JSON: a value together with where it stands in the body.

Types are JSON's, never converted: ``true`` is no number, ``"5"`` is no number, 1.5 is no integer (1.0
is, as JSON knows one kind of number). Every refusal is ``InvalidRequest`` with the path as ``param``,
such as ``messages[3].content``. What the path does not show is never echoed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from server.errors import InvalidRequest, quoted


@dataclass(frozen=True, slots=True)
class Field:
    """A value and its path; the path of the whole body is empty."""

    value: Any
    path: str = ""

    def get(self, name: str) -> Field | None:
        """The member ``name`` of an object; None where it is absent or null."""
        value = self.object().get(name)
        if value is None:
            return None
        return Field(value, f"{self.path}.{name}" if self.path else name)

    def need(self, name: str) -> Field:
        """The member ``name``, which must be there."""
        found = self.get(name)
        if found is None:
            path = f"{self.path}.{name}" if self.path else name
            raise InvalidRequest(f"{path} is required", code="missing_required_parameter", param=path)
        return found

    def object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.mistyped("an object")
        return self.value

    def items(self, most: int) -> list[Field]:
        """The elements of an array of at most ``most``."""
        if not isinstance(self.value, list):
            raise self.mistyped("an array")
        if len(self.value) > most:
            raise self.wrong(f"has {len(self.value)} elements, at most {most} are allowed", "array_too_long")
        return [Field(each, f"{self.path}[{index}]") for index, each in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.mistyped("a string")
        return self.value

    def short_text(self, most: int) -> str:
        """A string of 1 to ``most`` characters without NUL, such as a name."""
        text = self.text()
        if not text or len(text) > most or "\0" in text:
            raise self.wrong(f"must have 1 to {most} characters, none of them NUL")
        return text

    def word(self, words: Collection[str]) -> str:
        """One of a few strings."""
        text = self.text()
        if text not in words:
            raise self.wrong(f"must be one of {', '.join(words)}, not {quoted(text)}")
        return text

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.mistyped("true or false")
        return self.value

    def integer(self, low: int | None = None, high: int | None = None) -> int:
        value = self.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.mistyped("an integer")
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise self.wrong(f"must be {bounds}")
        return value

    def number(self, bounds: tuple[float, float]) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.mistyped("a number")
        low, high = bounds
        if not low <= self.value <= high:
            raise self.wrong(f"must be from {low:g} to {high:g}")
        return float(self.value) + 0.0  # no negative zero

    def wrong(self, message: str, code: str = "invalid_value") -> InvalidRequest:
        """The refusal of this value; ``message`` completes a sentence that starts with the path."""
        return InvalidRequest(f"{self.path or 'the body'} {message}", code=code, param=self.path or None)

    def mistyped(self, wanted: str) -> InvalidRequest:
        return self.wrong(f"must be {wanted}, not {_kind(self.value)}", "invalid_type")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"
