"""What belongs to no API family: models, tokens, embeddings, reports, the state of the server."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field
from typing_extensions import TypedDict

from server.api import limits
from server.api.shapes.common import Any_, TokenIds, shaped, texts


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    architecture: str
    context_length: int
    context_length_trained: int
    slots: int
    dialect: str
    tools: bool
    parallel_tool_calls: bool
    reasoning: bool
    embedding: Annotated[int, Field(description="Components of a vector; 0 for a model that generates.")]
    warnings: list[str]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]


class EmbeddingRequest(TypedDict, total=False):
    input: Required[Annotated[Any, texts(limits.EMBEDDINGS)]]
    model: str | None
    encoding_format: Literal["float", "base64"] | None
    dimensions: Annotated[int, Field(ge=1)] | None


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: Annotated[list[float] | str, Field(description="As base64: 32-bit floats, little-endian.")]


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


_PARTS = {
    "anyOf": [
        {"type": "string", "maxLength": limits.TEXT_LENGTH},
        {
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]},
            "maxItems": limits.TEXT_PARTS,
        },
    ]
}


class TokenizeRequest(TypedDict, total=False):
    content: Required[Annotated[Any, shaped(_PARTS)]]
    model: str | None
    add_special: bool | None
    parse_special: bool | None
    with_pieces: bool | None


class Piece(TypedDict):
    id: int
    piece: Annotated[str | list[int], Field(description="Bytes where they are no text by themselves.")]


class TokenList(TypedDict):
    tokens: list[int] | list[Piece]


class DetokenizeRequest(TypedDict, total=False):
    tokens: Required[TokenIds]
    model: str | None


class DetokenizedText(TypedDict):
    content: str


class AppliedTemplate(TypedDict):
    prompt: str


class ToolsCheckRequest(TypedDict):
    tools: Annotated[list[Any_], Field(max_length=limits.TOOLS_SENT)]


class CheckedKeyword(TypedDict):
    pointer: str
    keyword: str
    held: Literal["enforced", "verified", "annotation"]
    reason: NotRequired[str]


class Refusal(TypedDict):
    code: str
    pointer: str
    keyword: str
    reason: str
    instead: str


class CheckedTool(TypedDict):
    name: str
    draft: str
    enforced: bool
    refusal: Refusal | None
    keywords: list[CheckedKeyword]


class ToolsCheck(TypedDict):
    object: Literal["tools.check"]
    ok: bool
    tools: list[CheckedTool]


class Healthy(TypedDict):
    status: Literal["ok"]
    model: str
    context_length: int
    slots: int


class Unhealthy(TypedDict):
    status: Literal["loading", "degraded", "draining", "ok"]
    reason: str
