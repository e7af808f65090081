"""What the runner needs of an engine, and nothing of how one works.

Two engines fulfil it: ``llama`` with the ``scheduler`` (a real model) and ``scripted`` (given text). Models
that make embeddings have an ``embedder`` instead.

Times are seconds of the monotonic clock, token ids those of the model's vocabulary. All methods are
called from the runner's main thread, except those of ``Vocabulary``, which any thread may call.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from llguidance import LLMatcher

from server.events import Source, TokenLogprob
from server.turn import Sampling


@dataclass(frozen=True, slots=True)
class Piece:
    """One generated token: its id, its bytes (a code point may be spread over several pieces), its
    source, and its logprob where asked for."""

    token: int
    data: bytes
    source: Source = Source.SAMPLED
    logprob: TokenLogprob | None = None


class Ended(enum.Enum):
    """Why an engine produces no more for a sequence."""

    STOP = "stop"  # the model ended its turn, or the constraint allows nothing but the end
    LENGTH = "length"  # max_tokens, or the context, is used up
    DEAD_END = "dead_end"  # constraint and sampling leave no token


class SequenceId(NamedTuple):
    """One choice of one request."""

    request: int
    choice: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What one step added to one sequence. After ``ended`` the sequence stays as it is until the
    runner calls ``finish``, ``rewind`` or ``append``. ``prompt`` is for jobs that ``score`` theirs: in the
    first progress of any choice, its tokens with their logprobs."""

    sequence: SequenceId
    pieces: tuple[Piece, ...]
    ended: Ended | None = None
    prompt: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A prepared request. ``matcher`` is at the start of the answer; each choice takes a deep copy.

    ``max_tokens`` is already clamped to the context that is left. ``choices`` share the prompt.
    ``drafts`` lets the engine evaluate what it guesses will be sampled. ``score`` asks for the logprobs of
    the prompt's tokens, all of which have to be computed then.
    """

    request: int
    prompt: tuple[int, ...]
    matcher: LLMatcher
    sampling: Sampling
    max_tokens: int
    choices: int = 1
    partition: str = ""
    reuse_prefix: bool = True
    drafts: bool = True
    score: bool = False


@dataclass(slots=True)
class Tally:
    """What a request cost, complete once its last choice is finished. ``drafted_tokens`` were sampled as they
    had been guessed, ``rejected_tokens`` guessed in vain."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    rejected_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        return self.sampled_tokens + self.forced_tokens + self.drafted_tokens


@dataclass(frozen=True, slots=True)
class EmbeddingJob:
    """Texts to be embedded, as token ids; none is empty or longer than the context."""

    request: int
    texts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of one text of a request, numbered as a choice: 32-bit floats, little-endian."""

    sequence: SequenceId
    vector: bytes


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an engine is."""

    active: int = 0
    waiting: int = 0
    used_cells: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """Where the model's layers are."""

    name: str = "CPU"
    layers: int = 0
    offloaded: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """What the GGUF says of itself. ``template`` is None where it has none."""

    architecture: str
    context: int
    context_train: int
    slots: int
    template: str | None
    device: Device = field(default_factory=Device)


class Vocabulary(Protocol):
    """Text to token ids and back, and the matcher for a constraint. Safe from any thread."""

    size: int
    bos: int | None
    adds_bos: bool
    bos_text: str
    eos_text: str
    fill_in: tuple[int, int, int] | None
    """The tokens before the beginning of a text, before its end, and before what is missing between them."""

    def tokenize(self, text: str, *, markup: bool, continued: bool = False) -> list[int]:
        """Token ids of ``text``, without BOS. With ``markup`` the text of control and user-defined
        tokens becomes those tokens; without it none of them can come out. Text that is ``continued``
        stands after other text: no blank is added before it."""
        ...

    def framed(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of a whole text with those that the vocabulary puts around one (BOS, EOS, CLS ...)."""
        ...

    def single_token(self, text: str) -> int | None:
        """The id of the one token that ``text`` is, as control or user-defined token, else None."""
        ...

    def data(self, token: int) -> bytes:
        """The bytes a token stands for; control tokens show their own text."""
        ...

    def markup_texts(self) -> Sequence[str]:
        """The text of every control and user-defined token that client text must not turn into."""
        ...

    def keep_open(self, texts: Iterable[str]) -> None:
        """Says which tokens do not end an answer, whatever the model file says of them: the markers of its
        dialect. To be called before any matcher is made."""
        ...

    def matcher(self, constraint: str) -> LLMatcher:
        """Compiles a constraint in llguidance's Lark syntax. Raises ``ConstraintRefused``."""
        ...


class ConstraintRefused(Exception):
    """The constraint engine does not take a grammar; the message says why, in its own words."""


class Worker(Protocol):
    """What works off requests, one ``step`` at a time."""

    model: Model
    vocabulary: Vocabulary

    def cancel(self, request: int) -> None:
        """Forgets a request, waiting or running; unknown ids are ignored."""
        ...

    def step(self) -> Sequence[Progress | Embedding]:
        """Evaluates one batch. Returns what came of it."""
        ...

    @property
    def load(self) -> Load: ...

    @property
    def busy(self) -> bool:
        """Whether a ``step`` would do anything."""
        ...

    def close(self) -> None: ...


class Engine(Worker, Protocol):
    """A batch of sequences that move on together."""

    def submit(self, job: Job) -> bool:
        """Queues a job; its sequences appear in the progress of later steps. Returns whether its pieces
        will follow the job's matcher: always, but for a script that holds something else."""
        ...

    def step(self) -> list[Progress]:
        """Admits what fits, evaluates one batch, samples. Returns what moved; empty when only a
        prefill chunk was computed."""
        ...

    def finish(self, sequence: SequenceId) -> None:
        """Ends a sequence, whether the engine had ended it or not."""
        ...

    def rewind(self, sequence: SequenceId, kept: int) -> None:
        """Drops all but the first ``kept`` pieces of a sequence and samples on from there, with fresh
        randomness. ``kept`` must be at a boundary after a sampled piece or right after pieces that
        were forced."""
        ...

    def append(self, sequence: SequenceId, tokens: Iterable[int]) -> None:
        """Goes on with these tokens, which the constraint allows here, as if they were forced."""
        ...

    def tally(self, request: int) -> Tally:
        """The cost so far of a request not yet forgotten, and of one whose last choice was just
        finished, once."""
        ...
