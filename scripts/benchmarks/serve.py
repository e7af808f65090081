"""Toolspan beside another server on the same file: the same requests, in turn, and the ratios."""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.llama_server import built
from benchmarks.servers import Server, Setup, llama_cpp_python, llama_server, toolspan
from benchmarks.workloads import RESTART, WORKLOADS, Outcome, Workload
from server.catalogue import resolve

NAMES = [*(each.name for each in WORKLOADS), RESTART.name]
PEERS = ("llama-server", "llama-cpp-python")
COUNTS = ("prompt_tokens", "cached_tokens", "tokens", "forced_tokens", "drafted_tokens")
WARM_UP = 1_000_000  # the number of a round that is not counted


@dataclass(frozen=True, slots=True)
class Round:
    """One server's run of a workload, and the seconds of CPU that took (0 where the system does not say)."""

    outcome: Outcome
    cpu_s: float

    @property
    def cpu_each_s(self) -> float:
        return self.cpu_s / sum(each.tokens for each in self.outcome.answers)


@dataclass(slots=True)
class Measured:
    """The rounds of one workload, pair by pair."""

    workload: Workload
    ours: list[Round] = field(default_factory=list)
    peers: list[Round] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [our.outcome.value / peer.outcome.value for our, peer in self._pairs]

    @property
    def cpu_ratios(self) -> list[float]:
        """Of the CPU time of a token where the workload's unit has tokens, else of all."""
        each = "token" in self.workload.unit
        spent = [[one.cpu_each_s if each else one.cpu_s for one in pair] for pair in self._pairs]
        return [our / peer for our, peer in spent if peer]

    @property
    def holds(self) -> bool:
        found, goal = statistics.median(self.ratios), self.workload.goal
        return found >= goal if self.workload.rate else found <= goal

    @property
    def _pairs(self) -> list[tuple[Round, Round]]:
        return list(zip(self.ours, self.peers, strict=True))


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default="qwen2.5-coder-0.5b", help="catalogue key or file (GGUF)")
    command.add_argument("--peer", choices=PEERS, default=PEERS[0])
    command.add_argument("--llama-server", type=Path, help="a program to use instead of building one")
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--workload", action="append", choices=NAMES, help="repeatable; else all")
    command.add_argument("--threads", type=int, default=2)
    command.add_argument("--slots", type=int, default=4)
    command.add_argument("--context", type=int, default=16384, help="tokens, shared by the slots")
    command.add_argument("--seconds", type=float, default=60.0, help="how long the mixed workload goes on")
    command.add_argument("--flag", action="append", default=[], help="a flag for Toolspan (repeatable)")
    command.add_argument("--peer-flag", action="append", default=[], help="a flag for the peer (repeatable)")


def run(options: argparse.Namespace) -> None:
    setup = Setup(resolve(options.model), options.threads, options.slots, options.context)
    chosen = [each for each in WORKLOADS if each.name in (options.workload or NAMES)]
    if chosen:
        show(_compared(setup, chosen, options))
    if RESTART.name in (options.workload or NAMES):
        show([_restarted(setup, options)])


def _compared(setup: Setup, chosen: Sequence[Workload], options: argparse.Namespace) -> Iterable[Measured]:
    with (
        contextlib.closing(toolspan(setup, *options.flag)) as ours,
        contextlib.closing(_peer(setup, options)) as peer,
    ):
        for workload in chosen:
            measured = Measured(workload)
            for number in (WARM_UP, *range(options.rounds)):
                for server in (ours, peer) if number % 2 == 0 else (peer, ours):
                    _round(measured, server, number, ours is server, options.seconds)
            yield measured


def _peer(setup: Setup, options: argparse.Namespace) -> Server:
    if options.peer == "llama-cpp-python":
        return llama_cpp_python(setup, *options.peer_flag)
    return llama_server(setup, options.llama_server or built(), *options.peer_flag)


def _round(measured: Measured, server: Server, number: int, ours: bool, seconds: float) -> None:
    before = server.cpu_s()
    outcome = measured.workload.run(server, number, 1.0 if number == WARM_UP else seconds)
    if number != WARM_UP:
        (measured.ours if ours else measured.peers).append(Round(outcome, server.cpu_s() - before))


def _restarted(setup: Setup, options: argparse.Namespace) -> Measured:
    """A prompt before and after a restart: the second is ours, the first what it is compared with."""
    measured = Measured(RESTART)
    for number in range(options.rounds):
        for ours in (False, True):
            with contextlib.closing(toolspan(setup, *options.flag)) as server:
                RESTART.run(server, WARM_UP + number, 0)
                _round(measured, server, number, ours, 0)
    return measured


def show(measured: Iterable[Measured]) -> None:
    """Prints each ratio as it comes, and then what the rounds were made of."""
    print(f"{'workload':14} {'ratio':>6} {'spread':>13} {'goal':>7}        {'CPU':>6}  unit")
    found = []
    for each in measured:
        print(_ratio(each), flush=True)
        found.append(each)
    counts = "".join(f" {name:>7}" for name in ("prompt", "cached", "tokens", "forced", "drafted"))
    seconds = "".join(f" {name:>8}" for name in ("prefill", "decode", "wall", "CPU"))
    print(f"\n{'workload':14} {'server':6} {'value':>9}{counts}{seconds}")
    for each in found:
        print(_phases(f"{each.workload.name:14} ours  ", each.ours))
        print(_phases(f"{each.workload.name:14} peer  ", each.peers))
    print("\nMedians of the rounds: tokens and seconds, summed over the requests of a round.")


def _ratio(measured: Measured) -> str:
    workload, ratios = measured.workload, measured.ratios
    spread = f"{min(ratios):.2f} .. {max(ratios):.2f}"
    goal = f"{'>=' if workload.rate else '<='} {workload.goal:.2f}"
    cpu = f"{statistics.median(measured.cpu_ratios):.2f}" if measured.cpu_ratios else "-"
    return (
        f"{workload.name:14} {statistics.median(ratios):6.2f} {spread:>13} {goal:>7} "
        f"{'holds ' if measured.holds else 'missed'} {cpu:>6}  {workload.unit}"
    )


def _phases(name: str, rounds: Sequence[Round]) -> str:
    def median(of: Callable[[Round], float]) -> float:
        return statistics.median(of(each) for each in rounds)

    def summed(of: str) -> float:
        return median(lambda each: sum(getattr(answer, of) for answer in each.outcome.answers))

    counts = "".join(f" {summed(each):7.0f}" for each in COUNTS)
    seconds = "".join(f" {summed(each):8.3f}" for each in ("prefill_s", "decode_s"))
    wall, cpu = median(lambda each: each.outcome.wall_s), median(lambda each: each.cpu_s)
    value = median(lambda each: each.outcome.value)
    return f"{name} {value:9.4f}{counts}{seconds} {wall:8.3f} {cpu:8.2f}"
