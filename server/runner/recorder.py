"""Records requests with what was written for them, in the form that a replay reads.

Steps are seen where they are told to ``debug``, and prompt and grammar are those that it shows. An entry is a
line of the file once its request is over, and before the client knows that. What goes wrong with the file is
said in the log, and the request goes on.
"""

from __future__ import annotations

import logging
import threading
import time

import msgspec

from server.engine.protocol import Progress, SequenceId, Tally
from server.errors import ErrorData, StartupFailed
from server.record_file import RecordFile
from server.runner.model import LoadedModel
from server.runner.prepare import PreparedTurn
from server.runner.recorded import RecordedModel, Taking
from server.runner.replay import Line, ScriptedError
from server.turn import Turn

_log = logging.getLogger("toolspan.runner")


class Recorder:
    """The recording of one model. Any thread may call it."""

    def __init__(self, path: str, model: LoadedModel) -> None:
        """Goes on with the file if it is there. Raises ``StartupFailed``."""
        self._file = RecordFile(path)
        self._lock = threading.Lock()
        self.vocabulary = model.engine.vocabulary
        self._head = msgspec.json.encode(Line(recording=recorded_model(model)))
        self._begun = bool(self._file.first)
        if self._begun and self._file.first != self._head:
            self._file.close()
            raise StartupFailed(
                f"cannot record to {path}: it has the answers of another model, or of one with another "
                "context; name another file"
            )

    def refused(self, turn: Turn, error: ErrorData) -> None:
        """A request that was refused before a byte of its answer."""
        told = ScriptedError(error.status, error.message, error.code, error.retry_after, error.param)
        self.write(Line(request=_kept(turn), error=told))

    def write(self, line: Line) -> None:
        with self._lock:
            try:
                if not self._begun:
                    self._file.add(self._head)
                    self._begun = True
                self._file.add(msgspec.json.encode(line))
            except OSError as error:
                reason = error.strerror or str(error)
                _log.error("a request is not recorded in %s: %s", self._file.path, reason)


class Recording:
    """One request while it is answered."""

    def __init__(self, prepared: PreparedTurn, recorder: Recorder) -> None:
        self._prepared = prepared
        self._recorder = recorder
        self._begun = time.monotonic()
        self._takes: list[list[Taking]] = [[] for _ in range(prepared.job.choices)]
        self._cached_tokens = 0

    def add(self, progress: Progress, tally: Tally) -> None:
        """What a step made; silence counts from when the request had a slot."""
        takes, now = self._takes[progress.sequence.choice], time.monotonic()
        if not takes:
            self._cached_tokens = tally.cached_tokens
            takes.append(self._first(tally))
        takes[-1].add(progress.pieces, progress.ended, now)

    def rewound(self, sequence: SequenceId, kept: int) -> None:
        takes = self._takes[sequence.choice]
        takes.append(takes[-1].again(kept))

    def ended(self, sequence: SequenceId) -> None:
        self._takes[sequence.choice][-1].end()

    def write(self) -> None:
        """The request is over; choices that have not ended never do."""
        origin = self._prepared.origin
        assert origin is not None
        takes = (each or [self._first(Tally())] for each in self._takes)
        self._recorder.write(
            Line(
                request=_kept(self._prepared.turn),
                prompt=origin.prompt,
                prompt_tokens=len(self._prepared.job.prompt),
                cached_tokens=self._cached_tokens,
                constraint=origin.constraint,
                answers=tuple(tuple(take.take for take in choice) for choice in takes),
            )
        )

    def _first(self, tally: Tally) -> Taking:
        return Taking(self._recorder.vocabulary.single_token, self._begun + tally.queue_s)


def recorded_model(model: LoadedModel) -> RecordedModel:
    facts, vocabulary = model.facts, model.engine.vocabulary
    return RecordedModel(
        name=facts.name,
        dialect=facts.dialect,
        template=model.engine.model.template,
        context=facts.context,
        context_train=facts.context_train,
        vocabulary=facts.vocabulary,
        markup=tuple(vocabulary.markup_texts()),
        bos=vocabulary.bos_text,
        eos=vocabulary.eos_text,
        fills_in=vocabulary.fill_in is not None,
    )


def _kept(turn: Turn) -> Turn:
    """The request without what its API key is known by."""
    return msgspec.structs.replace(turn, partition="")
