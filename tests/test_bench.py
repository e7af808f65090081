"""``scripts/bench``: what it makes of the rounds it has measured, and that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from benchmarks import serve, workloads  # noqa: E402
from benchmarks.servers import Answer  # noqa: E402


def spent(value: float, *, tokens: int = 10, cpu: float = 1.0) -> serve.Round:
    answer = Answer("x", 0.5, 1.0, tokens, prompt_tokens=7, decode_s=0.25)
    return serve.Round(workloads.Outcome(value, (answer,), 1.0), cpu)


def workload(name: str) -> workloads.Workload:
    return next(each for each in workloads.WORKLOADS if each.name == name)


def test_ratios_are_of_the_rounds_pair_by_pair(capsys: pytest.CaptureFixture[str]) -> None:
    found = serve.Measured(workload("plain-chat"))
    found.ours = [spent(1.0), spent(4.0), spent(9.0, cpu=3.0)]
    found.peers = [spent(2.0), spent(5.0), spent(3.0, tokens=5, cpu=2.0)]
    assert found.ratios == [0.5, 0.8, 3.0]
    assert found.cpu_ratios == pytest.approx([1.0, 1.0, 0.75])  # of a token
    assert found.holds
    serve.show([found])
    first, _, *rest = capsys.readouterr().out.splitlines()[1:]
    assert first.split() == [
        "plain-chat",
        "0.80",
        "0.50",
        "..",
        "3.00",
        "<=",
        "1.03",
        "holds",
        "1.00",
        "s/token",
    ]
    assert rest[1].split()[:5] == ["plain-chat", "ours", "4.0000", "7", "0"]


@pytest.mark.parametrize(("ours", "holds"), [(2.0, True), (1.0, False)])
def test_more_is_better_where_it_is_a_rate(ours: float, holds: bool) -> None:
    found = serve.Measured(workload("mixed"), [spent(ours)], [spent(1.0)])
    assert found.holds is holds


def test_all_servers_get_the_same_and_no_round_what_another_got() -> None:
    assert workloads.prose("a", 300) == workloads.prose("a", 300) != workloads.prose("b", 300)
    words = workloads.prose("a", 300).replace(".", " .").split()
    assert abs(len(words) - 300) < 15


def test_the_parser_is_measured() -> None:
    command = [sys.executable, "scripts/bench", "parse", "--dialect", "hermes", "--workload", "text"]
    done = subprocess.run([*command, "--size", "2000"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "trusted, pieces" in done.stdout
