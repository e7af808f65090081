"""Chat completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field
from typing_extensions import TypedDict

from server import events
from server.api import limits
from server.api.shapes.common import (
    Any_,
    Budget,
    Content,
    Count,
    Debug,
    DebugData,
    HistoryName,
    ObjectFormat,
    OnBadTool,
    Sampling,
    Schema,
    SchemaFormatMembers,
    Stops,
    StreamOptions,
    TemplateVariables,
    TextFormat,
    ToolName,
    but,
    struct,
)
from server.turn import REASONING_EFFORTS

Name = Annotated[str, Field(max_length=limits.HISTORY_NAME, pattern=r"^[^\x00]*$")]
Effort = Literal[REASONING_EFFORTS]  # type: ignore[valid-type]


class CalledFunction(TypedDict, total=False):
    name: Required[HistoryName]
    arguments: Annotated[str | dict[str, Any] | None, Field(description="JSON text, or an object.")]


class SentCall(TypedDict, total=False):
    """A call of the history."""

    id: str | None
    type: Literal["function"] | None
    function: Required[CalledFunction]


class InstructionMessage(TypedDict, total=False):
    role: Required[Literal["system", "developer", "user"]]
    content: Content | None
    name: Name | None


class AssistantMessage(TypedDict, total=False):
    role: Required[Literal["assistant"]]
    content: Content | None
    name: Name | None
    tool_calls: Annotated[list[SentCall], Field(max_length=limits.CALLS_PER_MESSAGE)] | None
    function_call: None
    reasoning_content: Any_
    reasoning: Any_


class ToolMessage(TypedDict, total=False):
    role: Required[Literal["tool"]]
    content: Content | None
    name: Name | None
    tool_call_id: str | None


Message = InstructionMessage | AssistantMessage | ToolMessage


class Function(TypedDict, total=False):
    name: Required[ToolName]
    description: str | None
    parameters: Schema | None
    strict: bool | None


class FunctionTool(TypedDict, total=False):
    type: Literal["function"] | None
    function: Required[Function]


class OtherTool(TypedDict):
    """A tool of a kind that is skipped."""

    type: Annotated[str, but("function")]


class FunctionName(TypedDict):
    name: str


class NestedChoice(TypedDict):
    """A function, as chat completions name it."""

    type: Literal["function"]
    function: FunctionName


class FlatChoice(TypedDict, total=False):
    """A function, as responses name it."""

    type: Required[Literal["function"]]
    name: Required[str]
    function: None


class NestedName(TypedDict, total=False):
    type: Literal["function"] | None
    function: Required[FunctionName]


class FlatName(TypedDict, total=False):
    type: Literal["function"] | None
    name: Required[str]
    function: None


class AllowedTools(TypedDict, total=False):
    mode: Literal["auto", "required"] | None
    tools: Required[
        Annotated[list[NestedName | FlatName | OtherTool], Field(min_length=1, max_length=limits.TOOLS_SENT)]
    ]


class NestedAllowed(TypedDict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class FlatAllowed(AllowedTools, total=False):
    type: Required[Literal["allowed_tools"]]
    allowed_tools: None


Choice = Literal["auto", "none", "required"] | NestedChoice | FlatChoice | NestedAllowed | FlatAllowed


class SchemaFormat(TypedDict):
    type: Literal["json_schema"]
    json_schema: SchemaFormatMembers


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat


class ChatCompletionRequest(Sampling, total=False):
    messages: Required[Annotated[list[Message], Field(min_length=1, max_length=limits.MESSAGES)]]
    model: Annotated[str, Field(description="One of those at /v1/models.")] | None
    tools: Annotated[list[FunctionTool | OtherTool], Field(max_length=limits.TOOLS_SENT)] | None
    tool_choice: Choice | None
    parallel_tool_calls: bool | None
    response_format: ResponseFormat | None
    stream: bool | None
    stream_options: StreamOptions | None
    stop: Stops | None
    max_tokens: Count | None
    max_completion_tokens: Count | None
    n: Annotated[int, Field(ge=1, le=limits.CHOICES)] | None
    logprobs: bool | None
    top_logprobs: Annotated[int, Field(ge=0, le=limits.TOP_LOGPROBS)] | None
    reasoning_effort: Effort | None
    thinking_budget_tokens: Budget | None
    thinking_token_budget: Budget | None
    reasoning_budget: Budget | None
    enable_thinking: bool | None
    chat_template_kwargs: TemplateVariables | None
    reuse_prefix: bool | None
    on_bad_tool: OnBadTool | None
    debug: Debug | None


# Answers.


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class Logprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class AnsweredFunction(TypedDict):
    name: str
    arguments: Annotated[str, Field(description="JSON text.")]


class AnsweredCall(TypedDict):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[AnsweredCall]]


FinishReason = Literal["stop", "length", "tool_calls"]


class AnsweredChoice(TypedDict):
    index: int
    message: AnsweredMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason


class PromptTokens(TypedDict):
    cached_tokens: int


class CompletionTokens(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens


Timings = Annotated[Any, struct(events.Timings)]
Warnings = list[Annotated[Any, struct(events.Warning)]]


class Completion(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str


class WholeCompletion(Completion):
    usage: Usage
    timings: Timings
    warnings: NotRequired[Warnings]
    debug: NotRequired[DebugData]


class PartialCompletion(Completion):
    usage: NotRequired[Usage | None]
    timings: NotRequired[Timings]
    warnings: NotRequired[Warnings]
    debug: NotRequired[DebugData]


class ChatCompletion(WholeCompletion):
    object: Literal["chat.completion"]
    choices: list[AnsweredChoice]


class FunctionDelta(TypedDict, total=False):
    name: str
    arguments: Required[str]


class CallDelta(TypedDict, total=False):
    index: Required[int]
    id: str
    type: Literal["function"]
    function: Required[FunctionDelta]


class Delta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str
    tool_calls: list[CallDelta]


class ChunkChoice(TypedDict):
    index: int
    delta: Delta
    logprobs: Logprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(PartialCompletion):
    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
