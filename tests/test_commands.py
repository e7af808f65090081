"""What the command line makes of the settings before a runner gets them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.commands import _snapshot_folder, run
from server.settings import Settings


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Commands send the log to what is standard error while they run; tests that follow have another."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_folder_of_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/someone")
    assert _snapshot_folder(Settings()) == str(tmp_path / "toolspan" / "prefixes")
    assert _snapshot_folder(Settings(snapshots=False)) == ""
    assert _snapshot_folder(Settings(snapshot_folder="~/mine")) == "/home/someone/mine"


def test_no_cache_folder_is_one_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _snapshot_folder(Settings()) == ""
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["missing/record.jsonl", ".", "notes.txt"])
def test_a_recording_that_cannot_be_written_is_said_before_anything_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "notes.txt").write_text("dear diary\n")
    record = str(tmp_path / name)
    status = run(["serve", "--port", "0", "--model", "hf:no/body/model.gguf", "--record", record])
    assert status == 1
    assert f"cannot record to {record}: " in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "dear diary\n"


def test_what_is_replayed_is_not_recorded_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "script.jsonl"
    path.touch()
    (tmp_path / "other").symlink_to(path)
    assert run(["serve", "--port", "0", "--replay", str(path), "--record", str(tmp_path / "other")]) == 1
    assert "the same file" in capsys.readouterr().err
