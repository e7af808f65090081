"""Prefixes on disk: what is written comes back, and nothing else does."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from server.engine import snapshots as module
from server.engine.snapshots import Snapshots, fingerprint

SPACE = 40_000
ROOT = Path(__file__).parents[1]


def tokens(count: int, first: int = 1) -> array[int]:
    return array("i", [first, *range(count - 1)])


def state(size: int = 4000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def opened(folder: Path, about: str = "model", space: int = SPACE) -> Snapshots:
    return Snapshots(folder, about, space)


def read(kept: Snapshots, asked: array[int], partition: str = "") -> np.ndarray | None:
    found = kept.longest(asked, partition, len(asked))
    return None if found is None else kept.read(found, asked[: found.tokens])


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def kept(tmp_path: Path) -> Snapshots:
    kept = opened(tmp_path)
    assert kept.write(tokens(20), "", state())
    return kept


def test_what_was_written_comes_back_after_a_start(tmp_path: Path, kept: Snapshots) -> None:
    for snapshots in (kept, opened(tmp_path)):
        got = read(snapshots, tokens(30))
        assert got is not None
        assert np.array_equal(got, state())
    (name,) = files(tmp_path)
    assert name.endswith(".prefix")
    assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_the_longest_prefix_within_the_limit_is_found(tmp_path: Path, kept: Snapshots) -> None:
    kept.write(tokens(30), "", state(seed=1))
    kept.write(tokens(40, first=9), "", state(seed=2))
    lengths = {limit: kept.longest(tokens(50), "", limit) for limit in (19, 20, 29, 30, 50)}
    assert {limit: found and found.tokens for limit, found in lengths.items()} == {
        19: None,
        20: 20,
        29: 20,
        30: 30,
        50: 30,
    }


def test_another_partition_model_or_form_finds_nothing(tmp_path: Path, kept: Snapshots) -> None:
    assert read(kept, tokens(30), "other key") is None
    assert read(opened(tmp_path, "other model"), tokens(30)) is None
    assert read(kept, tokens(30, first=2)) is None
    assert len(files(tmp_path)) == 1  # it is another's, and whole


def test_no_key_can_be_read_from_a_file(tmp_path: Path) -> None:
    opened(tmp_path).write(tokens(20), "secret-partition", state())
    (path,) = tmp_path.iterdir()
    assert b"secret" not in path.read_bytes()
    assert "secret" not in path.name


@pytest.mark.parametrize("place", [0, 8, 12, 16, 24, 40, 60, 100, 2000, -33, -1])
def test_a_flipped_bit_is_found(tmp_path: Path, kept: Snapshots, place: int) -> None:
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert read(opened(tmp_path), tokens(30)) is None
    assert read(kept, tokens(30)) is None
    assert files(tmp_path) == []
    assert read(kept, tokens(30)) is None


@pytest.mark.parametrize("length", [0, 10, 56, 100, 3000, -1])
def test_a_truncated_file_is_found(tmp_path: Path, kept: Snapshots, length: int) -> None:
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:length])
    assert read(kept, tokens(30)) is None  # it was whole when this one looked
    assert files(tmp_path) == []
    path.write_bytes(data[:length])
    assert read(opened(tmp_path), tokens(30)) is None
    assert files(tmp_path) == []


def test_a_file_under_the_name_of_another_is_found(tmp_path: Path, kept: Snapshots) -> None:
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    kept.write(tokens(25), "", state(seed=1))
    other = next(each for each in tmp_path.iterdir() if each != path)
    other.write_bytes(data)
    assert read(kept, tokens(25)) is None
    assert files(tmp_path) == [path.name]
    other.write_bytes(data)
    opened(tmp_path)
    assert files(tmp_path) == [path.name]


def test_files_of_other_versions_and_of_others(
    tmp_path: Path, kept: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "junk.prefix").write_text("junk")
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert read(opened(tmp_path), tokens(30)) is None
    assert files(tmp_path) == ["notes.txt"]


def test_a_restore_that_ends_the_process_removes_the_file(tmp_path: Path, kept: Snapshots) -> None:
    code = (
        "import os, sys; from array import array; from pathlib import Path;"
        "from server.engine.snapshots import Snapshots;"
        f"kept = Snapshots(Path({str(tmp_path)!r}), 'model', {SPACE});"
        "found = kept.longest(array('i', [1, *range(19)]), '', 20);"
        "marked = kept.restoring(found); assert marked.__enter__(); os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert done.returncode == -signal.SIGABRT, done.stderr
    (name,) = files(tmp_path)
    assert name.endswith(".restoring")
    assert read(opened(tmp_path), tokens(30)) is None
    assert files(tmp_path) == []


def test_a_restore_that_goes_well_leaves_the_file(tmp_path: Path, kept: Snapshots) -> None:
    found = kept.longest(tokens(30), "", 30)
    assert found is not None
    before = files(tmp_path)
    with kept.restoring(found) as marked:
        assert marked
        assert files(tmp_path) != before
        opened(tmp_path)  # another process starts: it sees that this one is at work
    assert files(tmp_path) == before


def test_a_file_that_is_gone_is_not_restored(tmp_path: Path, kept: Snapshots) -> None:
    found = kept.longest(tokens(30), "", 30)
    assert found is not None
    found.path.unlink()
    with kept.restoring(found) as marked:
        assert not marked
    assert kept.longest(tokens(30), "", 30) is None


def test_killed_while_writing(tmp_path: Path) -> None:
    code = (
        "import sys; from array import array; from pathlib import Path; import numpy as np;"
        "from server.engine import snapshots as module;"
        "module.os.fsync = lambda _: (print('written', flush=True), sys.stdin.read());"
        f"kept = module.Snapshots(Path({str(tmp_path)!r}), 'model', {SPACE});"
        "kept.write(array('i', [1, *range(19)]), '', np.zeros(4000, np.uint8))"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        (name,) = files(tmp_path)
        assert read(opened(tmp_path), tokens(30)) is None
        assert files(tmp_path) == [name]  # it is being written
        writer.kill()
    opened(tmp_path)
    assert files(tmp_path) == []


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    for number in range(4):
        assert kept.write(tokens(20, first=100 + number), "", state(9000))
        path = kept.longest(tokens(20, first=100 + number), "", 20)
        assert path is not None
        path.used -= 100 - number
    assert kept.size <= SPACE
    assert read(kept, tokens(20, first=100)) is not None  # used now
    assert kept.write(tokens(20, first=200), "", state(9000))
    assert kept.size == sum(path.stat().st_size for path in tmp_path.iterdir()) <= SPACE
    left = [first for first in (100, 101, 102, 103, 200) if read(kept, tokens(20, first=first)) is not None]
    assert left == [100, 102, 103, 200]


def test_a_smaller_space_is_kept_to_from_the_start(tmp_path: Path) -> None:
    for number in range(3):
        opened(tmp_path).write(tokens(20, first=100 + number), "", state(9000))
    assert opened(tmp_path, space=SPACE // 2).size <= SPACE // 2
    assert len(files(tmp_path)) == 2


def test_a_state_that_takes_much_of_the_space_is_not_written(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    assert not kept.write(tokens(20), "", state(SPACE // 4))
    assert files(tmp_path) == []


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module.os, name, fail)
        yield


@pytest.mark.parametrize("call", ["open", "fsync", "rename"])
def test_a_full_disk_is_one_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    kept = opened(tmp_path)
    caplog.set_level(logging.INFO, "toolspan.engine")
    with failing(monkeypatch, call):
        for first in (100, 101):
            assert not kept.write(tokens(20, first=first), "", state())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert os.strerror(errno.ENOSPC) in caplog.text
    assert (files(tmp_path), kept.size) == ([], 0)


def test_a_folder_that_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    kept = opened(tmp_path / "file" / "prefixes")
    assert not kept.write(tokens(20), "", state())
    assert read(kept, tokens(20)) is None
    assert len(caplog.records) == 1


def test_the_fingerprint_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    data = bytearray(os.urandom(5_000_000))
    path.write_bytes(data)
    os.utime(path, (1, 1))
    first = fingerprint(path)
    assert first == fingerprint(path)
    os.utime(path, (2, 2))
    assert fingerprint(path) != first
    for place in (0, -1):
        data[place] ^= 1
        path.write_bytes(data)
        os.utime(path, (1, 1))
        assert fingerprint(path) != first
        data[place] ^= 1


def test_the_fingerprint_of_a_model_in_parts(tmp_path: Path) -> None:
    paths = [tmp_path / f"a-0000{number}-of-00002.gguf" for number in (1, 2)]
    for path in paths:
        path.write_bytes(b"weights")
    first = fingerprint(paths[0])
    paths[1].write_bytes(b"WEIGHTS")
    assert fingerprint(paths[0]) != first


def test_the_checksum_is_of_all_bytes(tmp_path: Path, kept: Snapshots) -> None:
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
