"""What one rendering of a chat template may cost, and what each operation of it will cost.

Sizes are worked out before a value is made. They are characters; an item of a list counts as eight.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import jinja2

_WORK = 16  # everything ever made in one rendering, in multiples of the largest output
_STEPS_PER_LOOK = 64
_BITS_LIMIT = 65_536
_WIDE = re.compile(r"%[^a-zA-Z%]*?(?:\*|\d{5,})")


class Refusal(jinja2.TemplateError):
    """The template itself refuses the messages, or a limit refuses the template."""


class Budget:
    """What one rendering may still cost: CPU seconds of its thread, and characters made."""

    def __init__(self, cpu_limit: float, output_limit: int) -> None:
        self.limit = output_limit
        self._deadline = time.thread_time() + cpu_limit
        self._steps = 0
        self._written = 0
        self._work = output_limit * _WORK

    def step(self) -> None:
        self._steps += 1
        if self._steps % _STEPS_PER_LOOK == 0 and time.thread_time() > self._deadline:
            raise Refusal("it takes too long")

    def made(self, size: int) -> None:
        """A text of ``size`` characters, or a list of that many eighths, is about to be made."""
        self._work -= size
        if size > self.limit or self._work < 0:
            raise Refusal("it makes too much text")
        self.step()

    def output(self, chunk: str) -> None:
        self._written += len(chunk)
        if self._written > self.limit:
            raise Refusal("its output is too long")

    def weigh(self, value: Any) -> int:
        """About the number of characters of a value written out; lists nested in themselves are refused,
        since they grow without bound."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, dict | list | tuple | set):
            return 16
        total = 0
        waiting: list[Any] = [value]
        while waiting:
            self.step()
            each = waiting.pop()
            if isinstance(each, str):
                total += len(each)
            elif isinstance(each, dict):
                waiting.extend(each.keys())
                waiting.extend(each.values())
            elif isinstance(each, list | tuple | set):
                waiting.extend(each)
            total += 2
            if total + len(waiting) > self.limit:
                raise Refusal("it makes too much text")
        return total


def replaced_size(text: str, old: str, new: str) -> int:
    return len(text) + text.count(old) * max(0, len(new) - len(old))


def operator_size(budget: Budget, operator: str, left: Any, right: Any) -> int:
    """Characters, or eighths of a list, that ``left operator right`` makes."""
    if operator == "%":
        if not isinstance(left, str):
            return 1
        if _WIDE.search(left):
            raise Refusal("a format is too wide")
        return len(left) + (left.count("%") + 1) * budget.weigh(right)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        if operator == "**":
            bits = left.bit_length() * max(right, 1)
        if bits > _BITS_LIMIT:
            raise Refusal("a number is too large")
        return 1
    if operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple | bytes) and isinstance(times, int):
                return length(many) * max(times, 0)
        return 1
    return length(left) + length(right)


def length(value: Any) -> int:
    """Characters of a text, eighths of a list."""
    if isinstance(value, str | bytes):
        return len(value)
    return 8 * len(value) if isinstance(value, list | tuple | dict | set | range) else 0


def affordable(
    budget: Budget, owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments for a built-in method, refused if it would make something far larger than they are."""
    if isinstance(owner, str | bytes) or name == "copy":
        budget.made(length(owner))
    widths = [each for each in (*args, *kwargs.values()) if isinstance(each, int)]
    if name in ("to_bytes", "translate"):
        raise Refusal(f"it does what the sandbox forbids: {name}")
    if name in ("ljust", "rjust", "center", "zfill"):
        budget.made(max(widths, default=0))
    elif name == "expandtabs":
        budget.made(len(owner) * max(8, *widths))
    elif name == "extend" and args:
        args = (list(args[0]), *args[1:])
        budget.made(length(owner) + length(args[0]))
    elif name == "replace" and len(args) >= 2:
        budget.made(replaced_size(owner, args[0], args[1]))
    elif name == "join" and args:
        args = (list(args[0]), *args[1:])
        budget.made(sum(map(budget.weigh, args[0])) + len(owner) * len(args[0]))
    return args
