"""``llama-server``, built from the same llama.cpp that Toolspan runs, for this machine's own CPU.

The sources are those in the source distribution of the installed llama-cpp-python. The program is kept in the
user's cache folder; a build takes some minutes, and needs cmake and a C++ compiler.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zlib
from importlib.metadata import version
from pathlib import Path

from sdists import extract, sdist

from server.download import cache_folder

PACKAGE = "llama-cpp-python"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def built() -> Path:
    """The program, built if it was not before."""
    release = version(PACKAGE)
    program = cache_folder() / "llama-server" / f"{release}-{_cpu()}" / "llama-server"
    if not program.exists():
        staging = program.parent.with_name(f".{program.parent.name}.{os.getpid()}")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        print(f"building llama-server of {PACKAGE} {release}: once, some minutes", file=sys.stderr)
        made = _build(_sources(release, staging), staging / "build")
        program.parent.mkdir(exist_ok=True)
        os.replace(made, program)
        shutil.rmtree(staging)
    return program


def _cpu() -> str:
    """A name for what this machine's CPU can do: a native build runs only on its like."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}-{zlib.crc32(flags.encode()):08x}"


def _sources(release: str, staging: Path) -> Path:
    """The folder of llama.cpp: the unpacked one in the cache if it is whole, else a copy in ``staging``."""
    name = f"{PACKAGE.replace('-', '_')}-{release}"
    kept = cache_folder() / "sources" / name / "vendor/llama.cpp"
    if (kept / "tools/server").exists():
        return kept
    with tarfile.open(sdist(PACKAGE, release, staging)) as archive:
        extract(archive, f"{name}/vendor/llama.cpp/", staging)
    return staging / name / "vendor/llama.cpp"


def _build(sources: Path, folder: Path) -> Path:
    jobs = str(os.cpu_count() or 1)
    _run("cmake", "-S", str(sources), "-B", str(folder), *OPTIONS)
    _run("nice", "-n", "5", "cmake", "--build", str(folder), "--target", "llama-server", "-j", jobs)
    return folder / "bin/llama-server"


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
