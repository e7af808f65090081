"""Completions, OpenAI's legacy API."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from server.api import limits
from server.api.shapes.chat import FinishReason, PartialCompletion, ResponseFormat, WholeCompletion
from server.api.shapes.common import Debug, Sampling, Stops, StreamOptions, texts


class CompletionRequest(Sampling, total=False):
    prompt: Required[Annotated[Any, texts(limits.PROMPTS)]]
    model: Annotated[str, Field(description="One of those at /v1/models.")] | None
    suffix: Annotated[str, Field(description="What comes after the answer; prompts are texts then.")] | None
    echo: bool | None
    parse_special: (
        Annotated[bool, Field(description="Whether the text of a control token in the prompt is that token.")]
        | None
    )
    response_format: ResponseFormat | None
    stream: bool | None
    stream_options: StreamOptions | None
    stop: Stops | None
    max_tokens: Annotated[int, Field(ge=0)] | None
    n: Annotated[int, Field(ge=1, le=limits.CHOICES)] | None
    best_of: Annotated[int, Field(ge=1, description="As n, which is how many are returned.")] | None
    logprobs: Annotated[int, Field(ge=0, le=limits.TOP_LOGPROBS)] | None
    reuse_prefix: bool | None
    debug: Debug | None


class LegacyLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(TypedDict):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: FinishReason


class TextChunkChoice(TypedDict):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: FinishReason | None


class TextCompletion(WholeCompletion):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class TextCompletionChunk(PartialCompletion):
    object: Literal["text_completion"]
    choices: list[TextChunkChoice]
