"""What a model is told of the tools it has, and of the form its answer must take.

Templates get a copy of each tool that none of them stumbles over; the schema that a call is held to is the
client's own and never this copy. Where a template knows no tools, and for ``response_format``, which no
template knows, the same facts stand in the system text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.dialects.dialect import Dialect
from server.dialects.form import Notation, span_form, written_calls
from server.prompt.history import Hide, Rendered, mapped
from server.turn import ResponseFormat, Tool, ToolCall

REFERENCE_DEPTH = 3
EXPANDED_NODES = 2_000
EXPANDED_LEVELS = 128


def shown_tools(tools: Sequence[Tool], hide: Hide, *, null_types: bool = True) -> list[Rendered]:
    """The tools as a template takes them: a description, perhaps empty, and parameters that are an object
    schema with references expanded. Keys keep the client's order. Without ``null_types`` null is left out
    of unions."""
    return [_shown_tool(tool, hide, null_types) for tool in tools]


def _shown_tool(tool: Tool, hide: Hide, null_types: bool) -> Rendered:
    schema = json.loads(tool.parameters) if tool.parameters else {}
    parameters = expanded(schema) if isinstance(schema, dict) else {}
    if not null_types:
        parameters = _without_null(parameters)
    if not isinstance(parameters.get("type"), str):
        parameters = {"type": "object"} | parameters | {"type": "object"}
    if not isinstance(parameters.get("properties"), dict):
        parameters = parameters | {"properties": {}}
    function = {"name": tool.name, "description": tool.description or "", "parameters": parameters}
    return {"type": "function", "function": mapped(function, hide)}


def expanded(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with its local references replaced by what they refer to, so that the model sees the
    shape. A reference inside itself is followed three times; a schema that grows past a bound in size or
    depth, or whose references can't be followed, stays as it is."""
    if "$ref" not in json.dumps(schema):
        return dict(schema)
    expansion = _Expansion(schema)
    body = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    result: dict[str, Any] = expansion.of(body, (), 0)
    return result if expansion.complete else dict(schema)


class _Expansion:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0
        self.complete = True

    def of(self, value: Any, inside: tuple[str, ...], level: int) -> Any:
        """``inside`` are the references that led here."""
        self._nodes += 1
        if self._nodes > EXPANDED_NODES or level > EXPANDED_LEVELS:
            self.complete = False
        if not self.complete:
            return value
        if isinstance(value, list):
            return [self.of(each, inside, level + 1) for each in value]
        if not isinstance(value, dict):
            return value
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return {key: self.of(each, inside, level + 1) for key, each in value.items()}
        beside = {key: each for key, each in value.items() if key != "$ref"}
        if inside.count(reference) >= REFERENCE_DEPTH:
            return beside
        target = self._target(reference)
        if not isinstance(target, dict):
            self.complete = False
            return value
        return self.of(target | beside, (*inside, reference), level + 1)

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return None
        found: Any = self._root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                return None
        return found


def _without_null(value: Any) -> Any:
    """A schema whose unions don't name null: for templates that take apart the name of a type."""
    if isinstance(value, list):
        return [_without_null(each) for each in value]
    if not isinstance(value, dict):
        return value
    result = {key: _without_null(each) for key, each in value.items()}
    kinds = result.get("type")
    if isinstance(kinds, list):
        named = [each for each in kinds if each != "null"] or ["string"]
        result["type"] = named[0] if len(named) == 1 else named
    elif kinds == "null":
        result["type"] = "string"
    for union in ("anyOf", "oneOf"):
        branches = value.get(union)
        if isinstance(branches, list):
            kept = [_without_null(each) for each in branches if each != {"type": "null"}]
            if len(kept) == 1 and isinstance(kept[0], dict):
                del result[union]
                result = kept[0] | result
            else:
                result[union] = kept
    return result


def tools_text(tools: Sequence[Rendered], dialect: Dialect) -> str:
    """The system text that offers tools to a model whose template does not: one line of JSON a tool, and
    the form of a call in the dialect's own markers."""
    lines = "\n".join(map(_compact, tools))
    as_json = span_form(dialect).notation is Notation.JSON
    value = "VALUE" if as_json else '"VALUE"'  # other notations write each value by itself
    example = written_calls(dialect, [ToolCall("", "FUNCTION", f'{{"PARAMETER": {value}}}')])
    several = "Several calls at once are several such blocks, one after another. " if dialect.parallel else ""
    return (
        "# Functions\n\n"
        "These functions can be called. Each line is one function, its parameters as JSON Schema:\n"
        f"<tools>\n{lines}\n</tools>\n\n"
        "A call is written exactly like this, with the function's name and "
        f"{'a JSON object of arguments' if as_json else 'each argument'}:\n"
        f"{example}\n"
        f"{several}The result of each call comes back between <tool_response> and </tool_response>. "
        "Call a function when it helps with the request; otherwise answer in plain text."
    )


def format_text(form: ResponseFormat, hide: Hide, *, calls: bool) -> str | None:
    """The system text for an answer that has to be JSON; None where any text will do. The grammar holds
    the answer to it in any case: this is for the model to know what is coming. ``calls``: the model may
    call tools instead."""
    if form.kind == "text":
        return None
    unless = "If you do not call a function, answer" if calls else "Answer"
    if form.kind == "json_object" or form.schema is None:
        return f"{unless} with one JSON object and nothing else."
    schema = _compact(mapped(json.loads(form.schema), hide))
    return f"{unless} with JSON of this schema and nothing else:\n{schema}"


def _compact(value: Any) -> str:
    """Without blanks a schema has a quarter fewer tokens."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
