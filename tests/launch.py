"""The real command with a real model, in processes of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

ROOT = Path(__file__).parents[1]


WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
SHARE = max(1, (os.cpu_count() or 1) // WORKERS)
"""Threads for a server while other tests run beside it."""


class Launched:
    """``toolspan serve`` in a process; ``said`` are the lines it wrote before it was ready."""

    def __init__(self, *flags: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server", "serve", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            env=os.environ
            | {"PYTHONUNBUFFERED": "1", "TOOLSPAN_SNAPSHOTS": "false", "TOOLSPAN_THREADS": str(SHARE)},
        )
        self.pid = self._process.pid
        self.said = list(self._lines_until_ready())
        line = next(each for each in self.said if each.startswith("listening"))
        self.url = line.split()[1].removesuffix("/v1")
        self.model = next(each for each in self.said if each.startswith("model")).split()[1]
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=280)
        threading.Thread(target=self._drain, daemon=True).start()

    def _lines_until_ready(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip("\n")
            if line.startswith("curl"):
                return
        raise AssertionError(f"the server ended with status {self._process.wait()}")

    def _drain(self) -> None:
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            pass

    @property
    def runner(self) -> int:
        """The process id of the runner: the one child of the server."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        if children.exists():
            return int(children.read_text().split()[0])
        listed = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=True)
        return int(listed.stdout.split()[0])

    def health(self) -> httpx.Response:
        return httpx.get(self.url + "/health", timeout=10)

    def metric(self, name: str) -> float:
        lines = httpx.get(self.url + "/metrics", timeout=10).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def create(self, **fields: Any) -> Any:
        """A chat completion by the official client."""
        return self.client.chat.completions.create(model=self.model, **fields)

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> int:
        self.client.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(30)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()


@contextlib.contextmanager
def launched(*flags: str) -> Iterator[Launched]:
    running = Launched(*flags)
    try:
        yield running
    finally:
        running.close()


def eventually(condition: Callable[[], bool], within: float = 60.0) -> bool:
    """Waits for a condition; the time is only a bound for a test that fails."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False
