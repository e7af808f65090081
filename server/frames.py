"""The messages between the API process and a runner: msgspec structs, length-prefixed on a socket.

A frame on the wire is a 4-byte big-endian length and that many bytes of MessagePack. ``encode`` writes
one; a ``Decoder`` is fed bytes as they come and returns the frames they complete.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from server.errors import ErrorData
from server.events import Event, Timings, Usage, Warning
from server.turn import Turn

FRAME_LIMIT = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class BrokenFrame(Exception):
    """The other side wrote something that is no frame: too large, or not decodable."""


class ModelFacts(msgspec.Struct, frozen=True):
    """What a loaded model is and can do, as the runner found it.

    ``context`` is the number of cells shared by all slots, ``context_train`` the model's own length.
    ``dialect`` and what follows it come from the probe at load. ``offloaded_layers`` of ``layers`` are
    on ``device``. ``embedding`` is the number of components of a vector, 0 for a model that generates.
    """

    name: str
    architecture: str
    context: int
    context_train: int
    slots: int
    dialect: str
    tools: bool
    parallel_calls: bool
    reasoning: bool
    vocabulary: int
    device: str
    layers: int
    offloaded_layers: int
    warnings: tuple[str, ...] = ()
    embedding: int = 0


# To the runner.


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    id: int
    turn: Turn


class Render(msgspec.Struct, frozen=True, tag="render"):
    """Asks for the prompt of a turn, whether or not it fits."""

    turn: Turn


class Tokenize(msgspec.Struct, frozen=True, tag="tokenize"):
    """Asks for the token ids of texts, and of ids between them, as one. ``add_special``: with those that
    the vocabulary puts around a whole text; ``parse_special``: a control token's text is that token."""

    parts: tuple[str | int, ...]
    add_special: bool = False
    parse_special: bool = True


class Detokenize(msgspec.Struct, frozen=True, tag="detokenize"):
    """Asks for the text of token ids."""

    tokens: tuple[int, ...]


class Embed(msgspec.Struct, frozen=True, tag="embed"):
    """Asks for the embeddings of texts, or of token ids as they are. ``dimensions`` is how many components
    the client counts on."""

    texts: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None


Question = Render | Tokenize | Detokenize | Embed


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Something that is answered in one piece: with ``Told`` or ``Rejected``."""

    id: int
    question: Question


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    id: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


# From the runner.


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    facts: ModelFacts


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    error: ErrorData


class PromptPart(msgspec.Struct, frozen=True):
    """A part of a prompt: a control token's own text, or the text between two of them."""

    text: str
    control: bool


class Origin(msgspec.Struct, frozen=True):
    """What an answer is made from: the prompt as the model reads it, and the grammar that the answer is
    held to."""

    prompt: tuple[PromptPart, ...]
    constraint: str


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The request is valid and fits: from here on its answer may be streamed. ``origin`` is for a turn with
    ``debug``."""

    id: int
    prompt_tokens: int
    origin: Origin | None = None


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The request is refused before a byte of its answer."""

    id: int
    error: ErrorData


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """A prompt as text, without the BOS that the vocabulary adds, and its number of tokens."""

    text: str
    tokens: int


class Tokenized(msgspec.Struct, frozen=True, tag="tokenized"):
    """Token ids, and the bytes of each; a character may be spread over several."""

    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...]


class Detokenized(msgspec.Struct, frozen=True, tag="detokenized"):
    text: str


class Embedded(msgspec.Struct, frozen=True, tag="embedded"):
    """A vector of length 1 for each text, as 32-bit floats, little-endian, and the tokens of all texts."""

    vectors: tuple[bytes, ...]
    tokens: int


Reply = Rendered | Tokenized | Detokenized | Embedded


class Told(msgspec.Struct, frozen=True, tag="told"):
    """The reply to an ``Ask``."""

    id: int
    reply: Reply


class Emitted(msgspec.Struct, frozen=True, tag="emitted"):
    id: int
    choice: int
    events: tuple[Event, ...]


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """All choices are complete."""

    id: int
    usage: Usage
    timings: Timings
    warnings: tuple[Warning, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request ended with an error after it had been accepted."""

    id: int
    error: ErrorData


class Status(msgspec.Struct, frozen=True, tag="status"):
    """Sign of life, at least twice a second while the decode loop moves.

    ``preparing_s`` is how long the request being prepared has been at it; ``active`` sequences are in
    slots, ``waiting`` requests have none yet; ``cached_tokens`` cells hold reusable prefixes.
    """

    active: int
    waiting: int
    preparing_s: float = 0.0
    used_cells: int = 0
    cached_tokens: int = 0


ToRunner = Generate | Ask | Cancel | Shutdown
FromRunner = Ready | LoadFailed | Accepted | Rejected | Told | Emitted | Finished | Failed | Status

_encoder = msgspec.msgpack.Encoder()


def encode(frame: ToRunner | FromRunner) -> bytes:
    """One frame as bytes. Raises ``BrokenFrame`` when it is over the size limit."""
    body = _encoder.encode(frame)
    if len(body) > FRAME_LIMIT:
        raise BrokenFrame(f"a frame of {len(body)} bytes is over the limit")
    return _LENGTH.pack(len(body)) + body


_Frame = TypeVar("_Frame")


class Decoder(Generic[_Frame]):
    """Bytes in, frames of one direction out: ``Decoder[ToRunner](ToRunner)``."""

    def __init__(self, kind: object) -> None:
        self._decode: Callable[[bytes], _Frame] = msgspec.msgpack.Decoder(kind).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[_Frame]:
        """The frames that ``data`` completes. Raises ``BrokenFrame``."""
        self._buffer += data
        frames: list[_Frame] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > FRAME_LIMIT:
                raise BrokenFrame(f"a frame announces {length} bytes, which is over the limit")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(self._decoded(bytes(self._buffer[start + _LENGTH.size : end])))
            start = end
        del self._buffer[:start]
        return frames

    def _decoded(self, body: bytes) -> _Frame:
        try:
            return self._decode(body)
        except msgspec.MsgspecError as error:
            raise BrokenFrame(f"not a frame: {error}") from error
