"""Real client libraries against the built-in script, one character at a time. They have an environment of
their own, made by ``scripts/setup clients``; each program in ``tests/clients`` talks of all it can, twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import ROOT, Serving, playing

CLIENTS = Path(sys.prefix) / "clients"
PROGRAMS = ROOT / "tests" / "clients"
PYTHON = sorted(path.name for path in PROGRAMS.glob("*.py") if path.name != "meter.py")
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("clients"), {"builtin": True}, chunk=1) as running:
        yield running


def conversations(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The names of those that a program has had, of which each has to be there twice."""
    assert done.returncode == 0, done.stderr[-4000:]
    names = done.stdout.split()
    half = len(names) // 2
    assert names[:half] == names[half:]
    return names[:half]


@pytest.mark.skipif(not (CLIENTS / "bin/python").exists(), reason="scripts/setup clients was not run")
@pytest.mark.parametrize("program", PYTHON)
def test_clients_of_python(server: Serving, program: str, tmp_path: Path) -> None:
    command = [str(CLIENTS / "bin/python"), str(PROGRAMS / program), f"{server.url}/v1"]
    environment = ENVIRONMENT | {"HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert {"chat", "chat_streamed", "responses"} <= set(conversations(done))


@pytest.mark.skipif(
    not (CLIENTS / "node_modules").exists() or not shutil.which("node"),
    reason="there is no node, or scripts/setup clients was not run",
)
def test_the_client_of_node(server: Serving) -> None:
    program = (PROGRAMS / "openai_node.mjs").read_text(encoding="utf-8")
    command = ["node", "--input-type=module", "-", f"{server.url}/v1"]
    done = subprocess.run(
        command, input=program, cwd=CLIENTS, env=ENVIRONMENT, capture_output=True, text=True, timeout=240
    )
    assert conversations(done) == ["chat", "chat_streamed", "responses_streamed"]
