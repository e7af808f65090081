"""``GET /openapi.json``: the API as an OpenAPI document, made of the routes and of the types in ``shapes``.

The schema of a stream is that of each of its events, as is the custom where OpenAPI (before 3.2) has no word
for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from starlette.responses import Response
from starlette.routing import BaseRoute

from server import events
from server.api import chat_request, completions_request, responses_request
from server.api.guard import OPEN
from server.api.operations import Operation
from server.api.replies import reply
from server.errors import ToolspanError

Json = dict[str, Any]

OPERATION = "operation"
"""Where a route has its ``Operation``, among what FastAPI keeps for documents."""
SCHEMAS = "#/components/schemas/"
ABOUT = """Requests take what the schemas say, and ignore other members. What they don't say: names in
tool_choice are those of tools, token ids are those of the model's vocabulary, and a prompt fits into the
context; else the answer is an error of status 400. Every answer has an id of its request in x-request-id."""
REFUSED: dict[str, Mapping[str, str]] = {
    "ChatCompletionRequest": chat_request.REFUSED,
    "CompletionRequest": completions_request.REFUSED,
    "ResponseRequest": responses_request.REFUSED,
}
"""Members that a request must not have, by its schema."""


class Document:
    """The document of ``routes``, each with what stands before their paths; made when it is first asked
    for."""

    def __init__(self, routes: Sequence[tuple[str, Sequence[BaseRoute]]]) -> None:
        self._routes = routes

    async def show(self) -> Response:
        return reply(await asyncio.to_thread(lambda: self.content))

    @cached_property
    def content(self) -> Json:
        routes = [(prefix, each) for prefix, listed in self._routes for each in listed]
        described = [(prefix, each) for prefix, each in routes if isinstance(each, APIRoute)]
        operations = [_operation(route) for _, route in described]
        named, components = _schemas(each for operation in operations for each in operation.types)
        paths: Json = {}
        for prefix, route in described:
            path = prefix + route.path_format
            if prefix:
                paths[route.path_format] = {"$ref": "#/paths/" + path.replace("/", "~1")}
            for method in sorted(route.methods or ()):
                shown = _shown(_operation(route), path, method, named)
                paths.setdefault(path, {})[method.lower()] = shown
        return {
            "openapi": "3.1.0",
            "info": {"title": "Toolspan", "version": "1", "description": " ".join(ABOUT.split())},
            "servers": [{"url": "/"}],
            "paths": dict(sorted(paths.items())),
            "components": {"schemas": components, "securitySchemes": _KEYS},
            "security": [{"bearer": []}, {"header": []}, {}],
        }


_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def _operation(route: APIRoute) -> Operation:
    found = (route.openapi_extra or {})[OPERATION]
    assert isinstance(found, Operation)
    return found


# Schemas.


class _Plain(GenerateJsonSchema):
    """Without titles, which would only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schemas(types: Iterable[Any]) -> tuple[dict[str, Json], Json]:
    """The schema of each type by its ``repr``, and those that they refer to by name."""
    kinds = {repr(each): TypeAdapter(each) for each in types}
    mode: JsonSchemaMode = "validation"
    keyed, defined = TypeAdapter.json_schemas(
        [(key, mode, adapter) for key, adapter in kinds.items()],
        ref_template=SCHEMAS + "{model}",
        schema_generator=_Plain,
    )
    _, structs = msgspec.json.schema_components(
        [events.Timings, events.Warning], ref_template=SCHEMAS + "{name}"
    )
    components = {**defined.get("$defs", {}), **structs}
    for name, refused in REFUSED.items():
        components[name]["properties"] |= {each: _refused(instead) for each, instead in refused.items()}
    for each in components.values():
        each.pop("title", None)
    return {key: keyed[key, mode] for key in kinds}, dict(sorted(components.items()))


def _refused(instead: str) -> Json:
    return {"enum": [None, False, []], "description": f"Not supported: {instead}."}


# Operations.


def _shown(operation: Operation, path: str, method: str, named: dict[str, Json]) -> Json:
    name = path.strip("/").replace("/", "_").replace("{", "").replace("}", "") or "page"
    shown: Json = {"operationId": f"{method.lower()}_{name}", "summary": operation.summary}
    if "{name}" in path:
        place = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        shown["parameters"] = [place]
    if operation.asked is not None:
        body = {"application/json": {"schema": named[repr(operation.asked)]}}
        shown["requestBody"] = {"required": True, "content": body}
    if path in OPEN:
        shown["security"] = []
    return shown | {"responses": _responses(operation, method, named)}


def _responses(operation: Operation, method: str, named: dict[str, Json]) -> Json:
    told = {200: ("The answer.", _content(operation, named))}
    for status, kind in operation.others.items():
        told[status] = ("Why not.", {"application/json": {"schema": named[repr(kind)]}})
    error = {"application/json": {"schema": named[repr(operation.error)]}}
    for status, kinds in _by_status(operation.errors).items():
        told[status] = (" ".join(_says(each) for each in kinds), error)
    bare = method == "HEAD"
    return {
        str(status): {"description": description} | ({} if bare else {"content": content})
        for status, (description, content) in sorted(told.items())
    }


def _content(operation: Operation, named: dict[str, Json]) -> Json:
    schema = {"type": "string"} if operation.answer is None else named[repr(operation.answer)]
    content: Json = {operation.media_type: {"schema": schema}}
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _event(operation, named)}
    return content


def _event(operation: Operation, named: dict[str, Json]) -> Json:
    """An event of a stream: its lines."""
    told = {"anyOf": [named[repr(operation.events)], named[repr(operation.error)]]}
    data: Json = {"type": "string", "contentMediaType": "application/json", "contentSchema": told}
    if operation.done:
        data = {"anyOf": [{"const": "[DONE]", "description": "The last event."}, data]}
    return {
        "type": "object",
        "properties": {"event": {"type": "string"}, "data": data},
        "required": ["data"],
        "description": "A server-sent event, where stream is true.",
    }


def _by_status(errors: Iterable[type[ToolspanError]]) -> dict[int, list[type[ToolspanError]]]:
    found: dict[int, list[type[ToolspanError]]] = {}
    for each in errors:
        found.setdefault(each.status, []).append(each)
    return found


def _says(error: type[ToolspanError]) -> str:
    """The first paragraph of what an error's class says of it."""
    if error is ToolspanError:
        return "An unexpected failure, or an answer that could not be made as it must be."
    return " ".join((error.__doc__ or "").split("\n\n")[0].split())
