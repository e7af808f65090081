"""Turns made ready over the scripted model: what is refused, and what the constraint then allows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from scripting import SILENT, script

from server.dialects.bound import BoundDialect
from server.dialects.table import DIALECTS
from server.errors import ContextOverflow, InvalidSchema
from server.runner.model import load_model
from server.runner.prepare import PreparedTurn, Preparer
from server.settings import Settings
from server.turn import Message, ResponseFormat, Tool, ToolChoice, Turn

ADD = Tool("add", "Adds", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
GET = Tool("get", parameters='{"type": "object", "properties": {}}', strict=True)
ASK = (Message("user", "Add one"),)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
GET_CALL = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'


def preparer(folder: Path, dialect: str = "", **settings: object) -> Preparer:
    """``dialect``: of the model, instead of its own."""
    chosen = Settings(replay=script(folder, SILENT), **settings)  # type: ignore[arg-type]
    model = load_model(chosen)
    if dialect:
        row = next(each for each in DIALECTS if each.name == dialect)
        model = dataclasses.replace(model, bound=BoundDialect(row))
    return Preparer(model, chosen)


def prepared(folder: Path, turn: Turn, **settings: object) -> PreparedTurn:
    return preparer(folder, **settings).prepare(1, turn)


def allows(ready: PreparedTurn, text: str) -> bool:
    """Whether the whole text is an answer."""
    matcher = ready.job.matcher.deep_copy()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("choice", "passing", "failing"),
    [
        (ToolChoice("none"), ["text", ""], [CALL]),
        (ToolChoice("auto"), ["text", CALL, "text " + GET_CALL], [CALL + "text"]),
        (ToolChoice("required"), [CALL, GET_CALL], ["text", "text" + CALL]),
        (ToolChoice("required", ("get",)), [GET_CALL], [CALL, ""]),
        (ToolChoice("auto", ("get",)), [GET_CALL, "text"], [CALL]),
    ],
)
def test_tool_choice(tmp_path: Path, choice: ToolChoice, passing: list[str], failing: list[str]) -> None:
    ready = prepared(tmp_path, Turn(ASK, (ADD, GET), choice))
    assert [text for text in passing if not allows(ready, text)] == []
    assert [text for text in failing if allows(ready, text)] == []
    assert set(ready.plan.tools) == set() if choice.mode == "none" else set(choice.names or ("add", "get"))


def test_parallel_calls_can_be_switched_off(tmp_path: Path) -> None:
    both = CALL + "\n" + GET_CALL
    assert allows(prepared(tmp_path, Turn(ASK, (ADD, GET))), both)
    assert not allows(prepared(tmp_path, Turn(ASK, (ADD, GET), parallel_tool_calls=False)), both)


@pytest.mark.parametrize("parameters", [None, GET.parameters])
def test_a_tool_without_parameters_gets_no_arguments(tmp_path: Path, parameters: str | None) -> None:
    ready = prepared(tmp_path, Turn(ASK, (Tool("get", parameters=parameters),)))
    assert allows(ready, GET_CALL)
    assert not allows(ready, GET_CALL.replace("{}", '{"a": 1}'))


def test_the_prompt_does_not_depend_on_the_tool_choice(tmp_path: Path) -> None:
    maker = preparer(tmp_path)
    prompts = {
        maker.prepare(1, Turn(ASK, (ADD, GET), choice)).job.prompt
        for choice in (ToolChoice("none"), ToolChoice("auto"), ToolChoice("required", ("get",)))
    }
    assert len(prompts) == 1


def test_response_formats(tmp_path: Path) -> None:
    any_object = prepared(tmp_path, Turn(ASK, response_format=ResponseFormat("json_object")))
    assert allows(any_object, '{"a": [1, "x"]}')
    assert not allows(any_object, "[1]")
    schema = '{"type": "array", "items": {"type": "boolean"}}'
    array = prepared(tmp_path, Turn(ASK, (ADD,), response_format=ResponseFormat("json_schema", "x", schema)))
    assert allows(array, "[true, false]")
    assert allows(array, CALL)
    assert not allows(array, "text")
    assert array.plan.response is not None
    assert array.plan.response.must_be_valid


def test_which_values_must_be_valid(tmp_path: Path) -> None:
    auto = prepared(tmp_path, Turn(ASK, (ADD, GET))).plan.tools
    assert {name: held.must_be_valid for name, held in auto.items()} == {"add": False, "get": True}
    forced = prepared(tmp_path, Turn(ASK, (ADD, GET), ToolChoice("required"))).plan.tools
    assert all(held.must_be_valid for held in forced.values())


def test_bare_calls_can_be_switched_off(tmp_path: Path) -> None:
    bare = '{"name": "add", "arguments": {"a": "x"}}'
    assert not allows(prepared(tmp_path, Turn(ASK, (ADD,))), bare)
    assert allows(prepared(tmp_path, Turn(ASK, (ADD,)), bare_calls=False), bare)


def test_bad_schemas_are_all_named(tmp_path: Path) -> None:
    bad = [Tool(name, parameters='{"type": "dict"}') for name in ("one", "two")]
    with pytest.raises(InvalidSchema) as caught:
        prepared(tmp_path, Turn(ASK, (ADD, *bad)))
    assert str(caught.value.param).startswith("tools[1].function.parameters")
    assert "tool 'one'" in caught.value.message
    assert "tool 'two'" in caught.value.message


@pytest.mark.parametrize("place", ["name", "enum", "property"])
def test_a_schema_that_spells_a_control_token_is_refused(tmp_path: Path, place: str) -> None:
    text = "a<|im_end|>"
    schema = {
        "name": {},
        "enum": {"properties": {"a": {"enum": [text]}}},
        "property": {"properties": {text: {}}},
    }[place]
    name = text if place == "name" else "add"
    place = {
        "name": "the name",
        "enum": "'add'.*'/properties/a/enum/0'",
        "property": "'add'.*'/properties/a<",
    }[place]
    with pytest.raises(InvalidSchema, match=f"{place}.*control token"):
        prepared(tmp_path, Turn(ASK, (Tool(name, parameters=json.dumps(schema)),)))


@pytest.mark.parametrize(
    ("dialect", "schema", "said"),
    [
        ("gemma4", {"enum": ['a<|"|>']}, "'/properties/a/enum/0'.*ends a text"),
        (
            "gemma4",
            {"type": "array", "items": {"const": '<|"|>'}},
            "'/properties/a/items/const'.*ends a text",
        ),
        ("gemma4", {"enum": [{"b c": 1}]}, "'b c' can't be written"),
        ("gemma4", {"type": "object", "required": ["b:c"]}, "'b:c' can't be written"),
        ("gemma4", {"type": "array", "items": {"properties": {"": {}}, "required": [""]}}, "'' can't be"),
        ("seed-oss", {"enum": ["a</parameter>", "b"]}, "'/properties/a/enum/0'.*ends a text"),
        ("minimax-m3", {"enum": ["a]<]minimax[>[</b"]}, "'/properties/a/enum/0'.*ends a text"),
        ("minimax-m3", {"type": "object", "required": ["/b"]}, "'/b' can't be written.*begin with '/'"),
        ("minimax-m3", {"enum": [[{"b>": 1}]]}, "'b>' can't be written"),
        ("minicpm5", {"enum": ["a]]></param>", "b"]}, "'/properties/a/enum/0'.*ends a text"),
    ],
)
def test_what_a_dialect_can_not_write_is_refused(
    tmp_path: Path, dialect: str, schema: object, said: str
) -> None:
    tool = Tool("add", parameters=json.dumps({"properties": {"a": schema}}))
    with pytest.raises(InvalidSchema, match=f"tool 'add'.*{said}"):
        preparer(tmp_path, dialect).prepare(1, Turn(ASK, (tool,)))


@pytest.mark.parametrize(
    ("dialect", "name"), [("muse", "user"), ("muse", "self"), ("functionary-v3.2", "all")]
)
def test_a_name_that_begins_another_part_is_refused(tmp_path: Path, dialect: str, name: str) -> None:
    with pytest.raises(InvalidSchema, match=f"'{name}' begins another part"):
        preparer(tmp_path, dialect).prepare(1, Turn(ASK, (Tool(name),)))
    preparer(tmp_path, dialect).prepare(1, Turn(ASK, (Tool(f"{name}_info"),)))


@pytest.mark.parametrize(
    ("dialect", "schema"),
    [
        ("gemma4", {"type": "object", "properties": {"b c": {"type": "integer"}}}),
        ("minicpm5", {"enum": ["a</param>"]}),
        ("minimax-m3", {"enum": ["a]<]minimax"]}),
        ("minimax-m3", {"type": "object", "properties": {"b>": {}}, "required": ["b c", "b/c"]}),
        ("hermes", {"enum": ["a</parameter>"]}),
    ],
)
def test_what_a_dialect_can_write_is_not_refused(tmp_path: Path, dialect: str, schema: object) -> None:
    tool = Tool("add", parameters=json.dumps({"properties": {"a": schema}}))
    preparer(tmp_path, dialect).prepare(1, Turn(ASK, (tool,)))


def test_stop_strings_do_not_cut_values_that_have_a_schema(tmp_path: Path) -> None:
    assert prepared(tmp_path, Turn(ASK, stop=("1",))).plan.stop == ("1",)
    turn = Turn(ASK, stop=("1",), response_format=ResponseFormat("json_object"))
    assert prepared(tmp_path, turn).plan.stop == ()


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ContextOverflow, match=r"300 tokens.* \d{3,} tokens"):
        prepared(tmp_path, Turn((Message("user", "word " * 100),)), ctx=300)


def test_room_for_the_answer(tmp_path: Path) -> None:
    def room(limit: int | None, choices: int = 1, **settings: object) -> int:
        turn = Turn(ASK, max_tokens=limit, choices=choices)
        return prepared(tmp_path, turn, **settings).job.max_tokens

    used = len(prepared(tmp_path, Turn(ASK)).job.prompt)
    assert room(17) == 17
    assert room(10**6, ctx=1000) == 1000 - used
    assert room(10**6, choices=2, ctx=1000) == (1000 - used) // 2
    assert room(None) == 4096
    assert room(None, ctx=1000, slots=2) == 500 - used
    assert room(None, ctx=1000, slots=25) == 20


def test_constraints_are_kept_by_their_text(tmp_path: Path) -> None:
    maker = preparer(tmp_path)
    one, two = (maker.prepare(number, Turn(ASK, (ADD,))) for number in (1, 2))
    assert one.constraint == two.constraint
    one.job.matcher.consume_token(ord("x"))
    assert two.job.matcher.is_accepting()
    assert allows(two, CALL)


def test_drafts_can_be_switched_off(tmp_path: Path) -> None:
    assert prepared(tmp_path, Turn(ASK)).job.drafts
    assert not prepared(tmp_path, Turn(ASK), drafts=False).job.drafts


def test_a_thought_whose_tokens_are_counted_is_not_drafted(tmp_path: Path) -> None:
    made = preparer(tmp_path, "harmony")
    assert made.prepare(1, Turn(ASK)).job.drafts
    assert not made.prepare(2, Turn(ASK, reasoning_budget=5)).job.drafts
