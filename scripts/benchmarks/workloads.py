"""What the servers are asked to do. A round's texts are made from its number, so that all servers get the
same ones and no server has seen them before."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

from benchmarks.servers import Answer, Server

Fields = dict[str, Any]
TEXT = """
the a of and to in that for with on from by at as one two some each every new old small large open
long short user file order report system server model result table field value number name list item
page reads writes keeps finds checks sends returns names opens closes moves counts shows holds takes
gives always never often first last before after when where while
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one server made of a workload: ``value`` in the workload's unit, and the answers that count."""

    value: float
    answers: tuple[Answer, ...]
    wall_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    """``goal`` is the ratio to the peer's value to be reached; ``rate``: more is better."""

    name: str
    unit: str
    goal: float
    run: Callable[[Server, int, float], Outcome]
    rate: bool = False


def prose(seed: str, words: int) -> str:
    """So many plain words, about a token each."""
    chance = random.Random(seed)
    lines = []
    while words > 0:
        length = min(words, chance.randint(6, 12))
        lines.append(" ".join(chance.choices(TEXT.split(), k=length)) + ".")
        words -= length + 1
    return "\n".join(lines)


def said(role: str, content: str) -> Fields:
    return {"role": role, "content": content}


def record(**properties: Any) -> Fields:
    """An object with these properties, all of them required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def held_to(schema: Fields) -> Fields:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def line(longest: int = 16) -> Fields:
    return {"type": "string", "maxLength": longest}


def within(least: int, most: int) -> Fields:
    return {"type": "integer", "minimum": least, "maximum": most}


THREE = record(city=line(), unit={"enum": ["celsius", "fahrenheit"]}, days=within(1, 14))
TWELVE = record(
    customer_name=line(),
    customer_number=within(1, 9999),
    delivery_city=line(),
    delivery_method={"enum": ["standard delivery", "express delivery", "collection"]},
    payment_method={"enum": ["credit card", "bank transfer", "cash on delivery"]},
    gift_wrapping={"type": "boolean"},
    article_name=line(),
    article_quantity=within(1, 99),
    article_colour={"enum": ["red", "green", "blue", "black"]},
    insured_shipping={"type": "boolean"},
    order_priority={"enum": ["low priority", "normal priority", "high priority"]},
    remarks=line(),
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"The {name[4:]} of a city", "parameters": THREE},
    }
    for name in ("get_weather", "get_traffic")
]
ASK = "What will the weather be in {}, in celsius, for the next {} days?"
CITIES = ("Paris", "Oslo", "Rome", "Lima", "Cairo", "Quito", "Delhi", "Sofia")


def asked(number: int) -> str:
    return ASK.format(CITIES[number % len(CITIES)], number % 14 + 1)


def _timed(run: Callable[[], list[Answer]]) -> tuple[list[Answer], float]:
    started = time.monotonic()
    answers = run()
    return answers, time.monotonic() - started


def _whole(server: Server, fields: Fields) -> Outcome:
    """To the end of one answer."""
    answer = server.ask(fields)
    return Outcome(answer.total_s, (answer,), answer.total_s)


def _each(server: Server, fields: Fields) -> Outcome:
    """A token after the first."""
    answer = server.ask(fields)
    return Outcome(answer.each_s, (answer,), answer.total_s)


def cold_object(server: Server, number: int, _seconds: float) -> Outcome:
    """Nothing has been seen before; Toolspan's prompt has the schema in it, which a peer's may not have."""
    messages = [said("system", prose(f"cold {number}", 24)), said("user", asked(number))]
    return _whole(server, {"messages": messages, "response_format": held_to(THREE), "max_tokens": 120})


def cold_call(server: Server, number: int, _seconds: float) -> Outcome:
    """The same as a call of the one tool, which both servers write into the prompt."""
    messages = [said("system", prose(f"call {number}", 24)), said("user", asked(number))]
    choice = {"type": "function", "function": {"name": TOOLS[0]["function"]["name"]}}
    call = {"tools": TOOLS[:1], "tool_choice": choice, "parallel_tool_calls": False}
    return _whole(server, {"messages": messages, "max_tokens": 120, **call})


def next_object(server: Server, number: int, _seconds: float) -> Outcome:
    """Only the user's words are new."""
    messages = [said("user", f"Request {number}. {asked(number)}")]
    return _whole(server, {"messages": messages, "response_format": held_to(THREE), "max_tokens": 120})


def second_turn(server: Server, number: int, _seconds: float) -> Outcome:
    messages = [
        said("system", prose(f"agent {number}", 1200)),
        said("user", "Write the numbers from 1 to 200 as words."),
    ]
    first = server.ask({"messages": messages, "max_tokens": 24})
    messages += [said("assistant", first.text), said("user", "Go on with the numbers from 201 to 400.")]
    return _whole(server, {"messages": messages, "max_tokens": 24})


def four_clients(server: Server, number: int, _seconds: float) -> Outcome:
    system = said("system", prose(f"shared {number}", 1200))

    def one(client: int) -> Answer:
        messages = [system, said("user", asked(number + client))]
        return server.ask({"messages": messages, "response_format": held_to(THREE), "max_tokens": 120})

    with ThreadPoolExecutor(4) as pool:
        answers, wall = _timed(lambda: list(pool.map(one, range(4))))
    return Outcome(wall, tuple(answers), wall)


def plain_chat(server: Server, number: int, _seconds: float) -> Outcome:
    topic = f"Tell me a long story about {CITIES[number % len(CITIES)]}, number {number}."
    return _each(server, {"messages": [said("user", topic)], "max_tokens": 96})


def copy(server: Server, number: int, _seconds: float) -> Outcome:
    """The lines are code, as what agents copy is. A small model would stop early if the schema let it."""
    chance, words = random.Random(f"copy {number}"), TEXT.split()
    lines = "\n".join(
        f"{chance.choice(words)}_{chance.choice(words)} = {chance.choice(words)}({chance.randrange(100)})"
        for _ in range(40)
    )
    ask = f"Copy this file into the field text, without a change:\n\n{lines}\n"
    schema = held_to(record(text={"type": "string", "minLength": len(lines)}))
    return _each(server, {"messages": [said("user", ask)], "response_format": schema, "max_tokens": 300})


def twelve_fields(server: Server, number: int, _seconds: float) -> Outcome:
    """One order after the other: only the user's words are new."""
    return _ordered(server, "order", number)


def twelve_cold(server: Server, number: int, _seconds: float) -> Outcome:
    """The same where nothing has been seen before."""
    return _ordered(server, f"order {number}", number)


def _ordered(server: Server, system: str, number: int) -> Outcome:
    ask = f"Order {number + 2} blue lamps to {CITIES[number % len(CITIES)]} for Anna, express."
    messages = [said("system", prose(system, 24)), said("user", ask)]
    return _whole(server, {"messages": messages, "response_format": held_to(TWELVE), "max_tokens": 400})


def long_prompt(server: Server, number: int, _seconds: float) -> Outcome:
    """To the first token. Used twice, with a restart between."""
    messages = [said("system", prose(f"restart {number}", 3000)), said("user", asked(number))]
    answer = server.ask({"messages": messages, "max_tokens": 8})
    return Outcome(answer.first_s, (answer,), answer.total_s)


def mixed(server: Server, number: int, seconds: float) -> Outcome:
    """Four agents that share a system text and call a tool at every turn, and four that chat."""
    started = time.monotonic()

    def client(which: int) -> list[Answer]:
        answers = []
        requests = _requests(number, which)
        while time.monotonic() - started < seconds:
            answers.append(server.ask(next(requests)))
        return answers

    with ThreadPoolExecutor(8) as pool:
        answers, wall = _timed(lambda: [each for some in pool.map(client, range(8)) for each in some])
    return Outcome(sum(each.tokens for each in answers) / wall, tuple(answers), wall)


def _requests(number: int, which: int) -> Iterator[Fields]:
    system = said("system", prose(f"mixed {number}", 400))
    for turn in count():
        about = asked(turn * 8 + which)
        if which % 2:
            yield {"messages": [said("user", f"Tell me of {about}")], "max_tokens": 48}
        else:
            call = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
            yield {"messages": [system, said("user", about)], "max_tokens": 120, **call}


WORKLOADS = (
    Workload("cold-object", "s", 0.45, cold_object),
    Workload("cold-call", "s", 0.45, cold_call),
    Workload("next-object", "s", 0.45, next_object),
    Workload("second-turn", "s", 0.85, second_turn),
    Workload("four-clients", "s", 0.35, four_clients),
    Workload("plain-chat", "s/token", 1.03, plain_chat),
    Workload("copy", "s/token", 0.60, copy),
    Workload("twelve-fields", "s", 0.50, twelve_fields),
    Workload("twelve-cold", "s", 0.50, twelve_cold),
    Workload("mixed", "tokens/s", 1.3, mixed, rate=True),
)
RESTART = Workload("restart", "s", 0.10, long_prompt)
"""Compared with the server's own first time instead of a peer."""
