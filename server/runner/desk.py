"""What is made of the frames that arrive: work for the engine, or a reply that needs none. Runs on the thread
that prepares; everything a client can get wrong is found here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from server.engine.protocol import Vocabulary
from server.errors import InvalidRequest
from server.frames import (
    Ask,
    Detokenize,
    Detokenized,
    Embed,
    Generate,
    Render,
    Rendered,
    Reply,
    Tokenize,
    Tokenized,
)
from server.runner.embedding import EmbeddingPreparer, PreparedEmbedding
from server.runner.model import LoadedEmbedder, LoadedModel
from server.runner.prepare import PreparedTurn, Preparer
from server.settings import Settings

Prepared = PreparedTurn | PreparedEmbedding


class Desk(Protocol):
    """Takes what arrives, from one thread."""

    def take(self, frame: Generate | Ask) -> Prepared | Reply:
        """Raises ``InvalidRequest`` and its kinds."""
        ...


def desk_of(model: LoadedModel | LoadedEmbedder, settings: Settings) -> Desk:
    return TextDesk(model, settings) if isinstance(model, LoadedModel) else EmbeddingDesk(model)


class TextDesk:
    """For models that generate."""

    def __init__(self, model: LoadedModel, settings: Settings) -> None:
        self._preparer = Preparer(model, settings)
        self._vocabulary = model.engine.vocabulary

    def take(self, frame: Generate | Ask) -> Prepared | Reply:
        if isinstance(frame, Generate):
            return self._preparer.prepare(frame.id, frame.turn)
        match frame.question:
            case Render(turn):
                prompt = self._preparer.rendered(turn)
                return Rendered(prompt.text, len(prompt.tokens))
            case Embed():
                raise _refusal("generates text and makes no embeddings")
            case question:
                return _about_tokens(question, self._vocabulary)


class EmbeddingDesk:
    """For models that make embeddings."""

    def __init__(self, model: LoadedEmbedder) -> None:
        self._preparer = EmbeddingPreparer(model.engine)
        self._vocabulary = model.engine.vocabulary

    def take(self, frame: Generate | Ask) -> Prepared | Reply:
        if isinstance(frame, Generate):
            raise _refusal("makes embeddings and generates no text: use /v1/embeddings")
        match frame.question:
            case Render():
                raise _refusal("makes embeddings and reads no messages: use /v1/embeddings")
            case Embed() as asked:
                return self._preparer.prepare(frame.id, asked)
            case question:
                return _about_tokens(question, self._vocabulary)


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(f"this model {what}", code="unsupported_model", param="model")


def _about_tokens(question: Tokenize | Detokenize, vocabulary: Vocabulary) -> Reply:
    if isinstance(question, Detokenize):
        data = b"".join(map(vocabulary.data, _known(question.tokens, vocabulary)))
        return Detokenized(data.decode("utf-8", "replace"))
    tokens: list[int] = []
    for part in question.parts:
        if isinstance(part, int):
            tokens += _known([part], vocabulary)
        else:
            tokens += vocabulary.tokenize(part, markup=question.parse_special, continued=bool(tokens))
    if question.add_special:
        tokens = vocabulary.framed(tokens)
    return Tokenized(tuple(tokens), tuple(map(vocabulary.data, tokens)))


def _known(tokens: Iterable[int], vocabulary: Vocabulary) -> list[int]:
    known = list(tokens)
    if any(not 0 <= each < vocabulary.size for each in known):
        raise InvalidRequest("there is a token id that this model does not have", code="invalid_token")
    return known
