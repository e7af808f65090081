"""Which recorded request a request is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from server.runner.matching import Requests
from server.turn import Message, RawPrompt, Sampling, Tool, ToolCall, ToolChoice, Turn

TOOL = Tool("get", parameters="{}", place="tools[0].function.parameters")


def loop(first: str = "a", second: str = "b", **fields: Any) -> Turn:
    """A conversation with two calls and their results, by ids."""
    calls = (ToolCall(first, "get", "{}", place="x"), ToolCall(second, "get", '{"a": 1}'))
    results = (Message("tool", "1", tool_call_id=first, place="y"), Message("tool", "2", tool_call_id=second))
    return Turn((Message("user", "Hi"), Message("assistant", tool_calls=calls), *results), (TOOL,), **fields)


@pytest.mark.parametrize(
    "turn",
    [
        loop("call_1", "call_2"),
        loop(partition="of a key"),
        loop(debug=True),
        loop(reuse_prefix=False),
        loop(place="input"),
        replace(loop(), tools=(replace(TOOL, place="tools[0].parameters"),)),
    ],
)
def test_the_same_request_is_found(turn: Turn) -> None:
    assert Requests([(3, loop())]).entry(turn) == 3


@pytest.mark.parametrize(
    ("turn", "where"),
    [
        (loop("a", "a"), "messages[1]"),
        (replace(loop(), messages=(Message("user", "Hi!"), *loop().messages[1:])), "messages[0]"),
        (replace(loop(), messages=loop().messages[:3]), "messages[3]"),
        (replace(loop(), messages=(*loop().messages, Message("user", "More"))), "messages[4]"),
        (replace(loop(), tools=()), "tools"),
        (loop(tool_choice=ToolChoice("none"), choices=2), "tool_choice, choices"),
        (loop(sampling=Sampling(temperature=0.5)), "sampling"),
        (loop(max_tokens=7), "max_tokens"),
        (loop(raw=RawPrompt("Hi")), "raw"),
    ],
)
def test_another_is_not_and_it_is_said_where_it_differs(turn: Turn, where: str) -> None:
    requests = Requests([(1, Turn((Message("user", "Bye"),))), (2, loop()), (3, loop(stop=("x",)))])
    assert requests.entry(turn) is None
    assert requests.difference(turn) == where


def test_results_of_swapped_calls_are_another_conversation() -> None:
    first, second, *results = loop().messages
    swapped = replace(loop(), messages=(first, second, *reversed(results)))
    assert Requests([(1, loop())]).entry(swapped) is None


def test_entries_of_one_request_take_turns() -> None:
    requests = Requests([(1, loop()), (2, loop(stop=("x",))), (3, loop("c", "d"))])
    assert [requests.entry(loop()) for _ in range(5)] == [1, 3, 1, 3, 1]
    assert requests.entry(loop(stop=("x",))) == 2
