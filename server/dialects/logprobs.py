"""Keeps the logprobs of tokens beside the text they became, though text leaves later and in other cuts."""

from __future__ import annotations

from collections import deque

from server.events import TokenLogprob


class LogprobQueue:
    """``add`` each token with its number of characters, ``take`` those that an emitted text completes."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self._characters = 0

    def add(self, characters: int, logprob: TokenLogprob) -> None:
        self._waiting.append((characters, logprob))

    def take(self, characters: int) -> tuple[TokenLogprob, ...]:
        """The tokens that ``characters`` more of text complete."""
        self._characters += characters
        taken: list[TokenLogprob] = []
        while self._waiting and self._waiting[0][0] <= self._characters:
            length, logprob = self._waiting.popleft()
            self._characters -= length
            taken.append(logprob)
        if not self._waiting:
            self._characters = 0
        return tuple(taken)

    def drop(self, characters: int) -> None:
        """Forgets the tokens of text that is not emitted."""
        self.take(characters)

    def clear(self) -> None:
        self._waiting.clear()
        self._characters = 0
