"""An engine that plays given text instead of a model, through the same dialect, parser, frames and HTTP
code. It has no weights and computes nothing; what it plays comes with each job (``server/runner/replay.py``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer

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


class TimedText(NamedTuple):
    """What is generated as one token, and the seconds of silence before it. Without a text, which only the
    last of an answer may be, it is silence before the end."""

    text: str
    silence: float = 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """An answer to be played. ``takes`` is what is said each time it is sampled, the last one for all times
    after; ``fault``, where it ends, is the runner's end: "abort", "exit" or "hang"."""

    takes: tuple[tuple[TimedText, ...], ...] = ((),)
    ended: Ended = Ended.STOP
    fault: str = ""

    def take(self, number: int) -> tuple[TimedText, ...]:
        return self.takes[min(number, len(self.takes) - 1)]

    @property
    def text(self) -> str:
        """What is said the first time."""
        return "".join(each.text for each in self.takes[0])


@dataclass(frozen=True, slots=True)
class ScriptedJob(Job):
    """A job with the answer that is played."""

    answer: Played = Played()


class ByteVocabulary:
    """A vocabulary whose tokens are the 256 bytes, and two control tokens that exist in prompts only."""

    def __init__(self) -> None:
        self.size = 256 + len(_MARKUP)
        self.bos: int | None = None
        self.adds_bos = False
        self.bos_text = ""
        self.eos_text = _MARKUP[1]
        self.fill_in: tuple[int, int, int] | None = None
        self._tokenizer = LLTokenizer("byte")

    def tokenize(self, text: str, *, markup: bool, continued: bool = False) -> list[int]:
        if not markup:
            return list(text.encode())
        tokens: list[int] = []
        for place, part in enumerate(text.split(_MARKUP[0])):
            tokens += [256] * (place > 0)
            for inner, piece in enumerate(part.split(_MARKUP[1])):
                tokens += [257] * (inner > 0) + list(piece.encode())
        return tokens

    def framed(self, tokens: Sequence[int]) -> list[int]:
        return list(tokens)

    def single_token(self, text: str) -> int | None:
        return 256 + _MARKUP.index(text) if text in _MARKUP else None

    def data(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else _MARKUP[token - 256].encode()

    def markup_texts(self) -> tuple[str, ...]:
        return _MARKUP

    def keep_open(self, texts: Iterable[str]) -> None:
        pass  # a script ends where it ends

    def matcher(self, constraint: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, constraint, log_level=0, limits=ENGINE_LIMITS)
        if matcher.is_error():
            raise ConstraintRefused(matcher.get_error())
        return matcher


@dataclass(slots=True)
class _Sequence:
    """One choice being played: its pieces, how many are out, and when the next is due."""

    job: ScriptedJob
    pieces: tuple[TimedText, ...]
    due: float
    take: int = 0
    played: int = 0
    done: bool = False

    def __post_init__(self) -> None:
        self.wait_for_next()

    def wait_for_next(self) -> None:
        if self.played < len(self.pieces):
            self.due += self.pieces[self.played].silence


class ScriptedEngine:
    """Plays the answers of scripted jobs. See ``protocol.Engine`` for the methods."""

    def __init__(self, *, context: int, slots: int) -> None:
        self.model = Model("scripted", context, context, slots, TEMPLATE)
        self.vocabulary: Vocabulary = ByteVocabulary()
        self._slots = slots
        self._waiting: list[tuple[SequenceId, ScriptedJob, float]] = []
        self._running: dict[SequenceId, _Sequence] = {}
        self._tallies: dict[int, Tally] = {}

    def submit(self, job: Job) -> bool:
        assert isinstance(job, ScriptedJob)
        now = time.monotonic()
        self._waiting += [(SequenceId(job.request, choice), job, now) for choice in range(job.choices)]
        self._tallies[job.request] = Tally()
        return follows(job.matcher, job.answer.text)

    def cancel(self, request: int) -> None:
        self._waiting = [each for each in self._waiting if each[0].request != request]
        for sequence in [each for each in self._running if each.request == request]:
            del self._running[sequence]
        self._tallies.pop(request, None)

    def step(self) -> list[Progress]:
        self._admit()
        now = time.monotonic()
        due = [item for item in self._running.items() if not item[1].done and item[1].due <= now]
        if not due:
            time.sleep(0.001)
        return [self._play(sequence, state) for sequence, state in due]

    def finish(self, sequence: SequenceId) -> None:
        self._running.pop(sequence, None)

    def rewind(self, sequence: SequenceId, kept: int) -> None:
        state = self._running[sequence]
        state.take += 1
        state.played, state.done = kept, False
        state.pieces = state.job.answer.take(state.take)
        state.wait_for_next()

    def append(self, sequence: SequenceId, tokens: Iterable[int]) -> None:
        state = self._running[sequence]
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
        while self._waiting and len(self._running) < self._slots:
            sequence, job, since = self._waiting.pop(0)
            now = time.monotonic()
            if sequence.choice == 0:
                self._tallies[job.request].queue_s = now - since
            self._running[sequence] = _Sequence(job, job.answer.take(0), now)

    def _play(self, sequence: SequenceId, state: _Sequence) -> Progress:
        if state.job.max_tokens == 0:
            state.done = True
            return Progress(sequence, (), Ended.LENGTH)
        answer = state.job.answer
        if state.played == len(state.pieces):
            _fault(answer.fault)
            state.done = True
            return Progress(sequence, (), answer.ended)
        data = state.pieces[state.played].text.encode()
        state.played += 1
        state.wait_for_next()
        if not data:
            return Progress(sequence, ())
        self._tallies[sequence.request].sampled_tokens += 1
        state.done = state.played >= state.job.max_tokens
        ended = Ended.LENGTH if state.done else None
        return Progress(sequence, (Piece(-1, data, Source.SAMPLED),), ended)


def follows(matcher: LLMatcher, text: str, *, whole: bool = False) -> bool:
    """Whether an answer's text keeps to its constraint, and, if it is the ``whole`` answer, may end there."""
    ahead, data = matcher.deep_copy(), list(text.encode())
    return ahead.try_consume_tokens(data) == len(data) and (ahead.is_accepting() or not whole)


def _fault(kind: str) -> None:
    """Ends or breaks this process in the way a script asks for."""
    if kind == "abort":
        os.abort()
    elif kind == "exit":
        os._exit(0)
    elif kind == "hang":
        time.sleep(3600)
