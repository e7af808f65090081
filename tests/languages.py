"""Asks llguidance which texts a grammar has, over a small vocabulary: the 256 bytes and a few markers."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from answers import folded
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from server.dialects.bound import BoundDialect
from server.dialects.constrain import AnswerForm, CallableTool, compose
from server.dialects.form import written_calls
from server.dialects.parse import TurnParser
from server.schema.cache import prepared
from server.schema.compiling import ENGINE_LIMITS
from server.turn import ToolCall

END = 256
_LONGEST = 400
_LIKELY = '{}[]",: \nabn1tf`<'


class _Bytes:
    """What llguidance asks of a tokenizer. Token 256 ends the text, then come markers, then words."""

    def __init__(self, markers: tuple[str, ...], words: tuple[str, ...] = ()) -> None:
        known = [bytes([each]) for each in range(256)] + [b"<end>", *(m.encode() for m in markers)]
        self.special_token_ids = list(range(256, len(known)))
        self.tokens = known + [word.encode() for word in words]
        self.bos_token_id = None
        self.eos_token_id = END

    def __call__(self, data: bytes | str) -> list[int]:
        return list(data.encode() if isinstance(data, str) else data)


@lru_cache
def tokenizer_of(markers: tuple[str, ...], words: tuple[str, ...] = ()) -> LLTokenizer:
    vocabulary = _Bytes(markers, words)
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens))


class Language:
    """The texts of one grammar. ``markers`` are single tokens; a text given in parts can use them."""

    def __init__(self, grammar: str, markers: tuple[str, ...] = ()) -> None:
        self.markers = markers
        self._tokenizer = tokenizer_of(markers)
        compiled = LLMatcher.grammar_from_lark(grammar)
        self._start = LLMatcher(self._tokenizer, compiled, log_level=0, limits=ENGINE_LIMITS)
        assert not self._start.is_error(), self._start.get_error()

    def ids(self, text: str) -> list[int]:
        """``text`` as tokens, markers as such wherever they occur."""
        if not self.markers:
            return list(text.encode())
        parts = re.split("(" + "|".join(map(re.escape, self.markers)) + ")", text)
        return [
            token
            for part in parts
            for token in ([257 + self.markers.index(part)] if part in self.markers else part.encode())
        ]

    def begins(self, tokens: list[int]) -> bool:
        """Whether each beginning of ``tokens`` is allowed by the mask, as when generating."""
        matcher = self._start.deep_copy()
        for token in tokens:
            if token not in set(self._allowed(matcher)) or not matcher.consume_token(token):
                return False
        return True

    def has(self, text: str) -> bool:
        return self.begins([*self.ids(text), END])

    def data(self, token: int) -> bytes:
        return _Bytes(self.markers).tokens[token]

    def samples(self, count: int, seed: int, hints: Sequence[str] = ()) -> Iterator[list[int]]:
        """Random texts of the language, as tokens, but those that do not end soon. ``hints`` are texts that
        chance would not find."""
        for number in range(count):
            sample = self._sample(random.Random(seed * 1000 + number), hints)
            if sample is not None:
                yield sample

    def _sample(self, chance: random.Random, hints: Sequence[str]) -> list[int] | None:
        matcher = self._start.deep_copy()
        tokens: list[int] = []
        wanted: list[int] = []
        while len(tokens) < _LONGEST:
            if not wanted and hints and chance.random() < 0.15:
                wanted = self.ids(chance.choice(hints))
            token = self._chosen(self._allowed(matcher), wanted, chance)
            if token == END:
                return tokens
            assert matcher.consume_token(token)
            tokens.append(token)
            if matcher.is_stopped():
                return tokens
        return None

    def _chosen(self, allowed: list[int], wanted: list[int], chance: random.Random) -> int:
        if wanted and wanted[0] in allowed:
            return wanted.pop(0)
        wanted.clear()
        likely = [token for token in allowed if token >= 256 or chr(token) in _LIKELY]
        return chance.choice(likely if likely and chance.random() < 0.97 else allowed)

    def _allowed(self, matcher: LLMatcher) -> list[int]:
        mask = allocate_token_bitmask(1, self._tokenizer.vocab_size)
        fill_next_token_bitmask(matcher, mask, 0)
        bits = np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[: self._tokenizer.vocab_size]
        return [int(token) for token in np.flatnonzero(bits)]


class Model:
    """One dialect, one vocabulary, one tool ``f``."""

    def __init__(self, row: Any, kind: str, properties: dict[str, Any], **more: Any) -> None:
        schema = {"type": "object", "properties": properties, **more}
        made = prepared(json.dumps(schema), "tools", as_object=True)
        self.parameters = made.parameters
        self.row = row
        wanted = {"text": (), "tokens": row.marker_texts, "inner": row.inner}[kind]
        markers = sorted(set(wanted), key=len, reverse=True)
        self.bound = BoundDialect(row, {marker: 257 + place for place, marker in enumerate(markers)})
        tool = CallableTool("f", made.lowered.text, made.parameters)
        self.form = AnswerForm((tool,), must_call=True, parallel=False)
        self.language = Language(compose(self.bound, self.form), tuple(self.bound.tokens))

    def text(self, arguments: str) -> str:
        return written_calls(self.row, [ToolCall("", "f", arguments)])

    def allows(self, text: str) -> bool:
        return self.language.has(text)

    def read(self, text: str, *, trusted: bool = True) -> Any:
        """The arguments read out of one call."""
        return self.read_tokens(self.language.ids(text), trusted=trusted)

    def read_tokens(self, tokens: list[int], *, trusted: bool = True) -> Any:
        parser = TurnParser(
            self.bound,
            ["f"],
            calls_only=True,
            trusted=trusted,
            new_id=str,
            parameters={"f": self.parameters},
        )
        events = [e for each in tokens for e in parser.feed(each, self.language.data(each))] + parser.flush()
        (line,) = folded(events)
        assert line.startswith("call f ")
        return json.loads(line.removeprefix("call f ").replace("\n", "\\n"))
