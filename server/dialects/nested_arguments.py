"""Reads arguments that are nested elements, as pieces of JSON text.

What a value is follows from the schema. Where that says it at the opening tag, or text does, and a constraint
writes the answer (``trusted``), the JSON leaves as it comes; any other value is kept as a tree until it is
closed.
"""

from __future__ import annotations

from typing import Protocol

from server.dialects.span import RAW, Lexeme, NotASpan
from server.dialects.tree import Tree, key_json
from server.dialects.values import ValueReader
from server.schema.parameters import Parameters
from server.schema.shapes import STRUCTURED, Shape, shape_of


class NestedArguments:
    """Of a key that comes twice the first value counts. Raises ``NotASpan`` where the key that closes an
    element is not the one that opened it, unless a constraint let that through."""

    quoted = False

    def __init__(self, parameters: Parameters, *, trusted: bool) -> None:
        self.complete = False
        self._trusted = trusted
        shape = shape_of(parameters)
        self._frames: list[_Frame] = [_frame(shape) if trusted else _Grown(shape)]
        self._keys: list[str] = []
        self._key = ""
        self._closing = False

    def feed(self, lexeme: Lexeme) -> str:
        terminal, text = lexeme
        self._frames[-1].say(lexeme)
        match terminal:
            case "TAG":
                self._key, self._closing = "", False
            case "END":
                self._closing = True
            case "KEY_START" | "KEY":
                self._key += text
            case "TAG_END":
                return self._close() if self._closing else self._open()
            case _ if terminal == RAW:
                return self._frames[-1].text(text)
        return ""

    def close(self) -> str:
        self.complete = True
        return self._frames[0].end()

    def cut(self, text: str) -> str:
        return ""  # the beginning of a tag, at most

    def _open(self) -> str:
        self._keys.append(self._key)
        piece, within = self._frames[-1].open(self._key)
        self._frames += [within] if within else []
        return piece

    def _close(self) -> str:
        opened = self._keys.pop()
        if not self._trusted and opened != self._key:
            raise NotASpan("a tag closes another element")
        if self._frames[-1].close():
            return ""
        return self._frames.pop().end()


class _Frame(Protocol):
    """What reads the element that is open. ``say`` is told all that is written, ``text`` what is between the
    tags. ``open`` gives the JSON before the value of an element within, and what reads that, unless the frame
    does; then ``close`` says whether it was such a one. ``end`` gives the rest of the JSON."""

    def say(self, lexeme: Lexeme) -> None: ...

    def text(self, text: str) -> str: ...

    def open(self, key: str) -> tuple[str, _Frame | None]: ...

    def close(self) -> bool: ...

    def end(self) -> str: ...


def _frame(shape: Shape) -> _Frame:
    """What reads a value of this shape that a constraint writes."""
    if not shape.written & STRUCTURED:
        return _Plain(shape)
    if len(shape.alternatives) == 1 and shape.alternatives[0].listed is None:
        (only,) = shape.alternatives
        if len(shape.written) == len(only.types) == 1:
            return _Structure(only)
    return _Grown(shape)


class _Plain:
    """A value that can't have others within it."""

    def __init__(self, shape: Shape) -> None:
        self._value = ValueReader(shape.value, trusted=True)

    def say(self, lexeme: Lexeme) -> None:
        pass

    def text(self, text: str) -> str:
        return self._value.feed(text)

    def open(self, key: str) -> tuple[str, _Frame | None]:
        raise NotASpan("the schema does not allow this")

    def close(self) -> bool:
        return False

    def end(self) -> str:
        return self._value.end()


class _Structure:
    """An array or an object that can't be anything else."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._is_array = "array" in shape.types
        self._keys: set[str] = set()
        self._count = 0

    def say(self, lexeme: Lexeme) -> None:
        pass

    def text(self, text: str) -> str:
        raise NotASpan("the schema does not allow this")

    def open(self, key: str) -> tuple[str, _Frame | None]:
        if self._is_array:
            within = self._shape.item(self._count)
        elif key in self._keys:
            return "", _Grown(None)
        else:
            within = self._shape.member(key)
        before = ", " if self._count else "[" if self._is_array else "{"
        self._count += 1
        self._keys.add(key)
        return before + ("" if self._is_array else key_json(key)), _frame(within)

    def close(self) -> bool:
        return False

    def end(self) -> str:
        brackets = "[]" if self._is_array else "{}"
        return brackets[1] if self._count else brackets


class _Grown:
    """A value that only what it holds tells the form of: it has no others within it as soon as there is text.
    One without a shape does not count."""

    def __init__(self, shape: Shape | None) -> None:
        self._shape = shape
        self._tree = Tree()
        self._value: ValueReader | None = None

    def say(self, lexeme: Lexeme) -> None:
        self._tree.say(lexeme)

    def text(self, text: str) -> str:
        if self._shape is None or not self._tree.is_empty:
            self._tree.text(text)
            return ""
        if self._value is None:
            self._value = ValueReader(self._shape.value, trusted=True)
        return self._value.feed(text)

    def open(self, key: str) -> tuple[str, _Frame | None]:
        self._tree.open(key)
        return "", None

    def close(self) -> bool:
        return self._tree.close()

    def end(self) -> str:
        if self._value is not None:
            return self._value.end()
        return self._tree.json(self._shape) if self._shape is not None else ""
