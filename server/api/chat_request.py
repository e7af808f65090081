"""The body of a chat completion request to a ``Turn``. Form only: whether the prompt fits, the schemas
can be held to and the template takes the messages is for the runner to say.

Fields that are not known are ignored, as clients send many. Those that are known to promise something
this server would not do are refused: an answer must not look constrained when it is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from server.api import limits
from server.api.fields import Field
from server.api.parts import (
    Served,
    check_model,
    check_schemas,
    flag,
    integer,
    json_text,
    name_of,
    number,
    on_bad_tool,
    one_of,
    schema_of,
    stops,
    tools_of,
)
from server.api.thinking import reasoning_budget, reasoning_effort, template_variables
from server.errors import quoted
from server.turn import Message, ResponseFormat, Role, Sampling, Tool, ToolCall, ToolChoice, Turn

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PARTS = ("image_url", "input_image", "image", "video_url")
REFUSED = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "chat_template": "the model's own template is used",
    "grammar": "use response_format or tools",
    "json_schema": "use response_format",
    "guided_json": "use response_format",
    "guided_regex": "use response_format",
    "guided_choice": "use response_format",
    "guided_grammar": "use response_format",
    "structured_outputs": "use response_format",
}
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A decoded request: what to answer, and in which form the client wants it."""

    turn: Turn
    stream: bool
    include_usage: bool


def decode(body: Any, served: Served, partition: str = "") -> ChatRequest:
    """Raises ``InvalidRequest`` or ``NotFound``, naming the field as ``param``."""
    root = Field(body)
    root.object()
    check_model(root, served)
    _refuse_promises(root)
    tools = tools_of(root, _function, "parameters")
    response_format = _response_format(root)
    check_schemas(tools, response_format)
    stream = flag(root, "stream", False)
    options = root.get("stream_options")
    turn = Turn(
        messages=_messages(root),
        tools=tools,
        tool_choice=_tool_choice(root, tools),
        parallel_tool_calls=flag(root, "parallel_tool_calls", True),
        response_format=response_format,
        sampling=_sampling(root, served.vocabulary),
        stop=stops(root.get("stop")),
        max_tokens=_max_tokens(root),
        choices=integer(root, "n", 1, 1, limits.CHOICES),
        partition=partition,
        reuse_prefix=flag(root, "reuse_prefix", True),
        reasoning_effort=reasoning_effort(root),
        reasoning_budget=reasoning_budget(root),
        template_variables=tuple(template_variables(root)),
        on_bad_tool=on_bad_tool(root),
    )
    return ChatRequest(turn, stream, options is not None and flag(options, "include_usage", False))


def _refuse_promises(root: Field) -> None:
    for name, instead in REFUSED.items():
        field = root.get(name)
        if field is not None and field.value != []:
            raise field.wrong(f"is not supported: {instead}", "unsupported_parameter")


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
        content=_content(field),
        reasoning=_reasoning(field) if assistant else None,
        tool_calls=_calls(field) if assistant else (),
        tool_call_id=identifier.text() if identifier else None,
        name=name.short_text(limits.HISTORY_NAME) if name and name.value != "" else None,
    )


def _content(message: Field) -> str | None:
    content = message.get("content")
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
    identifier = call.get("id")
    return ToolCall(
        id=identifier.text() if identifier else "",
        name=function.need("name").short_text(limits.HISTORY_NAME),
        arguments=_arguments(function.get("arguments")),
    )


def _arguments(field: Field | None) -> str:
    if field is None:
        return "{}"
    return json_text(field.value) if isinstance(field.value, dict) else field.text()


# Tools and schemas.


def _function(tool: Field) -> Field | None:
    return tool.need("function") if _is_function(tool) else None


def _is_function(tool: Field) -> bool:
    """Other kinds (web search, namespaces, custom tools) are skipped: clients offer what they have."""
    kind = tool.get("type")
    return kind is None or kind.text() == "function"


def _response_format(root: Field) -> ResponseFormat:
    field = root.get("response_format")
    if field is None:
        return ResponseFormat()
    kind = field.need("type").word(("text", "json_object", "json_schema"))
    if kind != "json_schema":
        return ResponseFormat("json_object" if kind == "json_object" else "text")
    described = field.need("json_schema")
    flag(described, "strict", False)  # held to the schema either way
    name = described.get("name")
    return ResponseFormat(
        "json_schema", name_of(name, "invalid_value") if name else None, schema_of(described.need("schema"))
    )


# Tool choice.

Mode = Literal["auto", "none", "required"]


def _tool_choice(root: Field, tools: tuple[Tool, ...]) -> ToolChoice:
    field = root.get("tool_choice")
    if field is None:
        return ToolChoice()
    if not isinstance(field.value, str | dict):
        raise field.mistyped("a string or an object")
    choice = _bare_choice(field) if isinstance(field.value, str) else _narrowed(field)
    if choice.mode == "required" and not tools:
        raise field.wrong("asks for a call, but there are no function tools")
    one_of(field, choice.names or (), tools)
    return choice


def _bare_choice(field: Field) -> ToolChoice:
    return ToolChoice(cast(Mode, field.word(("auto", "none", "required"))))


def _narrowed(field: Field) -> ToolChoice:
    """``{"type": "function", ...}`` or ``{"type": "allowed_tools", ...}``, nested as chat completions
    have it or flat as responses do."""
    if field.need("type").word(("function", "allowed_tools")) == "function":
        return ToolChoice("required", (_function_name(field),))
    allowed = field.get("allowed_tools") or field
    mode = allowed.get("mode")
    names = tuple(_allowed_names(allowed.need("tools")))
    if not names:
        raise allowed.need("tools").wrong("must name at least one function")
    return ToolChoice(cast(Mode, mode.word(("auto", "required"))) if mode else "auto", names)


def _allowed_names(tools: Field) -> Iterator[str]:
    for each in tools.items(limits.TOOLS_SENT):
        if _is_function(each):
            yield _function_name(each)


def _function_name(field: Field) -> str:
    return (field.get("function") or field).need("name").text()


# Sampling and lengths.


def _sampling(root: Field, vocabulary: int) -> Sampling:
    default = Sampling()
    seed = root.get("seed")
    return Sampling(
        temperature=number(root, "temperature", default.temperature, limits.TEMPERATURE),
        top_p=number(root, "top_p", default.top_p, limits.PROBABILITY),
        top_k=min(limits.TOKENS, max(0, integer(root, "top_k", default.top_k, -1))),
        min_p=number(root, "min_p", default.min_p, limits.PROBABILITY),
        frequency_penalty=number(root, "frequency_penalty", default.frequency_penalty, limits.PENALTY),
        presence_penalty=number(root, "presence_penalty", default.presence_penalty, limits.PENALTY),
        repeat_penalty=number(root, "repeat_penalty", default.repeat_penalty, limits.REPEAT_PENALTY),
        seed=seed.integer() % 2**32 if seed else None,
        logit_bias=_logit_bias(root, vocabulary),
        top_logprobs=_top_logprobs(root),
    )


def _logit_bias(root: Field, vocabulary: int) -> tuple[tuple[int, float], ...]:
    field = root.get("logit_bias")
    if field is None:
        return ()
    biases = field.object()
    if len(biases) > limits.BIASES:
        raise field.wrong(f"has {len(biases)} entries, at most {limits.BIASES} are allowed")
    return tuple(_bias(field, key, value, vocabulary) for key, value in biases.items())


def _bias(field: Field, key: str, value: Any, vocabulary: int) -> tuple[int, float]:
    if not _TOKEN_ID.fullmatch(key) or int(key) >= vocabulary:
        raise field.wrong(f"has the key {quoted(key)}, which is no token id of this model")
    return int(key), Field(value, f"{field.path}.{key}").number(limits.BIAS)


def _top_logprobs(root: Field) -> int | None:
    wanted = flag(root, "logprobs", False)
    top = root.get("top_logprobs")
    if top and not wanted and top.integer(0, limits.TOP_LOGPROBS):
        raise top.wrong("needs logprobs to be true")
    return integer(root, "top_logprobs", 0, 0, limits.TOP_LOGPROBS) if wanted else None


def _max_tokens(root: Field) -> int | None:
    """The newer of the two names counts where both are there."""
    fields = [root.get(name) for name in ("max_completion_tokens", "max_tokens")]
    values = [min(limits.TOKENS, each.integer(1)) for each in fields if each]
    return values[0] if values else None
