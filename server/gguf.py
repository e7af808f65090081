"""A bounded reader of GGUF headers, for files that llama.cpp's loader has not seen yet.

``read`` takes the header, the metadata and the tensor table (never the weights) of a file that may have
been made to break a reader. What it lets through has counts, lengths, types, shapes and offsets that agree
with each other and with the size of the file. It does not say that a model works: a well-formed file with
senseless values fails later, when the runner loads it. The format is that of ggml's ``docs/gguf.md``,
versions 2 and 3.

Memory is bounded by the longest string kept (``KEPT_STRING``), time by ``MAX_STRINGS`` and the counts below.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from server.errors import quoted

MAX_KEYS = 65_536
MAX_TENSORS = 1_048_576
MAX_KEY_BYTES = 65_535
MAX_STRINGS = 4_194_304
MAX_TOKEN_BYTES = 65_535
MAX_STRING_BYTES = 1 << 30
MAX_TENSOR_NAME = 63
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
KEPT_STRING = 1 << 20
"""Longer strings are skipped, not kept."""

_BUFFER = 1 << 20
_INT64_MAX = 2**63 - 1
_STRING, _ARRAY = 8, 9

_SCALARS: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""Value type -> its form. 7 is a bool of one byte."""

_UINT32, _INT32, _FLOAT32 = 4, 5, 6

_BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
    42: (64, 18),
}  # fmt: skip
"""Tensor type (ggml's ``ggml_type``) -> elements and bytes of a block. Removed types are missing."""

_ARRAY_TYPES: Mapping[str, frozenset[int]] = {
    "tokenizer.ggml.tokens": frozenset({_STRING}),
    "tokenizer.ggml.merges": frozenset({_STRING}),
    "tokenizer.ggml.scores": frozenset({_FLOAT32}),
    "tokenizer.ggml.token_type": frozenset({_INT32, _UINT32}),
}
"""Arrays that the loader reads as what they should be, without looking at what they are."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array of the metadata: its elements' type (by GGUF's number) and how many there are."""

    element: int
    length: int


Value = int | float | bool | str | Array


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. ``metadata`` lacks strings over ``KEPT_STRING`` bytes and such that are
    not UTF-8; of arrays it has the length alone."""

    version: int
    metadata: Mapping[str, Value]
    tensors: int
    size: int

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def chat_template(self) -> str | None:
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def context_length(self) -> int | None:
        return self._number(f"{self.architecture}.context_length")

    @property
    def vocabulary(self) -> int | None:
        """How many tokens there are."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.length if isinstance(tokens, Array) else None

    @property
    def splits(self) -> int:
        """Over how many files the model is spread."""
        return self._number("split.count") or 1

    def _number(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if type(value) is int else None


class Broken(Exception):
    """What is wrong with the file, to be said after its name."""


def read(file: BinaryIO, size: int) -> Header:
    """The header of an open file of ``size`` bytes. Raises ``Broken``."""
    return _Reader(file, size).header()


class _Reader:
    """Reads a file from front to back through a small buffer and knows what is left of it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._buffer = b""
        self._at = 0  # in the buffer
        self._base = 0  # of the buffer in the file
        self._strings = 0

    def header(self) -> Header:
        version = self._version()
        tensors = self._count("tensors", MAX_TENSORS)
        keys = self._count("metadata keys", MAX_KEYS)
        metadata: dict[str, Value | None] = {}
        for _ in range(keys):
            key = self._key()
            if key in metadata:
                raise Broken(f"the metadata key {quoted(key)} comes twice")
            metadata[key] = self._value(key)
        kept = {key: value for key, value in metadata.items() if value is not None}
        _check_metadata(kept)
        self._check_tensors(tensors, _alignment(kept))
        return Header(version, kept, tensors, self._size)

    def _version(self) -> int:
        if (magic := self._take(min(4, self._size))) != b"GGUF":
            raise Broken(f"it starts with {quoted(magic.decode('latin-1'))}, not with 'GGUF'")
        version = self._scalar(_UINT32)
        if version in (2, 3):
            return int(version)
        if version and version & 0xFFFF == 0:
            raise Broken("its bytes are in big-endian order")
        raise Broken(f"its version is {version}; 2 and 3 are known")

    def _count(self, of: str, limit: int) -> int:
        count = self._scalar(11)
        if not 0 <= count <= limit:
            raise Broken(f"it announces {count} {of}; at most {limit} are possible")
        return int(count)

    def _key(self) -> str:
        data = self._string("a metadata key", MAX_KEY_BYTES)
        if not data:
            raise Broken("a metadata key is empty")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Broken("a metadata key is not UTF-8") from None

    def _value(self, key: str) -> Value | None:
        """The value, or None for a string that is not kept."""
        kind = self._scalar(_UINT32)
        if kind == _STRING:
            return self._text(key)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise Broken(f"the metadata key {quoted(key)} has the unknown type {kind}")
        value = self._scalar(kind)
        return bool(value) if kind == 7 else value

    def _text(self, key: str) -> str | None:
        what = f"the value of {quoted(key)}"
        length = self._length(what, MAX_STRING_BYTES)
        if length > KEPT_STRING:
            self._skip(length, what)
            return None
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError:
            return None

    def _array(self, key: str) -> Array:
        element = self._scalar(_UINT32)
        length = self._scalar(10)
        what = f"the array {quoted(key)}"
        if element == _STRING:
            self._skip_strings(length, what, MAX_TOKEN_BYTES)
        elif element in _SCALARS:
            self._skip(length * _SCALARS[element].size, what)
        else:
            raise Broken(f"{what} has elements of the unknown type {element}")
        return Array(element, length)

    def _check_tensors(self, count: int, alignment: int) -> None:
        names: set[bytes] = set()
        extents: list[tuple[int, int]] = []
        for _ in range(count):
            name = self._string("a tensor's name", MAX_TENSOR_NAME)
            what = f"the tensor {quoted(name.decode('utf-8', 'replace'))}"
            if name in names:
                raise Broken(f"{what} comes twice")
            names.add(name)
            extents.append(self._extent(what, alignment))
        start = -(-(self._base + self._at) // alignment) * alignment
        _check_extents(extents, self._size - start)

    def _extent(self, what: str, alignment: int) -> tuple[int, int]:
        """Where a tensor's data lies in the data section: offset and length in bytes."""
        dimensions = self._scalar(_UINT32)
        if dimensions > MAX_DIMENSIONS:
            raise Broken(f"{what} has {dimensions} dimensions; at most {MAX_DIMENSIONS} are possible")
        shape = [self._scalar(11) for _ in range(dimensions)]
        if any(each < 1 for each in shape):
            raise Broken(f"{what} has a dimension below 1")
        kind = self._scalar(_UINT32)
        if kind not in _BLOCKS:
            raise Broken(f"{what} has the unknown type {kind}")
        elements, size = _BLOCKS[kind]
        if (shape[0] if shape else 1) % elements:
            raise Broken(f"{what} has rows that are no multiple of {elements} elements")
        total = math.prod(shape)
        if total > _INT64_MAX:
            raise Broken(f"{what} has more elements than can be counted")
        offset = self._scalar(10)
        if offset % alignment:
            raise Broken(f"{what} is not aligned to {alignment} bytes")
        return offset, total // elements * size

    def _skip_strings(self, count: int, what: str, limit: int) -> None:
        self._strings += count
        if self._strings > MAX_STRINGS:
            raise Broken(f"{what} has {count} texts; at most {MAX_STRINGS} are possible in all")
        unpack = _SCALARS[10].unpack_from
        for _ in range(count):
            if len(self._buffer) - self._at < 8:
                self._fill(8, what)
            (length,) = unpack(self._buffer, self._at)
            if length > limit:
                raise Broken(f"{what} has a text of {length} bytes; at most {limit} are possible")
            self._at += 8
            if len(self._buffer) - self._at < length:
                self._fill(length, what)
            self._at += length

    def _string(self, what: str, limit: int) -> bytes:
        return self._take(self._length(what, limit), what)

    def _length(self, what: str, limit: int) -> int:
        length: int = self._scalar(10)
        if length > limit:
            raise Broken(f"{what} has {length} bytes; at most {limit} are possible")
        return length

    def _scalar(self, kind: int) -> Any:
        form = _SCALARS[kind]
        (value,) = form.unpack(self._take(form.size))
        return value

    def _take(self, count: int, what: str = "the header") -> bytes:
        if len(self._buffer) - self._at < count:
            self._fill(count, what)
        self._at += count
        return self._buffer[self._at - count : self._at]

    def _skip(self, count: int, what: str) -> None:
        """Goes on past ``count`` bytes without reading what is not in the buffer yet."""
        self._need(count, what)
        position = self._base + self._at + count
        if position <= self._base + len(self._buffer):
            self._at += count
        else:
            self._file.seek(position)
            self._buffer, self._at, self._base = b"", 0, position

    def _fill(self, count: int, what: str) -> None:
        """Makes the buffer hold the next ``count`` bytes."""
        self._need(count, what)
        rest = self._buffer[self._at :]
        self._base += self._at
        self._at = 0
        chunks = [rest]
        held = len(rest)
        while held < count:
            chunk = self._file.read(max(_BUFFER, count - held))
            if not chunk:
                raise Broken(f"it was cut while it was read, in {what}")
            chunks.append(chunk)
            held += len(chunk)
        self._buffer = b"".join(chunks)

    def _need(self, count: int, what: str) -> None:
        if count > self._size - self._base - self._at:
            raise Broken(f"it ends early, in {what}")


def _alignment(metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise Broken("general.alignment is no power of two")
    return value


def _check_extents(extents: list[tuple[int, int]], room: int) -> None:
    end = 0
    for offset, length in sorted(extents):
        if offset + length > room:
            raise Broken("the data of its tensors goes on beyond its end: it may be cut short")
        if offset < end:
            raise Broken("the data of two tensors overlaps")
        end = offset + length


def _check_metadata(metadata: Mapping[str, Value]) -> None:
    """The few values on which the loader relies without a check of its own, or divides by."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise Broken("it does not say the model's architecture")
    for name in ("block_count", "context_length", "embedding_length"):
        value = metadata.get(f"{architecture}.{name}", 1)
        if type(value) is not int or not 0 < value < 2**31:
            raise Broken(f"{name} is not a positive number")
    _check_vocabulary(metadata)


def _check_vocabulary(metadata: Mapping[str, Value]) -> None:
    for key, elements in _ARRAY_TYPES.items():
        value = metadata.get(key)
        if key in metadata and not (isinstance(value, Array) and value.element in elements):
            raise Broken(f"{key} is of the wrong type")
    tokens = metadata.get("tokenizer.ggml.tokens")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        value = metadata.get(key)
        if isinstance(value, Array) and isinstance(tokens, Array) and value.length != tokens.length:
            raise Broken(f"{key} has {value.length} entries for {tokens.length} tokens")
