"""``tool_choice`` in OpenAI's forms: nested as chat completions have it, or flat as responses do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

from server.api import limits
from server.api.fields import Field
from server.api.parts import one_of
from server.turn import Tool, ToolChoice

Mode = Literal["auto", "none", "required"]


def tool_choice(field: Field | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if field is None:
        return ToolChoice()
    if not isinstance(field.value, str | dict):
        raise field.mistyped("a string or an object")
    choice = _bare_choice(field) if isinstance(field.value, str) else _narrowed(field)
    if choice.mode == "required" and not tools:
        raise field.wrong("asks for a call, but there are no function tools")
    one_of(field, choice.names or (), tools)
    return choice


def _bare_choice(field: Field) -> ToolChoice:
    return ToolChoice(cast(Mode, field.word(("auto", "none", "required"))))


def _narrowed(field: Field) -> ToolChoice:
    """``{"type": "function", ...}`` or ``{"type": "allowed_tools", ...}``, nested as chat completions
    have it or flat as responses do."""
    if field.need("type").word(("function", "allowed_tools")) == "function":
        return ToolChoice("required", (_function_name(field),))
    allowed = field.get("allowed_tools") or field
    mode = allowed.get("mode")
    names = tuple(_allowed_names(allowed.need("tools")))
    if not names:
        raise allowed.need("tools").wrong("must name at least one function")
    return ToolChoice(cast(Mode, mode.word(("auto", "required"))) if mode else "auto", names)


def _allowed_names(tools: Field) -> Iterator[str]:
    for each in tools.items(limits.TOOLS_SENT):
        if is_function(each):
            yield _function_name(each)


def _function_name(field: Field) -> str:
    return (field.get("function") or field).need("name").text()


def is_function(tool: Field) -> bool:
    """Other kinds (web search, namespaces, custom tools) are skipped: clients offer what they have."""
    kind = tool.get("type")
    return kind is None or kind.text() == "function"
