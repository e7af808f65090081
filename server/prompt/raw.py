"""Prompts without a chat template: the client's text, or its tokens, as they are."""

from __future__ import annotations

from server.engine.protocol import Vocabulary
from server.errors import InvalidRequest
from server.prompt.prompt import Prompt
from server.turn import RawPrompt


def raw_prompt(raw: RawPrompt, vocabulary: Vocabulary) -> Prompt:
    """Raises ``InvalidRequest`` for a suffix, where the vocabulary has no tokens to fill in between texts."""
    if isinstance(raw.content, str):
        tokens, text = _tokens(raw.content, raw, vocabulary), raw.content
    else:
        tokens, text = list(raw.content), _text(raw.content, vocabulary)
    return Prompt(tuple(tokens), text, reasoning_open=False, reasoning_over=True)


def _tokens(text: str, raw: RawPrompt, vocabulary: Vocabulary) -> list[int]:
    bos = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos is not None else []
    if raw.suffix is not None:
        return bos + _filled_in(text, raw.suffix, vocabulary)
    if bos and raw.markup and vocabulary.bos_text:
        text = text.removeprefix(vocabulary.bos_text)
    return bos + vocabulary.tokenize(text, markup=raw.markup)


def _filled_in(text: str, suffix: str, vocabulary: Vocabulary) -> list[int]:
    """Both texts are data, whatever they spell: markup stands around them."""
    if vocabulary.fill_in is None:
        raise InvalidRequest(
            "suffix is not supported by this model: its vocabulary has no fill-in-the-middle tokens",
            code="unsupported_parameter",
            param="suffix",
        )
    before, after, middle = vocabulary.fill_in
    beginning = vocabulary.tokenize(text, markup=False)
    end = vocabulary.tokenize(suffix, markup=False, continued=True)
    return [before, *beginning, after, *end, middle]


def _text(tokens: tuple[int, ...], vocabulary: Vocabulary) -> str:
    return b"".join(map(vocabulary.data, tokens)).decode("utf-8", "replace")
