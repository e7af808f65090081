"""Computed prefixes on disk: files, their index and their checksum. A state is bytes here; nothing in this
module knows llama.cpp, which takes a damaged state as it is, or may end the process over it.

A file is a header, the prefix's token ids, the state, and the SHA-256 of all that. Its name is the digest of
what it belongs to (model, form of the state, partition, tokens), so that whatever differs is not found. It
comes into being whole: written under another name, flushed, renamed. While a state is being restored its file
has a third name, under which the next start finds and removes it if that ended the process. Several processes
may use one folder: names that one of them is at work under are locked.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import hashlib
import logging
import os
import struct
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from server.model_file import split_names

State = NDArray[np.uint8]

VERSION = 1
_MAGIC = b"toolspan"
_HEADER = struct.Struct("<8sIIQ32s")  # magic, version, tokens, bytes of the state, key
_DIGEST = 32
_KEPT, _RESTORING, _WRITING = ".prefix", ".restoring", ".writing"
_SAMPLES, _SAMPLE = 64, 1 << 16
SHARE = 4
"""A file may take one in so many parts of the space."""

_log = logging.getLogger("toolspan.engine")


@dataclass(slots=True, eq=False)
class Snapshot:
    """A file of the index: how many tokens it is of, its size in bytes, and when it was last used, in seconds
    since the epoch."""

    path: Path
    key: bytes
    tokens: int
    size: int
    used: float


class Snapshots:
    """The files of a folder. ``about`` says what their states are of: two models, or two forms of a state,
    never have the same. ``space`` is how many bytes all files may take; the least recently used go first.
    No method raises for what is wrong with the disk: after a failure nothing more is written."""

    def __init__(self, folder: Path, about: str, space: int) -> None:
        self._folder = folder
        self._about = hashlib.sha256(about.encode()).digest()
        self._space = space
        self.largest = space // SHARE
        self._lock = threading.Lock()
        self._index: dict[bytes, Snapshot] = {}
        self.writable = True
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._scan()
            self._make_room(0)
        except OSError as error:
            self._failed(error)

    def longest(self, tokens: array[int], partition: str, limit: int) -> Snapshot | None:
        """The longest prefix of at most ``limit`` of the tokens."""
        with self._lock:
            lengths = sorted({each.tokens for each in self._index.values()})
            digest, done, longest = self._whose(partition), 0, None
            for length in lengths[: bisect.bisect_right(lengths, limit)]:
                digest.update(tokens[done:length])
                done, longest = length, self._index.get(digest.digest()) or longest
        return longest

    def read(self, snapshot: Snapshot, tokens: array[int]) -> State | None:
        """The state of a prefix, checked. None if the file is not what was written: then it is removed."""
        try:
            with snapshot.path.open("rb") as file:
                data = np.fromfile(file, np.uint8)
            os.utime(snapshot.path)
        except OSError as error:
            self.forget(snapshot, f"it cannot be read: {error}")
            return None
        snapshot.used = time.time()
        start = _HEADER.size + tokens.itemsize * len(tokens)
        whole = len(data) >= start + _DIGEST and _sum(data[:-_DIGEST]) == data[-_DIGEST:].tobytes()
        expected = self._head(tokens, len(data) - start - _DIGEST, snapshot.key)
        if not whole or data[:start].tobytes() != expected:
            self.forget(snapshot, "its checksum or its content is wrong")
            return None
        return data[start:-_DIGEST]

    def write(self, tokens: array[int], partition: str, state: State) -> bool:
        """Keeps a state; False where it takes too much of the space, or the disk does not take it."""
        key = self._key(tokens, partition)
        head = self._head(tokens, len(state), key)
        size = len(head) + len(state) + _DIGEST
        if not self.writable or size > self.largest:
            return False
        self._make_room(size)
        path = self._folder / (key.hex() + _KEPT)
        try:
            self._write(path, head, state)
        except OSError as error:
            self._failed(error)
            return False
        with self._lock:
            self._index[key] = Snapshot(path, key, len(tokens), size, time.time())
        return True

    @contextlib.contextmanager
    def restoring(self, snapshot: Snapshot) -> Iterator[bool]:
        """While its state is restored a file has another name. Gives False where it cannot be renamed: then
        it may not be restored."""
        marked = snapshot.path.with_suffix(_RESTORING)
        try:
            file = snapshot.path.open("rb")
        except OSError as error:
            self.forget(snapshot, f"it cannot be read: {error}")
            yield False
            return
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH)
                os.rename(snapshot.path, marked)
            except OSError as error:
                self.forget(snapshot, f"it cannot be marked: {error}")
                yield False
                return
            yield True
            with contextlib.suppress(OSError):
                os.rename(marked, snapshot.path)

    def forget(self, snapshot: Snapshot, why: str) -> None:
        """Removes a file that is of no use."""
        _log.warning("the prefix %s is not used: %s", snapshot.path.name, why)
        with self._lock:
            self._index.pop(snapshot.key, None)
        _unlink(snapshot.path)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        with self._lock:
            return sum(each.size for each in self._index.values())

    def _key(self, tokens: array[int], partition: str) -> bytes:
        digest = self._whose(partition)
        digest.update(tokens)
        return digest.digest()

    def _whose(self, partition: str) -> hashlib._Hash:
        return hashlib.sha256(self._about + hashlib.sha256(partition.encode()).digest())

    def _head(self, tokens: array[int], size: int, key: bytes) -> bytes:
        return _HEADER.pack(_MAGIC, VERSION, len(tokens), max(size, 0), key) + tokens.tobytes()

    # The folder.

    def _scan(self) -> None:
        """Fills the index, and removes what an earlier process left or cannot have written."""
        for path in self._folder.iterdir():
            if path.suffix in (_RESTORING, _WRITING):
                if _abandoned(path):
                    _log.warning("removing %s, which an ended process left", path.name)
                    _unlink(path)
            elif path.suffix == _KEPT:
                found = _looked_at(path)
                if found is None:
                    _log.warning("removing %s, which is no whole file of this version", path.name)
                    _unlink(path)
                else:
                    self._index[found.key] = found

    def _make_room(self, size: int) -> None:
        """Removes the least recently used files until so many bytes are free."""
        while self.size + size > self._space:
            with self._lock:
                oldest = min(self._index.values(), key=lambda each: each.used)
                del self._index[oldest.key]
            _unlink(oldest.path)

    def _write(self, path: Path, head: bytes, state: State) -> None:
        temporary = path.with_suffix(f".{os.getpid()}{_WRITING}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                checksum = hashlib.sha256(head)
                checksum.update(state.data)
                for part in (head, state.data, checksum.digest()):
                    _write_all(file, part)
                os.fsync(file.fileno())
                os.rename(temporary, path)
        except OSError:
            _unlink(temporary)
            raise
        _flush_folder(self._folder)

    def _failed(self, error: OSError) -> None:
        if self.writable:
            _log.warning("no more prefixes are kept in %s: %s", self._folder, error.strerror or error)
        self.writable = False


def fingerprint(path: Path) -> str:
    """What tells the model at ``path`` from others: of each of its files the size, the time of the last
    change and 64 blocks of 64 KiB, evenly spread. To read all of a large model would take longer than to
    start it; a change that none of the blocks shows still shows in the time."""
    digest = hashlib.sha256()
    for name in split_names(path.name):
        with path.with_name(name).open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            digest.update(struct.pack("<QQ", status.st_size, status.st_mtime_ns))
            for place in np.linspace(0, max(status.st_size - _SAMPLE, 0), _SAMPLES, dtype=np.int64):
                digest.update(os.pread(file.fileno(), _SAMPLE, int(place)))
    return digest.hexdigest()


def _looked_at(path: Path) -> Snapshot | None:
    """What a file's header says, if its length agrees."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            status = os.fstat(file.fileno())
    except OSError:
        return None
    if len(header) < _HEADER.size:
        return None
    magic, version, tokens, state, key = _HEADER.unpack(header)
    size = _HEADER.size + array("i").itemsize * tokens + state + _DIGEST
    if (magic, version, size, key.hex()) != (_MAGIC, VERSION, status.st_size, path.stem):
        return None
    return Snapshot(path, key, tokens, size, status.st_mtime)


def _abandoned(path: Path) -> bool:
    """Whether no process is at work on a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return path.exists()
    return True


def _sum(data: State) -> bytes:
    return hashlib.sha256(data.data).digest()


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _flush_folder(folder: Path) -> None:
    """Makes a rename last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
