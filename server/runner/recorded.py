"""What a recording holds: the model it was made of, and the takes of answers, piece by piece.

``recorder`` writes it, ``replay`` reads it; ``docs/replay.md`` has the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Literal

import msgspec

from server.engine.protocol import Ended, Piece
from server.engine.scripted import NEVER, ByteVocabulary, TimedText
from server.events import Source

Ms = Annotated[float, msgspec.Meta(ge=0, le=86_400_000)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
SingleToken = Callable[[str], int | None]

_SOURCES = {"s": Source.SAMPLED, "f": Source.FORCED, "d": Source.DRAFTED}
_End = Literal["stop", "length", "dead_end", "never"]
_ENDS: dict[Ended | None, _End] = {
    Ended.STOP: "stop",
    Ended.LENGTH: "length",
    Ended.DEAD_END: "dead_end",
    None: "never",
}
_LETTERS = {source: letter for letter, source in _SOURCES.items()}


class RecordedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a model decides how requests are read and answers are. ``markup`` are the texts of its control
    tokens, ``vocabulary`` is how many tokens it has, ``fills_in`` whether it has those for a suffix."""

    name: str
    dialect: str
    template: str | None
    context: Count
    context_train: Count
    vocabulary: Count
    markup: tuple[str, ...] = ()
    bos: str = ""
    eos: str = ""
    fills_in: bool = False

    @property
    def stand_in(self) -> ByteVocabulary:
        """A vocabulary with the same markup."""
        return ByteVocabulary(
            self.markup,
            bos_text=self.bos,
            eos_text=self.eos,
            size=self.vocabulary,
            fills_in=self.fills_in,
        )


class Bytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"data": "bytes"}):
    """A token that is no text by itself, as a part of a character is none."""

    data: Annotated[bytes, msgspec.Meta(min_length=1)]


class Take(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a choice wrote until it ended, or was sampled again. A number in ``pieces`` is a silence in
    milliseconds; tokens without one between them came in one step. ``kinds`` has a letter for each token:
    sampled, forced or drafted, a capital where it is the token of a control text."""

    pieces: tuple[Text | Ms | Bytes, ...] = ()
    kinds: Annotated[str, msgspec.Meta(pattern="^[sfdSFD]*$")] = ""
    ended: _End = "stop"

    def __post_init__(self) -> None:
        if self.kinds and len(self.kinds) != sum(not isinstance(each, float) for each in self.pieces):
            raise ValueError("kinds needs a letter for each token of pieces")

    def moments(self, single_token: SingleToken) -> tuple[TimedText, ...]:
        """The same, to be played."""
        made = list(self._tokens(single_token))
        if self.ended == "never":
            return (*made, TimedText("", NEVER))
        if made and not isinstance(self.pieces[-1], float):
            return (*made[:-1], made[-1]._replace(ended=Ended(self.ended)))
        silence = self.pieces[-1] if self.pieces and isinstance(self.pieces[-1], float) else 0.0
        return (*made, TimedText("", silence / 1000, ended=Ended(self.ended)))

    def _tokens(self, single_token: SingleToken) -> Iterator[TimedText]:
        kinds = iter(self.kinds or "s" * len(self.pieces))
        silence, joined = 0.0, False
        for each in self.pieces:
            if isinstance(each, float):
                silence, joined = silence + each, False
                continue
            text = each if isinstance(each, str) else each.data.decode("utf-8", "surrogateescape")
            kind = next(kinds)
            token = single_token(text) if kind.isupper() else None
            source = _SOURCES[kind.lower()]
            yield TimedText(text, silence / 1000, joined, source=source, token=-1 if token is None else token)
            silence, joined = 0.0, True


class Taking:
    """A take that is being made. ``begun`` is when its request had a slot, in seconds of the monotonic clock,
    ``passed`` how many milliseconds of silence have been written since."""

    def __init__(self, single_token: SingleToken, begun: float, passed: float = 0.0) -> None:
        self._single_token = single_token
        self._begun = begun
        self._passed = passed
        self._pieces: list[str | float | Bytes] = []
        self._kinds = ""
        self._ended: Ended | None = None

    def add(self, pieces: Iterable[Piece], ended: Ended | None, now: float) -> None:
        """What one step made."""
        given = tuple(pieces)
        if not given and ended is None:
            return
        passed = max(self._passed, round((now - self._begun) * 1000, 3))
        self._pieces += [round(passed - self._passed, 3), *map(_written, given)]
        self._kinds += "".join(map(self._kind, given))
        self._passed = passed
        self._ended = ended

    def again(self, kept: int) -> Taking:
        """The take that follows the first ``kept`` tokens of this one."""
        following = Taking(self._single_token, self._begun, self._passed)
        following._kinds = self._kinds[:kept]
        left = kept
        for each in self._pieces:
            if left == 0:
                break
            following._pieces.append(each)
            left -= not isinstance(each, float)
        return following

    def end(self) -> None:
        """It is over, if the engine knew of that or not: a stop string may have ended it."""
        self._ended = self._ended or Ended.STOP

    @property
    def take(self) -> Take:
        return Take(tuple(self._pieces), self._kinds, _ENDS[self._ended])

    def _kind(self, piece: Piece) -> str:
        letter = _LETTERS[piece.source]
        text = piece.data.decode("utf-8", "replace")
        markup = piece.token >= 0 and self._single_token(text) == piece.token
        return letter.upper() if markup else letter


def _written(piece: Piece) -> str | Bytes:
    try:
        return piece.data.decode()
    except UnicodeDecodeError:
        return Bytes(piece.data)
