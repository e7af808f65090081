"""What is held to of the schemas of tools, and how: enforced while generating, verified on the finished
call, or refused. For people who write tools; an answer needs none of it.

``python -m server.schema.report [--text]`` reads a list of tools as JSON from standard input and writes the
report to standard output: a process of its own, so that no schema can do harm to a server.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from server.schema.check import Checked, examined
from server.schema.drafts import Draft
from server.schema.lower import RULES, TOO_MUCH, Lowered, lower
from server.schema.problem import Problem, Refused
from server.schema.verify import asserts_format
from server.turn import MOST_SCHEMA_BYTES, MOST_TOOLS

Held = Literal["enforced", "verified", "annotation"]
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_SCHEMA_KEYS = ("parameters", "input_schema", "inputSchema")
_WITH = {
    "then": "if",
    "else": "if",
    "minContains": "contains",
    "maxContains": "contains",
    "additionalItems": "items",
    "nullable": "type",
}
"""Keywords that mean something beside another one only, and fare as that does."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOO_MANY = Problem("too_many_tools", "", "", f"a request may have {MOST_TOOLS} tools, and these are more")

_TOO_LONG = Problem(
    "schema_too_large",
    "",
    "",
    f"the schemas of a request may have {MOST_SCHEMA_BYTES} bytes together, and with this one they have more",
)


class Keyword(msgspec.Struct, frozen=True, omit_defaults=True):
    """A keyword of a schema, by the JSON pointer of the schema that has it, and what becomes of it."""

    pointer: str
    keyword: str
    held: Held
    reason: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """Why a tool is refused; ``instead`` is what would be accepted, where that can be said."""

    code: str
    pointer: str
    keyword: str
    reason: str
    instead: str


class ToolReport(msgspec.Struct, frozen=True):
    """One tool. ``draft`` is the one its schema is read in. ``enforced``: whatever can be generated is
    valid."""

    name: str
    draft: str
    enforced: bool
    refusal: Refusal | None
    keywords: tuple[Keyword, ...]

    @property
    def verified(self) -> list[Keyword]:
        return [each for each in self.keywords if each.held == "verified"]


def report(tools: list[Any]) -> list[ToolReport]:
    """Tools as the APIs have them: ``{"type": "function", "function": {...}}``, or a name with
    ``parameters``, ``input_schema`` or ``inputSchema`` (MCP). Those of other types are left out, as they are
    in requests."""
    before = _Before()
    functions = [each for each in tools if not _is_other(each)]
    reports = [_tool(each, before) for each in functions[:MOST_TOOLS]]
    return reports + [_refused(_name_of(each), _TOO_MANY) for each in functions[MOST_TOOLS:]]


@dataclass(slots=True)
class _Before:
    """The names of the tools before one, and the bytes that their schemas leave."""

    names: set[str] = field(default_factory=set)
    left: int = MOST_SCHEMA_BYTES


def _is_other(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") not in (None, "function", "custom")


def _tool(tool: Any, before: _Before) -> ToolReport:
    described = _described(tool)
    if described is None:
        return _refused("", Problem("invalid_tool", "", "", "a tool is an object"))
    name = described.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = Problem("invalid_tool_name", "", "", "a name is 1 to 64 letters, digits, '_', '-' or '.'")
        return _refused(_name_of(tool), problem)
    if name in before.names:
        return _refused(name, Problem("duplicate_tool", "", "", "an earlier tool has this name"))
    before.names.add(name)
    schema = next((described[key] for key in _SCHEMA_KEYS if described.get(key) is not None), NO_ARGUMENTS)
    if not isinstance(schema, dict):
        return _refused(name, Problem("invalid_schema", "", "", "the parameters are a JSON Schema object"))
    text = json.dumps(schema or NO_ARGUMENTS, ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > before.left:
        return _refused(name, _TOO_LONG)
    before.left -= size
    try:
        checked = examined(text, as_object=True)
    except Refused as refused:
        return _refused(name, refused.problem)
    lowered = lower(checked, as_object=True)
    return ToolReport(name, checked.draft.value, lowered.exact, None, tuple(_keywords(checked, lowered)))


def _described(tool: Any) -> dict[str, Any] | None:
    described = tool.get("function", tool) if isinstance(tool, dict) else None
    return described if isinstance(described, dict) else None


def _name_of(tool: Any) -> str:
    """A tool's name, if it has one, as it can be printed."""
    name = (_described(tool) or {}).get("name")
    return _shown(name) if isinstance(name, str) else ""


def _shown(text: str) -> str:
    """Text that can be printed anywhere."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _refused(name: str, problem: Problem) -> ToolReport:
    refusal = Refusal(problem.code, problem.pointer, problem.keyword, problem.reason, problem.instead)
    return ToolReport(name, "", False, refusal, ())


def _keywords(checked: Checked, lowered: Lowered) -> Iterator[Keyword]:
    """Every keyword of every schema of a document."""
    reasons = {(each.pointer, each.keyword): each.reason for each in lowered.loosened}
    given_up = {each.keyword for each in lowered.loosened if each.reason == TOO_MUCH}
    for pointer, schema in checked.index.schemas.items():
        if isinstance(schema, bool):
            continue
        for keyword in schema:
            owner = _WITH.get(keyword, keyword)
            reason = TOO_MUCH if owner in given_up else reasons.get((pointer, owner), "")
            held: Held = "verified" if reason else "enforced"
            if not reason and not _asserts(owner, schema, checked.draft):
                held = "annotation"
            yield Keyword(pointer, keyword, held, reason)


def _asserts(keyword: str, schema: Mapping[str, object], draft: Draft) -> bool:
    """Whether a keyword says something of values."""
    if keyword == "format" and not asserts_format(str(schema.get(keyword))):
        return False
    said = keyword in schema and keyword in RULES and draft.knows(keyword)
    return said and keyword not in ("contentEncoding", "contentMediaType")


# As a program.


def lines(tool: ToolReport) -> Iterator[str]:
    """A report for people to read."""
    refusal = tool.refusal
    if refusal is not None:
        instead = f" (accepted: {refusal.instead})" if refusal.instead else ""
        place = f"{refusal.pointer or '/'} {refusal.keyword}: " if refusal.keyword else ""
        yield f"{tool.name or 'a tool'}: refused"
        yield f"  {place}{refusal.reason}{instead}"
        return
    count = len(tool.verified)
    what = f"{count} keyword{'s' * (count > 1)} verified on the finished call" if count else "enforced"
    yield f"{tool.name}: {what}"
    for each in tool.verified:
        yield f"  {each.pointer or '/'} {each.keyword}: {each.reason}"


def main(words: list[str]) -> int:
    """Exits with 1 if a tool is refused."""
    found = report(json.load(sys.stdin))
    if words == ["--text"]:
        text = "".join(f"{_shown(line)}\n" for tool in found for line in lines(tool))
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
    else:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return int(any(each.refusal for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
