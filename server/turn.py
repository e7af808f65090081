"""What a client asks for: one turn of a conversation to be answered. Pure values, no behaviour.

Every API family decodes its body to a ``Turn``; nothing past ``api/`` knows which one it was. JSON that
must keep its digits, order and big integers (schemas, arguments) travels as JSON text, type ``Json``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Json = str
"""JSON text, already known to be well formed."""

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function the model may call. ``parameters`` is its JSON Schema (``None``: takes no arguments).
    ``place``, here as below, is the path in the request's body of what an error may be about, this schema;
    where it is empty, that of a chat completion counts."""

    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool = False
    place: str = ""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call in the history. ``arguments`` is the text the client sent, an object's JSON as a rule; ``place``
    is theirs."""

    id: str
    name: str
    arguments: str
    place: str = ""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of the history; text parts are already joined. ``content`` is None where it was
    null or absent. ``place`` is that of a result's ``tool_call_id``."""

    role: Role
    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    place: str = ""


class ToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the model calls: freely (auto), never (none), always (required). ``names`` narrows which
    tools may be called; None means all of them. A named tool is ``required`` with one name."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None


class ResponseFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The form of a text answer. ``schema`` only with ``json_schema``; such an answer is always held
    to its schema, strict or not; ``place`` is the schema's."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: Json | None = None
    place: str = ""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are chosen. Ranges are OpenAI's where it has the field, else llama.cpp's.

    ``temperature`` 0 is greedy; ``top_k`` 0 is off; ``seed`` None draws one. ``logit_bias`` pairs are
    (token id, bias from -100 to 100). ``top_logprobs`` counts alternatives, None means no logprobs.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None


REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
TemplateValue = bool | int | str
TEMPLATE_VARIABLES = (
    "enable_thinking",
    "thinking",
    "thinking_mode",
    "thinking_option",
    "thinking_budget",
    "reasoning_effort",
    "preserve_thinking",
    "keep_past_thinking",
    "clear_thinking",
    "truncate_history_thinking",
    "drop_thinking",
)
"""What a client may set in its model's chat template, all of it about thinking."""


MOST_TOOLS = 128
"""Tools of one turn."""
MOST_SCHEMA_BYTES = 1024 * 1024
"""JSON text of all schemas of one turn together."""
OnBadTool = Literal["error", "drop", "relax"]


class RawPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt that is not made of messages: a text, or token ids that are taken as they are. ``markup``: the
    texts of control tokens in it are those tokens. With a ``suffix`` the answer stands between the text and
    that. ``echo``: the answer begins with the prompt."""

    content: str | tuple[int, ...]
    markup: bool = True
    suffix: str | None = None
    echo: bool = False


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request, decoded and checked for form. With a ``raw`` prompt it has neither messages nor tools.

    ``max_tokens`` None leaves it to the server; ``choices`` is OpenAI's ``n``; ``partition`` keeps
    cached prefixes of different API keys apart; ``reuse_prefix`` False computes the whole prompt anew.
    ``reasoning_budget`` is how many tokens thoughts may have, -1 any number, None what the server says.
    ``template_variables`` are passed to the chat template. ``on_bad_tool`` is what becomes of a tool whose
    schema can't be held to: an error, or it is dropped, or its arguments are any object. With ``debug`` the
    answer says how it came about. ``place`` is that of the conversation.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = ResponseFormat()
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    choices: int = 1
    partition: str = ""
    reuse_prefix: bool = True
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    template_variables: tuple[tuple[str, TemplateValue], ...] = ()
    on_bad_tool: OnBadTool = "error"
    debug: bool = False
    raw: RawPrompt | None = None
    place: str = "messages"
