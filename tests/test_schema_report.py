"""What is said of tools' schemas: as a program, as a command, and over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving import Serving, playing, serving
from test_prepare import ASK, CALL, allows, prepared

from server.api import limits
from server.errors import InvalidRequest, InvalidSchema
from server.programs import program
from server.schema.report import Keyword, lines, report
from server.turn import Tool, ToolChoice, Turn

GOOD = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}
BAD = {"type": "object", "properties": {"x": {"type": "dict"}}}
LATER = {"type": "object", "properties": {"l": {"type": "array", "uniqueItems": True, "title": "List"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "good", "parameters": GOOD}},
    {"name": "later", "inputSchema": LATER},
    {"name": "none"},
    {"name": "bad", "input_schema": BAD},
    {"name": "not good", "parameters": GOOD},
    3,
]


def test_every_keyword_of_every_schema() -> None:
    good, later, none, *_ = report(TOOLS)
    assert (good.name, good.enforced, good.refusal) == ("good", True, None)
    assert [(each.pointer, each.keyword, each.held) for each in good.keywords] == [
        ("", "type", "enforced"),
        ("", "properties", "enforced"),
        ("", "required", "enforced"),
        ("/properties/a", "type", "enforced"),
        ("/properties/a", "minimum", "enforced"),
    ]
    assert not later.enforced
    assert later.verified == [Keyword("/properties/l", "uniqueItems", "verified", "needs all items at once")]
    assert {each.held for each in later.keywords if each.keyword == "title"} == {"annotation"}
    assert none.enforced


def test_what_is_refused_says_where_why_and_what_instead() -> None:
    *_, bad, name, number = report(TOOLS)
    assert bad.refusal is not None
    assert (bad.refusal.code, bad.refusal.pointer, bad.refusal.keyword) == (
        "invalid_schema",
        "/properties/x",
        "type",
    )
    assert "array, boolean, integer" in bad.refusal.instead
    assert name.refusal is not None
    assert name.refusal.code == "invalid_tool_name"
    assert number.refusal is not None
    assert number.refusal.code == "invalid_tool"


@pytest.mark.parametrize(
    ("schema", "held"),
    [
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"if": "enforced", "then": "enforced"}),
        ({"then": {"required": ["b"]}}, {"then": "annotation"}),
        ({"properties": {"a": {"contains": {}, "minContains": 2}}}, {"minContains": "verified"}),
        ({"dependentRequired": {"a": ["b"]}}, {"dependentRequired": "enforced"}),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": []},
            {"prefixItems": "annotation"},
        ),
    ],
)
def test_keywords_that_go_with_others(schema: Any, held: dict[str, str]) -> None:
    (found,) = report([{"name": "t", "parameters": {"type": "object", **schema}}])
    assert {each.keyword: each.held for each in found.keywords if each.keyword in held} == held


def test_the_report_for_people() -> None:
    text = [line for tool in report(TOOLS) for line in lines(tool)]
    assert text == [
        "good: enforced",
        "later: 1 keyword verified on the finished call",
        "  /properties/l uniqueItems: needs all items at once",
        "none: enforced",
        "bad: refused",
        "  /properties/x type: '\"dict\"' is not a value this keyword can have (accepted: array, boolean, "
        "integer, null, number, object, string, or a list of these)",
        "not good: refused",
        "  a name is 1 to 64 letters, digits, '_', '-' or '.'",
        "a tool: refused",
        "  a tool is an object",
    ]


def command(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "server", "check-tools", *words]
    return subprocess.run(line, input=given, capture_output=True, text=True)


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps({"model": "any", "tools": TOOLS[:3]}))
    done = command(str(file))
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "good: enforced")
    refused = command("-", "--json", given=json.dumps(TOOLS))
    assert refused.returncode == 1
    assert [each["name"] for each in json.loads(refused.stdout)][:4] == ["good", "later", "none", "bad"]
    for words, said in ((["no-such-file"], "can't be read"), (["-"], "has no list of tools")):
        wrong = command(*words, given="{}")
        assert wrong.returncode == 1
        assert said in wrong.stderr
        assert "Traceback" not in wrong.stderr


def checked(server: Serving, body: Any) -> Any:
    return server.request("POST", "/v1/tools/check", json=body)


def test_over_http_before_a_model_is_there() -> None:
    with serving() as server:
        answer = checked(server, {"tools": TOOLS})
        assert answer.status_code == 200
        found = answer.json()
        assert (found["object"], found["ok"]) == ("tools.check", False)
        assert [each["refusal"] is None for each in found["tools"]] == [True] * 3 + [False] * 3
        assert checked(server, {"tools": TOOLS[:3]}).json()["ok"] is True
        for wrong in ({}, {"tools": {}}, [], {"tools": None}):
            refusal = checked(server, wrong)
            assert refusal.status_code == 400
            assert "error" in refusal.json()


def test_a_report_goes_by_what_requests_take() -> None:
    others = [{"type": "web_search"}, TOOLS[0], TOOLS[0], {"name": "list", "parameters": []}]
    first, again, wrong = report(others)
    assert first.refusal is None
    assert again.refusal is not None
    assert again.refusal.code == "duplicate_tool"
    assert wrong.refusal is not None
    assert "object" in wrong.refusal.reason


def test_more_tools_than_a_request_may_have_are_refused() -> None:
    many = [{"type": "web_search"}, *({"name": f"f{number}"} for number in range(limits.TOOLS + 1))]
    *good, last = report(many)
    assert [each.refusal for each in good] == [None] * limits.TOOLS
    assert last.refusal is not None
    assert (last.name, last.refusal.code) == (f"f{limits.TOOLS}", "too_many_tools")
    told = command("-", given=json.dumps(many))
    assert told.returncode == 1
    assert told.stdout.endswith(
        f"f{limits.TOOLS}: refused\n  a request may have 128 tools, and these are more\n"
    )
    with serving() as server:
        assert checked(server, {"tools": many}).json()["ok"] is False


def test_schemas_beyond_those_of_a_request_are_refused() -> None:
    schema = {"type": "object", "description": "x" * (limits.SCHEMA_BYTES // 2 - 100)}
    many = [{"name": f"f{number}", "parameters": schema} for number in range(3)] + [{"name": "g"}]
    *good, last, small = report(many)
    assert [each.refusal for each in [*good, small]] == [None] * 3
    assert last.refusal is not None
    assert (last.name, last.refusal.code) == ("f2", "schema_too_large")


def test_hostile_files_end_in_one_line(tmp_path: Path) -> None:
    deep = command("-", given="[" * 100_000)
    assert (deep.returncode, deep.stderr.count("\n")) == (1, 1)
    odd = command("-", given='[{"name": "\\ud800\\u001b[31m"}]')
    assert odd.returncode == 1
    assert "Traceback" not in odd.stderr
    assert "\x1b" not in odd.stdout


def test_the_current_folder_is_not_the_package(tmp_path: Path) -> None:
    package = tmp_path / "server" / "schema"
    package.mkdir(parents=True)
    for file in (tmp_path / "server" / "__init__.py", package / "__init__.py", package / "report.py"):
        file.write_text('print("hijacked")\n')
    done = subprocess.run(
        program("server.schema.report"), input=b"[]", capture_output=True, cwd=tmp_path, check=True
    )
    assert done.stdout == b"[]\n"


# What becomes of bad tools.

ADD = Tool("add", parameters=json.dumps(GOOD))
WRONG = Tool("wrong", parameters=json.dumps(BAD))


def test_a_bad_tool_is_an_error_unless_it_is_asked_otherwise(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match=r"tool 'wrong': type at '/properties/x'.*accepted: array"):
        prepared(tmp_path, Turn(ASK, (ADD, WRONG)))


def test_a_bad_tool_may_be_dropped(tmp_path: Path) -> None:
    ready = prepared(tmp_path, Turn(ASK, (WRONG, ADD), on_bad_tool="drop"))
    assert list(ready.plan.tools) == ["add"]
    assert allows(ready, CALL)
    assert not allows(ready, CALL.replace("add", "wrong"))
    assert b"wrong" not in bytes(each for each in ready.job.prompt if each < 256)
    (warning,) = ready.warnings
    assert (warning.code, warning.param) == ("tool_dropped", "wrong")
    assert "/properties/x" in warning.message
    for choice in (ToolChoice("required", ("wrong",)), ToolChoice("auto", ("wrong", "add"))):
        with pytest.raises(InvalidRequest, match="'wrong', which is dropped"):
            prepared(tmp_path, Turn(ASK, (WRONG, ADD), choice, on_bad_tool="drop"))
    with pytest.raises(InvalidRequest, match="all tools are dropped"):
        prepared(tmp_path, Turn(ASK, (WRONG,), ToolChoice("required"), on_bad_tool="drop"))


def test_a_bad_tool_may_have_any_arguments(tmp_path: Path) -> None:
    ready = prepared(tmp_path, Turn(ASK, (WRONG, ADD), ToolChoice("required"), on_bad_tool="relax"))
    assert allows(ready, CALL.replace("add", "wrong").replace('{"a": 1}', '{"x": [1, null]}'))
    assert not allows(ready, CALL.replace('{"a": 1}', '{"x": [1, null]}'))
    assert [(each.code, each.param) for each in ready.warnings] == [("tool_not_held_to", "wrong")]
    marked = Tool("a<|im_end|>", parameters=json.dumps(GOOD))
    with pytest.raises(InvalidSchema, match="control token"):
        prepared(tmp_path, Turn(ASK, (marked,), on_bad_tool="relax"))


def test_over_http_a_bad_tool_is_reported(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "wrong", "parameters": BAD}}]
    with playing(tmp_path, {"text": "Hi"}) as server:
        assert server.chat(tools=tools).status_code == 400
        for how, code in (("drop", "tool_dropped"), ("relax", "tool_not_held_to")):
            answer = server.chat(tools=tools, on_bad_tool=how).json()
            assert [each["code"] for each in answer["warnings"]] == [code]
        assert server.chat(tools=tools, on_bad_tool="ignore").json()["error"]["param"] == "on_bad_tool"
