"""What several API families have alike."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required, TypeVar

import msgspec
from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from server.api import limits
from server.turn import TEMPLATE_VARIABLES

STRUCTS = "#/components/schemas/"

_Item = TypeVar("_Item")
Any_ = Annotated[Any, WithJsonSchema({})]


def struct(kind: type[msgspec.Struct]) -> WithJsonSchema:
    """The schema of a struct of ours, which msgspec writes."""
    return WithJsonSchema({"allOf": [{"$ref": STRUCTS + kind.__name__}]})


def shaped(schema: dict[str, Any]) -> WithJsonSchema:
    """A schema that no type says."""
    return WithJsonSchema(schema)


def but(*kinds: str) -> WithJsonSchema:
    """A text, but none of these."""
    return WithJsonSchema({"type": "string", "not": {"enum": list(kinds)}})


_NO_NUL = r"^[^\u0000]*$"
ToolName = Annotated[str, shaped({"type": "string", "pattern": rf"^[A-Za-z0-9_.-]{{1,{limits.TOOL_NAME}}}$"})]
HistoryName = Annotated[
    str, shaped({"type": "string", "minLength": 1, "maxLength": limits.HISTORY_NAME, "pattern": _NO_NUL})
]
Stop = Annotated[
    str, shaped({"type": "string", "minLength": 1, "maxLength": limits.STOP_LENGTH, "pattern": _NO_NUL})
]
Stops = Stop | Annotated[list[Stop], Field(max_length=limits.STOPS)]
Schema = Annotated[dict[str, Any], Field(description="A JSON Schema.")]
Count = Annotated[int, Field(ge=1)]
Budget = Annotated[int, Field(ge=-1, le=limits.TOKENS, description="Tokens for thoughts; -1 is any number.")]
OnBadTool = Annotated[
    Literal["error", "drop", "relax"],
    Field(description="What becomes of a tool whose schema can't be held to."),
]
Debug = Annotated[bool, Field(description="Tells how the answer came about; needs the right of an admin.")]
Biases = Annotated[
    dict[str, float],
    shaped(
        {
            "type": "object",
            "maxProperties": limits.BIASES,
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": {
                "type": "number",
                "minimum": limits.BIAS[0],
                "maximum": limits.BIAS[1],
            },
            "description": "Token ids with what is added to their logits.",
        }
    ),
]
TemplateVariables = Annotated[
    dict[str, Any],
    shaped(
        {
            "type": "object",
            "propertyNames": {"enum": list(TEMPLATE_VARIABLES)},
            "additionalProperties": {
                "anyOf": [
                    {"type": "boolean"},
                    {"type": "integer", "minimum": -1, "maximum": limits.TOKENS},
                    {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": limits.TEMPLATE_VALUE,
                        "pattern": _NO_NUL,
                    },
                ]
            },
            "description": "Variables of the model's chat template.",
        }
    ),
]
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": limits.TOKEN_IDS}
TokenIds = Annotated[list[int], shaped(_IDS)]


def texts(most: int) -> WithJsonSchema:
    """One or several texts, each as a string or as token ids."""
    several = {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}}
    return shaped(
        {"anyOf": [{"type": "string"}, _IDS | {"minItems": 1}, several | {"minItems": 1, "maxItems": most}]}
    )


class Sampling(TypedDict, total=False):
    """How tokens are chosen."""

    temperature: Annotated[float, Field(ge=limits.TEMPERATURE[0], le=limits.TEMPERATURE[1])] | None
    top_p: Annotated[float, Field(ge=limits.PROBABILITY[0], le=limits.PROBABILITY[1])] | None
    top_k: Annotated[int, Field(ge=-1)] | None
    min_p: Annotated[float, Field(ge=limits.PROBABILITY[0], le=limits.PROBABILITY[1])] | None
    frequency_penalty: Annotated[float, Field(ge=limits.PENALTY[0], le=limits.PENALTY[1])] | None
    presence_penalty: Annotated[float, Field(ge=limits.PENALTY[0], le=limits.PENALTY[1])] | None
    repeat_penalty: Annotated[float, Field(ge=limits.REPEAT_PENALTY[0], le=limits.REPEAT_PENALTY[1])] | None
    seed: int | None
    logit_bias: Biases | None


class StreamOptions(TypedDict, total=False):
    include_usage: bool | None


class TextFormat(TypedDict):
    type: Literal["text"]


class ObjectFormat(TypedDict, total=False):
    type: Required[Literal["json_object"]]
    schema: Schema | None


class SchemaFormatMembers(TypedDict, total=False):
    name: ToolName | None
    schema: Required[Schema]
    strict: bool | None


# Content of messages.


class TextPart(TypedDict):
    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalPart(TypedDict):
    type: Literal["refusal"]
    refusal: str


Parts = Annotated[list[TextPart | RefusalPart], Field(max_length=limits.PARTS_PER_MESSAGE)]
Content = str | Parts


# Answers.


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: Annotated[str | None, Field(description="The path of the field at fault.")]
    code: str


class Error(TypedDict):
    """What every family but Messages answers where it can't do what was asked."""

    error: ErrorDetail


class MessagesErrorDetail(TypedDict):
    type: str
    message: str
    code: str


class MessagesError(TypedDict):
    """An error of the Messages family."""

    type: Literal["error"]
    error: MessagesErrorDetail


class DebugToken(TypedDict, total=False):
    id: Required[int | None]
    text: Required[str]
    source: Required[Literal["sampled", "forced", "drafted"]]
    bytes: Annotated[list[int], Field(description="Where the text does not say them.")]


class DebugRun(TypedDict):
    """Tokens of a choice that follow each other."""

    choice: int
    start: int
    tokens: list[DebugToken]


class PromptPart(TypedDict):
    text: str
    control: bool


class DebugData(TypedDict, total=False):
    """How an answer came about; an event has the part that it is about."""

    prompt: list[PromptPart]
    constraint: str
    generated: list[DebugRun]
