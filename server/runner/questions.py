"""Replies to what is asked of a model beside answers. Needs no engine but its vocabulary."""

from __future__ import annotations

from collections.abc import Iterable

from server.engine.protocol import Vocabulary
from server.errors import InvalidRequest
from server.frames import Detokenize, Detokenized, Question, Render, Rendered, Reply, Tokenize, Tokenized
from server.runner.prepare import Preparer


class Desk:
    """Replies to questions, from any one thread."""

    def __init__(self, vocabulary: Vocabulary, preparer: Preparer) -> None:
        self._vocabulary = vocabulary
        self._preparer = preparer

    def reply(self, question: Question) -> Reply:
        """Raises ``InvalidRequest`` and its kinds."""
        match question:
            case Render(turn):
                prompt = self._preparer.rendered(turn)
                return Rendered(prompt.text, len(prompt.tokens))
            case Tokenize():
                tokens = self._tokenized(question)
                return Tokenized(tuple(tokens), tuple(map(self._vocabulary.data, tokens)))
            case Detokenize(tokens):
                data = b"".join(map(self._vocabulary.data, self._known(tokens)))
                return Detokenized(data.decode("utf-8", "replace"))

    def _tokenized(self, asked: Tokenize) -> list[int]:
        tokens: list[int] = []
        for part in asked.parts:
            if isinstance(part, int):
                tokens += self._known([part])
            else:
                tokens += self._vocabulary.tokenize(part, markup=asked.parse_special, continued=bool(tokens))
        return self._vocabulary.framed(tokens) if asked.add_special else tokens

    def _known(self, tokens: Iterable[int]) -> list[int]:
        known = list(tokens)
        if any(not 0 <= each < self._vocabulary.size for each in known):
            raise InvalidRequest("there is a token id that this model does not have", code="invalid_token")
        return known
