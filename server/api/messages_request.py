"""The body of an Anthropic Messages request to a ``Turn``. Form only, as in ``chat_request``.

A user's message may hold tool results and text: results become messages of their own, before the text. Fields
and tools that are not known are left out, as clients send many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server.api import limits
from server.api.fields import Field
from server.api.parts import (
    OneTurn,
    Served,
    check_model,
    check_schemas,
    flag,
    integer,
    json_text,
    number,
    on_bad_tool,
    one_of,
    schema_of,
    stops,
    tools_of,
)
from server.errors import quoted
from server.turn import Message, ResponseFormat, Sampling, Tool, ToolCall, ToolChoice, Turn

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class MessagesRequest(OneTurn):
    turn: Turn
    stream: bool


def decode(body: Any, served: Served, partition: str = "") -> MessagesRequest:
    """Raises ``InvalidRequest`` or ``NotFound``, naming the field as ``param``."""
    root = Field(body)
    root.object()
    check_model(root, served)
    tools = tools_of(root, _function, "input_schema")
    response_format = _response_format(root)
    check_schemas(tools, response_format)
    limit = root.get("max_tokens")
    choice = root.get("tool_choice")
    budget, effort = _thinking(root)
    turn = Turn(
        messages=(*_system(root.get("system")), *_messages(root.need("messages"))),
        tools=tools,
        tool_choice=_tool_choice(choice, tools),
        parallel_tool_calls=not (choice and flag(choice, "disable_parallel_tool_use", False)),
        response_format=response_format,
        sampling=_sampling(root),
        stop=stops(root.get("stop_sequences")),
        max_tokens=min(limits.TOKENS, limit.integer(1)) if limit else None,
        partition=partition,
        reasoning_budget=budget,
        reasoning_effort=effort,
        on_bad_tool=on_bad_tool(root),
        debug=flag(root, "debug", False),
    )
    return MessagesRequest(turn, flag(root, "stream", False))


def _sampling(root: Field) -> Sampling:
    default = Sampling()
    return Sampling(
        temperature=number(root, "temperature", default.temperature, limits.TEMPERATURE),
        top_p=number(root, "top_p", default.top_p, limits.PROBABILITY),
        top_k=min(limits.TOKENS, integer(root, "top_k", default.top_k, 0)),
    )


def _thinking(root: Field) -> tuple[int | None, str | None]:
    """The tokens for thoughts, and how much effort."""
    output = root.get("output_config")
    effort = output.get("effort") if output else None
    wanted = effort.word(_EFFORTS) if effort else None
    thinking = root.get("thinking")
    match thinking.need("type").word(("enabled", "disabled", "adaptive")) if thinking else "":
        case "disabled":
            return 0, "none"
        case "enabled" if thinking is not None:
            return thinking.need("budget_tokens").integer(1, limits.TOKENS), wanted or "high"
    return None, wanted


def _response_format(root: Field) -> ResponseFormat:
    """The newer of the two names counts where both are there."""
    output = root.get("output_config")
    fields = [output.get("format") if output else None, root.get("output_format")]
    forms = [_schema_form(each) for each in fields if each]
    return forms[0] if forms else ResponseFormat()


def _schema_form(field: Field) -> ResponseFormat:
    field.need("type").word(("json_schema",))
    schema = field.need("schema")
    return ResponseFormat("json_schema", None, schema_of(schema), schema.path)


# Messages.


def _system(system: Field | None) -> Iterator[Message]:
    if system is not None:
        yield Message("system", _text(system))


def _messages(messages: Field) -> Iterator[Message]:
    listed = messages.items(limits.MESSAGES)
    if not listed:
        raise messages.wrong("must have at least one message")
    for each in listed:
        match each.need("role").word(("user", "assistant", "system")):
            case "assistant":
                yield _assistant(each.need("content"))
            case "user":
                yield from _user(each.need("content"))
            case _:
                yield Message("system", _text(each.need("content")))


def _blocks(content: Field) -> list[Field]:
    """The blocks of a content; a text is one."""
    if isinstance(content.value, str):
        return [Field({"type": "text", "text": content.value}, content.path)]
    return content.items(limits.PARTS_PER_MESSAGE)


def _text(content: Field) -> str:
    return "".join(_text_of(each) for each in _blocks(content))


def _text_of(block: Field) -> str:
    kind = block.need("type").text()
    if kind == "text":
        text = block.object().get("text")
        return Field(text, f"{block.path}.text").text()
    if kind in ("image", "document"):
        raise block.wrong(f"is of type {quoted(kind)}, which this model cannot see", "model_has_no_vision")
    raise block.wrong(f"is of type {quoted(kind)}; only text is supported here", "unsupported_content")


def _user(content: Field) -> Iterator[Message]:
    """The results in a user's message, then its text."""
    texts = []
    for block in _blocks(content):
        if block.need("type").text() == "tool_result":
            yield _result(block)
        else:
            texts.append(_text_of(block))
    if texts:
        yield Message("user", "".join(texts))


def _result(block: Field) -> Message:
    content = block.get("content")
    text = _text(content) if content is not None else ""
    failed = flag(block, "is_error", False)
    identifier = block.need("tool_use_id")
    said = f"Error: {text}" if failed else text
    return Message("tool", said, tool_call_id=identifier.text(), place=identifier.path)


def _assistant(content: Field) -> Message:
    texts, thoughts, calls = [], [], []
    for block in _blocks(content):
        match block.need("type").text():
            case "tool_use":
                calls.append(_call(block))
            case "thinking":
                thoughts.append(block.need("thinking").text())
            case "redacted_thinking":
                pass
            case _:
                texts.append(_text_of(block))
    if len(calls) > limits.CALLS_PER_MESSAGE:
        raise content.wrong(f"has {len(calls)} calls, at most {limits.CALLS_PER_MESSAGE} are allowed")
    return Message("assistant", "".join(texts), "".join(thoughts) or None, tuple(calls))


def _call(block: Field) -> ToolCall:
    arguments = block.get("input")
    return ToolCall(
        id=block.need("id").text(),
        name=block.need("name").short_text(limits.HISTORY_NAME),
        arguments=json_text(arguments.object()) if arguments else "{}",
    )


# Tools.


def _function(tool: Field) -> Field | None:
    """Tools with a type are the maker's own, but for ``custom`` ones."""
    kind = tool.get("type")
    deferred = flag(tool, "defer_loading", False)
    return None if deferred or (kind is not None and kind.text() != "custom") else tool


def _tool_choice(field: Field | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if field is None:
        return ToolChoice()
    kind = field.need("type").word(("auto", "any", "tool", "none"))
    if kind in ("any", "tool") and not tools:
        raise field.wrong("asks for a call, but there are no tools")
    if kind == "tool":
        name = field.need("name").text()
        one_of(field, [name], tools)
        return ToolChoice("required", (name,))
    return ToolChoice("required" if kind == "any" else "none" if kind == "none" else "auto")
