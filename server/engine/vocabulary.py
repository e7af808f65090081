"""The vocabulary of a loaded model: text to token ids and back, and matchers over its tokens.

What is *special* here can't be said as text: llguidance lets a special token through only where a grammar
names it (``<[id]>``). Special are the control tokens, every end-of-generation token and every marker
that is one token; whitespace and HTML tags that some vocabularies define as tokens stay text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from llguidance import LLMatcher, LLTokenizer

from server.engine.llama_tokens import Tokens
from server.engine.protocol import ConstraintRefused, Vocabulary
from server.schema.compiling import ENGINE_LIMITS

_SPECIAL = b"\xff"  # how llguidance is told that a token is special
_HTML = """
a abbr b blockquote body br caption code col colgroup dd del details div dl dt em figure footer h1 h2 h3
h4 h5 h6 head header hr html i img ins kbd li main mark nav ol p pre q s samp script section small span
strike strong style sub summary sup svg table tbody td tfoot th thead title tr tt u ul var
"""
_PAIRS = (("<", ">"), ("[", "]"), ("{", "}"), ("|", "|"), (">", "<"))


class EngineVocabulary(Vocabulary, Protocol):
    """What the scheduler needs: ``ends`` are the tokens that end an answer."""

    ends: frozenset[int]


class LlamaVocabulary:
    """See ``protocol.Vocabulary``. ``markers`` are the texts that dialects use; ``ends`` are all tokens that
    end generation. Without ``constrains`` no matchers are made; not every vocabulary is fit for them."""

    def __init__(self, tokens: Tokens, markers: Iterable[str] = (), *, constrains: bool = True) -> None:
        self._tokens = tokens
        self.size = tokens.size
        self.bos = tokens.bos
        self.adds_bos = tokens.adds_bos
        self.fill_in = tokens.fill_in
        self._table = tokens.table()
        self.bos_text = self._text(tokens.bos)
        self.eos_text = self._text(tokens.eos)
        self.ends = frozenset(_ends(tokens))
        self._markup = self._markup_tokens(frozenset(each.encode() for each in markers))
        self._texts = tuple(sorted(self._markup, key=lambda text: (-len(text), text)))
        self._matched = _pattern(text for text in self._texts if len(text) > 1)
        self._llguidance = self._tokenizer() if constrains else None
        self._before, self._after = _frame(tokens)

    def tokenize(self, text: str, *, markup: bool, continued: bool = False) -> list[int]:
        """See ``protocol.Vocabulary``. ``continued`` text follows other text: no leading space is added
        to it where the vocabulary would (SPM)."""
        if markup:
            return self._ids(text, special=True, continued=continued)
        ids: list[int] = []
        for piece in self._unmarked(text):
            ids += self._ids(piece, special=False, continued=continued or bool(ids))
        return ids

    def framed(self, tokens: Sequence[int]) -> list[int]:
        return [*self._before, *tokens, *self._after]

    def single_token(self, text: str) -> int | None:
        return self._markup.get(text)

    def data(self, token: int) -> bytes:
        return self._table[token]

    def markup_texts(self) -> Sequence[str]:
        return self._texts

    def keep_open(self, texts: Iterable[str]) -> None:
        ends = frozenset(_ends(self._tokens)) - {self._markup[each] for each in texts if each in self._markup}
        if ends != self.ends:
            self.ends = ends
            self._llguidance = self._tokenizer()

    def matcher(self, constraint: str) -> LLMatcher:
        if self._llguidance is None:
            raise ConstraintRefused("nothing is generated with this vocabulary")
        grammar = LLMatcher.grammar_from_lark(constraint)
        matcher = LLMatcher(self._llguidance, grammar, log_level=0, limits=ENGINE_LIMITS)
        if matcher.is_error():
            raise ConstraintRefused(matcher.get_error())
        return matcher

    def _text(self, token: int | None) -> str:
        return "" if token is None else self._table[token].decode("utf-8", "replace")

    def _markup_tokens(self, markers: frozenset[bytes]) -> dict[str, int]:
        """Text to id of every token that is markup. The first of equal texts counts."""
        found: dict[str, int] = {}
        for token, data in enumerate(self._table):
            if data and self._is_markup(token, data, markers):
                found.setdefault(data.decode("utf-8", "replace"), token)
        return found

    def _is_markup(self, token: int, data: bytes, markers: frozenset[bytes]) -> bool:
        if self._tokens.is_markup(token) or token in self.ends:
            return True
        return self._tokens.is_user_defined(token) and (data in markers or looks_like_markup(data))

    def _tokenizer(self) -> LLTokenizer:
        special = set(self._markup.values()) | self.ends
        for token, data in enumerate(self._table):
            if token not in special and data and self._tokens.is_markup(token):
                special.add(token)  # a second token of the same text
        marked = [_SPECIAL + data if token in special else data for token, data in enumerate(self._table)]
        tokenizer: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
            tokens=marked,
            vocab_ptr=self._tokens.pointer,
            tokenize_fptr=self._tokens.tokenize_function,
            eos_token=sorted(self.ends),
            slices=None,
        )
        return tokenizer

    def _unmarked(self, text: str) -> list[str]:
        """The text cut inside every marker in it, so that no part holds a whole one."""
        cuts = [0, *sorted({match.start() + 1 for match in self._matched.finditer(text)}), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(cuts) if start < end]

    def _ids(self, text: str, *, special: bool, continued: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        if not (continued and self._tokens.prefixes_space):
            return self._tokens.tokenize(data, special=special)
        # A newline takes the added space upon itself; both are cut off again.
        anchor = self._tokens.tokenize(b"\n", special=False)
        ids = self._tokens.tokenize(b"\n" + data, special=special)
        if ids[: len(anchor)] != anchor:
            return self._tokens.tokenize(data, special=special)
        return ids[len(anchor) :]


def looks_like_markup(data: bytes) -> bool:
    """Whether a user-defined token is a marker: bracketed text that is no HTML tag."""
    text = data.decode("utf-8", "replace")
    if len(text) < 3 or not any(text.startswith(left) and text.endswith(right) for left, right in _PAIRS):
        return False
    return text.strip("</>").lower() not in _HTML.split()


def _frame(tokens: Tokens) -> tuple[list[int], list[int]]:
    """The tokens before and after a whole text, found by one of a single letter."""
    letter, whole = (tokens.tokenize(b"a", special=False, framed=framed) for framed in (False, True))
    before = next(at for at in range(len(whole)) if whole[at : at + len(letter)] == letter)
    return whole[:before], whole[before + len(letter) :]


def _ends(tokens: Tokens) -> list[int]:
    return [token for token in range(tokens.size) if tokens.ends_generation(token)]


def _pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Finds every place where one of the texts starts, overlapping ones too."""
    return re.compile("(?=" + ("|".join(re.escape(text) for text in texts) or "(?!)") + ")")
