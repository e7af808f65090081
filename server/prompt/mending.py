"""What one chat template needs of the messages beyond what is right for all, and how it gets that.

``Needs`` are found out at load by trying (``probe``). Each need is one small pass over the messages, in the
order in which ``mended`` applies them. Where a template takes a system text only at the start, later ones are
joined to the first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from server.dialects.dialect import Dialect
from server.dialects.form import written_calls
from server.prompt.history import Rendered
from server.turn import ToolCall

SHORT_ID = 9
_BLANK_LINE = "\n\n"
_RULING = ("system", "developer")


class System(Enum):
    """Where a template takes a system text."""

    ANYWHERE = "anywhere"
    FIRST = "first"
    NOWHERE = "nowhere"


class Arguments(Enum):
    """How a template takes the arguments of a call."""

    OBJECT = "object"
    TEXT = "text"
    WRITTEN_VALUES = "written values"  # an object whose values other than text are JSON text


@dataclass(frozen=True, slots=True)
class Needs:
    """What a template does not do by itself; the defaults are a template that does everything.

    ``developer``: it knows the role. ``reasoning_key``: under which key it looks for a thought.
    ``describe_tools``: it shows no tools. ``write_calls``: it shows no calls; ``write_beside_text``: of
    text and calls in one message it shows one. ``results_as_user``: it shows no results. ``one_call``: it
    shows one call a message. ``short_ids``: call ids must be nine letters and digits. ``null_content``:
    content beside a call must be null. ``one_thought``: content and reasoning exclude each other beside a
    call. ``no_null_types``: a null type in a tool breaks it. ``alternate``: user and assistant must take
    turns, the user first. ``no_empty_answers``: an assistant message must say something. ``bridge``: the
    assistant's text to stand between a tool's result and a user.
    """

    system: System = System.ANYWHERE
    developer: bool = False
    arguments: Arguments = Arguments.OBJECT
    reasoning_key: str = "reasoning_content"
    describe_tools: bool = False
    write_calls: bool = False
    results_as_user: bool = False
    one_call: bool = False
    short_ids: bool = False
    null_content: bool = False
    write_beside_text: bool = False
    one_thought: bool = False
    no_null_types: bool = False
    alternate: bool = False
    no_empty_answers: bool = False
    bridge: str | None = None

    def but(self, **changes: Any) -> Needs:
        return replace(self, **changes)


def mended(
    messages: list[Rendered], needs: Needs, dialect: Dialect, instructions: Sequence[str] = ()
) -> list[Rendered]:
    """The messages as this template takes them. ``instructions`` are added to the system text."""
    if not needs.developer:
        messages = [_as_system(each) for each in messages]
    if needs.write_calls or needs.write_beside_text:
        messages = [
            _with_calls_written(each, dialect) if needs.write_calls or each["content"] else each
            for each in messages
        ]
    messages = _mended_calls(messages, needs)
    messages = [_with_thought(each, needs) for each in messages]
    if needs.results_as_user:
        messages = _results_as_user(messages)
    if instructions:
        messages = _instructed(messages, _BLANK_LINE.join(instructions))
    if needs.system is not System.ANYWHERE:
        messages = _system_first(messages)
    if needs.system is System.NOWHERE:
        messages = _system_to_user(messages)
    if needs.no_empty_answers:
        messages = [each for each in messages if not _says_nothing(each)]
    if needs.bridge is not None:
        messages = _bridged(messages, needs.bridge)
    if needs.alternate:
        messages = _alternating(messages)
    return messages


def _as_system(message: Rendered) -> Rendered:
    return message | {"role": "system"} if message["role"] == "developer" else message


def _with_calls_written(message: Rendered, dialect: Dialect) -> Rendered:
    """Calls as the model itself writes them, at the end of the content."""
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    written = written_calls(
        dialect,
        [ToolCall("", each["name"], json.dumps(each["arguments"], ensure_ascii=False)) for each in functions],
    )
    content = f"{message['content']}\n{written}" if message["content"] else written
    return {key: each for key, each in message.items() if key != "tool_calls"} | {"content": content}


def _mended_calls(messages: list[Rendered], needs: Needs) -> list[Rendered]:
    if needs.one_call:
        messages = _one_call_each(messages)
    if needs.short_ids:
        messages = [_with_short_ids(each) for each in messages]
    return [_mended_call(each, needs) for each in messages]


def _mended_call(message: Rendered, needs: Needs) -> Rendered:
    if not message.get("tool_calls"):
        return message
    calls = [
        call | {"function": _with_arguments_as(needs.arguments, call["function"])}
        for call in message["tool_calls"]
    ]
    content = None if needs.null_content else message["content"]
    return message | {"tool_calls": calls, "content": content}


def _with_arguments_as(form: Arguments, function: Rendered) -> Rendered:
    return function | {"arguments": _as(form, function["arguments"])}


def _as(form: Arguments, arguments: Rendered) -> Any:
    if form is Arguments.OBJECT:
        return arguments
    if form is Arguments.TEXT:
        return json.dumps(arguments, ensure_ascii=False)
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in arguments.items()
    }


def _one_call_each(messages: list[Rendered]) -> list[Rendered]:
    """Several calls of one message as several messages, each followed by its result."""
    result: list[Rendered] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            result.append(message)
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        answers = messages[at:end]
        at = end
        for call in calls:
            result.append(message | {"tool_calls": [call]})
            message = {"role": "assistant", "content": ""}
            answer = next((each for each in answers if each["tool_call_id"] == call["id"]), None)
            if answer is not None:
                answers.remove(answer)
                result.append(answer)
        result += answers
    return result


def _with_short_ids(message: Rendered) -> Rendered:
    if message["role"] == "tool":
        return message | {"tool_call_id": short_id(message["tool_call_id"])}
    calls = [call | {"id": short_id(call["id"])} for call in message.get("tool_calls", ())]
    return message | {"tool_calls": calls} if calls else message


def short_id(id: str) -> str:
    """An id of nine letters and digits that stands for this one; such an id stands for itself."""
    if len(id) == SHORT_ID and id.isascii() and id.isalnum():
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:SHORT_ID]


def _with_thought(message: Rendered, needs: Needs) -> Rendered:
    """Reasoning under the template's own key; beside a call it takes the content in, if it must."""
    thought = message.get("reasoning_content")
    if thought is None:
        return message
    result = {key: each for key, each in message.items() if key != "reasoning_content"}
    if needs.one_thought and message.get("tool_calls") and message["content"]:
        thought = thought + _BLANK_LINE + message["content"]
        result["content"] = ""
    return result | {needs.reasoning_key: thought}


def _results_as_user(messages: list[Rendered]) -> list[Rendered]:
    """Tool results as text of the user, those of one round in one message."""
    result: list[Rendered] = []
    joining = False
    for message in messages:
        if message["role"] != "tool":
            joining = False
            result.append(message)
            continue
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        if joining:
            result[-1] = {"role": "user", "content": f"{result[-1]['content']}\n{text}"}
        else:
            result.append({"role": "user", "content": text})
        joining = True
    return result


def _instructed(messages: list[Rendered], text: str) -> list[Rendered]:
    """The server's own instructions at the end of the leading system text, which is made if missing."""
    if messages and messages[0]["role"] in _RULING:
        return [_appended(messages[0], text), *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _system_first(messages: list[Rendered]) -> list[Rendered]:
    """All texts of system and developer in one message at the start."""
    ruling = [each for each in messages if each["role"] in _RULING]
    if not ruling:
        return messages
    others = [each for each in messages if each["role"] not in _RULING]
    text = _BLANK_LINE.join(each["content"] for each in ruling)
    return [{"role": ruling[0]["role"], "content": text}, *others]


def _system_to_user(messages: list[Rendered]) -> list[Rendered]:
    """A leading system text at the head of the first message, which is the user's or becomes so."""
    if not messages or messages[0]["role"] != "system":
        return messages
    text, others = messages[0]["content"], messages[1:]
    if others and others[0]["role"] == "user":
        first = others[0] | {"content": text + _BLANK_LINE + others[0]["content"]}
        return [first, *others[1:]]
    return [{"role": "user", "content": text}, *others]


def _says_nothing(message: Rendered) -> bool:
    return message["role"] == "assistant" and not message["content"] and not message.get("tool_calls")


def _bridged(messages: list[Rendered], text: str) -> list[Rendered]:
    result: list[Rendered] = []
    for message in messages:
        if message["role"] == "user" and result and result[-1]["role"] == "tool":
            result.append({"role": "assistant", "content": text})
        result.append(message)
    return result


def _alternating(messages: list[Rendered]) -> list[Rendered]:
    """Neighbours of one role joined, and the user first. Tool results are nobody's turn."""
    result: list[Rendered] = []
    for message in messages:
        before = result[-1] if result else {"role": "system"}
        if message["role"] == before["role"] and message["role"] in ("user", "assistant"):
            result[-1] = _joined(before, message)
            continue
        if message["role"] == "assistant" and before["role"] == "system":
            result.append({"role": "user", "content": ""})
        result.append(message)
    return result


def _joined(before: Rendered, after: Rendered) -> Rendered:
    result = _appended(before, after["content"] or "") if after["content"] else before
    calls = [*before.get("tool_calls", ()), *after.get("tool_calls", ())]
    return result | {"tool_calls": calls} if calls else result


def _appended(message: Rendered, text: str) -> Rendered:
    content = message["content"]
    return message | {"content": content + _BLANK_LINE + text if content else text}
