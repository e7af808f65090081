"""The scripts, run in a checkout of their own where Python, pip, uv and the compiler are stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [f"scripts/{name}" for name in ("setup", "serve", "test", "check", "clients", "lock")] + [".ci/run"]
LOCKS = ["requirements.lock", "requirements-dev.lock"]
CLIENTS_LOCK = "requirements-clients.lock"
CLIENTS = [CLIENTS_LOCK, "tests/clients/package.json", "tests/clients/package-lock.json"]
TOOLS = ["basename", "cat", "cksum", "cp", "dirname", "grep", "mkdir", "mv", "rm", "sed", "sh", "tr", "uname"]

PYTHON = """#!/bin/sh
echo "python $*" >>"$LOG"
case "$*" in
    -V) echo Python 3.12.0 ;;
    "-c import sys"*) exit "${OLD:-0}" ;;
    "-c import ensurepip"*) exit "${BARE:-0}" ;;
    "-m venv"*) for folder; do :; done; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python" ;;
    "-m pip wheel"*)
        [ -z "${BROKEN_BUILD-}" ] || exit 1
        while [ "$1" != --wheel-dir ]; do shift; done
        echo "$CMAKE_ARGS" >"$2/llama.whl" ;;
esac
"""
UV = """#!/bin/sh
echo "uv $*" >>"$LOG"
[ -z "${BROKEN_UV-}" ] || exit 1
"""


class Checkout:
    """A copy of the scripts and of what they read, on a machine with few tools."""

    def __init__(self, folder: Path, machine: Path) -> None:
        self.folder = folder
        self.machine = machine
        for name in [*SCRIPTS, *LOCKS, *CLIENTS, "pyproject.toml"]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": str(self.machine / "bin"),
            "HOME": str(self.machine),
            "LOG": str(self.machine / "log"),
        } | environment
        command = [str(self.folder / script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.machine)

    def setup(self, *arguments: str, **environment: str) -> list[str]:
        """Sets up; returns the commands that mattered."""
        log = self.machine / "log"
        log.unlink(missing_ok=True)
        done = self.run("scripts/setup", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if "install -" in line or "pip install" in line or "wheel" in line]

    def builds(self) -> list[str]:
        """The options that the kept builds were made with."""
        wheels = (self.machine / ".cache/toolspan/wheels").glob("*/llama.whl")
        return sorted(wheel.read_text().strip() for wheel in wheels)


def provide(machine: Path, name: str, program: str = "#!/bin/sh\n") -> None:
    path = machine / "bin" / name
    path.write_text(program)
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A machine with the tools that every system has."""
    machine = tmp_path / "machine"
    (machine / "bin").mkdir(parents=True)
    for name in TOOLS:
        found = shutil.which(name)
        assert found
        (machine / "bin" / name).symlink_to(found)
    return machine


@pytest.fixture
def machine(bare: Path) -> Path:
    """A machine with all that is needed."""
    provide(bare, "python3", PYTHON)
    provide(bare, "uv", UV)
    provide(bare, "c++")
    provide(bare, "git")
    return bare


@pytest.fixture
def checkout(machine: Path, tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout", machine)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_and_well_formed(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)
    assert subprocess.run(["sh", "-n", ROOT / name]).returncode == 0


@pytest.mark.parametrize(
    ("tools", "environment", "packages"),
    [
        ([], {}, "python3 python3-venv g++ git"),
        (["python3"], {"OLD": "1"}, "python3.11 python3.11-venv g++ git"),
        (["python3"], {"BARE": "1"}, "python3-venv g++ git"),
        (["python3.12", "git"], {"BARE": "1"}, "python3.12-venv g++"),
        (["python3", "g++"], {}, "git"),
        (["python3", "git"], {}, "g++"),
    ],
)
@pytest.mark.skipif(os.uname().sysname == "Darwin", reason="there is no apt")
def test_what_is_missing_is_said_in_one_line(
    bare: Path, tmp_path: Path, tools: list[str], environment: dict[str, str], packages: str
) -> None:
    for tool in tools:
        provide(bare, tool, PYTHON)
    done = Checkout(tmp_path / "checkout", bare).run("scripts/setup", **environment)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"sudo apt install {packages}")
    assert not (tmp_path / "checkout/.venv").exists()


def test_setup_builds_installs_and_then_has_nothing_to_do(checkout: Checkout) -> None:
    first = checkout.setup()
    assert [line.split()[0] for line in first] == ["python", "uv", "uv", "uv"]
    assert "--require-hashes" in first[0]
    assert "--require-hashes" in first[1]
    assert first[2].endswith(".whl")
    assert first[3].endswith("--editable .")
    assert checkout.setup() == []


def test_tests_need_more_and_then_serving_needs_nothing(checkout: Checkout) -> None:
    checkout.setup("serve")
    assert [line.split()[0] for line in checkout.setup("test")] == ["uv", "uv"]
    assert checkout.setup("test") == []
    assert checkout.setup("serve") == []


@pytest.mark.parametrize("name", [*LOCKS, "pyproject.toml"])
def test_a_change_is_installed_but_not_built(checkout: Checkout, name: str) -> None:
    checkout.setup()
    with (checkout.folder / name).open("a") as file:
        file.write("# changed\n")
    assert [line.split()[0] for line in checkout.setup()] == ["uv", "uv"]


def test_a_replay_is_set_up_without_a_compiler(bare: Path, tmp_path: Path) -> None:
    for name, program in (("python3", PYTHON), ("uv", UV)):
        provide(bare, name, program)
    checkout = Checkout(tmp_path / "checkout", bare)
    (first, last) = checkout.setup("replay")
    assert "--require-hashes" in first
    assert last.endswith("--editable .")
    assert checkout.setup("replay") == []
    assert checkout.run("scripts/setup", "serve").returncode == 1
    for name in ("c++", "git"):
        provide(bare, name)
    assert [line.split()[0] for line in checkout.setup("serve")] == ["python", "uv", "uv", "uv"]
    assert checkout.setup("replay") == []


@pytest.mark.parametrize(
    "flags", [["--replay"], ["--port", "0", "--replay", "a.jsonl"], ["--replay=a.jsonl"]]
)
def test_serving_a_replay_builds_nothing(checkout: Checkout, flags: list[str]) -> None:
    checkout.setup("replay")
    program = checkout.folder / ".venv/bin/toolspan"
    program.write_text('#!/bin/sh\necho "$*"\n')
    program.chmod(0o755)
    assert checkout.run("scripts/serve", *flags).stdout == f"serve {' '.join(flags)}\n"
    assert checkout.builds() == []


def test_clients_have_an_environment_of_their_own(checkout: Checkout, machine: Path) -> None:
    checkout.setup("test")
    provide(machine, "npm", '#!/bin/sh\necho "npm $*" >>"$LOG"\n')
    (line,) = checkout.setup("clients")
    assert "--python .venv/clients/bin/python --no-deps --require-hashes" in line
    assert line.endswith(CLIENTS_LOCK)
    assert "npm ci --prefix .venv/clients " in (machine / "log").read_text()
    assert (checkout.folder / ".venv/clients/package-lock.json").exists()
    for profile in ("clients", "test", "serve"):
        assert checkout.setup(profile) == []
    with (checkout.folder / CLIENTS_LOCK).open("a") as file:
        file.write("# changed\n")
    assert checkout.setup("test") == []
    assert len(checkout.setup("clients")) == 1


def test_clients_do_without_npm_and_come_after_all_else(checkout: Checkout) -> None:
    lines = checkout.setup("clients")
    assert [line.split()[0] for line in lines] == ["python", "uv", "uv", "uv", "uv"]
    assert lines[-1].endswith(CLIENTS_LOCK)


def test_clients_that_were_not_installed_whole_are_installed_again(checkout: Checkout, machine: Path) -> None:
    provide(machine, "npm", "#!/bin/sh\nexit 1\n")
    assert checkout.run("scripts/setup", "clients").returncode != 0
    provide(machine, "npm")
    assert len(checkout.setup("clients")) == 1


def test_another_release_of_the_library_is_built(checkout: Checkout) -> None:
    checkout.setup()
    lock = checkout.folder / "requirements.lock"
    text = lock.read_text()
    lock.write_text(text.replace("llama-cpp-python==", "llama-cpp-python==1."))
    assert "wheel" in checkout.setup()[0]
    assert len(checkout.builds()) == 2


def test_a_second_checkout_takes_the_build_of_the_first(
    checkout: Checkout, machine: Path, tmp_path: Path
) -> None:
    checkout.setup()
    assert [line.split()[0] for line in Checkout(tmp_path / "second", machine).setup()] == ["uv", "uv", "uv"]


def test_build_options_have_builds_of_their_own_and_are_remembered(checkout: Checkout) -> None:
    checkout.setup()
    assert len(checkout.setup(CMAKE_ARGS="-DGGML_CUDA=on")) == 4
    assert checkout.builds() == ["", "-DGGML_CUDA=on"]
    assert checkout.setup() == []
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    assert len(checkout.setup()) == 2
    assert len(checkout.setup(CMAKE_ARGS="")) == 3
    assert checkout.setup() == []
    assert len(checkout.builds()) == 2


def test_a_failed_build_leaves_nothing_that_looks_like_one(checkout: Checkout) -> None:
    assert checkout.run("scripts/setup", BROKEN_BUILD="1").returncode != 0
    assert checkout.builds() == []
    assert len(checkout.setup()) == 4


def test_an_interrupted_installation_is_done_again(checkout: Checkout) -> None:
    checkout.setup()
    (checkout.folder / ".venv/toolspan-stamp").unlink()
    (checkout.folder / ".venv/toolspan-build").unlink()
    assert len(checkout.setup()) == 3
    assert checkout.setup() == []


def test_uv_comes_through_pip_where_it_is_missing(checkout: Checkout, machine: Path) -> None:
    (machine / "bin/uv").unlink()
    done = checkout.run("scripts/setup")
    assert done.returncode != 0
    assert "python -m pip install --quiet --disable-pip-version-check uv" in (machine / "log").read_text()


def test_serve_runs_where_the_user_is(checkout: Checkout, machine: Path) -> None:
    checkout.setup()
    program = checkout.folder / ".venv/bin/toolspan"
    program.write_text('#!/bin/sh\necho "$PWD: $*"\n')
    program.chmod(0o755)
    done = checkout.run("scripts/serve", "--model", "a b.gguf")
    assert done.stdout == f"{machine}: serve --model a b.gguf\n"


def pins(name: str) -> dict[str, Requirement]:
    lines = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    found = [Requirement(line.split("--hash")[0]) for line in lines]
    return {pin.name: pin for pin in found}


def test_the_locks_agree() -> None:
    serving, testing = map(pins, LOCKS)
    assert serving.items() <= testing.items()


@pytest.mark.parametrize("lock", [*LOCKS, CLIENTS_LOCK])
def test_the_locks_hold_what_the_project_asks_for(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    own, groups = project["project"]["dependencies"], project["dependency-groups"]
    asked = [own, own + groups["dev"], groups["clients"]][[*LOCKS, CLIENTS_LOCK].index(lock)]
    for each in map(Requirement, asked):
        (version,) = pins(lock)[each.name].specifier
        assert version.operator == "=="
        assert each.specifier.contains(version.version)


@pytest.mark.parametrize("lock", [*LOCKS, CLIENTS_LOCK])
def test_the_locks_have_hashes_and_name_no_place(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert all("--hash=sha256:" in line for line in text.replace("\\\n", "").splitlines())


def test_the_lock_of_npm_has_hashes_and_names_no_place() -> None:
    text = (ROOT / "tests/clients/package-lock.json").read_text(encoding="utf-8")
    assert "://" not in text
    packages = json.loads(text)["packages"]
    assert all(each["integrity"].startswith("sha512-") for name, each in packages.items() if name)
