"""An engine that plays given text instead of a model, through the same dialect, parser, frames and HTTP
code. It has no weights and computes nothing; what it plays comes with each job (``server/runner/replay.py``).
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from server.engine.protocol import (
    ConstraintRefused,
    Ended,
    Job,
    Load,
    Model,
    Piece,
    Progress,
    SequenceId,
    Tally,
    Vocabulary,
)
from server.events import Source
from server.schema.compiling import ENGINE_LIMITS

TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Call as <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{ '' }}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
{%- set thought = "<think>...</think>" %}"""
_MARKUP = ("<|im_start|>", "<|im_end|>")


NEVER = math.inf
"""The silence before what does not come."""


class TimedText(NamedTuple):
    """What is generated as one token, and the seconds of silence before it; bytes that are no text by
    themselves are surrogates (PEP 383). Without a text, which only the last of an answer may be, it is
    silence before the end. ``joined``: it comes in one step with what is before it. ``ended`` is why the
    answer ends behind it, where that differs from the other takes."""

    text: str
    silence: float = 0.0
    joined: bool = False
    ended: Ended | None = None
    source: Source = Source.SAMPLED
    token: int = -1

    @property
    def data(self) -> bytes:
        return self.text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Played:
    """An answer to be played. ``takes`` is what is said each time it is sampled, the last one for all times
    after; ``fault``, where it ends, is the runner's end: "abort", "exit" or "hang". What was ``recorded`` is
    whole: a limit on tokens has cut it already, and what closes a thought is in it."""

    takes: tuple[tuple[TimedText, ...], ...] = ((),)
    ended: Ended = Ended.STOP
    fault: str = ""
    recorded: bool = False

    def take(self, number: int) -> tuple[TimedText, ...]:
        return self.takes[min(number, len(self.takes) - 1)]

    @property
    def text(self) -> str:
        """What is said the first time."""
        return "".join(each.text for each in self.takes[0])

    @property
    def tokens(self) -> list[int]:
        """The same as tokens: its bytes, and markup."""
        made = ([each.token] if each.token >= 0 else list(each.data) for each in self.takes[0])
        return [token for tokens in made for token in tokens]


@dataclass(frozen=True, slots=True)
class ScriptedJob(Job):
    """A job with the answer that is played. Further choices say the same, or what ``others`` has for them;
    ``cached_tokens`` is told as their count."""

    answer: Played = Played()
    others: tuple[Played, ...] = ()
    cached_tokens: int = 0

    def played(self, choice: int) -> Played:
        return (self.answer, *self.others)[min(choice, len(self.others))]


class _Bytes:
    """A tokenizer for llguidance: a token for each byte, the special ones, and one that ends an answer."""

    def __init__(self, special: Sequence[str]) -> None:
        texts = [each.encode() for each in special]
        self.tokens = [*(bytes([each]) for each in range(256)), *texts, b"<end>"]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None

    def __call__(self, data: bytes) -> list[int]:
        return list(data)


class ByteVocabulary:
    """A vocabulary whose tokens are the 256 bytes, and control tokens. Where it stands in for the one of a
    model, ``size`` is that one's, and so is whether it fills in."""

    def __init__(
        self,
        markup: Sequence[str] = _MARKUP,
        *,
        bos_text: str = "",
        eos_text: str = _MARKUP[1],
        size: int = 0,
        fills_in: bool = False,
    ) -> None:
        self.size = size or 256 + len(markup)
        self.bos: int | None = None
        self.adds_bos = False
        self.bos_text = bos_text
        self.eos_text = eos_text
        self.fill_in: tuple[int, int, int] | None = (0, 0, 0) if fills_in else None
        self._texts = tuple(markup)
        self._markup = {text: token for token, text in enumerate(self._texts, 256)}
        longest_first = sorted(map(re.escape, filter(None, self._texts)), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(longest_first) or '(?!)'})")
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(self._texts)))

    def tokenize(self, text: str, *, markup: bool, continued: bool = False) -> list[int]:
        if not markup:
            return list(text.encode())
        tokens: list[int] = []
        for part in self._pattern.split(text):
            token = self._markup.get(part)
            tokens += list(part.encode()) if token is None else [token]
        return tokens

    def framed(self, tokens: Sequence[int]) -> list[int]:
        return list(tokens)

    def single_token(self, text: str) -> int | None:
        return self._markup.get(text)

    def data(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        return self._texts[token - 256].encode() if token - 256 < len(self._texts) else b""

    def markup_texts(self) -> tuple[str, ...]:
        return self._texts

    def keep_open(self, texts: Iterable[str]) -> None:
        pass  # a script ends where it ends

    def matcher(self, constraint: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, constraint, log_level=0, limits=ENGINE_LIMITS)
        if matcher.is_error():
            raise ConstraintRefused(matcher.get_error())
        return matcher


@dataclass(slots=True)
class _Sequence:
    """One choice being played: its pieces, how many are out, and how long after it began the last one was."""

    job: ScriptedJob
    answer: Played
    begun: float
    passed: float = 0.0
    take: int = 0
    played: int = 0
    done: bool = False
    pieces: tuple[TimedText, ...] = ()

    def __post_init__(self) -> None:
        self.pieces = self.answer.take(0)

    @property
    def due(self) -> float:
        """When the next step comes. What came at one time is due at one time, however that was summed up."""
        return self.begun + round(self.passed + self._silence, 6)

    @property
    def _silence(self) -> float:
        return self.pieces[self.played].silence if self.played < len(self.pieces) else 0.0

    def step(self) -> Iterator[TimedText]:
        """What comes next, all that is one step."""
        self.passed += self._silence
        while self.played < len(self.pieces):
            self.played += 1
            yield self.pieces[self.played - 1]
            if not (self.played < len(self.pieces) and self.pieces[self.played].joined):
                break


class ScriptedEngine:
    """Plays the answers of scripted jobs. See ``protocol.Engine`` for the methods. The ``vocabulary`` and the
    ``template`` are its own, or those of a model that it stands in for."""

    def __init__(
        self,
        *,
        context: int,
        slots: int,
        vocabulary: ByteVocabulary | None = None,
        template: str | None = TEMPLATE,
    ) -> None:
        self.model = Model("scripted", context, context, slots, template)
        self.vocabulary: Vocabulary = vocabulary or ByteVocabulary()
        self._slots = slots
        self._waiting: list[tuple[SequenceId, ScriptedJob, float]] = []
        self._running: dict[SequenceId, _Sequence] = {}
        self._tallies: dict[int, Tally] = {}

    def submit(self, job: Job) -> bool:
        assert isinstance(job, ScriptedJob)
        now = time.monotonic()
        self._waiting += [(SequenceId(job.request, choice), job, now) for choice in range(job.choices)]
        self._tallies[job.request] = Tally(cached_tokens=job.cached_tokens)
        return all(_follows(job.matcher, each.tokens) for each in (job.answer, *job.others))

    def cancel(self, request: int) -> None:
        self._waiting = [each for each in self._waiting if each[0].request != request]
        for sequence in [each for each in self._running if each.request == request]:
            del self._running[sequence]
        self._tallies.pop(request, None)

    def step(self) -> list[Progress]:
        self._admit()
        now = time.monotonic()
        due = [item for item in self._running.items() if not item[1].done and item[1].due <= now]
        made = list(self._steps(sorted(due, key=lambda item: item[1].due)))
        if not made:
            time.sleep(0.001)
        return made

    def finish(self, sequence: SequenceId) -> None:
        self._running.pop(sequence, None)

    def rewind(self, sequence: SequenceId, kept: int) -> None:
        state = self._running[sequence]
        state.take += 1
        state.played, state.done = kept, False
        state.pieces = state.answer.take(state.take)

    def append(self, sequence: SequenceId, tokens: Iterable[int]) -> None:
        state = self._running[sequence]
        if state.answer.recorded:
            return
        added = b"".join(map(self.vocabulary.data, tokens)).decode()
        state.pieces = (*state.pieces[: state.played], TimedText(added), *state.pieces[state.played :])

    def tally(self, request: int) -> Tally:
        unfinished = [*self._running, *(each[0] for each in self._waiting)]
        if any(each.request == request for each in unfinished):
            return self._tallies[request]
        return self._tallies.pop(request)

    @property
    def load(self) -> Load:
        return Load(len(self._running), len(self._waiting))

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or any(not each.done for each in self._running.values())

    def close(self) -> None:
        self._running.clear()

    def _admit(self) -> None:
        now = time.monotonic()
        while self._waiting and len(self._running) < self._slots:
            sequence, job, since = self._waiting.pop(0)
            if sequence.choice == 0:
                self._tallies[job.request].queue_s = now - since
            self._running[sequence] = _Sequence(job, job.played(sequence.choice), now)

    def _steps(self, due: Iterable[tuple[SequenceId, _Sequence]]) -> Iterator[Progress]:
        """A step of each, up to what comes after the second one of a recorded answer: recorded choices keep
        their order, also where they come late."""
        second = math.inf
        for sequence, state in due:
            if state.due > second:
                return
            yield self._play(sequence, state)
            if state.answer.recorded and not state.done:
                second = min(second, state.due)

    def _play(self, sequence: SequenceId, state: _Sequence) -> Progress:
        answer = state.answer
        limit = len(state.pieces) if answer.recorded else state.job.max_tokens
        if limit == 0:
            state.done = True
            return Progress(sequence, (), Ended.LENGTH)
        if state.played == len(state.pieces):
            _fault(answer.fault)
            state.done = True
            return Progress(sequence, (), answer.ended)
        texts = list(state.step())
        pieces = tuple(Piece(each.token, each.data, each.source) for each in texts if each.text)
        self._count(sequence, pieces)
        cut = Ended.LENGTH if pieces and state.played >= limit and not answer.recorded else None
        ended = texts[-1].ended or cut
        state.done = ended is not None
        return Progress(sequence, pieces, ended)

    def _count(self, sequence: SequenceId, pieces: Iterable[Piece]) -> None:
        tally = self._tallies[sequence.request]
        for each in pieces:
            match each.source:
                case Source.SAMPLED:
                    tally.sampled_tokens += 1
                case Source.FORCED:
                    tally.forced_tokens += 1
                case Source.DRAFTED:
                    tally.drafted_tokens += 1


def follows(matcher: LLMatcher, text: str, *, whole: bool = False) -> bool:
    """Whether an answer's text keeps to its constraint, and, if it is the ``whole`` answer, may end there."""
    return _follows(matcher, list(text.encode()), whole=whole)


def _follows(matcher: LLMatcher, tokens: list[int], *, whole: bool = False) -> bool:
    ahead = matcher.deep_copy()
    return ahead.try_consume_tokens(tokens) == len(tokens) and (ahead.is_accepting() or not whole)


def _fault(kind: str) -> None:
    """Ends or breaks this process in the way a script asks for."""
    if kind == "abort":
        os.abort()
    elif kind == "exit":
        os._exit(0)
    elif kind == "hang":
        time.sleep(3600)
