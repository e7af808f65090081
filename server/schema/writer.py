"""Writes a short value that a schema lets through, with the constraint engine as the only judge of what may
come next: whatever a model can be held to can be written.

Not the shortest there is: at each place the shortest ends are tried first, and where a text has to go on it
goes on with what it has used least, so that every pattern comes to an end.
"""

from __future__ import annotations

from collections import Counter

from llguidance import LLMatcher, LLTokenizer

from server.schema.compiling import ENGINE_LIMITS

LENGTH_LIMIT = 4_096
"""Bytes a value may have before it is given up."""

_TOKENIZER = LLTokenizer("byte")
_VALUES = ('""', *"0123456789", "false", "[]", "{}", "null")
_ENDS, _TEXT_ENDS = b"}],", b'"'
_WIDE = 60
"""More bytes than this may come next where a text is free, not held to a pattern."""
_BEYOND_ASCII = 20
"""As how many uses it counts that a byte is a part of a longer character."""


class NoShortValue(Exception):
    """A schema whose values are all too long."""


class ValueWriter:
    """Writes one value of a lowered schema, given as the constraint engine's text."""

    def __init__(self, engine_text: str) -> None:
        self._matcher = LLMatcher(
            _TOKENIZER, f"start: %json {engine_text}", log_level=0, limits=ENGINE_LIMITS
        )
        self._written = bytearray()
        self._used: Counter[int] = Counter()
        self._depth = 0
        self._in_text = False
        self._escaped = False

    def say(self, text: str) -> bool:
        """Writes ``text`` if the schema lets all of it through here; returns whether it does."""
        data = list(text.encode())
        if self._matcher.validate_tokens(data) < len(data):
            return False
        for byte in data:
            self._consume(byte)
        return True

    def say_value(self, text: str) -> bool:
        """The same for a whole value, after which another begins or the one around it ends."""
        data = list(text.encode())
        ahead = self._matcher.deep_copy()
        if ahead.try_consume_tokens(data) < len(data) or not (ahead.is_accepting() or _may_end(ahead)):
            return False
        return self.say(text)

    def say_short(self) -> None:
        """Writes a short value where one may begin. Raises ``NoShortValue``."""
        depth = self._depth
        self._step()
        while self._in_text or self._depth != depth or not _may_end(self._matcher):
            self._step()

    def finish(self) -> str:
        """Goes on to the end of the value, and returns all of it. Raises ``NoShortValue``."""
        while not self._matcher.is_accepting():
            self._step()
        return self._written.decode()

    def _step(self) -> None:
        begins = not self._in_text and (self._written.endswith((b" ", b"[")) or not self._written)
        if begins and any(map(self.say_value, _VALUES)):
            return
        allowed = _allowed(self._matcher)
        if not allowed or len(self._written) >= LENGTH_LIMIT:
            raise NoShortValue
        wide = len(allowed) > _WIDE
        self._consume(min(allowed, key=lambda byte: self._order(byte, wide)))

    def _order(self, byte: int, wide: bool) -> tuple[int, int, bool, int]:
        """What ends the text or the value comes first, then what was used least."""
        ends = _TEXT_ENDS if self._in_text else _ENDS
        rank = ends.index(byte) if byte in ends else len(ends)
        used = self._used[byte] + (_BEYOND_ASCII if byte >= 0x80 else 0)
        return rank, used, wide and not chr(byte).isalnum(), byte

    def _consume(self, byte: int) -> None:
        self._matcher.consume_token(byte)
        self._written.append(byte)
        if self._escaped:
            self._escaped = False
        elif byte == ord('"'):
            self._in_text = not self._in_text
            self._used.clear()
        elif not self._in_text and byte in b"{}[],:":
            self._used.clear()
            self._depth += (byte in b"{[") - (byte in b"}]")
        else:
            self._escaped = self._in_text and byte == ord("\\")
            self._used[byte] += 1


def _may_end(matcher: LLMatcher) -> bool:
    return any(byte in _ENDS for byte in _allowed(matcher))


def _allowed(matcher: LLMatcher) -> list[int]:
    """The bytes that may come next."""
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    return [byte for byte in range(256) if mask >> byte & 1]
