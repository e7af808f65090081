"""The runner process over its socket: frames in, frames out, with the scripted engine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from scripting import script

from server.events import Finish, Text
from server.frames import (
    Accepted,
    Ask,
    Cancel,
    Decoder,
    Detokenize,
    Detokenized,
    Emitted,
    Failed,
    Finished,
    FromRunner,
    Generate,
    LoadFailed,
    Ready,
    Rejected,
    Shutdown,
    Status,
    Tokenize,
    Tokenized,
    Told,
    ToRunner,
    encode,
)
from server.settings import Settings
from server.turn import Message, Tool, Turn

ROOT = Path(__file__).parents[1]


class Child:
    """A runner, and the parent's end of its socket."""

    def __init__(self, settings: Settings) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(30)
        environment = os.environ | {
            "TOOLSPAN_RUNNER_SETTINGS": msgspec.json.encode(settings).decode(),
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server.runner", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=environment,
        )
        theirs.close()
        self._decoder: Decoder[FromRunner] = Decoder(FromRunner)
        self._frames: list[FromRunner] = []

    def send(self, *frames: ToRunner) -> None:
        self._socket.sendall(b"".join(map(encode, frames)))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def next(self, *kinds: type) -> FromRunner:
        """The next frame of one of the kinds (any but ``Status``, if none is given)."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if isinstance(frame, kinds) if kinds else not isinstance(frame, Status):
                    return frame
            data = self._socket.recv(65536)
            assert data, "the runner is gone"
            self._frames += self._decoder.feed(data)

    def hang_up(self) -> None:
        self._socket.close()

    def close(self) -> None:
        self._socket.close()
        self.process.wait(10)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(*answers: dict[str, object], **settings: object) -> Child:
        replay = script(tmp_path, *answers)
        children.append(Child(Settings(replay=replay, chunk=1, **settings)))  # type: ignore[arg-type]
        return children[-1]

    yield start
    for each in children:
        each.close()


def ask(text: str = "hi", **fields: object) -> Turn:
    return Turn((Message("user", text),), **fields)  # type: ignore[arg-type]


def text_of(running: Child, request: int) -> str:
    """The text of a request up to its end."""
    text = ""
    while not isinstance(frame := running.next(), Finished):
        assert isinstance(frame, Emitted)
        if frame.id == request:
            text += "".join(event.text for event in frame.events if isinstance(event, Text))
    return text


def test_a_request_is_accepted_answered_and_finished(child: Callable[..., Child]) -> None:
    running = child({"text": "Hello"})
    ready = running.next()
    assert isinstance(ready, Ready)
    assert (ready.facts.dialect, ready.facts.name) == ("hermes", "scripted")
    running.send(Generate(7, ask()))
    accepted = running.next()
    assert isinstance(accepted, Accepted)
    assert accepted.id == 7
    events = []
    while isinstance(frame := running.next(), Emitted):
        events += frame.events
    assert "".join(event.text for event in events if isinstance(event, Text)) == "Hello"
    assert events[-1] == Finish("stop")
    assert isinstance(frame, Finished)
    assert (frame.usage.prompt_tokens, frame.usage.completion_tokens) == (accepted.prompt_tokens, 5)


def test_a_refused_request_harms_no_other(child: Callable[..., Child]) -> None:
    running = child({"text": "fine"})
    running.next(Ready)
    running.send(Generate(1, ask(tools=(Tool("f", parameters='{"type": 1}'),))), Generate(2, ask()))
    rejected = running.next()
    assert isinstance(rejected, Rejected)
    assert (rejected.id, rejected.error.status, rejected.error.code) == (1, 400, "invalid_schema")
    assert isinstance(running.next(), Accepted)
    assert text_of(running, 2) == "fine"


def test_a_dead_end_fails_its_request_only(child: Callable[..., Child]) -> None:
    running = child({"text": "x", "ended": "dead_end"}, {"when": "well", "text": "fine"})
    running.next(Ready)
    running.send(Generate(1, ask()))
    failed = running.next(Failed)
    assert isinstance(failed, Failed)
    assert failed.error.code == "constraint_dead_end"
    running.send(Generate(2, ask("well")))
    running.next(Accepted)
    assert text_of(running, 2) == "fine"


def test_a_cancelled_request_says_nothing_more(child: Callable[..., Child]) -> None:
    running = child({"text": "slow", "delay_ms": 60_000}, {"when": "quick", "text": "fine"}, slots=1)
    running.next(Ready)
    running.send(Generate(1, ask()))
    running.next(Accepted)
    running.send(Generate(2, ask("quick")), Cancel(1))
    accepted = running.next()
    assert isinstance(accepted, Accepted)
    assert accepted.id == 2
    assert text_of(running, 2) == "fine"


def test_a_request_cancelled_before_it_is_prepared_never_starts(child: Callable[..., Child]) -> None:
    running = child({"text": "slow", "delay_ms": 60_000}, {"when": "quick", "text": "fine"}, slots=1)
    running.next(Ready)
    running.send(Generate(1, ask()), Cancel(1), Cancel(99), Generate(2, ask("quick")))
    running.next(Finished)
    running.send(Generate(3, ask("quick")))
    running.next(Finished)


def test_questions_are_replied_to_while_an_answer_runs(child: Callable[..., Child]) -> None:
    running = child({"text": "slow", "delay_ms": 60_000}, slots=1)
    running.next(Ready)
    running.send(Generate(1, ask()), Ask(2, Tokenize(("é",))), Ask(3, Detokenize((258,))))
    running.send(Ask(4, Tokenize(("é",))), Cancel(4), Ask(5, Detokenize((104, 105))))
    assert running.next(Told) == Told(2, Tokenized((0xC3, 0xA9), (b"\xc3", b"\xa9")))
    rejected = running.next(Rejected)
    assert isinstance(rejected, Rejected)
    assert (rejected.id, rejected.error.status) == (3, 400)
    while (told := running.next(Told)) != Told(5, Detokenized("hi")):
        assert isinstance(told, Told)
        assert told.id == 4  # it was too quick to be cancelled


def test_choices_share_a_request(child: Callable[..., Child]) -> None:
    running = child({"text": "ab"})
    running.next(Ready)
    running.send(Generate(1, ask(choices=3)))
    texts = ["", "", ""]
    while not isinstance(frame := running.next(Emitted, Finished), Finished):
        texts[frame.choice] += "".join(each.text for each in frame.events if isinstance(each, Text))
    assert texts == ["ab", "ab", "ab"]
    assert frame.usage.completion_tokens == 6


def test_status_comes_while_idle_and_while_busy(child: Callable[..., Child]) -> None:
    running = child({"text": "slow", "delay_ms": 60_000}, slots=1)
    assert running.next(Status) == Status(0, 0)
    running.send(Generate(1, ask()), Generate(2, ask()))
    while (status := running.next(Status)) != Status(1, 1):
        assert isinstance(status, Status)


def test_it_ends_when_told(child: Callable[..., Child]) -> None:
    running = child()
    running.next(Ready)
    running.send(Shutdown())
    assert running.process.wait(10) == 0


def test_it_ends_with_its_parent_even_when_busy(child: Callable[..., Child]) -> None:
    running = child({"text": "x", "fault": "hang"})
    running.next(Ready)
    running.send(Generate(1, ask()))
    running.next(Accepted)
    time.sleep(0.1)
    running.hang_up()
    running.process.wait(10)


def test_it_ends_at_a_broken_frame(child: Callable[..., Child]) -> None:
    running = child()
    running.next(Ready)
    running.send_bytes(b"\x00\x00\x00\x01\xc1")
    running.process.wait(10)


def test_a_model_that_cannot_be_loaded_is_said(child: Callable[..., Child], tmp_path: Path) -> None:
    running = Child(Settings(replay=str(tmp_path / "missing.jsonl")))
    frame = running.next()
    assert isinstance(frame, LoadFailed)
    assert "cannot read the script" in frame.error.message
    assert running.process.wait(10) == 1
    running.close()
