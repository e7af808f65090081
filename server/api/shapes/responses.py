"""OpenAI's Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field
from typing_extensions import TypedDict

from server.api import limits
from server.api.shapes.chat import Choice, Effort, Function, OtherTool, Timings, Warnings
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
    SchemaFormatMembers,
    TextFormat,
    but,
)


class InputMessage(TypedDict, total=False):
    type: Literal["message"] | None
    role: Required[Literal["system", "developer", "user", "assistant"]]
    content: Content | None


class InputCall(TypedDict):
    type: Literal["function_call"]
    call_id: str
    name: HistoryName
    arguments: Annotated[str | dict[str, Any], Field(description="JSON text, or an object.")]


class InputResult(TypedDict, total=False):
    type: Required[Literal["function_call_output"]]
    call_id: Required[str]
    output: Content | None


class Thought(TypedDict):
    text: str


_Thoughts = Annotated[list[Thought], Field(max_length=limits.PARTS_PER_MESSAGE)]


class InputThoughts(TypedDict, total=False):
    """The thought itself counts where it is given, else its summary."""

    type: Required[Literal["reasoning"]]
    content: Required[_Thoughts]


class InputSummary(TypedDict, total=False):
    type: Required[Literal["reasoning"]]
    content: None
    summary: _Thoughts | None


class InputOther(TypedDict):
    """An item of a kind that is left out."""

    type: Annotated[str, but("message", "function_call", "function_call_output", "reasoning")]


Item = InputMessage | InputCall | InputResult | InputThoughts | InputSummary | InputOther


class FlatTool(Function, total=False):
    type: Literal["function"] | None


class FlatSchemaFormat(SchemaFormatMembers):
    type: Literal["json_schema"]


class TextOptions(TypedDict, total=False):
    format: TextFormat | ObjectFormat | FlatSchemaFormat | None


class ReasoningOptions(TypedDict, total=False):
    effort: Effort | None


class ResponseRequest(Sampling, total=False):
    input: Required[str | Annotated[list[Item], Field(min_length=1, max_length=limits.MESSAGES)]]
    model: Annotated[str, Field(description="One of those at /v1/models.")] | None
    instructions: str | None
    previous_response_id: Annotated[str, Field(description="Where responses are kept.")] | None
    store: bool | None
    tools: Annotated[list[FlatTool | OtherTool], Field(max_length=limits.TOOLS_SENT)] | None
    tool_choice: Choice | None
    parallel_tool_calls: bool | None
    text: TextOptions | None
    reasoning: ReasoningOptions | None
    max_output_tokens: Count | None
    thinking_budget_tokens: Budget | None
    thinking_token_budget: Budget | None
    reasoning_budget: Budget | None
    stream: bool | None
    metadata: Any_
    on_bad_tool: OnBadTool | None
    debug: Debug | None


# Answers.

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputMessage(TypedDict):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    content: list[OutputText]
    status: Status


class OutputCall(TypedDict):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: Annotated[str, Field(description="JSON text.")]
    status: Status


class OutputReasoning(TypedDict):
    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    content: list[ReasoningText]
    status: Status


OutputItem = OutputMessage | OutputCall | OutputReasoning


class ResponseError(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class InputTokens(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Response(TypedDict):
    """What is repeated of the request stands here as it was sent."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: list[OutputItem]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: float | None
    metadata: Any_
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float | None
    timings: NotRequired[Timings]
    warnings: NotRequired[Warnings]
    debug: NotRequired[DebugData]


class _Event(TypedDict):
    sequence_number: int
    debug: NotRequired[DebugData]


class ResponseState(_Event):
    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _Placed(_Event):
    item_id: str
    output_index: int


class PartEvent(_Placed):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: OutputText | ReasoningText


class OutputTextDelta(_Placed):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[Any]


class OutputTextDone(_Placed):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[Any]


class ReasoningTextDelta(_Placed):
    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ReasoningTextDone(_Placed):
    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class ArgumentsDelta(_Placed):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_Placed):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


ResponsesEvent = (
    ResponseState
    | ItemEvent
    | PartEvent
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
)


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: bool
