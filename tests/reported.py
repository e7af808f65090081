"""Requests as the server prepares them, with one tool of given parameters beside another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripting import SILENT, script

from server.errors import InvalidSchema
from server.runner.model import load_model
from server.runner.prepare import PreparedTurn, Preparer
from server.settings import Settings
from server.turn import Message, Tool, ToolChoice, Turn

MARKED_NAMES = (
    *("items", "keys", "values", "get", "update", "pop", "name", "type", "properties", "required"),
    *("description", "enum", "parameters", "__class__"),
)
"""Names that a template's own code uses."""


def inside(schema: object) -> dict[str, object]:
    """An object with one required property."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def tool(name: str, parameters: object) -> Tool:
    return Tool(name, "Does", json.dumps(parameters))


WEATHER = tool("get_weather", inside({"type": "string"}))


class Calls:
    """The calls of a tool that an answer may hold."""

    def __init__(self, ready: PreparedTurn) -> None:
        self.constraint = ready.constraint
        self.exact = ready.plan.tools["f"].exact
        self._matcher = ready.job.matcher

    def allow(self, arguments: object) -> bool:
        return self.allow_text(json.dumps(arguments, ensure_ascii=False))

    def allow_text(self, arguments: str) -> bool:
        text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        matcher, data = self._matcher.deep_copy(), list(text.encode())
        return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


class Requests:
    """Requests to one server with a scripted model; ``folder`` is for its script."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(replay=script(folder, SILENT), ctx=131_072)
        self._preparer = Preparer(load_model(settings), settings)

    def prepared(self, *tools: Tool) -> PreparedTurn:
        turn = Turn((Message("user", "Go"),), (*tools, WEATHER), ToolChoice("required"))
        return self._preparer.prepare(1, turn)

    def calls(self, parameters: object) -> Calls:
        return Calls(self.prepared(tool("f", parameters)))

    def refusal(self, parameters: object) -> InvalidSchema:
        """The refusal of a tool; the next request goes on as ever."""
        with pytest.raises(InvalidSchema) as caught:
            self.prepared(tool("f", parameters))
        assert self.prepared()
        return caught.value
