"""What requests of all API families have alike: names, schemas, and values with a default."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from server.api import limits
from server.api.fields import Field
from server.api.store import Store
from server.errors import InvalidSchema, NotFound, quoted
from server.turn import OnBadTool, ResponseFormat, Tool, Turn

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{limits.TOOL_NAME}}}")


@dataclass(frozen=True, slots=True)
class Served:
    """What requests may name: the models, the tokens (``vocabulary`` is how many there are), and responses
    that are kept."""

    names: tuple[str, ...]
    vocabulary: int
    store: Store | None = None


class OneTurn:
    """A request for one turn."""

    __slots__ = ()
    turn: Turn

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (self.turn,)


def check_model(root: Field, served: Served) -> None:
    model = root.get("model")
    if model is not None and model.text() not in served.names:
        known = ", ".join(served.names)
        raise NotFound(
            f"the model {quoted(model.text())} does not exist; this server has {known}", param="model"
        )


def refuse_promises(root: Field, refused: Mapping[str, str]) -> None:
    """Refuses fields that would promise what this server does not do, with what to use instead."""
    for name, instead in refused.items():
        field = root.get(name)
        if field is not None and field.value is not False and field.value != []:
            raise field.wrong(f"is not supported: {instead}", "unsupported_parameter")


def name_of(field: Field, code: str = "invalid_tool_name") -> str:
    if not _NAME.fullmatch(field.text()):
        most = limits.TOOL_NAME
        raise field.wrong(f"must be 1 to {most} letters, digits, '_', '-' or '.'", code)
    return field.text()


def schema_of(field: Field | None) -> str | None:
    if field is None:
        return None
    if not isinstance(field.value, dict):
        raise InvalidSchema(f"{field.path} must be a JSON Schema object", param=field.path)
    return json_text(field.value)


def check_schemas(tools: tuple[Tool, ...], response_format: ResponseFormat) -> None:
    texts = [each.parameters for each in tools] + [response_format.schema]
    if sum(len(each.encode()) for each in texts if each) > limits.SCHEMA_BYTES:
        message = f"the schemas of this request have more than {limits.SCHEMA_BYTES} bytes together"
        raise InvalidSchema(
            message, code="schema_too_large", param="tools" if tools else response_format.place
        )


def response_format(field: Field | None, member: str = "") -> ResponseFormat:
    """OpenAI's form of an answer; ``member`` is where a schema is described, if not in the object itself."""
    if field is None:
        return ResponseFormat()
    kind = field.need("type").word(("text", "json_object", "json_schema"))
    if kind == "text":
        return ResponseFormat()
    if kind == "json_object":
        held = field.get("schema")  # llama.cpp's form
        return _schema_form(held) if held else ResponseFormat("json_object")
    described = field.need(member) if member else field
    flag(described, "strict", False)  # held to the schema either way
    name, schema = described.get("name"), described.need("schema")
    return _schema_form(schema, name_of(name, "invalid_value") if name else None)


def _schema_form(schema: Field, name: str | None = None) -> ResponseFormat:
    return ResponseFormat("json_schema", name, schema_of(schema), schema.path)


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def arguments_text(field: Field) -> str:
    """The arguments of a call in the history: a text, as the API has it, or an object."""
    return json_text(field.value) if isinstance(field.value, dict) else field.text()


def stops(field: Field | None) -> tuple[str, ...]:
    """Texts that end an answer: one, or a list."""
    if field is None:
        return ()
    strings = [field] if isinstance(field.value, str) else field.items(limits.STOPS)
    return tuple(each.short_text(limits.STOP_LENGTH) for each in strings)


def tools_of(root: Field, function: Callable[[Field], Field | None], schema: str) -> tuple[Tool, ...]:
    """The function tools of a request: ``function`` is what describes one, None for a tool of another kind
    (clients offer what they have), ``schema`` the name of its parameters."""
    sent = root.get("tools")
    listed = [function(each) for each in sent.items(limits.TOOLS_SENT)] if sent else []
    functions = [each for each in listed if each is not None]
    if sent and len(functions) > limits.TOOLS:
        raise sent.wrong(f"has {len(functions)} functions, at most {limits.TOOLS} are allowed")
    tools: dict[str, Tool] = {}
    for each in functions:
        tool = _tool(each, schema)
        if tool.name in tools:
            raise each.need("name").wrong(f"repeats {quoted(tool.name)}", "duplicate_tool")
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool(function: Field, schema: str) -> Tool:
    description = function.get("description")
    parameters = function.get(schema)
    described = parameters is not None and parameters.value != {}
    return Tool(
        name=name_of(function.need("name")),
        description=description.text() if description else None,
        parameters=schema_of(parameters) if described else None,
        strict=flag(function, "strict", False),
        place=f"{function.path}.{schema}",
    )


def on_bad_tool(root: Field) -> OnBadTool:
    field = root.get("on_bad_tool")
    return cast(OnBadTool, field.word(("error", "drop", "relax"))) if field else "error"


def one_of(field: Field, names: Iterable[str], tools: tuple[Tool, ...]) -> None:
    """Refuses names that no tool has."""
    known = {each.name for each in tools}
    for name in names:
        if name not in known:
            raise field.wrong(f"names {quoted(name)}, which is not among the tools")


def texts_or_tokens(field: Field, most: int, served: Served) -> list[str | tuple[int, ...]]:
    """One or several texts, each as a string or as token ids: all the forms that OpenAI has for them."""
    listed = isinstance(field.value, list) and not any(_is_number(each) for each in field.value[:1])
    given = field.items(most) if listed else [field]
    if not given:
        raise field.wrong("must not be empty")
    return [_text_or_tokens(each, served) for each in given]


def _text_or_tokens(field: Field, served: Served) -> str | tuple[int, ...]:
    if isinstance(field.value, str):
        return field.value
    if not isinstance(field.value, list):
        raise field.mistyped("a string or an array of token ids")
    return token_ids(field, served)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def token_ids(field: Field, served: Served) -> tuple[int, ...]:
    """A list of ids of the model's tokens."""
    known = range(served.vocabulary)
    given = field.value if isinstance(field.value, list) else []
    if 0 < len(given) <= limits.TOKEN_IDS and all(type(each) is int and each in known for each in given):
        return tuple(given)  # without a path for each of what may be a million
    return tuple(token_id(each, served) for each in field.items(limits.TOKEN_IDS))


def token_id(field: Field, served: Served) -> int:
    return field.integer(0, served.vocabulary - 1)


def flag(field: Field, name: str, default: bool) -> bool:
    found = field.get(name)
    return found.flag() if found else default


def integer(field: Field, name: str, default: int, low: int, high: int | None = None) -> int:
    found = field.get(name)
    return found.integer(low, high) if found else default


def number(field: Field, name: str, default: float, bounds: tuple[float, float]) -> float:
    found = field.get(name)
    return found.number(bounds) if found else default
