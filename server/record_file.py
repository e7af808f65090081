"""The file that ``--record`` writes: whole lines, added at its end, by one server at a time. What they say is
the matter of ``runner/recorder.py``.
"""

from __future__ import annotations

import fcntl
import os
import stat

from server.errors import StartupFailed

FIRST = b'{"recording":'
"""How the first line of such a file begins."""
_READ_BYTES = 1 << 16


class RecordFile:
    """An open recording, locked. ``first`` is its first line, empty where it has none. Not for several
    threads at once."""

    def __init__(self, path: str) -> None:
        """A new file is for its owner alone. One that exists is added to, if it is a recording. Raises
        ``StartupFailed``."""
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise _refusal(path, error.strerror or str(error)) from error
        try:
            self.first = self._checked()
        except OSError as error:
            os.close(self._file)
            raise _refusal(path, error.strerror or str(error)) from error
        except StartupFailed:
            os.close(self._file)
            raise

    def add(self, line: bytes) -> None:
        """Adds a line, or leaves the file as it was. Raises ``OSError``."""
        size = os.fstat(self._file).st_size
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def close(self) -> None:
        os.close(self._file)

    def _checked(self) -> bytes:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise _refusal(self.path, "it is no regular file")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(self.path, "another server records to it") from None
        begun = os.pread(self._file, len(FIRST), 0)
        if begun != FIRST[: len(begun)]:
            raise _refusal(self.path, "it exists and is no recording; nothing has been changed in it")
        self._drop_half_a_line()
        return self._first_line()

    def _drop_half_a_line(self) -> None:
        """Takes away what a server that was ended has left behind the last line end."""
        end = size = os.fstat(self._file).st_size
        while end and (place := self._last_line_end(end)) < 0:
            end = max(0, end - _READ_BYTES)
        if end:
            end = end - min(end, _READ_BYTES) + place + 1
        if end < size:
            os.ftruncate(self._file, end)

    def _last_line_end(self, end: int) -> int:
        """Its place in the bytes before ``end`` that are read at once, or -1."""
        count = min(end, _READ_BYTES)
        return os.pread(self._file, count, end - count).rfind(b"\n")

    def _first_line(self) -> bytes:
        found = b""
        while b"\n" not in found and (data := os.pread(self._file, _READ_BYTES, len(found))):
            found += data
        return found.partition(b"\n")[0]


def check(path: str) -> None:
    """Whether a recording can be written there. Raises ``StartupFailed``."""
    RecordFile(path).close()


def _refusal(path: str, reason: str) -> StartupFailed:
    return StartupFailed(f"cannot record to {path}: {reason}")
