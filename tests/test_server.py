"""The server as a process: what it refuses to start with, signals, deaths, and what it writes down."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripting import script
from serving import ROOT, Serving, eventually, received, request_bytes, serving

import server
from server.__main__ import INTERRUPTED, main
from server.api.server import FORCED, listen
from server.errors import StartupFailed
from server.settings import Settings

ANSWERS = [
    {"text": "Hello"},
    {"when": "endless", "text": "la " * 30_000, "delay_ms": 5},
    {"when": "brief", "text": "la " * 30, "delay_ms": 5},
]
SERVE = [sys.executable, "-m", "server", "serve"]


class Process:
    """``toolspan serve`` as a user starts it, with a script for a model."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._log = (folder / "log").open("w+")
        self.child = subprocess.Popen(
            [*SERVE, "--replay", script(folder, *ANSWERS), "--chunk", "1", "--port", "0", *flags],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.said = ""

    def started(self) -> None:
        """Waits for what it says once it serves."""
        assert self.child.stdout
        for line in self.child.stdout:
            self.said += line
            if line.startswith("curl "):
                break
        assert "listening" in self.said, self.log
        self.url = re.findall(r"listening (http://\S+)/v1", self.said)[0]
        self.port = int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    @property
    def runner(self) -> int:
        """The process id of the newest runner."""
        return int(re.findall(r"the runner is ready, process (\d+)", self.log)[-1])

    def healthy(self) -> bool:
        return httpx.get(self.url + "/health").status_code == 200

    @contextlib.contextmanager
    def streaming(self, content: str) -> Iterator[socket.socket]:
        """A connection on which an answer has begun."""
        body = json.dumps({"messages": [{"role": "user", "content": content}], "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request_bytes(body, "Connection: close"))
            seen = b""
            while b'content":"l' not in seen:
                seen += connection.recv(4096)
            yield connection

    def ended(self) -> int:
        return self.child.wait(20)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        assert self.child.stdout
        self.child.stdout.close()
        self._log.close()


@contextlib.contextmanager
def process(folder: Path, *flags: str) -> Iterator[Process]:
    running = Process(folder, *flags)
    try:
        running.started()
        yield running
    finally:
        running.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Where nobody collects orphans, a dead one stays as a zombie.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


# The end.


def test_an_interrupt_while_it_starts_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "server.commands":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "server.commands", raising=False)
    monkeypatch.delattr(server, "commands", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == INTERRUPTED


def test_a_signal_lets_running_answers_finish(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        runner = server.runner
        with server.streaming("brief") as connection:
            server.child.send_signal(signal.SIGTERM)
            rest = received(connection)
        assert b'"finish_reason":"stop"' in rest
        assert b"data: [DONE]" in rest
        assert server.ended() == 0
        assert not alive(runner)
        assert "Traceback" not in server.log


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        runner = server.runner
        with server.streaming("endless"):
            server.child.send_signal(signal.SIGINT)
            assert eventually(lambda: not server.healthy())
            server.child.send_signal(signal.SIGINT)
            assert server.ended() == FORCED
        assert not alive(runner)
        assert "Traceback" not in server.log


def test_what_takes_longer_than_the_grace_ends_with_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api.limits.DRAIN", 0.2)
    with serving() as server:
        body = json.dumps({"messages": [{"role": "user", "content": '[["text", "x"], ["sleep", 60]]'}]})
        data = request_bytes(body[:-1].encode() + b', "stream": true}', "Connection: close")
        with server.raw(data) as connection:
            assert eventually(lambda: server.in_flight == 1)
            server.stop()
            got = received(connection)
        assert b'"code":"draining"' in got
        assert b"data: [DONE]" in got
        assert eventually(lambda: server.status == 0)


def test_a_killed_server_leaves_no_runner_behind_and_its_port_is_free(tmp_path: Path) -> None:
    with process(tmp_path) as server:
        runner = server.runner
        with server.streaming("endless"):
            server.child.kill()
            server.ended()
            assert eventually(lambda: not alive(runner))
            listen(Settings(port=server.port), has_key=False).close()


# The runner's death.


def test_a_runner_that_is_killed_or_hangs_is_replaced_under_the_same_server(tmp_path: Path) -> None:
    with process(tmp_path, "--stall-timeout", "0.8") as server:
        for sign in (signal.SIGKILL, signal.SIGSTOP):
            first = server.runner
            with server.streaming("endless") as connection:
                os.kill(first, sign)
                rest = received(connection)
            assert b'"code":"engine_restarting"' in rest
            assert b"data: [DONE]" in rest
            assert eventually(server.healthy)
            assert server.runner != first
            assert not alive(first)
        assert server.child.poll() is None


# The start.


def failed(*flags: str, environment: dict[str, str] | None = None) -> str:
    """The one line of a server that does not start."""
    done = subprocess.run(
        [*SERVE, *flags], cwd=ROOT, capture_output=True, text=True, env=os.environ | (environment or {})
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("toolspan: ")
    return done.stderr


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_used_port_fails_before_anything_else(taken: int) -> None:
    said = failed("--port", str(taken), "--model", "/nonexistent/model.gguf")
    assert f"port {taken}" in said
    assert "in use" in said


def test_a_missing_model_or_script_is_one_line(tmp_path: Path) -> None:
    assert "model.gguf" in failed("--port", "0", "--model", "/nonexistent/model.gguf")
    assert "nothing.json" in failed("--port", "0", "--replay", str(tmp_path / "nothing.json"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_key(host: str) -> None:
    with pytest.raises(StartupFailed) as caught:
        listen(Settings(host=host, port=0), has_key=False)
    assert "--api-key" in caught.value.message
    assert "--insecure-no-key" in caught.value.message


def test_other_machines_with_a_key_or_on_purpose() -> None:
    for settings, has_key in (
        (Settings(host="0.0.0.0", port=0), True),
        (Settings(host="0.0.0.0", port=0, insecure_no_key=True), False),
    ):
        with listen(settings, has_key) as listener:
            assert listener.getsockname()[0] == "0.0.0.0"


def test_a_key_file_is_a_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key\n")
    with serving(host="0.0.0.0", api_key_file=str(tmp_path / "keys")) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        at = f"http://127.0.0.1:{server.port}/v1/models"
        assert httpx.get(at).status_code == 401
        assert httpx.get(at, headers={"x-api-key": "key"}).status_code == 200


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 300, "192.0.2.1"])
def test_an_address_that_is_not_ours_is_a_failed_start(host: str) -> None:
    with pytest.raises(StartupFailed) as caught:
        listen(Settings(host=host, port=0), has_key=True)
    assert "\n" not in caught.value.message


def test_two_servers_do_not_share_a_port() -> None:
    with listen(Settings(port=0), has_key=False) as first:
        port = first.getsockname()[1]
        with pytest.raises(StartupFailed):
            listen(Settings(port=port), has_key=False)


def test_while_the_model_loads_health_says_so_and_requests_are_told_to_wait(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('["ok", "slow"]')
    with serving(replay=str(script)) as server:
        assert server.runner
        os.kill(server.runner, signal.SIGKILL)
        assert eventually(lambda: "SIGKILL" in server.get("/health").json().get("reason", ""))
        health = server.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] in ("loading", "degraded")
        reply = server.chat()
        assert reply.status_code == 503
        assert reply.json()["error"]["type"] == "service_unavailable"
        assert int(reply.headers["retry-after"]) >= 1
        assert eventually(lambda: server.get("/health").status_code == 200)
        assert server.chat().status_code == 200


# What is written down.

CANARY = "canary-5f1d"


def poison(url: str, key: str) -> None:
    """One request of every kind that goes wrong, and one that does not, each with the canary in it."""
    path, keyed = url + "/v1/chat/completions", {"x-api-key": key}
    function = {"type": "function", "function": {"name": CANARY, "parameters": {"type": "object"}}}
    good = {"messages": [{"role": "user", "content": CANARY}], "tools": [function]}
    bad: list[dict[str, Any]] = [
        good,
        good | {"stream": True},
        good | {"messages": [{"role": CANARY}]},
        good | {"model": CANARY},
        good | {"n": CANARY},
        good | {"tool_choice": CANARY},
        good | {"messages": [{"role": "user", "content": CANARY * 10_000}]},
        good | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": CANARY}}}]},
        good | {"messages": [{"role": "assistant", "content": [{"type": CANARY}]}]},
    ]
    for body in bad:
        httpx.post(path, json=body, headers=keyed)
    for raw in (
        f'{{"{CANARY}": NaN}}',
        f'{{"{CANARY}": ',
        f'"{CANARY}\\ud800"',
        f'{{"{CANARY}":1,"{CANARY}":2}}',
    ):
        httpx.post(path, content=raw, headers=keyed | {"content-type": "application/json"})
    httpx.post(path, json=good, headers={"x-api-key": CANARY})
    httpx.post(path, json=good, headers={"authorization": f"Bearer {CANARY}"})
    httpx.post(path, json=good, headers=keyed | {"host": f"{CANARY}.example"})
    httpx.post(path, json=good, headers=keyed | {"cookie": CANARY})
    for unknown in (f"/{CANARY}", f"/v1/models/{CANARY}", f"/health?{CANARY}"):
        httpx.get(url + unknown, headers=keyed)


@pytest.mark.parametrize("level", ["info", "debug"])
def test_nothing_of_a_prompt_or_a_key_is_written_down(tmp_path: Path, level: str) -> None:
    key = f"key-{CANARY}" if level == "info" else "secret-key"
    with process(tmp_path, "--log-level", level, "--api-key", key) as server:
        poison(server.url, key)
        with server_stream(server, key) as connection:
            os.kill(server.runner, signal.SIGKILL)
            received(connection)
        metrics = httpx.get(server.url + "/metrics", headers={"x-api-key": key}).text
        server.child.send_signal(signal.SIGTERM)
        assert server.ended() == 0
        assert "stopping; running answers get 10 seconds" in server.log
        assert "POST /v1/chat/completions 200" in server.log
        assert "POST /v1/chat/completions 401" in server.log
        assert "GET /v1/models/{name:path} 404" in server.log
        assert "POST /v1/chat/completions 200 engine_restarting" in server.log
        assert key not in server.log + server.said + metrics
        assert CANARY not in server.said + metrics
        assert (CANARY in server.log) is (level == "debug")
        assert not any("\\x1b" in line for line in server.log.splitlines())


@contextlib.contextmanager
def server_stream(server: Process, key: str) -> Iterator[socket.socket]:
    body = json.dumps(
        {"messages": [{"role": "user", "content": f"endless {CANARY}"}], "stream": True}
    ).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request_bytes(body, f"x-api-key: {key}", "Connection: close"))
        assert connection.recv(4096)
        yield connection


def test_the_key_is_no_part_of_the_runners_environment() -> None:
    with serving(api_key=("key",), admin_key=("x",)) as server:  # the fake runner refuses to start with keys
        assert isinstance(server, Serving)
        assert server.get("/health").status_code == 200
