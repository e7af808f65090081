"""Whether anything that makes answers fast changes them: kept prefixes, drafts, forced tokens, company.

Varied requests at temperature 0 are answered alone with all of that off, then together with all of it on.
llama.cpp's logits move with the split of a batch, so an answer may go another way where the two likeliest
tokens are close; where they are not, that is a fault.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from driving import Said
from driving import run as driven

from benchmarks.workloads import THREE, TOOLS, TWELVE, asked, prose, record
from server.catalogue import resolve
from server.engine.choice import Choice
from server.engine.protocol import Job, SequenceId
from server.engine.sampler import Sampler
from server.runner.model import LoadedModel, load_model
from server.runner.prepare import Preparer
from server.settings import Settings
from server.turn import Message, ResponseFormat, Sampling, Tool, ToolChoice, Turn

BOUND = 1.0
"""So far apart in logits, no split of a batch should make another token the likeliest. Differences of up to
0.8 between splits were seen."""
CALLS = tuple(
    Tool(function["name"], function["description"], json.dumps(function["parameters"]))
    for function in (each["function"] for each in TOOLS)
)


def turns(count: int, seed: int) -> Iterator[Turn]:
    """Chats, calls, objects and copies, some with a system text that others have, too."""
    chance = random.Random(seed)
    systems = [(), *((Message("system", prose(f"system {number}", 150 * number)),) for number in (1, 2, 3))]
    for _ in range(count):
        kind = chance.choice((_chat, _call, _object, _copy))
        yield kind(chance.choice(systems), chance.randrange(1000))


def _turn(system: tuple[Message, ...], words: str, **fields: Any) -> Turn:
    return Turn(
        (*system, Message("user", words)), sampling=Sampling(temperature=0.0), max_tokens=96, **fields
    )


def _held(schema: dict[str, Any]) -> ResponseFormat:
    return ResponseFormat("json_schema", "answer", json.dumps(schema))


def _chat(system: tuple[Message, ...], number: int) -> Turn:
    return _turn(system, f"Tell me a long story. {asked(number)}")


def _call(system: tuple[Message, ...], number: int) -> Turn:
    choice = ToolChoice("required" if number % 3 else "auto")
    return _turn(system, asked(number), tools=CALLS, tool_choice=choice)


def _object(system: tuple[Message, ...], number: int) -> Turn:
    return _turn(system, asked(number), response_format=_held(THREE if number % 2 else TWELVE))


def _copy(system: tuple[Message, ...], number: int) -> Turn:
    lines = prose(f"copy {number}", 60)
    return _turn(
        system, f"Copy this text:\n\n{lines}", response_format=_held(record(text={"type": "string"}))
    )


@contextmanager
def watched() -> Iterator[list[float]]:
    """No token is forced; the list holds how far apart the two likeliest legal tokens were at each."""
    margins: list[float] = []
    choose = Sampler.choose

    def noted(sampler: Sampler, logits: Any, matcher: Any, *more: Any) -> int | None:
        best = np.partition(sampler._bench.scores(logits, matcher), -2)[-2:]
        margins.append(float(best[1] - best[0]))
        return choose(sampler, logits, matcher, *more)

    with (
        patch.object(Sampler, "choose", noted),
        patch.object(Choice, "_forced", lambda choice: ([], False)),
    ):
        yield margins


@dataclasses.dataclass(slots=True)
class Alone:
    """An answer with everything off."""

    said: Said
    margins: list[float]

    def at(self, place: int) -> int:
        """The number of the token that holds this byte; that of the end, after all bytes."""
        held = 0
        for number, piece in enumerate(self.said.pieces):
            held += len(piece.data)
            if place < held:
                return number
        return len(self.said.pieces)


def alone(model: LoadedModel, job: Job) -> Alone:
    bare = dataclasses.replace(job, reuse_prefix=False, drafts=False)
    with watched() as margins:
        (said,) = driven(model.engine, [bare]).values()
    return Alone(said, margins)


def verdict(before: Alone, after: Said) -> str:
    """How the answer with everything on compares."""
    expected, found = before.said.data, after.data
    if expected == found:
        return "equal"
    place = next(
        (at for at, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(found)),
    )
    number = before.at(place)
    if before.said.tokens[:number] != after.tokens[:number]:
        return "other tokens"
    margin = before.margins[number] if number < len(before.margins) else 0.0
    return "close" if margin <= BOUND else f"FAULT ({margin:.2f} apart at token {number})"


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default="qwen2.5-coder-0.5b", help="catalogue key or file (GGUF)")
    command.add_argument("--requests", type=int, default=200)
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--threads", type=int, default=0)


def run(options: argparse.Namespace) -> None:
    settings = Settings(model=str(resolve(options.model)), threads=options.threads, snapshots=False)
    model = load_model(settings)
    assert isinstance(model, LoadedModel)
    preparer = Preparer(model, settings)
    jobs = [preparer.prepare(at, turn).job for at, turn in enumerate(turns(options.requests, options.seed))]
    together = driven(model.engine, jobs)
    found: Counter[str] = Counter()
    for job in jobs:
        result = verdict(alone(model, job), together[SequenceId(job.request, 0)])
        found[result.split()[0] if result.startswith("FAULT") else result] += 1
        if result.startswith("FAULT"):
            print(f"request {job.request}: {result}", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in found.most_common()))
    model.engine.close()
    if found["FAULT"]:
        raise SystemExit(1)
