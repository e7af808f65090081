"""The built-in script: what is said to a request where no file says it, so that any agent's loop can be run.

It calls a tool, and when there is a result says it. Everything is taken from the request: nothing is
remembered, and the same request gets the same answer. ``docs/replay.md`` tells the rules to users.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from server.dialects.values import in_json
from server.errors import InvalidRequest, quoted
from server.schema.cache import Prepared
from server.schema.references import Schema
from server.schema.writer import LENGTH_LIMIT, NoShortValue, ValueWriter
from server.turn import Json, Message, ToolCall, Turn

NOTHING_ELSE = "This is a replay: no model has read the message."
"""What is said where there is nothing to call and no result."""
_BEFORE_BARE = "Result: "
_BARE = ("{", "[", "```")
_COMMANDS = ("command", "cmd")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as scripts see it: the tools that may be called with their schemas, the schema of a response
    format, and whether a thought may come first."""

    turn: Turn
    prompt: str
    tools: Mapping[str, Prepared]
    response: Prepared | None = None
    thoughts: bool = True


@dataclass(frozen=True, slots=True)
class Said:
    """The parts of an answer, in this order."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


def said(asked: Asked) -> Said:
    """The built-in script's answer. Raises ``InvalidRequest`` where a schema has no value short enough."""
    results = _results(asked.turn.messages)
    if asked.turn.tool_choice.mode == "required" or (asked.tools and results is None):
        return Said(calls=(_call(asked),))
    if asked.response is not None:
        with _short_enough("the response format"):
            return Said(text=ValueWriter(asked.response.lowered.text).finish())
    return Said(text=NOTHING_ELSE if results is None else _as_text(results, asked.tools))


def _as_text(result: str, tools: Iterable[str]) -> str:
    """A result with a word before it where an answer that begins so may be a call without its markers."""
    may_call = result.lstrip().startswith(_BARE) and any(in_json(name) in result for name in tools)
    return f"{_BEFORE_BARE}{result}" if may_call else result


def _results(messages: Sequence[Message]) -> str | None:
    """The results that no answer has followed so far, or that follow the last words of the user."""
    since_answer = list(takewhile(lambda each: each.role != "assistant", reversed(messages)))
    since_user = takewhile(lambda each: each.role != "user", reversed(messages))
    latest = [each for each in since_answer if each.role == "tool"] or [
        each for each in since_user if each.role == "tool"
    ]
    return "\n".join(each.content or "" for each in reversed(latest)) if latest else None


def _words(messages: Sequence[Message]) -> list[str]:
    """What the user said since the last answer, the last message first; else what the user said last."""
    new = list(takewhile(lambda each: each.role != "assistant", reversed(messages)))
    said_new = [each.content or "" for each in new if each.role == "user"]
    return said_new or [each.content or "" for each in reversed(messages) if each.role == "user"][:1]


def _call(asked: Asked) -> ToolCall:
    words = _words(asked.turn.messages)
    name = _chosen(asked.tools, words)
    texts = next(filter(None, map(_in_backticks, words)), [])
    with _short_enough(f"the arguments of {quoted(name)}"):
        return ToolCall("", name, _arguments(asked.tools[name], texts))


def _chosen(tools: Mapping[str, Prepared], words: Sequence[str]) -> str:
    """The tool that is named, else one that runs commands, else the first."""
    for text in words:
        places = {name: place for name in tools if (place := _place(name, text)) is not None}
        if places:
            return min(places, key=lambda name: (places[name], -len(name)))
    return next((name for name, schema in tools.items() if _takes_command(schema)), next(iter(tools)))


def _takes_command(schema: Prepared) -> bool:
    kinds = _kinds(schema.checked.schema)
    return any("string" in kinds.get(each, ()) for each in _COMMANDS)


def _place(name: str, text: str) -> int | None:
    """Where a name stands in a text as a word of its own."""
    found = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)
    return found.start() if found else None


def _in_backticks(text: str) -> list[str]:
    return [each for each in text.split("`")[1::2] if each.strip()]


def _arguments(schema: Prepared, texts: list[str]) -> Json:
    """The required arguments, and a command where there is one. Texts get one of ``texts`` each: the last the
    last, and where there are more arguments, those at the beginning the first. All others get a short value,
    and so does one that its text does not fit."""
    kinds = _kinds(schema.checked.schema)
    textual = [key for key in kinds if "string" in kinds[key]]
    required = _listed(schema.checked.schema, "required")
    keys = [key for key in kinds if key in required or (key in _COMMANDS and key in textual)]
    taking = [key for key in keys if key in textual]
    spread = texts[:1] * len(taking) + texts[1:]
    given = dict(zip(taking, spread[len(spread) - len(taking) :], strict=False))
    writer = ValueWriter(schema.lowered.text)
    writer.say("{")
    for number, key in enumerate(keys):
        if not writer.say(f"{', ' if number else ''}{in_json(key)}: "):
            break  # the schema's own order is another: what is required comes with the end
        if key not in given or not writer.say(in_json(given[key])):
            writer.say_short()
    return writer.finish()


def _kinds(schema: Schema) -> dict[str, list[object]]:
    """The types that each declared argument may have."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared = properties if isinstance(properties, dict) else {}
    return {name: _listed(each, "type") for name, each in declared.items()}


def _listed(schema: object, keyword: str) -> list[object]:
    value = schema.get(keyword, []) if isinstance(schema, dict) else []
    return value if isinstance(value, list) else [value]


@contextmanager
def _short_enough(what: str) -> Iterator[None]:
    try:
        yield
    except NoShortValue:
        raise InvalidRequest(
            f"the built-in script found no value of {LENGTH_LIMIT} bytes or less for {what}",
            code="no_scripted_answer",
        ) from None
