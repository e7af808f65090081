"""The servers that are compared, each in processes of its own, and how they are asked."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from server.download import cache_folder

ROOT = Path(__file__).resolve().parents[2]
ALIAS = "bench"
START_S = 300.0
ANSWER_S = 900.0
SERVER_EXTRAS = ("sse-starlette", "starlette-context", "pydantic-settings", "python-dotenv")
"""What llama-cpp-python's own server needs beyond what Toolspan has."""


QUIET = {"GOMP_SPINCOUNT": "1000"}
"""Toolspan sets this on small machines; without it whatever else runs there slows its peers far more."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all servers have in common."""

    model: Path
    threads: int
    slots: int
    context: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as the client saw it, and what the server says of it (0 where it says nothing).

    ``first_s`` and ``total_s`` are seconds from the request to its first text and to its end.
    """

    text: str
    first_s: float
    total_s: float
    tokens: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def each_s(self) -> float:
        """Seconds of a token after the first."""
        return (self.total_s - self.first_s) / max(self.tokens - 1, 1)


class Server:
    """A server that runs. ``ask`` from any thread."""

    def __init__(
        self,
        name: str,
        command: list[str],
        port: int,
        environment: Mapping[str, str] = MappingProxyType({}),
        adapted: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        self.name = name
        self._adapted = adapted
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **QUIET, **environment},
            start_new_session=True,
        )
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            timeout=ANSWER_S,
            limits=httpx.Limits(max_keepalive_connections=0),  # an idle server may close one at any time
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise SystemExit(f"bench: {self.name} ended with status {self._process.returncode}")
            with contextlib.suppress(httpx.TransportError):
                if self._client.get("/v1/models").is_success:
                    return
            time.sleep(0.1)
        raise SystemExit(f"bench: {self.name} was not ready after {START_S:.0f} s")

    def ask(self, fields: dict[str, Any]) -> Answer:
        """Streams one chat completion. Raises ``SystemExit`` where the server does not answer it."""
        try:
            return self._asked(fields)
        except httpx.HTTPError as error:
            status = self._process.poll()
            raise SystemExit(f"bench: {self.name} (exit status {status}): {error!r}") from error

    def _asked(self, fields: dict[str, Any]) -> Answer:
        started = time.monotonic()
        first = 0.0
        parts: list[str] = []
        last: dict[str, Any] = {}
        with self._client.stream("POST", "/v1/chat/completions", json=self._body(fields)) as answer:
            if not answer.is_success:
                raise SystemExit(f"bench: {self.name}: {answer.read().decode()[:500]}")
            for chunk in _chunks(answer):
                text = _text(chunk)
                if text and not first:
                    first = time.monotonic() - started
                parts += [text] if text else []
                last |= {key: chunk[key] for key in ("usage", "timings") if chunk.get(key)}
        total = time.monotonic() - started
        return _answer("".join(parts), first or total, total, len(parts), last)

    def _body(self, fields: dict[str, Any]) -> dict[str, Any]:
        common = {"model": ALIAS, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        return common | self._adapted(fields)

    def cpu_s(self) -> float:
        """Seconds of CPU that its processes have used, where the system says (Linux)."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid:  # its session
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / float(os.sysconf("SC_CLK_TCK"))

    def close(self) -> None:
        self._client.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def toolspan(setup: Setup, *flags: str) -> Server:
    port = _free_port()
    command = [sys.executable, "-m", "server", "serve", "--model", str(setup.model), "--port", str(port)]
    command += [
        "--alias",
        ALIAS,
        "--threads",
        str(setup.threads),
        "--slots",
        str(setup.slots),
        "--ctx",
        str(setup.context),
    ]
    return Server("toolspan", [*command, *flags], port)


def llama_server(setup: Setup, program: Path, *flags: str) -> Server:
    port = _free_port()
    command = [str(program), "-m", str(setup.model), "--port", str(port), "--threads", str(setup.threads)]
    command += ["--parallel", str(setup.slots), "--ctx-size", str(setup.context)]
    return Server("llama-server", [*command, *flags], port)


def llama_cpp_python(setup: Setup, *flags: str) -> Server:
    """llama-cpp-python's own server, which answers one request at a time."""
    port = _free_port()
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(setup.model), "--port", str(port)]
    command += ["--n_threads", str(setup.threads), "--n_ctx", str(setup.context)]
    folder = _server_extras()
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    return Server("llama-cpp-python", [*command, *flags], port, environment, _as_llama_cpp_python)


def _as_llama_cpp_python(fields: dict[str, Any]) -> dict[str, Any]:
    """Its name for a schema that an answer is held to."""
    if "response_format" not in fields:
        return fields
    schema = fields["response_format"]["json_schema"]["schema"]
    return fields | {"response_format": {"type": "json_object", "schema": schema}}


def _server_extras() -> Path:
    """A folder of their own for packages that Toolspan does not have."""
    folder = cache_folder() / "llama-cpp-python-server"
    if importlib.util.find_spec("sse_starlette") is None and not (folder / "sse_starlette").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, *SERVER_EXTRAS], check=True)
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _chunks(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def _text(chunk: dict[str, Any]) -> str:
    """What a chunk adds to the answer: text, or a call's name and arguments."""
    found = []
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        found.append(delta.get("content") or "")
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            found += [function.get("name") or "", function.get("arguments") or ""]
    return "".join(found)


def _answer(text: str, first: float, total: float, chunks: int, last: dict[str, Any]) -> Answer:
    usage, timings = last.get("usage") or {}, last.get("timings") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        text=text,
        first_s=first,
        total_s=total,
        tokens=usage.get("completion_tokens") or chunks,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens", timings.get("cache_n", 0)),
        forced_tokens=timings.get("forced_tokens", 0),
        drafted_tokens=timings.get("drafted_tokens", timings.get("draft_n_accepted", 0)),
        prefill_s=timings.get("prefill_ms", timings.get("prompt_ms", 0.0)) / 1000,
        decode_s=timings.get("decode_ms", timings.get("predicted_ms", 0.0)) / 1000,
    )
