"""Vocabularies for tests of prompts: a small one of bytes and markers, and real ones from files."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from llguidance import LLMatcher

from server.dialects.table import ALL_MARKERS
from server.engine.protocol import Vocabulary

CONTROL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


class SmallVocabulary:
    """Bytes, and one token for each marker."""

    def __init__(self, markers: Sequence[str] = (*CONTROL, *MARKERS), *, adds_bos: bool = False) -> None:
        self._markers = {text: 256 + at for at, text in enumerate(markers)}
        self._texts = {token: text for text, token in self._markers.items()}
        longest_first = sorted(markers, key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self.size = 256 + len(markers)
        self.adds_bos = adds_bos
        self.bos = self._markers.get("<s>")
        self.bos_text, self.eos_text = "<s>", "</s>"

    def tokenize(self, text: str, *, markup: bool, continued: bool = False) -> list[int]:
        if not markup:
            return list(text.encode())
        tokens: list[int] = []
        done = 0
        for found in self._marker.finditer(text):
            tokens += [*text[done : found.start()].encode(), self._markers[found[0]]]
            done = found.end()
        return tokens + list(text[done:].encode())

    def single_token(self, text: str) -> int | None:
        return self._markers.get(text)

    def data(self, token: int) -> bytes:
        return self._texts[token].encode() if token >= 256 else bytes([token])

    def markup_texts(self) -> Sequence[str]:
        return tuple(self._markers)

    def keep_open(self, texts: Iterable[str]) -> None:
        pass

    def matcher(self, constraint: str) -> LLMatcher:
        raise NotImplementedError


def written(vocabulary: Vocabulary, tokens: Sequence[int]) -> str:
    """The text that tokens stand for."""
    return b"".join(map(vocabulary.data, tokens)).decode()


def markup(vocabulary: Vocabulary, tokens: Sequence[int]) -> list[str]:
    """The markers among tokens, in order."""
    known = {vocabulary.single_token(text): text for text in vocabulary.markup_texts()}
    return [known[token] for token in tokens if token in known]


@functools.cache
def vocabulary_of(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF, without its weights."""
    from server.engine.llama import Weights
    from server.engine.vocabulary import LlamaVocabulary

    return LlamaVocabulary(Weights(path, vocabulary_only=True).tokens, ALL_MARKERS)


@functools.cache
def template_of(path: Path) -> str | None:
    """The chat template of a GGUF."""
    from server.engine.llama import Weights

    return Weights(path, vocabulary_only=True).template
