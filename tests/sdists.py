"""Source distributions from the package index, for what only they hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from server import download


def unpacked(package: str, release: str, under: str) -> Path:
    """A folder of a package's source distribution, under its path there."""
    name = f"{package.replace('-', '_')}-{release}"
    target = download.cache_folder() / "sources" / name
    if not target.exists():
        staging = target.with_name(f".{name}.{os.getpid()}")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        archive = sdist(package, release, staging)
        with tarfile.open(archive) as sources:
            extract(sources, f"{name}/{under}", staging)
        # Another process may have been quicker; its files are the same.
        if not target.exists():
            os.rename(staging / name, target)
        shutil.rmtree(staging)
    return target


def sdist(package: str, release: str, folder: Path) -> Path:
    """The archive of a release, downloaded into a folder.

    pip asks the package for its metadata, for which it fetches build tools (as wheels); it compiles
    nothing.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", f"--no-binary={package}", "--quiet"]
    command += [f"--dest={folder}", f"{package}=={release}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("*.tar.gz")
    return archive


def extract(sources: tarfile.TarFile, under: str, folder: Path) -> None:
    """Writes the files whose paths begin with ``under`` to a folder.

    ``extractall`` with a filter is missing in the first releases of Python 3.11.
    """
    for member in sources:
        if member.isfile() and member.name.startswith(under) and ".." not in member.name:
            content = sources.extractfile(member)
            assert content is not None
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
