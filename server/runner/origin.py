"""How an answer comes about, for turns with ``debug``: the prompt in parts, the grammar, the tokens.

All of it is bounded. A limit that is reached is a warning of the answer, which itself goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from server.engine.protocol import Progress, SequenceId, Vocabulary
from server.events import Generated, GeneratedToken, Warning
from server.frames import Origin, PromptPart

TEXT_BYTES = 1024 * 1024
"""Bytes that are shown of a prompt, and of a grammar."""
TOKENS = 65_536
"""Generated tokens that are shown, all choices and tries of a request together."""


class Origins:
    """The origins of one model's answers."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._control = {vocabulary.single_token(text) for text in vocabulary.markup_texts()}

    def of(self, prompt: tuple[int, ...], constraint: str) -> tuple[Origin, list[Warning]]:
        """The origin of an answer, and what is left out of it."""
        sizes = itertools.accumulate(len(self._vocabulary.data(token)) for token in prompt)
        shown = sum(1 for _ in itertools.takewhile(TEXT_BYTES.__ge__, sizes))
        text = constraint.encode()[:TEXT_BYTES].decode("utf-8", "ignore")
        cut = [("prompt", shown < len(prompt)), ("constraint", len(text) < len(constraint))]
        warnings = [_cut(f"{TEXT_BYTES} bytes of the {what}") for what, is_cut in cut if is_cut]
        return Origin(tuple(self.parts(prompt[:shown])), text), warnings

    def parts(self, prompt: Iterable[int]) -> Iterator[PromptPart]:
        """A prompt's tokens as text, control tokens one by one."""
        for control, run in itertools.groupby(prompt, self._control.__contains__):
            texts = [self._vocabulary.data(token) for token in run]
            for data in texts if control else [b"".join(texts)]:
                yield PromptPart(data.decode("utf-8", "replace"), control)


class Told:
    """The tokens of a request's choices as events, up to the limit."""

    def __init__(self, choices: int) -> None:
        self._places = [0] * choices
        self._left = TOKENS
        self.warnings: list[Warning] = []

    def events(self, progress: Progress) -> Iterator[Generated]:
        """What a step made, if anything; nothing more once the limit is reached."""
        choice, pieces = progress.sequence.choice, progress.pieces
        start = self._places[choice]
        self._places[choice] += len(pieces)
        shown = pieces[: self._left]
        if len(shown) < len(pieces) and not self.warnings:
            self.warnings.append(_cut(f"{TOKENS} generated tokens"))
        self._left -= len(shown)
        if shown:
            yield Generated(
                start, tuple(GeneratedToken(each.token, each.data, each.source) for each in shown)
            )

    def rewound(self, sequence: SequenceId, kept: int) -> None:
        """The tokens that come now follow the first ``kept`` ones."""
        self._places[sequence.choice] = kept


def _cut(what: str) -> Warning:
    return Warning("debug_cut", f"debug shows the first {what}", "debug")
