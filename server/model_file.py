"""Which model files may be given to llama.cpp's loader: regular ones, whole, all parts of them there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from server import gguf
from server.errors import StartupFailed

MAX_SPLITS = 1_000


def check(path: Path) -> gguf.Header:
    """The header of a model file that may be given to the loader; of a split model (named by its first file)
    all files are looked at. Raises ``StartupFailed`` with one line that says what is wrong."""
    header = _checked(path)
    if header.splits > 1:
        names = split_names(path.name)
        if len(names) != header.splits:
            raise StartupFailed(f"{path} is one of {header.splits} parts of a model: give the first one")
        for name in names[1:]:
            _checked(path.with_name(name))
    elif header.tensors == 0:
        raise _unusable(path, "it holds no weights, only a vocabulary")
    return header


def split_names(name: str) -> list[str]:
    """All file names of a model that llama.cpp's ``gguf-split`` has split (``name-00001-of-00003.gguf``),
    given the first; for any other name that name alone."""
    stem, dot, extension = name.rpartition(".")
    head, of, total = stem.rpartition("-of-")
    base, dash, number = head.rpartition("-")
    numbered = dot and of and dash and number == "00001" and len(total) == 5 and total.isdecimal()
    if not numbered or not 1 <= int(total) <= MAX_SPLITS:
        return [name]
    return [f"{base}-{index:05d}-of-{total}.{extension}" for index in range(1, int(total) + 1)]


def _checked(path: Path) -> gguf.Header:
    try:
        with _opened(path) as file:
            return gguf.read(file, os.fstat(file.fileno()).st_size)
    except gguf.Broken as error:
        raise _unusable(path, str(error)) from None
    except OSError as error:
        reason = "it does not exist" if error.errno == errno.ENOENT else error.strerror or str(error)
        raise _unusable(path, reason) from None


def _unusable(path: Path, reason: str) -> StartupFailed:
    return StartupFailed(f"{path} is not a usable GGUF file: {reason}")


def _opened(path: Path) -> BinaryIO:
    """The file, if it is a regular one. Opening a pipe or a device could block or have effects, so the kind
    is looked at before, and again after, in case it was exchanged meanwhile."""
    _need_regular(os.stat(path))
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    try:
        _need_regular(os.fstat(file.fileno()))
    except gguf.Broken:
        file.close()
        raise
    return file


def _need_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise gguf.Broken("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise gguf.Broken("it is not a regular file")
    if status.st_size == 0:
        raise gguf.Broken("it is empty")
