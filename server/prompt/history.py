"""The messages of a turn as the dictionaries a chat template takes, right for every template.

Content is text, arguments are objects, calls and results belong together by id and stand in the same order,
and every text of the client has passed through ``hide``. What one template needs beyond that is the business
of ``mending``. The order of messages is the client's, but for results, which are sorted into the order of
their calls.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import msgspec

from server.errors import InvalidRequest
from server.turn import Message, ToolCall

Rendered = dict[str, Any]
Hide = Callable[[str], str]

ARGUMENTS_DEPTH = 64
"""Nested objects and arrays in the arguments of a call."""


def conversation(
    messages: Sequence[Message], hide: Hide, reasoning: tuple[str, str] | None = None
) -> list[Rendered]:
    """The messages as a lenient template takes them. ``reasoning`` are the dialect's markers of a thought.

    Raises ``InvalidRequest`` naming the field for arguments that are no JSON object, and for a result of no
    call.
    """
    ids = _Ids(messages)
    apart = [_thought_apart(message, reasoning) for message in messages]
    rendered = [_message(message, index, ids, hide) for index, message in enumerate(apart)]
    return _results_in_call_order(rendered)


def _thought_apart(message: Message, reasoning: tuple[str, str] | None) -> Message:
    """An answer that begins with a whole thought between its markers, as servers write it that know no
    field for it: the thought in its field, so that the template does with it what it does with thoughts."""
    if reasoning is None or message.role != "assistant" or message.reasoning or not message.content:
        return message
    opener, closer = reasoning
    content = message.content.lstrip()
    if not content.startswith(opener) or closer not in content:
        return message
    thought, _, answer = content.removeprefix(opener).partition(closer)
    return msgspec.structs.replace(message, reasoning=thought.strip("\n"), content=answer.lstrip("\n"))


def _message(message: Message, index: int, ids: _Ids, hide: Hide) -> Rendered:
    result: Rendered = {"role": message.role, "content": hide(message.content or "")}
    if message.role == "tool":
        id, name = ids.answered(message, index)
        return result | {"tool_call_id": hide(id), "name": hide(name)}
    if message.name:
        result["name"] = hide(message.name)
    if message.role == "assistant":
        if message.reasoning:
            result["reasoning_content"] = hide(message.reasoning)
        if message.tool_calls:
            result["tool_calls"] = [
                _call(hide(id), hide(call.name), mapped(_arguments(call, index, at), hide))
                for at, (id, call) in enumerate(zip(ids.opened(message), message.tool_calls, strict=True))
            ]
    return result


def _call(id: str, name: str, arguments: Any) -> Rendered:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


class _Ids:
    """Pairs calls and results, message by message: by id, or in order where ids are missing or differ."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._taken = {call.id for message in messages for call in message.tool_calls}
        self._taken |= {message.tool_call_id or "" for message in messages}
        self._asked_for = {message.tool_call_id for message in messages if message.role == "tool"}
        self._open: list[tuple[str, str]] = []  # id and name of calls without a result so far
        self._made = 0

    def opened(self, message: Message) -> list[str]:
        """The ids of a message's calls, those that are missing filled in."""
        ids = [call.id or self._made_up() for call in message.tool_calls]
        self._open += [(id, call.name) for id, call in zip(ids, message.tool_calls, strict=True)]
        return ids

    def answered(self, message: Message, index: int) -> tuple[str, str]:
        """Id and name of the call that a result belongs to: the open one of its id, or the first open one
        that no result asks for. A result of no call would be text of unknown origin that the model trusts."""
        given = message.tool_call_id
        same = (at for at, (id, _) in enumerate(self._open) if id == given)
        unasked = (at for at, (id, _) in enumerate(self._open) if not given or id not in self._asked_for)
        for at in itertools.chain(same, unasked):
            return self._open.pop(at)
        field = message.place or f"messages[{index}].tool_call_id"
        raise InvalidRequest(
            f"{field} must be that of an earlier call without a result: it answers none", param=field
        )

    def _made_up(self) -> str:
        while True:
            self._made += 1
            id = f"call{self._made:05d}"
            if id not in self._taken:
                return id


def _arguments(call: ToolCall, message: int, at: int) -> dict[str, Any]:
    return _object(call.arguments, call.place or f"messages[{message}].tool_calls[{at}].function.arguments")


def _object(text: str, param: str) -> dict[str, Any]:
    """The arguments of a call in the history. A JSON text inside JSON text is unwrapped, no text at all
    and null are no arguments."""
    value: Any = text
    for _ in range(3):
        if not isinstance(value, str):
            break
        value = _decoded(value, param) if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse_arguments(param, "must be a JSON object")
    if _too_deep(value):
        _refuse_arguments(param, f"must not be nested deeper than {ARGUMENTS_DEPTH} levels")
    return value


def _decoded(text: str, param: str) -> Any:
    def finite(number: str) -> float:
        if not math.isfinite(float(number)):
            raise ValueError(number)
        return float(number)

    try:
        return json.loads(text, parse_constant=finite, parse_float=finite, strict=False)
    except (ValueError, RecursionError):
        _refuse_arguments(param, "must be the JSON text of an object")


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(ARGUMENTS_DEPTH + 1):
        level = [inner for each in level for inner in _items(each)]
    return bool(level)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_arguments(param: str, why: str) -> NoReturn:
    raise InvalidRequest(f"{param} {why}", code="invalid_arguments", param=param)


def _results_in_call_order(messages: list[Rendered]) -> list[Rendered]:
    """Each run of results sorted by their calls; ids that come again are told apart by position."""
    ordered: list[Rendered] = []
    calls: list[str] = []
    run: list[Rendered] = []
    for message in [*messages, {"role": ""}]:
        if message["role"] == "tool":
            run.append(message)
            continue
        run.sort(key=lambda each: _place(calls, each["tool_call_id"]))
        ordered += run
        run = []
        if message.get("tool_calls"):
            calls = [call["id"] for call in message["tool_calls"]]
        ordered.append(message)
    return ordered[:-1]


def _place(calls: list[str], id: str) -> int:
    return calls.index(id) if id in calls else -1


def mapped(value: Any, change: Hide) -> Any:
    """A copy of decoded JSON with every text changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): mapped(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [mapped(each, change) for each in value]
    return value
