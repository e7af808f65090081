"""Responses that clients may go on from, in a file of the user's: off unless ``--store`` is given.

An entry is a response and the whole conversation up to its end, so that none depends on another. The file has
bounds in entries and in bytes; what was not used for longest goes first. API keys do not see each other's.
A file that is damaged is set aside, with a line in the log, and another is begun.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from server.errors import StartupFailed
from server.settings import Settings

log = logging.getLogger("toolspan.store")

VERSION = 1
BUSY = 5.0
"""Seconds to wait for another process that writes to the same file."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TABLE = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, partition TEXT, used INTEGER, bytes INTEGER, items BLOB, response BLOB
);
CREATE INDEX by_use ON responses (used);
"""
_USE = "(SELECT COALESCE(MAX(used), 0) + 1 FROM responses)"
_EVICT = """
DELETE FROM responses WHERE id IN (
    SELECT id FROM (
        SELECT id, SUM(bytes) OVER newest AS total, ROW_NUMBER() OVER newest AS place
        FROM responses WINDOW newest AS (ORDER BY used DESC)
    ) WHERE total > ? OR place > ?
)
"""

_Found = TypeVar("_Found")


def data_folder() -> Path:
    """Where the user's data of this program is. Raises ``StartupFailed``."""
    configured = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(configured):
        return Path(configured) / "toolspan"
    try:
        home = Path.home()
    except RuntimeError:
        raise StartupFailed("no home folder is known: set HOME or XDG_DATA_HOME") from None
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "toolspan"


class Store:
    """The responses in one file. Any thread may call the methods; they wait for the disk."""

    def __init__(self, path: Path, *, entries: int, size: int) -> None:
        """``entries`` and ``size`` (bytes) are the bounds. Raises ``StartupFailed``."""
        self._path = path
        self._entries = entries
        self._size = size
        self._lock = threading.Lock()
        try:
            self._connection = self._opened()
        except (OSError, sqlite3.Error) as error:
            raise StartupFailed(f"cannot keep responses in {path}: {error}") from error

    @classmethod
    def of(cls, settings: Settings) -> Store | None:
        """The store that the settings ask for. Raises ``StartupFailed``."""
        if not settings.store:
            return None
        path = data_folder() / "responses.db"
        return cls(path, entries=settings.store_entries, size=settings.store_bytes)

    def keep(self, identifier: str, partition: str, items: list[Any], response: Any) -> bool:
        """Whether a response was kept; its entry is whole, or it is not there."""
        texts = json.dumps(items).encode(), msgspec.json.encode(response)
        size = sum(map(len, texts))
        if size > self._size:
            log.warning("a response of %d bytes is not kept: that is more than the store may have", size)
            return False

        def keeping(connection: sqlite3.Connection) -> bool:
            with _transaction(connection):
                row = (identifier, partition, size, *texts)
                connection.execute(f"INSERT INTO responses VALUES (?, ?, {_USE}, ?, ?, ?)", row)
                connection.execute(_EVICT, (self._size, self._entries))
            return True

        try:
            return self._run(keeping)
        except sqlite3.Error as error:
            log.error("a response could not be kept: %s", error)
            return False

    def conversation(self, identifier: str, partition: str) -> list[Any] | None:
        """All items up to the end of a response; None where there is no such response."""

        def finding(connection: sqlite3.Connection) -> Any:
            with _transaction(connection):
                where = (identifier, partition)
                connection.execute(
                    f"UPDATE responses SET used = {_USE} WHERE id = ? AND partition = ?", where
                )
                return _value(connection, "items", where)

        found: list[Any] | None = self._run(finding)
        return found

    def response(self, identifier: str, partition: str) -> Any:
        """A response as it was sent; None where there is none of that id."""
        return self._run(lambda connection: _value(connection, "response", (identifier, partition)))

    def delete(self, identifier: str, partition: str) -> bool:
        """Whether there was such a response."""

        def deleting(connection: sqlite3.Connection) -> bool:
            where = "WHERE id = ? AND partition = ?"
            return connection.execute(f"DELETE FROM responses {where}", (identifier, partition)).rowcount > 0

        return self._run(deleting)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _run(self, operation: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Raises ``sqlite3.Error``, but not for a damaged file: then it is as if nothing had been kept."""
        with self._lock:
            try:
                return operation(self._connection)
            except (sqlite3.Error, ValueError) as error:
                if not _is_damage(error):
                    raise
                self._connection.close()
                self._set_aside(error)
                self._connection = self._connected()
                return operation(self._connection)

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return self._connected()
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise
            self._set_aside(error)
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        """A connection to a sound file, which nobody else on this machine can read."""
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # safe but for the last entries at a power cut
            _check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: Exception) -> None:
        kept = self._path.with_name(f"{self._path.name}.damaged-{time.time_ns()}")
        log.error(
            "the kept responses are damaged (%s): the file is now %s, and a new one is begun", error, kept
        )
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._path}{suffix}", f"{kept}{suffix}")


class _Damaged(sqlite3.DatabaseError):
    """What is in the file is not what was put there."""


def _check(connection: sqlite3.Connection) -> None:
    """Makes the table where there is none. Raises ``_Damaged``."""
    with _transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _TABLE.split(";\n")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION:
            raise _Damaged(f"it has version {version}, not {VERSION}")
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise _Damaged(found)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Any:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield


def _value(connection: sqlite3.Connection, column: str, where: tuple[str, str]) -> Any:
    row = connection.execute(
        f"SELECT {column} FROM responses WHERE id = ? AND partition = ?", where
    ).fetchone()
    return json.loads(row[0]) if row else None


def _is_damage(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error) and not isinstance(error, _Damaged):
        return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED
    return True
