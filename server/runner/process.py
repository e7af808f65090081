"""The runner process: frames in, frames out, and the decode loop between them.

Three threads: the main one runs the decode loop and is the only one to touch the engine; one reads
frames; one prepares arriving requests and replies to questions. When the parent is gone the socket ends,
and so does this process.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import msgspec

from server import frames, logs
from server.engine.protocol import Embedding, Progress
from server.errors import StartupFailed, ToolspanError
from server.frames import (
    Ask,
    BrokenFrame,
    Cancel,
    FromRunner,
    Generate,
    LoadFailed,
    Ready,
    Rejected,
    Shutdown,
    Status,
    Told,
    ToRunner,
)
from server.logs import where
from server.runner.desk import Prepared, desk_of
from server.runner.embedding import EmbeddingRequest, PreparedEmbedding
from server.runner.model import LoadedEmbedder, LoadedModel, load_model
from server.runner.prepare import PreparedTurn
from server.runner.recorder import Recorder
from server.runner.request import Request
from server.settings import Settings

_log = logging.getLogger("toolspan.runner")
STATUS_EVERY_S = 0.25
_READ_BYTES = 1 << 16
# A thread that wants the interpreter back after a native call waits this long at most for a busy one;
# with Python's default of 5 ms a prompt being rendered slows every decode step several times over.
_SWITCH_INTERVAL_S = 0.0005


class Channel:
    """The socket to the parent. ``send`` from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, frame: FromRunner) -> None:
        data = frames.encode(frame)
        with self._lock:
            try:
                self._connection.sendall(data)
            except OSError:
                _leave("the parent is gone")

    def received(self) -> Iterator[ToRunner]:
        """Frames as they arrive, for ever; the process ends with the parent."""
        decoder: frames.Decoder[ToRunner] = frames.Decoder(ToRunner)
        while True:
            try:
                data = self._connection.recv(_READ_BYTES)
                if not data:
                    _leave("the parent is gone")
                yield from decoder.feed(data)
            except (OSError, BrokenFrame) as error:
                _leave(str(error))


class Runner:
    """The decode loop over one loaded model."""

    def __init__(
        self,
        model: LoadedModel | LoadedEmbedder,
        settings: Settings,
        channel: Channel,
        recorder: Recorder | None = None,
    ) -> None:
        self._model = model
        self._recorder = recorder
        self._engine = model.engine
        self._channel = channel
        self._desk = desk_of(model, settings)
        self._inbox: queue.SimpleQueue[Prepared | Cancel | Shutdown] = queue.SimpleQueue()
        self._to_prepare: queue.SimpleQueue[Generate | Ask] = queue.SimpleQueue()
        self._requests: dict[int, Request | EmbeddingRequest] = {}
        self._arriving: set[int] = set()
        self._cancelled: set[int] = set()
        self._preparing_since: float | None = None
        self._next_status = 0.0

    def read_for_ever(self) -> None:
        """The reading thread."""
        for frame in self._channel.received():
            self._take(frame)

    def _take(self, frame: ToRunner) -> None:
        match frame:
            case Generate() | Ask():
                self._arriving.add(frame.id)
                self._to_prepare.put(frame)
            case Cancel() if frame.id in self._arriving:
                self._cancelled.add(frame.id)
                self._inbox.put(frame)
            case _:
                self._inbox.put(frame)

    def prepare_for_ever(self) -> None:
        """The preparing thread."""
        while True:
            frame = self._to_prepare.get()
            self._preparing_since = time.monotonic()
            if frame.id in self._cancelled:
                self._arrived(frame.id)
            else:
                self._prepare(frame)
            self._preparing_since = None

    def run(self) -> None:
        """The main thread: until a ``Shutdown``."""
        while self._take_inbox():
            for progress in self._engine.step() if self._engine.busy else ():
                self._advance(progress)
            self._send_status()
        self._engine.close()

    def _advance(self, progress: Progress | Embedding) -> None:
        """Takes what a step made of one sequence. What goes wrong here ends that request alone."""
        identity = progress.sequence.request
        request = self._requests.get(identity)
        if request is None:
            return
        try:
            for frame in request.take(progress):
                self._channel.send(frame)
        except Exception as error:
            _log.error("reading the answer of request %d failed: %s", identity, where(error))
            self._channel.send(request.failed(ToolspanError("the answer could not be read")))
        if request.done:
            del self._requests[identity]

    def _prepare(self, frame: Generate | Ask) -> None:
        try:
            made = self._desk.take(frame)
            if isinstance(made, PreparedTurn | PreparedEmbedding):
                self._inbox.put(made)
            elif self._arrived(frame.id):
                self._channel.send(Told(frame.id, made))
        except ToolspanError as error:
            self._reject(frame, error)
        except Exception as error:
            _log.error("preparing request %d failed: %s", frame.id, where(error))
            self._reject(frame, ToolspanError("the request could not be prepared"))

    def _reject(self, frame: Generate | Ask, error: ToolspanError) -> None:
        self._arrived(frame.id)
        if self._recorder and isinstance(frame, Generate):
            self._recorder.refused(frame.turn, error.data)
        self._channel.send(Rejected(frame.id, error.data))

    def _arrived(self, identity: int) -> bool:
        """A request has been prepared, or never will be. Returns whether it is still wanted."""
        wanted = identity not in self._cancelled
        self._arriving.discard(identity)
        self._cancelled.discard(identity)
        return wanted

    def _take_inbox(self) -> bool:
        """Handles what has arrived, waiting for it if there is nothing else to do. False: shut down."""
        wait = not self._engine.busy
        while True:
            try:
                item = self._inbox.get(timeout=STATUS_EVERY_S) if wait else self._inbox.get_nowait()
            except queue.Empty:
                return True
            wait = False
            match item:
                case Shutdown():
                    return False
                case Cancel():
                    self._cancel(item.id)
                case _:
                    self._accept(item)

    def _accept(self, prepared: Prepared) -> None:
        if self._arrived(prepared.job.request):
            request = self._started(prepared)
            self._requests[prepared.job.request] = request
            for frame in request.begun():
                self._channel.send(frame)

    def _started(self, prepared: Prepared) -> Request | EmbeddingRequest:
        model = self._model
        if isinstance(model, LoadedModel):
            assert isinstance(prepared, PreparedTurn)
            return Request(prepared, model.engine, self._recorder)
        assert isinstance(prepared, PreparedEmbedding)
        return EmbeddingRequest(prepared, model.engine)

    def _cancel(self, identity: int) -> None:
        if request := self._requests.pop(identity, None):
            request.cancel()

    def _send_status(self) -> None:
        now = time.monotonic()
        if now < self._next_status:
            return
        self._next_status = now + STATUS_EVERY_S
        load, since = self._engine.load, self._preparing_since
        preparing = now - since if since is not None else 0.0
        self._channel.send(Status(load.active, load.waiting, preparing, load.used_cells, load.cached_tokens))


def main(arguments: list[str]) -> None:
    """``python -m server.runner FD``, with the settings as JSON in TOOLSPAN_RUNNER_SETTINGS."""
    settings = msgspec.json.decode(os.environ["TOOLSPAN_RUNNER_SETTINGS"], type=Settings)
    logs.configure(settings.log_level)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    try:
        model = load_model(settings)
        recorder = _recorder(model, settings)
    except StartupFailed as error:
        channel.send(LoadFailed(error.data))
        raise SystemExit(1) from None
    runner = Runner(model, settings, channel, recorder)
    for name, work in (("reader", runner.read_for_ever), ("preparer", runner.prepare_for_ever)):
        threading.Thread(target=work, name=name, daemon=True).start()
    channel.send(Ready(model.facts))
    runner.run()


def _recorder(model: LoadedModel | LoadedEmbedder, settings: Settings) -> Recorder | None:
    if not settings.record:
        return None
    if isinstance(model, LoadedEmbedder):
        raise StartupFailed("--record: this model makes embeddings, and no answers that could be recorded")
    return Recorder(settings.record, model)


def _leave(reason: str) -> NoReturn:
    """Ends the process at once, whatever its other threads do."""
    _log.info("runner ends: %s", reason)
    os._exit(0)
