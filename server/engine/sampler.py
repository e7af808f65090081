"""Chooses the next token: the constraint's mask, biases and penalties, then llama.cpp's own samplers.

The logits are only read. Truncating samplers see nothing but legal tokens, so whatever they leave can be
said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from server.engine.llama_chain import Candidates, Chain
from server.engine.protocol import Vocabulary
from server.events import TokenLogprob, TopLogprob
from server.turn import Sampling

Logits = NDArray[np.float32]

BANNED = -100.0
"""A bias of this or less takes a token out altogether."""
REPEAT_WINDOW = 64
"""Tokens, those of the prompt included, that the repeat penalty looks back at (as in llama.cpp)."""
LOWEST_LOGPROB = -9999.0
"""Stands for the logarithm of zero, which JSON has no number for."""
NEGLIGIBLE = 30.0
"""So far below the best, 200,000 tokens together weigh less than the rounding of one float."""
_SEEDS = 2**32 - 1  # llama.cpp takes the last one for "random"
_RETRY_SEED_STEP = 0x9E3779B1
_RETRY_TEMPERATURE = 1.0


class Workbench:
    """Room for the scores and candidates of one choice at a time, shared by all of an engine."""

    def __init__(self, size: int) -> None:
        self._bitmask = allocate_token_bitmask(1, size)
        self._scores = np.zeros(size, np.float32)
        self.candidates = Candidates(size)

    def scores(self, logits: Logits, matcher: LLMatcher) -> Logits:
        """A copy of the logits in which what the constraint forbids is minus infinity; overwritten by
        the next."""
        fill_next_token_bitmask(matcher, self._bitmask)
        legal = np.unpackbits(self._bitmask.view(np.uint8), bitorder="little", count=len(self._scores))
        self._scores.fill(-np.inf)
        np.copyto(self._scores, logits, where=legal.view(np.bool_))
        return self._scores


class Sampler:
    """How one choice of a request picks its tokens. ``attempt`` counts how often it was sampled again:
    each attempt has its own randomness. What was greedy is drawn at temperature 1 from the second one
    on, since it could only repeat itself."""

    def __init__(self, sampling: Sampling, seed: int, attempt: int, bench: Workbench) -> None:
        self._sampling = sampling
        self._bench = bench
        self._temperature = sampling.temperature or (_RETRY_TEMPERATURE if attempt else 0.0)
        self._adjusts = bool(
            sampling.logit_bias
            or sampling.frequency_penalty
            or sampling.presence_penalty
            or sampling.repeat_penalty != 1.0
        )
        self._bias_tokens = np.array([token for token, _ in sampling.logit_bias], np.int32)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self._bias[self._bias <= BANNED] = -np.inf
        self._chain = Chain(
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            temperature=self._temperature,
            seed=(seed + attempt * _RETRY_SEED_STEP) % _SEEDS,
        )

    def choose(self, logits: Logits, matcher: LLMatcher, tokens: Sequence[int], prompt: int) -> int | None:
        """The next token; None if constraint and settings leave none. ``tokens`` are those so far, the
        first ``prompt`` of them the prompt's."""
        if self._temperature == 0 and not self._adjusts:
            best = int(logits.argmax())
            if np.isfinite(logits[best]) and matcher.validate_tokens([best]) == 1:
                return best
        scores = self._bench.scores(logits, matcher)
        if self._adjusts:
            with np.errstate(invalid="ignore"):  # infinities of a broken model
                self._adjust(scores, tokens, prompt)
        return self._pick(scores)

    def close(self) -> None:
        self._chain.close()

    def _pick(self, scores: Logits) -> int | None:
        best = int(scores.argmax())
        if not np.isfinite(scores[best]):  # a NaN anywhere is what argmax finds
            return None
        if self._temperature == 0:
            return best
        # With 0 as the highest, no temperature makes an infinity of it.
        scores -= scores[best]
        likely = np.flatnonzero(scores > -NEGLIGIBLE * max(self._temperature, 1.0))
        candidates, count = self._bench.candidates, len(likely)
        candidates.ids[:count] = likely
        candidates.logits[:count] = scores[likely]
        return self._chain.pick(candidates, count)

    def _adjust(self, scores: Logits, tokens: Sequence[int], prompt: int) -> None:
        sampling = self._sampling
        if sampling.repeat_penalty != 1.0:
            recent = np.unique(np.array(tokens[-REPEAT_WINDOW:], np.int32))
            said, penalty = scores[recent], sampling.repeat_penalty
            scores[recent] = np.where(said > 0, said / penalty, said * penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            answer, counts = np.unique(np.array(tokens[prompt:], np.int32), return_counts=True)
            scores[answer] -= counts * sampling.frequency_penalty + sampling.presence_penalty
        np.add.at(scores, self._bias_tokens, self._bias)


def draws_seed(sampling: Sampling, drawn: int, choice: int) -> int:
    """The seed of a choice: choices of one request differ, and a given seed gives the same ones again."""
    return ((drawn if sampling.seed is None else sampling.seed) + choice) % _SEEDS


def token_logprob(logits: Logits, token: int, alternatives: int, vocabulary: Vocabulary) -> TokenLogprob:
    """What the model itself thinks of ``token`` and of its likeliest ``alternatives``."""
    with np.errstate(invalid="ignore"):
        highest = np.nanmax(logits)
        total = float(highest) + float(np.log(np.nansum(np.exp(logits - highest), dtype=np.float64)))
    likeliest: list[int] = []
    if alternatives:
        found = np.argpartition(logits, -alternatives)[-alternatives:]
        likeliest = [int(each) for each in found[np.argsort(-logits[found], kind="stable")]]
    top = tuple(
        TopLogprob(*_shown(each, vocabulary), _finite(float(logits[each]) - total)) for each in likeliest
    )
    return TokenLogprob(*_shown(token, vocabulary), _finite(float(logits[token]) - total), top)


def without_logprob(token: int, vocabulary: Vocabulary) -> TokenLogprob:
    """A token that nothing stands before."""
    return TokenLogprob(*_shown(token, vocabulary), None)


def _shown(token: int, vocabulary: Vocabulary) -> tuple[str, bytes]:
    data = vocabulary.data(token)
    return data.decode("utf-8", "replace"), data


def _finite(value: float) -> float:
    return value if value > LOWEST_LOGPROB else LOWEST_LOGPROB  # NaN becomes the lowest, too
