"""What the command line makes of the settings before a runner gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.commands import _snapshot_folder
from server.settings import Settings


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
