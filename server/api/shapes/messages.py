"""Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field
from typing_extensions import TypedDict

from server.api import limits
from server.api.shapes.chat import Timings, Warnings
from server.api.shapes.common import (
    Count,
    Debug,
    DebugData,
    HistoryName,
    MessagesError,
    OnBadTool,
    Schema,
    Stops,
    ToolName,
    but,
)


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


_Texts = Annotated[list[TextBlock], Field(max_length=limits.PARTS_PER_MESSAGE)]


class ResultBlock(TypedDict, total=False):
    type: Required[Literal["tool_result"]]
    tool_use_id: Required[str]
    content: str | _Texts | None
    is_error: bool | None


class UseBlock(TypedDict, total=False):
    type: Required[Literal["tool_use"]]
    id: Required[str]
    name: Required[HistoryName]
    input: dict[str, Any] | None


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str


class RedactedBlock(TypedDict):
    type: Literal["redacted_thinking"]


class UserMessage(TypedDict):
    role: Literal["user"]
    content: str | Annotated[list[TextBlock | ResultBlock], Field(max_length=limits.PARTS_PER_MESSAGE)]


class AssistantTurn(TypedDict):
    role: Literal["assistant"]
    content: (
        str
        | Annotated[
            list[TextBlock | UseBlock | ThinkingBlock | RedactedBlock],
            Field(max_length=limits.PARTS_PER_MESSAGE),
        ]
    )


class SystemMessage(TypedDict):
    role: Literal["system"]
    content: str | _Texts


class CustomTool(TypedDict, total=False):
    type: Literal["custom"] | None
    name: Required[ToolName]
    description: str | None
    input_schema: Schema | None
    strict: bool | None
    defer_loading: Literal[False] | None


class DeferredTool(TypedDict, total=False):
    """A tool that is not offered yet; it is skipped."""

    type: str | None
    defer_loading: Required[Literal[True]]


class MakersTool(TypedDict, total=False):
    """A tool of the maker's own; it is skipped."""

    type: Required[Annotated[str, but("custom")]]
    defer_loading: bool | None


class AnyChoice(TypedDict, total=False):
    type: Required[Literal["auto", "any", "none"]]
    disable_parallel_tool_use: bool | None


class ToolChoice(TypedDict, total=False):
    type: Required[Literal["tool"]]
    name: Required[str]
    disable_parallel_tool_use: bool | None


class ThinkingEnabled(TypedDict):
    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=limits.TOKENS)]


class ThinkingOther(TypedDict):
    type: Literal["disabled", "adaptive"]


class OutputFormat(TypedDict):
    type: Literal["json_schema"]
    schema: Schema


class OutputConfig(TypedDict, total=False):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None
    format: OutputFormat | None


class MessagesRequest(TypedDict, total=False):
    messages: Required[
        Annotated[
            list[UserMessage | AssistantTurn | SystemMessage], Field(min_length=1, max_length=limits.MESSAGES)
        ]
    ]
    model: Annotated[str, Field(description="One of those at /v1/models.")] | None
    system: str | _Texts | None
    tools: Annotated[list[CustomTool | DeferredTool | MakersTool], Field(max_length=limits.TOOLS_SENT)] | None
    tool_choice: AnyChoice | ToolChoice | None
    max_tokens: Count | None
    temperature: Annotated[float, Field(ge=limits.TEMPERATURE[0], le=limits.TEMPERATURE[1])] | None
    top_p: Annotated[float, Field(ge=limits.PROBABILITY[0], le=limits.PROBABILITY[1])] | None
    top_k: Annotated[int, Field(ge=0)] | None
    stop_sequences: Stops | None
    stream: bool | None
    thinking: ThinkingEnabled | ThinkingOther | None
    output_config: OutputConfig | None
    output_format: OutputFormat | None
    on_bad_tool: OnBadTool | None
    debug: Debug | None


class TokenCount(TypedDict):
    input_tokens: int


# Answers.


class AnsweredThinking(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class AnsweredUse(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Block = AnsweredThinking | TextBlock | AnsweredUse
StopReason = Literal["end_turn", "max_tokens", "tool_use", "stop_sequence"]


class MessagesUsage(TypedDict):
    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int


class MessageBegin(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str


class MessagesAnswer(MessageBegin):
    content: list[Block]
    stop_reason: StopReason
    stop_sequence: str | None
    usage: MessagesUsage
    timings: Timings
    warnings: NotRequired[Warnings]
    debug: NotRequired[DebugData]


class StartUsage(TypedDict):
    input_tokens: int
    output_tokens: int


class StartedMessage(MessageBegin):
    content: list[Block]
    stop_reason: None
    stop_sequence: None
    usage: StartUsage


class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: StartedMessage
    debug: NotRequired[DebugData]


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str


class InputDelta(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class Ending(TypedDict):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    type: Literal["message_delta"]
    delta: Ending
    usage: MessagesUsage
    timings: Timings
    warnings: NotRequired[Warnings]


class MessageStop(TypedDict):
    type: Literal["message_stop"]


class Ping(TypedDict):
    type: Literal["ping"]
    debug: NotRequired[DebugData]


MessagesEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | MessagesError
)
