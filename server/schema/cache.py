"""Prepared schemas by their content: checked, lowered, and with a verifier, done once per text.

Bounded in entries and in bytes, the oldest use goes first. Safe from any thread; two threads that need
the same new schema at once may both prepare it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

from server.schema.check import Checked, check
from server.schema.lower import Lowered, lower
from server.schema.parameters import Parameters, parameters
from server.schema.verify import Verifier

ENTRY_LIMIT = 256
BYTE_LIMIT = 64 * 1024 * 1024
BYTES_PER_TEXT_BYTE = 40
"""What a prepared schema holds for each byte of its text, measured on real ones: decoded, indexed,
lowered, and compiled for validation."""
BYTES_PER_ENTRY = 8_192


@dataclass(frozen=True)
class Prepared:
    """A schema ready to be held to."""

    checked: Checked
    lowered: Lowered
    verifier: Verifier

    @cached_property
    def parameters(self) -> Parameters:
        """The schema for dialects that write each argument by itself."""
        return parameters(self.lowered.schema, self.checked.nesting)


class Cache:
    """Least recently used out first, under both limits."""

    def __init__(self, entries: int = ENTRY_LIMIT, bytes_held: int = BYTE_LIMIT) -> None:
        self._entries = entries
        self._limit = bytes_held
        self._held: OrderedDict[bytes, tuple[Prepared, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Estimated bytes held."""
        return self._bytes

    def prepared(self, schema_text: str, param: str, as_object: bool) -> Prepared:
        """Prepares a schema, or finds it prepared. Raises ``InvalidSchema``; refusals are not kept."""
        encoded = schema_text.encode("utf-8", "surrogatepass")
        key = hashlib.sha256(encoded).digest() + bytes([as_object])
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                return found[0]
        checked = check(schema_text, param=param, as_object=as_object)
        verifier = Verifier(checked.validator, checked.nesting)
        made = Prepared(checked, lower(checked, as_object=as_object), verifier)
        self._keep(key, made, BYTES_PER_ENTRY + BYTES_PER_TEXT_BYTE * len(encoded))
        return made

    def _keep(self, key: bytes, made: Prepared, size: int) -> None:
        with self._lock:
            if key in self._held or size > self._limit:
                return
            self._held[key] = (made, size)
            self._bytes += size
            while len(self._held) > self._entries or self._bytes > self._limit:
                _, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed


_CACHE = Cache()


def prepared(schema_text: str, param: str, as_object: bool) -> Prepared:
    """The process's cache: see ``Cache.prepared``."""
    return _CACHE.prepared(schema_text, param, as_object)
