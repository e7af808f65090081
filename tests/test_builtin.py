"""The built-in script: what it calls and says, for each request the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import InvalidRequest
from server.runner.builtin import NOTHING_ELSE, Asked, Said, said
from server.schema.cache import prepared
from server.turn import Message, ToolCall, ToolChoice, Turn

TEXT = {"type": "string"}
NUMBER = {"type": "integer", "minimum": 2}


def schema(**properties: object) -> dict[str, object]:
    """All of them required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


SHELL = schema(command=TEXT)
TOOLS: dict[str, Any] = {
    "get": schema(city=TEXT),
    "get_weather": schema(city=TEXT, days=NUMBER),
    "bash": SHELL,
    "nothing": {"type": "object", "properties": {}},
}


def asked(*messages: Message, tools: dict[str, Any] = TOOLS, choice: str = "auto", **fields: Any) -> Asked:
    ready = {name: prepared(json.dumps(parameters), "", as_object=True) for name, parameters in tools.items()}
    turn = Turn(messages, tool_choice=ToolChoice(choice))  # type: ignore[arg-type]
    return Asked(turn, "", ready, **fields)


def user(text: str) -> Message:
    return Message("user", text)


def called(*messages: Message, **fields: Any) -> tuple[str, Any]:
    answer = said(asked(*messages, **fields))
    assert (answer.text, answer.reasoning) == ("", "")
    (call,) = answer.calls
    return call.name, json.loads(call.arguments)


CALL = Message("assistant", None, tool_calls=(ToolCall("1", "get", '{"city": "Rome"}'),))
RESULT = Message("tool", "22 degrees", tool_call_id="1")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Use get_weather for Rome", "get_weather"),
        ("get the weather, do not get_weather", "get"),
        ("nothing, then bash", "nothing"),
        ("forget it: getter get_weather_now get-away a-get", "bash"),
        ("What is the weather?", "bash"),
    ],
)
def test_the_tool_that_is_named_is_called_else_one_that_runs_commands(text: str, name: str) -> None:
    assert called(user(text))[0] == name


def test_without_a_name_and_a_command_the_first_is_called() -> None:
    tools = {name: TOOLS[name] for name in ("get_weather", "get")}
    assert called(user("Hi"), tools=tools)[0] == "get_weather"
    number = {"first": schema(), "other": schema(command=NUMBER)}
    assert called(user("Hi"), tools=number)[0] == "first"


@pytest.mark.parametrize(
    ("text", "parameters", "arguments"),
    [
        ("get `Rome`", schema(city=TEXT), {"city": "Rome"}),
        ("get ```\nls -l\n``` now", schema(city=TEXT), {"city": "\nls -l\n"}),
        ("get Rome", schema(city=TEXT), {"city": ""}),
        ("get `Rome`", schema(city=TEXT, days=NUMBER), {"city": "Rome", "days": 2}),
        ("get `a` and `b`", schema(one=TEXT, n=NUMBER, two=TEXT), {"one": "a", "n": 2, "two": "b"}),
        ("get `a`", schema(one=TEXT, two=TEXT), {"one": "a", "two": "a"}),
        ("get `a`, `b`, `c`", schema(one=TEXT, two=TEXT), {"one": "b", "two": "c"}),
        ("get `a`, `b`", schema(x=TEXT, y=TEXT, z=TEXT), {"x": "a", "y": "a", "z": "b"}),
        ("get `kelvin`", schema(unit={**TEXT, "enum": ["celsius", "kelvin"]}), {"unit": "kelvin"}),
        ("get `Rome`", schema(unit={**TEXT, "enum": ["celsius", "kelvin"]}), {"unit": "celsius"}),
        ("get `Rome`", schema(when={**TEXT, "maxLength": 2}, city=TEXT), {"when": "", "city": "Rome"}),
        ("get `Rome`", schema(city={"type": ["null", "string"]}), {"city": "Rome"}),
        ("get `3`", schema(days=NUMBER), {"days": 2}),
        ('get `a "b" \\ ü`', schema(city=TEXT), {"city": 'a "b" \\ ü'}),
        ("get `x`", {"type": "object", "properties": {"city": TEXT, "cmd": TEXT}}, {"cmd": "x"}),
        ("get `x`", {"type": "object", "properties": {"city": TEXT}}, {}),
        ("get `x`", {"type": "object", "required": ["a"]}, {"a": ""}),
        ("get `x`", {"type": "object"}, {}),
        ("get `x`", {"anyOf": [schema(a=TEXT), schema(b=NUMBER)]}, {"a": ""}),
    ],
)
def test_arguments(text: str, parameters: Any, arguments: Any) -> None:
    assert called(user(text), tools={"get": parameters}) == ("get", arguments)


def test_the_words_are_those_of_the_user_since_the_last_answer() -> None:
    before = (user("get_weather `Oslo`"), Message("assistant", "Done."))
    assert called(*before, user("bash `ls`"), user("Be quick.")) == ("bash", {"command": "ls"})
    assert called(*before, user("Hi"))[1] == {"command": ""}
    assert called(user("get `Rome`"), CALL, choice="required") == ("get", {"city": "Rome"})
    assert called(Message("system", "bash `ls`"), user("get `Rome`")) == ("get", {"city": "Rome"})


@pytest.mark.parametrize(
    "messages",
    [
        (user("get `Rome`"), CALL, RESULT),
        (user("get `Rome`"), CALL, RESULT, user("Mind the time.")),
        (user("get `Rome`"), CALL, RESULT, Message("assistant", "It is")),
        (user("get `Rome`"), CALL, Message("tool", "old", tool_call_id="1"), CALL, RESULT),
    ],
)
def test_a_result_is_said(messages: tuple[Message, ...]) -> None:
    assert said(asked(*messages)) == Said(text="22 degrees")
    assert said(asked(*messages, tools={})) == Said(text="22 degrees")


def test_several_results_are_said_in_their_order() -> None:
    results = [Message("tool", each, tool_call_id=each) for each in ("one", "two")]
    assert said(asked(user("get"), CALL, *results)) == Said(text="one\ntwo")


def test_the_next_question_is_a_new_one() -> None:
    messages = (user("get `Rome`"), CALL, RESULT, Message("assistant", "22 degrees"), user("get `Oslo`"))
    assert called(*messages) == ("get", {"city": "Oslo"})


def test_a_call_that_has_to_be_is_made_again() -> None:
    name, arguments = called(user("get `Rome`"), CALL, RESULT, choice="required")
    assert (name, arguments) == ("get", {"city": "Rome"})


def test_without_tools_and_results_it_says_what_it_is() -> None:
    assert said(asked(user("get `Rome`"), tools={})) == Said(text=NOTHING_ELSE)


def test_a_response_format_gets_a_short_value() -> None:
    form = prepared(json.dumps(schema(city=TEXT, days=NUMBER)), "", as_object=False)
    answer = said(asked(user("Hi"), CALL, RESULT, response=form))
    assert answer == Said(text='{"city": "", "days": 2}')


def test_what_has_no_short_value_is_refused() -> None:
    many = {"type": "array", "minItems": 10, "items": {**TEXT, "minLength": 1000}}
    with pytest.raises(InvalidRequest) as caught:
        called(user("get"), tools={"get": schema(many=many)})
    assert caught.value.code == "no_scripted_answer"
    assert "'get'" in caught.value.message
