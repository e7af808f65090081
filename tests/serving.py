"""A whole server in a thread of the test process, for tests over a real socket. Its runner is the fake one,
which does what a request says (``serving``), or the real one with a script (``playing``)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from scripting import script

from server.api.auth import Keys
from server.api.server import Server, listen
from server.settings import Settings
from server.supervisor import RUNNER, Timing

ROOT = Path(__file__).parents[1]
FAKE_RUNNER = (
    sys.executable,
    "-c",
    f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r});"
    f" runpy.run_path({str(ROOT / 'tests' / 'fake_runner.py')!r}, run_name='__main__')",
)
JSON = {"content-type": "application/json"}
QUICK = Timing(first_delay=0.2, shutdown=1.0)


class Serving:
    """A running server; ``url`` is where."""

    def __init__(self, settings: Settings, timing: Timing, command: tuple[str, ...]) -> None:
        self.status: int | None = None
        self.error: BaseException | None = None
        self._settings = settings
        self._command = command
        self._timing = timing
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait(30)
        if self.error:
            raise self.error
        # No connection is kept, so that tests see only those they make.
        self._client = httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=0))

    def _run(self) -> None:
        try:
            self.status = asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    async def _serve(self) -> int:
        self.loop = asyncio.get_running_loop()
        keys = Keys.of(self._settings)
        with listen(self._settings, bool(keys)) as listener:
            self.server = Server(self._settings, keys, listener, command=self._command, timing=self._timing)
            self.url = self.server.address
            self.port = listener.getsockname()[1]
            return await self.server.run(lambda facts, address: self._ready.set())

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.server.stop)

    def close(self) -> None:
        self._client.close()
        if self._thread.is_alive():
            self.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def runner(self) -> int | None:
        """The runner's process id."""
        return self.server.supervisor.pid

    @property
    def in_flight(self) -> int:
        return self.server.supervisor.in_flight

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        return self._client.request(method, self.url + path, **arguments)

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        return self.request("GET", path, **arguments)

    def post(self, body: Any, **arguments: Any) -> httpx.Response:
        return self.request("POST", "/v1/chat/completions", json=body, **arguments)

    def chat(self, *steps: list[Any], **fields: Any) -> httpx.Response:
        """A chat request that makes the fake runner take these steps."""
        return self.post(order(*steps, **fields))

    def streamed(self, *steps: list[Any], **fields: Any) -> list[Any]:
        """The events of a streamed answer: JSON objects, and the text ``[DONE]``."""
        return events(self.chat(*steps, stream=True, **fields).text)

    def metric(self, name: str) -> float:
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    @contextlib.contextmanager
    def raw(self, data: bytes) -> Iterator[socket.socket]:
        """A bare connection on which ``data`` was sent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(data)
            yield connection

    def exchange(self, data: bytes) -> tuple[int, bytes]:
        """What comes back for raw bytes until the server closes: status (0 for none) and all bytes."""
        with self.raw(data) as connection:
            got = received(connection)
        return (int(got.split()[1]) if got else 0), got


@contextlib.contextmanager
def serving(
    timing: Timing = QUICK, command: tuple[str, ...] = FAKE_RUNNER, **settings: Any
) -> Iterator[Serving]:
    given = Settings(**{"model": "fake", "port": 0, **settings})
    running = Serving(given, timing, command)
    try:
        yield running
    finally:
        running.close()


@contextlib.contextmanager
def playing(folder: Path, *answers: dict[str, Any], **settings: Any) -> Iterator[Serving]:
    """A server whose runner plays a script of these answers."""
    with serving(command=RUNNER, **{"replay": script(folder, *answers), "chunk": 1, **settings}) as running:
        yield running


def order(*steps: list[Any], **fields: Any) -> dict[str, Any]:
    content = json.dumps(list(steps)) if steps else "hello"
    return {"messages": [{"role": "user", "content": content}], **fields}


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def received(connection: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            got += data
    return got


def request_bytes(body: bytes, *headers: str, host: str = "localhost") -> bytes:
    """A chat request as it is on the wire."""
    lines = ["POST /v1/chat/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


def eventually(condition: Callable[[], bool], within: float = 10.0) -> bool:
    """Waits for a condition; the time is only a bound for a test that fails."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False
