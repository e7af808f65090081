"""What a decode step costs beside llama.cpp's own work, and where that goes.

The runner's loop without its process: the engine steps, what it wrote is read, frames are encoded. Functions
of that way are timed while they run; one that is called by another counts there, too, and is told apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from benchmarks.workloads import THREE, TOOLS, asked, line, record
from server import frames
from server.catalogue import resolve
from server.engine.choice import Choice
from server.engine.llama import Context
from server.engine.sampler import Workbench
from server.runner.model import LoadedModel, load_model
from server.runner.prepare import Preparer
from server.runner.request import Request
from server.settings import Settings
from server.turn import Message, ResponseFormat, Sampling, Tool, ToolChoice, Turn

TIMED = {
    "decode": (Context, "decode"),
    "sample": (Choice, "sample"),
    "mask": (Workbench, "scores"),
    "draft": (Choice, "draft"),
    "parse": (Request, "take"),
    "frames": (frames, "encode"),
}
GREEDY, DRAWN = Sampling(temperature=0.0), Sampling(temperature=0.8, top_p=0.95, top_k=40)
CALLS = tuple(
    Tool(each["function"]["name"], each["function"]["description"], json.dumps(THREE)) for each in TOOLS
)
LONG = json.dumps(record(title=line(200), body=line(2000)))


def chat(number: int) -> Turn:
    return Turn((Message("user", f"Tell me a long story about {asked(number)}"),), sampling=GREEDY)


def drawn(number: int) -> Turn:
    return replace(chat(number), sampling=DRAWN)


def answer(number: int) -> Turn:
    return replace(chat(number), response_format=ResponseFormat("json_schema", "a", LONG))


def call(number: int) -> Turn:
    return replace(chat(number), tools=CALLS, tool_choice=ToolChoice("required"))


WORKLOADS: dict[str, Callable[[int], Turn]] = {"chat": chat, "drawn": drawn, "answer": answer, "call": call}


class Clock:
    """The seconds that functions take, by name."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(TIMED, 0.0)

    def reset(self) -> None:
        self.spent = dict.fromkeys(TIMED, 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, (owner, attribute) in TIMED.items():
                timed = self._timed(name, getattr(owner, attribute))
                stack.enter_context(patch.object(owner, attribute, timed))
            yield

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                made = function(*arguments)
                return iter(list(made)) if name == "parse" else made  # a generator works while it is read
            finally:
                self.spent[name] += time.perf_counter() - started

        return call


@dataclasses.dataclass(slots=True)
class Steps:
    """The steps of one workload, without those that computed prompts. ``own`` are the seconds of each beside
    ``decode``."""

    own: list[float] = dataclasses.field(default_factory=list)
    decode: list[float] = dataclasses.field(default_factory=list)
    parts: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(TIMED, 0.0))

    def add(self, total: float, spent: dict[str, float]) -> None:
        self.own.append(total - spent["decode"])
        self.decode.append(spent["decode"])
        for name, seconds in spent.items():
            self.parts[name] += seconds


def measured(model: LoadedModel, settings: Settings, turns: list[Turn]) -> Steps:
    """Answers all turns in one batch."""
    preparer, steps, clock = Preparer(model, settings), Steps(), Clock()
    requests = {
        number: Request(preparer.prepare(number, turn), model.engine) for number, turn in enumerate(turns)
    }
    begun: set[int] = set()
    with clock.running():
        while not all(request.done for request in requests.values()):
            clock.reset()
            started = time.perf_counter()
            answering = set()
            for progress in model.engine.step():
                answering.add(progress.sequence.request)
                for frame in requests[progress.sequence.request].take(progress):
                    frames.encode(frame)
            if answering <= begun and len(begun) == len(turns):
                steps.add(time.perf_counter() - started, clock.spent)
            begun |= answering
    return steps


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default="qwen2.5-coder-0.5b", help="catalogue key or file (GGUF)")
    command.add_argument("--workload", action="append", choices=list(WORKLOADS))
    command.add_argument("--at-once", type=int, action="append", help="answers in a batch (1 and 8)")
    command.add_argument("--tokens", type=int, default=96, help="the most of an answer")
    command.add_argument("--threads", type=int, default=0)


def run(options: argparse.Namespace) -> None:
    sizes = options.at_once or [1, 8]
    settings = Settings(
        model=str(resolve(options.model)), slots=max(sizes), threads=options.threads, snapshots=False
    )
    model = load_model(settings)
    assert isinstance(model, LoadedModel)
    print(
        f"{'workload':8} {'at once':>7} {'steps':>5} {'decode':>8} {'own':>7} {'share':>6}   of own, in ms:"
    )
    for workload in options.workload or WORKLOADS:
        for size in sizes:
            turns = [WORKLOADS[workload](number) for number in range(size)]
            turns = [replace(each, max_tokens=options.tokens) for each in turns]
            print(_shown(f"{workload:8} {size:7}", measured(model, settings, turns)), flush=True)
    print("\nMilliseconds of a step, medians; share of all time; means of what own time is made of.")
    model.engine.close()


def _shown(name: str, steps: Steps) -> str:
    own, decode = (statistics.median(each) * 1000 for each in (steps.own, steps.decode))
    share = sum(steps.own) / (sum(steps.own) + sum(steps.decode))
    parts = ", ".join(
        f"{part} {seconds / len(steps.own) * 1000:.3f}"
        for part, seconds in steps.parts.items()
        if part != "decode"
    )
    return f"{name} {len(steps.own):5} {decode:8.2f} {own:7.3f} {share:6.1%}   {parts}"
