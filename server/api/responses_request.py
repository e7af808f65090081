"""The body of a Responses request to a ``Turn``. Form only, as in ``chat_request``.

A request has its whole history, or goes on from a response that was kept, where the server keeps any. Items
of kinds that say nothing to a model here (web searches, references) are left out, as are fields and tools
that are not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from server.api import limits
from server.api.chat_request import content_text
from server.api.fields import Field
from server.api.parts import (
    OneTurn,
    Served,
    arguments_text,
    check_model,
    check_schemas,
    flag,
    on_bad_tool,
    refuse_promises,
    response_format,
    tools_of,
)
from server.api.sampling import sampling
from server.api.thinking import reasoning_budget
from server.api.tool_choice import is_function, tool_choice
from server.errors import quoted
from server.turn import REASONING_EFFORTS, Message, Role, ToolCall, Turn

ROLES = ("system", "developer", "user", "assistant")
REFUSED = {
    "conversation": "send the whole conversation as input",
    "prompt": "send instructions and input",
    "background": "wait for the answer, or stream it",
    "top_logprobs": "chat completions have logprobs",
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest(OneTurn):
    """``echo`` are the fields that the answer repeats, ``items`` the conversation that it answers, to be kept
    with it if ``store``."""

    turn: Turn
    stream: bool
    echo: dict[str, Any]
    items: list[Any]
    store: bool


def decode(body: Any, served: Served, partition: str = "") -> ResponsesRequest:
    """Raises ``InvalidRequest`` or ``NotFound``, naming the field as ``param``."""
    root = Field(body)
    root.object()
    check_model(root, served)
    refuse_promises(root, REFUSED)
    tools = tools_of(root, lambda tool: tool if is_function(tool) else None, "parameters")
    text = root.get("text")
    form = response_format(text.get("format") if text else None)
    check_schemas(tools, form)
    limit, thinking, instructions = (
        root.get(name) for name in ("max_output_tokens", "reasoning", "instructions")
    )
    effort = thinking.get("effort") if thinking else None
    system = [Message("system", instructions.text())] if instructions else []
    items = [*_kept(root.get("previous_response_id"), served, partition), *_items(root.need("input"))]
    store = flag(root, "store", True) and served.store is not None
    turn = Turn(
        messages=(*system, *_messages(items)),
        place="input",
        tools=tools,
        tool_choice=tool_choice(root.get("tool_choice"), tools),
        parallel_tool_calls=flag(root, "parallel_tool_calls", True),
        response_format=form,
        sampling=sampling(root, served.vocabulary),
        max_tokens=min(limits.TOKENS, limit.integer(1)) if limit else None,
        partition=partition,
        reasoning_effort=effort.word(REASONING_EFFORTS) if effort else None,
        reasoning_budget=reasoning_budget(root),
        on_bad_tool=on_bad_tool(root),
        debug=flag(root, "debug", False),
    )
    values = [each.value for each in items]
    return ResponsesRequest(turn, flag(root, "stream", False), _echo(root, store), values, store)


def _echo(root: Field, store: bool) -> dict[str, Any]:
    """What an answer says of its request, in the form in which clients expect it."""
    given = root.object()
    tools = root.get("tools")
    functions = [each.value for each in tools.items(limits.TOOLS_SENT) if is_function(each)] if tools else []
    return {
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "metadata": given.get("metadata") or {},
        "parallel_tool_calls": flag(root, "parallel_tool_calls", True),
        "previous_response_id": given.get("previous_response_id"),
        "store": store,
        "temperature": given.get("temperature"),
        "text": given.get("text") or {"format": {"type": "text"}},
        "tool_choice": given.get("tool_choice") or "auto",
        "tools": [{"parameters": None, "strict": False, **each} for each in functions],
        "top_p": given.get("top_p"),
    }


# The conversation.


def _kept(previous: Field | None, served: Served, partition: str) -> list[Field]:
    """The conversation that a request goes on from."""
    if previous is None:
        return []
    identifier = previous.text()
    if served.store is None:
        raise previous.wrong(
            "is not supported: this server keeps no responses (--store makes it); "
            "send the whole conversation as input",
            "unsupported_parameter",
        )
    found = served.store.conversation(identifier, partition)
    if found is None:
        raise previous.wrong(
            f"is {quoted(identifier)}, which is not kept here (any more)", "previous_response_not_found"
        )
    return Field(found, "previous_response_id").items(limits.MESSAGES)


def _items(given: Field) -> list[Field]:
    """What a request says itself; a text is a user's message."""
    if isinstance(given.value, str):
        return [Field({"role": "user", "content": given.value}, given.path)]
    items = given.items(limits.MESSAGES)
    if not items:
        raise given.wrong("must have at least one item")
    return items


def _messages(items: list[Field]) -> list[Message]:
    history = _History()
    if len(items) > limits.MESSAGES:
        most = limits.MESSAGES
        raise items[-1].wrong(f"is one of {len(items)} items, at most {most} are allowed", "array_too_long")
    for each in items:
        _ITEM_READERS.get(_kind(each), _leave_out)(history, each)
    return history.finished()


@dataclass(slots=True)
class _History:
    """Items on their way to messages: an assistant's thoughts, text and calls are one."""

    messages: list[Message] = field(default_factory=list)
    thoughts: str = ""
    text: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    def flush(self) -> None:
        """Ends the assistant's message, if one has begun."""
        if self.text is not None or self.calls:
            reasoning, calls = self.thoughts or None, tuple(self.calls)
            self.messages.append(Message("assistant", self.text, reasoning, calls))
        self.thoughts, self.text, self.calls = "", None, []

    def add(self, message: Message) -> None:
        self.flush()
        self.messages.append(message)

    def finished(self) -> list[Message]:
        self.flush()
        return self.messages


def _kind(item: Field) -> str:
    kind = item.get("type")
    return kind.text() if kind else "message"


def _message(history: _History, item: Field) -> None:
    role = item.need("role").word(ROLES)
    text = content_text(item.get("content"))
    if role != "assistant":
        history.add(Message(cast(Role, role), text))
        return
    if history.text is not None or history.calls:
        history.flush()
    history.text = text or ""


def _call(history: _History, item: Field) -> None:
    if len(history.calls) >= limits.CALLS_PER_MESSAGE:
        raise item.wrong(f"is one of more than {limits.CALLS_PER_MESSAGE} calls in a row")
    history.calls.append(
        ToolCall(
            id=item.need("call_id").text(),
            name=item.need("name").short_text(limits.HISTORY_NAME),
            arguments=arguments_text(item.need("arguments")),
            place=f"{item.path}.arguments",
        )
    )


def _result(history: _History, item: Field) -> None:
    text = content_text(item.get("output"))
    identifier = item.need("call_id")
    history.add(Message("tool", text or "", tool_call_id=identifier.text(), place=identifier.path))


def _thought(history: _History, item: Field) -> None:
    """The thought itself where it is given, else its summary."""
    if history.text is not None or history.calls:
        history.flush()
    parts = item.get("content") or item.get("summary")
    listed = parts.items(limits.PARTS_PER_MESSAGE) if parts else []
    history.thoughts += "".join(_texts(listed))


def _texts(parts: list[Field]) -> Iterator[str]:
    for each in parts:
        yield each.need("text").text()


def _leave_out(history: _History, item: Field) -> None:
    """An item that is not shown to the model."""


_ITEM_READERS = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _result,
    "reasoning": _thought,
}
