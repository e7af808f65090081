"""The file of a recording: whole lines or none, whose it is, and what is not touched."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.errors import StartupFailed
from server.record_file import FIRST, RecordFile, check

HEAD = FIRST + b'{"model": "m"}}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


@contextmanager
def largest(size: int) -> Iterator[None]:
    """No file may grow beyond this size: to a program it is a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_new_file_is_for_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        check(str(path))
    finally:
        os.umask(before)
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o600, b"")


def test_lines_are_added_to_what_is_there(path: Path) -> None:
    for lines in ((HEAD, b"1"), (b"2",)):
        file = RecordFile(str(path))
        assert file.first == (b"" if lines[0] == HEAD else HEAD)
        for each in lines:
            file.add(each)
        file.close()
    assert path.read_bytes() == HEAD + b"\n1\n2\n"


@pytest.mark.parametrize("left", [b"", b"half", b"h" * 200_000])
@pytest.mark.parametrize("whole", [b"", HEAD + b"\n", HEAD + b"\n" + b"x" * 65536 + b"\n"])
def test_half_a_line_at_the_end_is_dropped(path: Path, left: bytes, whole: bytes) -> None:
    path.write_bytes(whole + (left if whole else HEAD + left))
    file = RecordFile(str(path))
    assert file.first == (HEAD if whole else b"")
    assert path.read_bytes() == whole
    file.close()


@pytest.mark.parametrize("content", [b"\n", b"dear diary", b'{"text": "a"}\n', b'{"recording"'[:-1] + b"s"])
def test_what_is_no_recording_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StartupFailed, match="is no recording"):
        check(str(path))
    assert path.read_bytes() == content


def test_a_place_that_can_have_no_file_is_said(path: Path) -> None:
    for name in (path.parent, path / "in" / "none", Path("/dev/full"), Path("/dev/null")):
        with pytest.raises(StartupFailed, match=r"cannot record to .*: ") as caught:
            check(str(name))
        assert "\n" not in caught.value.message


def test_two_servers_do_not_record_to_one_file(path: Path) -> None:
    file = RecordFile(str(path))
    with pytest.raises(StartupFailed, match="another server"):
        check(str(path))
    file.close()
    check(str(path))


def test_a_line_without_room_leaves_the_file_as_it_was(path: Path) -> None:
    file = RecordFile(str(path))
    file.add(HEAD)
    with largest(len(HEAD) + 100), pytest.raises(OSError, match="large"):
        file.add(b"x" * 200)
    assert path.read_bytes() == HEAD + b"\n"
    file.add(b"y")
    assert path.read_bytes() == HEAD + b"\ny\n"
    file.close()
