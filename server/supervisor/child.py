"""One runner process and the frames to and from it; no policy.

The child gets a socket's number as its last argument and the settings as JSON in the environment. It is
a process group of its own, so that a terminal's interrupt reaches only the parent, and it ends by itself
when its socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
from collections.abc import AsyncGenerator, Sequence

import msgspec

from server.errors import Unavailable
from server.frames import Decoder, FromRunner
from server.settings import Settings

SETTINGS_VARIABLE = "TOOLSPAN_RUNNER_SETTINGS"
KEY_VARIABLES = frozenset({"TOOLSPAN_API_KEY", "TOOLSPAN_ADMIN_KEY"})
READ_SIZE = 256 * 1024
EXIT_GRACE = 1.0
"""Seconds a child that has closed its connection may take to exit by itself."""


class Child:
    """A running child process and the stream of frames to and from it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.pid = process.pid
        self.verdict = ""

    @classmethod
    async def start(cls, command: Sequence[str], settings: Settings) -> Child:
        """Raises ``OSError``."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=2,  # whatever a native library prints belongs with the log
                    pass_fds=(theirs.fileno(),),
                    env=_environment(settings),
                    process_group=0,
                )
            except BaseException:
                writer.close()
                raise
        return cls(process, reader, writer)

    @property
    def fate(self) -> str:
        """How the process ended, in words."""
        code = self._process.returncode or 0
        if code >= 0:
            return f"ended with status {code}"
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"

    def blame(self, verdict: str) -> None:
        """Keeps why this child has to go; the first word counts."""
        self.verdict = self.verdict or verdict

    def post(self, data: bytes) -> None:
        """Writes without waiting, for small frames."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def write(self, data: bytes) -> None:
        """Writes and waits while the child does not keep up. Raises ``Unavailable``."""
        self.post(data)
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise Unavailable("the engine stopped during this request", retry_after=1) from error

    async def frames(self) -> AsyncGenerator[FromRunner, None]:
        """What the child sends, until its end closes. Raises ``BrokenFrame``."""
        decoder = Decoder[FromRunner](FromRunner)
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(READ_SIZE):
                for frame in decoder.feed(data):
                    yield frame

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> None:
        await self._process.wait()

    async def close(self) -> None:
        """Sees the process end: at once where it has to go, else after a moment to exit by itself."""
        if not self.verdict:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_GRACE):
                    await self._process.wait()
        self.kill()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await self._process.wait()


def _environment(settings: Settings) -> dict[str, str]:
    """The child's environment: ours, and the settings without the keys, which it has no use for."""
    passed = dataclasses.replace(settings, api_key=(), api_key_file="", admin_key=(), admin_key_file="")
    kept = {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
    return kept | {SETTINGS_VARIABLE: msgspec.json.encode(passed).decode()}
