"""The body of a chat completion request to a ``Turn``. Form only: whether the prompt fits, the schemas
can be held to and the template takes the messages is for the runner to say.

Fields that are not known are ignored, as clients send many. Those that are known to promise something
this server would not do are refused: an answer must not look constrained when it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from server.api import limits
from server.api.fields import Field
from server.api.parts import (
    OneTurn,
    Served,
    arguments_text,
    check_model,
    check_schemas,
    flag,
    integer,
    on_bad_tool,
    refuse_promises,
    response_format,
    stops,
    tools_of,
)
from server.api.sampling import sampling, top_logprobs
from server.api.thinking import reasoning_budget, reasoning_effort, template_variables
from server.api.tool_choice import is_function, tool_choice
from server.errors import quoted
from server.turn import Message, Role, ToolCall, Turn

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PARTS = ("image_url", "input_image", "image", "video_url")
REFUSED = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "chat_template": "the model's own template is used",
    "continue_final_message": "an answer is a message of its own",
    "grammar": "use response_format or tools",
    "json_schema": "use response_format",
    "guided_json": "use response_format",
    "guided_regex": "use response_format",
    "guided_choice": "use response_format",
    "guided_grammar": "use response_format",
    "structured_outputs": "use response_format",
}


@dataclass(frozen=True, slots=True)
class ChatRequest(OneTurn):
    """A decoded request: what to answer, and in which form the client wants it."""

    turn: Turn
    stream: bool
    include_usage: bool


def decode(body: Any, served: Served, partition: str = "") -> ChatRequest:
    """Raises ``InvalidRequest`` or ``NotFound``, naming the field as ``param``."""
    root = Field(body)
    root.object()
    check_model(root, served)
    refuse_promises(root, REFUSED)
    tools = tools_of(root, _function, "parameters")
    form = response_format(root.get("response_format"), "json_schema")
    check_schemas(tools, form)
    stream = flag(root, "stream", False)
    options = root.get("stream_options")
    turn = Turn(
        messages=_messages(root),
        tools=tools,
        tool_choice=tool_choice(root.get("tool_choice"), tools),
        parallel_tool_calls=flag(root, "parallel_tool_calls", True),
        response_format=form,
        sampling=sampling(root, served.vocabulary, top_logprobs(root)),
        stop=stops(root.get("stop")),
        max_tokens=_max_tokens(root),
        choices=integer(root, "n", 1, 1, limits.CHOICES),
        partition=partition,
        reuse_prefix=flag(root, "reuse_prefix", True),
        reasoning_effort=reasoning_effort(root),
        reasoning_budget=reasoning_budget(root),
        template_variables=tuple(template_variables(root)),
        on_bad_tool=on_bad_tool(root),
        debug=flag(root, "debug", False),
    )
    return ChatRequest(turn, stream, options is not None and flag(options, "include_usage", False))


# Messages.


def _messages(root: Field) -> tuple[Message, ...]:
    messages = root.need("messages").items(limits.MESSAGES)
    if not messages:
        raise root.need("messages").wrong("must have at least one message")
    return tuple(_message(each) for each in messages)


def _message(field: Field) -> Message:
    role = cast(Role, field.need("role").word(ROLES))
    assistant = role == "assistant"
    if assistant and (call := field.get("function_call")):
        raise call.wrong("is not supported: use tool_calls", "unsupported_parameter")
    identifier = field.get("tool_call_id") if role == "tool" else None
    name = field.get("name")
    return Message(
        role=role,
        content=content_text(field.get("content")),
        reasoning=_reasoning(field) if assistant else None,
        tool_calls=_calls(field) if assistant else (),
        tool_call_id=identifier.text() if identifier else None,
        name=name.short_text(limits.HISTORY_NAME) if name and name.value != "" else None,
    )


def content_text(content: Field | None) -> str | None:
    """The text of a content: one, or parts."""
    if content is None:
        return None
    if isinstance(content.value, str):
        return content.value
    if not isinstance(content.value, list):
        raise content.mistyped("a string or an array of parts")
    return "".join(_part(each) for each in content.items(limits.PARTS_PER_MESSAGE))


def _part(part: Field) -> str:
    kind = part.need("type").text()
    if kind in TEXT_PARTS:
        text = part.object().get("text")
        return Field(text, f"{part.path}.text").text()
    if kind == "refusal":
        return part.need("refusal").text()
    if kind in IMAGE_PARTS:
        raise part.wrong("is an image, which this model cannot see", "model_has_no_vision")
    raise part.wrong(f"is of type {quoted(kind)}; only text is supported", "unsupported_content")


def _reasoning(message: Field) -> str | None:
    found = message.get("reasoning_content") or message.get("reasoning")
    return found.value if found and isinstance(found.value, str) else None


def _calls(message: Field) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    return tuple(_call(each) for each in calls.items(limits.CALLS_PER_MESSAGE)) if calls else ()


def _call(call: Field) -> ToolCall:
    kind = call.get("type")
    if kind and kind.text() != "function":
        raise kind.wrong(f"is {quoted(kind.text())}; only function calls are supported")
    function = call.need("function")
    identifier, arguments = call.get("id"), function.get("arguments")
    return ToolCall(
        id=identifier.text() if identifier else "",
        name=function.need("name").short_text(limits.HISTORY_NAME),
        arguments=arguments_text(arguments) if arguments else "{}",
    )


# Tools and schemas.


def _function(tool: Field) -> Field | None:
    return tool.need("function") if is_function(tool) else None


def _max_tokens(root: Field) -> int | None:
    """The newer of the two names counts where both are there."""
    fields = [root.get(name) for name in ("max_completion_tokens", "max_tokens")]
    values = [min(limits.TOKENS, each.integer(1)) for each in fields if each]
    return values[0] if values else None
