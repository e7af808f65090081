"""One choice being generated: its tokens, where its constraint stands, and what was not yet told."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from server.engine.cache import Sequence
from server.engine.draft import Drafter
from server.engine.healing import healed
from server.engine.llama import Logits
from server.engine.protocol import Ended, Job, Piece, Progress, SequenceId, Tally
from server.engine.sampler import Sampler, Workbench, draws_seed, token_logprob, without_logprob
from server.engine.vocabulary import EngineVocabulary
from server.events import Source, TokenLogprob


class Choice:
    """Tokens are the prompt's, then the answer's; which of them are computed is the ``sequence``'s
    business, that the scheduler gives and takes. Whatever the constraint leaves no choice about is
    appended at once, so the tokens always end where one has to be sampled or the answer is over."""

    def __init__(
        self,
        job: Job,
        number: int,
        *,
        seed: int,
        context: int,
        vocabulary: EngineVocabulary,
        bench: Workbench,
        tally: Tally,
    ) -> None:
        self.id = SequenceId(job.request, number)
        self.job = job
        self.prompt = job.prompt or (vocabulary.bos or 0,)  # something has to be computed
        self.tokens = array("i", self.prompt)
        self.boundaries = _boundaries(self.tokens, vocabulary.ends)
        self.limit = max(0, min(job.max_tokens, context - len(self.prompt)))
        self.sequence: Sequence | None = None
        self.ended: Ended | None = None
        self.answering = False
        self._vocabulary = vocabulary
        self._bench = bench
        self._tally = tally
        self._seed = draws_seed(job.sampling, seed, number)
        self._attempt = 0
        self._untold: list[Piece] = []
        self._told_end = False
        self._drafter = Drafter(vocabulary)
        self._scores: list[TokenLogprob] | None = None
        if job.score and number == 0:
            self._scores = [without_logprob(token, vocabulary) for token in job.prompt[:1]]
        self._begin(())

    @property
    def length(self) -> int:
        """The most tokens it can come to have."""
        return len(self.prompt) + self.limit

    @property
    def scored(self) -> int:
        """How many of the prompt's tokens have a logprob, or need none."""
        return len(self.prompt) if self._scores is None else len(self._scores)

    @property
    def scoring(self) -> bool:
        """Whether a token of the prompt still needs its logprob."""
        return self._scores is not None and len(self._scores) < len(self.job.prompt)

    @property
    def active(self) -> bool:
        """Whether something has to be computed."""
        return self.ended is None or self.scoring

    def score(self, logits: Logits) -> None:
        """Notes what the model thinks of the next token of the prompt."""
        assert self._scores is not None
        token, alternatives = self.prompt[len(self._scores)], self.job.sampling.top_logprobs or 0
        self._scores.append(token_logprob(logits, token, alternatives, self._vocabulary))

    def draft(self, room: int) -> list[int]:
        """What may be said next, guessed: ``room`` tokens at most, that the constraint allows."""
        room = min(room, self.length - len(self.tokens) - 1)
        return self._drafter.draft(self.tokens, room, self._matcher)

    def judge(self, drafted: int, confirmed: int) -> None:
        """So many of the drafted tokens have come true."""
        self._drafter.judge(drafted, confirmed)
        self._tally.rejected_tokens += drafted - confirmed

    def sample(self, logits: Logits, guess: int | None = None) -> None:
        """Appends the token that follows, and those forced behind it. ``guess`` is what was drafted here."""
        self.answering = True
        token = self._sampler.choose(logits, self._matcher, self.tokens, len(self.prompt))
        if token is None:
            self.ended = Ended.DEAD_END
        elif token in self._vocabulary.ends:
            self.ended = Ended.STOP
        elif not self._matcher.consume_token(token):
            self.ended = Ended.DEAD_END
        else:
            start = len(self.tokens)
            self._append(token, Source.DRAFTED if token == guess else Source.SAMPLED, logits)
            self._force()
            self._heal(start)

    def append(self, tokens: Iterable[int]) -> None:
        """Appends tokens that the constraint allows, and those forced behind them."""
        if self.ended is None:
            self._take(list(tokens))
            self._force()

    def rewind(self, kept: int) -> None:
        """Goes back to the first ``kept`` tokens of the answer."""
        del self.tokens[len(self.prompt) + kept :]
        self._attempt += 1
        self._sampler.close()
        self._untold.clear()
        self.ended, self._told_end = None, False
        self._begin(self.tokens[len(self.prompt) :])

    def progress(self) -> Progress | None:
        """What was not told yet, if anything."""
        if self.scoring:
            return None
        if not self._untold and not self._scores and (self.ended is None or self._told_end):
            return None
        pieces, scores = tuple(self._untold), tuple(self._scores or ())
        self._untold.clear()
        self._scores = None
        self._told_end = self.ended is not None
        return Progress(self.id, pieces, self.ended, scores)

    def close(self) -> None:
        self._sampler.close()

    def _begin(self, answer: Iterable[int]) -> None:
        self._matcher = self.job.matcher.deep_copy()
        self._sampler = Sampler(self.job.sampling, self._seed, self._attempt, self._bench)
        self._consume(list(answer))
        self._force()

    def _force(self) -> None:
        """Appends the tokens that the constraint alone determines, and ends the answer where it does."""
        if self.ended is not None:
            return
        more = True
        while more:
            room = self.length - len(self.tokens)
            forced, more = self._forced()
            self._take(forced)
            more = more and len(forced) <= room and self.ended is None
        if self.ended is not None:
            return
        if len(forced) <= room and self._matcher.is_stopped():
            self.ended = Ended.DEAD_END if self._matcher.is_error() else Ended.STOP
        elif len(self.tokens) >= self.length:
            self.ended = Ended.LENGTH

    def _forced(self) -> tuple[list[int], bool]:
        """What the constraint determines, and whether that may go on. Its text is tokenized as llama.cpp does
        it, where a user-defined token is one always; one that the grammar does not name must be spelled."""
        forced = self._matcher.compute_ff_tokens()
        valid = self._matcher.validate_tokens(forced)
        if valid == len(forced):
            return forced, False
        text = self._vocabulary.data(forced[valid]).decode("utf-8", "replace")
        spelled = self._vocabulary.tokenize(text, markup=False, continued=True)
        return forced[:valid] + spelled, bool(spelled)

    def _take(self, tokens: list[int]) -> None:
        """Appends as many of the tokens as there is room for."""
        taken = tokens[: self.length - len(self.tokens)]
        self._consume(taken)
        for token in taken:
            self._append(token, Source.FORCED)

    def _heal(self, start: int) -> None:
        """Joins a sampled token and those forced behind it, none of them computed yet. Not where each token
        is to be told with its logprob."""
        written = len(self.tokens) - start
        if written < 2 or self.ended is not None or self.job.sampling.top_logprobs is not None:
            return
        joined = healed(self.tokens, start, len(self.prompt), self._vocabulary)
        if joined != self.tokens[start:]:
            sampled = self._untold[-written]
            self._tally_of(sampled.source, -1)
            self._tally_of(Source.FORCED, 1 - written)
            del self.tokens[start:], self._untold[-written:]
            first = sampled.source if joined[0] == sampled.token else Source.SAMPLED
            for place, token in enumerate(joined):
                self._append(token, Source.FORCED if place else first)

    def _consume(self, tokens: list[int]) -> None:
        if tokens and not self._matcher.consume_tokens(tokens):
            self.ended = Ended.DEAD_END

    def _append(self, token: int, source: Source, logits: Logits | None = None) -> None:
        wanted = self.job.sampling.top_logprobs
        logprob = None
        if logits is not None and wanted is not None:
            logprob = token_logprob(logits, token, wanted, self._vocabulary)
        self.tokens.append(token)
        self._untold.append(Piece(token, self._vocabulary.data(token), source, logprob))
        self._tally_of(source, 1)

    def _tally_of(self, source: Source, count: int) -> None:
        match source:
            case Source.SAMPLED:
                self._tally.sampled_tokens += count
            case Source.FORCED:
                self._tally.forced_tokens += count
            case Source.DRAFTED:
                self._tally.drafted_tokens += count


def _boundaries(prompt: array[int], ends: frozenset[int]) -> tuple[int, ...]:
    """Where others may be expected to go on otherwise: after the prompt's first turn (the system text with
    the tools) and after its last. A turn ends with a token that would end the model's own."""
    after = np.flatnonzero(np.isin(np.frombuffer(prompt, np.int32), list(ends))) + 1
    after = after[after < len(prompt)]
    return (int(after[0]), int(after[-1])) if len(after) else (len(prompt) - 1,)
