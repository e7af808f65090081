"""Chat completion bodies to turns: what is taken, how it is normalised, what is refused with which path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api import limits
from server.api.chat_request import ChatRequest, Served, decode
from server.errors import InvalidRequest, InvalidSchema, NotFound, ToolspanError
from server.turn import Message, ResponseFormat, Sampling, Tool, ToolCall, ToolChoice, Turn

SERVED = Served(("tiny", "gpt-4o"), vocabulary=1000)
USER = {"role": "user", "content": "hi"}


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def asked(**fields: Any) -> ChatRequest:
    return decode({"messages": [USER], **fields}, SERVED)


def turn(**fields: Any) -> Turn:
    return asked(**fields).turn


def message(**fields: Any) -> Message:
    return turn(messages=[{"role": "user", **fields}]).messages[0]


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        asked(**fields)
    return caught.value


def test_the_least_there_can_be() -> None:
    request = asked()
    assert request == ChatRequest(Turn(messages=(Message("user", "hi"),)), stream=False, include_usage=False)


def test_unknown_and_null_fields_change_nothing() -> None:
    names = ("tools", "tool_choice", "stop", "n", "max_tokens", "temperature", "seed", "logprobs", "model")
    nulls = dict.fromkeys((*names, "stream_options", "response_format", "functions", "function_call"))
    agents = {"store": False, "metadata": {}, "user": "u", "verbosity": "low", "prompt_cache_key": "k"}
    assert asked(**nulls, **agents, service_tier="auto", x={"y": [1]}) == asked()


def test_the_key_is_a_partition() -> None:
    assert decode({"messages": [USER]}, SERVED, "abc").turn.partition == "abc"


@pytest.mark.parametrize("name", ["tiny", "gpt-4o"])
def test_a_served_name_or_alias_is_taken(name: str) -> None:
    assert asked(model=name) == asked()


@pytest.mark.parametrize("name", ["", "Tiny", "../../etc/passwd", "tiny\0", "a" * 10_000])
def test_another_model_is_not_found(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        asked(model=name)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert len(caught.value.message) <= 200


# Messages.


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_every_role_takes_every_form_of_content(role: str) -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "input_text", "text": "b"}]
    forms: list[dict[str, Any]] = [
        {"content": "a b"},
        {"content": parts},
        {"content": None},
        {},
        {"content": ""},
        {"content": []},
    ]
    found = turn(messages=[{"role": role, **form} for form in forms]).messages
    assert [each.content for each in found] == ["a b", "a b", None, None, "", ""]
    assert {each.role for each in found} == {role}


def test_roles_may_come_in_any_order() -> None:
    roles = ["tool", "assistant", "system", "user", "user", "developer", "assistant", "assistant"]
    found = turn(messages=[{"role": role, "content": "x"} for role in roles]).messages
    assert [each.role for each in found] == roles


def test_the_history_of_a_tool_call() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    echoed = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "parsed": None}
    answer = {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "22"}
    assistant, result = turn(
        messages=[
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", **echoed},
            answer,
        ]
    ).messages
    assert assistant == Message("assistant", reasoning="hm", tool_calls=(ToolCall("c1", "f", '{"a": 1}'),))
    assert result == Message("tool", "22", tool_call_id="c1", name="f")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"arguments": '{"a":1}'}, '{"a":1}'),
        ({"arguments": {"a": [1, "ü"]}}, '{"a": [1, "ü"]}'),
        ({"arguments": "not json"}, "not json"),
        ({"arguments": ""}, ""),
        ({"arguments": None}, "{}"),
        ({}, "{}"),
    ],
)
def test_arguments_of_the_history_become_text(sent: dict[str, Any], kept: str) -> None:
    call = {"function": {"name": "f", **sent}}
    calls = turn(messages=[{"role": "assistant", "tool_calls": [call]}]).messages[0].tool_calls
    assert calls == (ToolCall("", "f", kept),)


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "model_has_no_vision"),
        ({"type": "input_image"}, "model_has_no_vision"),
        ({"type": "input_audio"}, "unsupported_content"),
        ({"type": "text"}, "invalid_type"),
        ({"text": "a"}, "missing_required_parameter"),
        ("a", "invalid_type"),
    ],
)
def test_other_parts_are_refused(part: Any, code: str) -> None:
    error = refusal(messages=[USER, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
    assert error.code == code
    assert (error.param or "").startswith("messages[1].content[1]")
    assert "passwd" not in error.message


MESSAGES: list[tuple[Any, str]] = [
    ([], "messages"),
    ({}, "messages"),
    ("hi", "messages"),
    (None, "messages"),
    ([1], "messages[0]"),
    ([{}], "messages[0].role"),
    ([{"role": "root"}], "messages[0].role"),
    ([{"role": 1}], "messages[0].role"),
    ([USER, {"role": "user", "content": 5}], "messages[1].content"),
    ([{"role": "user", "content": {"a": 1}}], "messages[0].content"),
    ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
    (
        [{"role": "assistant", "tool_calls": [{"type": "x", "function": {}}]}],
        "messages[0].tool_calls[0].type",
    ),
    ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
    ([{"role": "tool", "tool_call_id": 1}], "messages[0].tool_call_id"),
    ([{"role": "user", "name": 1}], "messages[0].name"),
    ([{"role": "user", "name": "a\0"}], "messages[0].name"),
    ([USER] * (limits.MESSAGES + 1), "messages"),
]


@pytest.mark.parametrize(("messages", "param"), MESSAGES, ids=[param for _, param in MESSAGES])
def test_malformed_messages_are_refused_with_their_path(messages: Any, param: str) -> None:
    assert refusal(messages=messages).param == param


def test_text_keeps_every_character() -> None:
    text = "\0 <|im_start|> é 😀 \u202e \u2028"
    assert message(content=text).content == text


# Tools.


def test_tools_keep_their_order_and_schemas_their_text() -> None:
    schema = {"type": "object", "properties": {"b": {"const": 10**30}, "a": {"enum": ["é"]}}}
    tools = [tool("b", parameters=schema, description="d", strict=True), tool("a"), {"type": "web_search"}]
    first, second = turn(tools=tools).tools
    text = json.dumps(schema, ensure_ascii=False)
    assert first == Tool("b", "d", text, strict=True, place="tools[0].function.parameters")
    assert second == Tool("a", place="tools[1].function.parameters")


@pytest.mark.parametrize("parameters", [None, {}])
def test_a_tool_without_parameters_takes_no_arguments(parameters: Any) -> None:
    assert turn(tools=[tool(parameters=parameters)]).tools[0].parameters is None


@pytest.mark.parametrize("name", ["f", "get_weather", "a.b-c_9", "9", "x" * 64])
def test_good_names(name: str) -> None:
    assert turn(tools=[tool(name)]).tools[0].name == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "é", "a/b", "a\n", "<tool_call>", "a\0"])
def test_bad_names(name: str) -> None:
    error = refusal(tools=[tool(), tool(name)])
    assert (error.code, error.param) == ("invalid_tool_name", "tools[1].function.name")


TOOLS: list[tuple[Any, str]] = [
    ({}, "tools"),
    ([1], "tools[0]"),
    ([{}], "tools[0].function"),
    ([{"type": 1}], "tools[0].type"),
    ([tool(), tool("g"), tool()], "tools[2].function.name"),
    ([tool(parameters=[])], "tools[0].function.parameters"),
    ([tool(parameters="{}")], "tools[0].function.parameters"),
    ([tool(strict="yes")], "tools[0].function.strict"),
    ([tool(description=1)], "tools[0].function.description"),
    ([tool(f"f{number}") for number in range(limits.TOOLS + 1)], "tools"),
]


@pytest.mark.parametrize(("tools", "param"), TOOLS, ids=[param for _, param in TOOLS])
def test_malformed_tools_are_refused_with_their_path(tools: Any, param: str) -> None:
    assert refusal(tools=tools).param == param


def test_schemas_are_bounded_together() -> None:
    half = {"description": "x" * (limits.SCHEMA_BYTES // 2)}
    with pytest.raises(InvalidSchema) as caught:
        asked(tools=[tool("a", parameters=half), tool("b", parameters=half)])
    assert caught.value.code == "schema_too_large"
    assert asked(tools=[tool("a", parameters=half)])


def named(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


CHOICES: list[tuple[Any, ToolChoice]] = [
    (None, ToolChoice("auto")),
    ("auto", ToolChoice("auto")),
    ("none", ToolChoice("none")),
    ("required", ToolChoice("required")),
    (named("a")[0], ToolChoice("required", ("a",))),
    ({"type": "function", "name": "a"}, ToolChoice("required", ("a",))),
    (
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named("a", "b")}},
        ToolChoice("required", ("a", "b")),
    ),
    ({"type": "allowed_tools", "mode": "auto", "tools": named("b")}, ToolChoice("auto", ("b",))),
    ({"type": "allowed_tools", "allowed_tools": {"tools": named("b")}}, ToolChoice("auto", ("b",))),
]


@pytest.mark.parametrize(("choice", "expected"), CHOICES)
def test_tool_choices(choice: Any, expected: ToolChoice) -> None:
    assert turn(tools=[tool("a"), tool("b"), tool("c")], tool_choice=choice).tool_choice == expected


BAD_CHOICES: list[tuple[Any, str]] = [
    ("any", "tool_choice"),
    (1, "tool_choice"),
    ([], "tool_choice"),
    ({}, "tool_choice.type"),
    ({"type": "function"}, "tool_choice.name"),
    (named("c")[0], "tool_choice"),
    ({"type": "allowed_tools", "tools": []}, "tool_choice.tools"),
    ({"type": "allowed_tools", "allowed_tools": {"tools": named("c")}}, "tool_choice"),
    ({"type": "allowed_tools", "mode": "none", "tools": named("a")}, "tool_choice.mode"),
]


@pytest.mark.parametrize(("choice", "param"), BAD_CHOICES)
def test_tool_choices_that_promise_nothing_there_is(choice: Any, param: str) -> None:
    assert refusal(tools=[tool("a")], tool_choice=choice).param == param


@pytest.mark.parametrize("choice", ["required", named("a")[0]])
def test_a_forced_call_needs_tools(choice: Any) -> None:
    assert refusal(tool_choice=choice).param == "tool_choice"
    assert refusal(tools=[{"type": "web_search"}], tool_choice=choice).param == "tool_choice"


def test_parallel_calls_can_be_refused() -> None:
    assert turn().parallel_tool_calls
    assert not turn(parallel_tool_calls=False).parallel_tool_calls


# Response formats.


def test_response_formats() -> None:
    schema = {"type": "object"}
    described = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    assert turn(response_format={"type": "text"}).response_format == ResponseFormat()
    assert turn(response_format={"type": "json_object"}).response_format == ResponseFormat("json_object")
    place = "response_format.json_schema.schema"
    expected = ResponseFormat("json_schema", "n", '{"type": "object"}', place)
    assert turn(response_format=described).response_format == expected


def test_a_schema_of_a_json_object_is_held_to() -> None:
    """llama.cpp's form of a schema, and that of servers that followed it."""
    given = {"type": "json_object", "schema": {"const": "42"}}
    expected = ResponseFormat("json_schema", None, '{"const": "42"}', "response_format.schema")
    assert turn(response_format=given).response_format == expected
    assert turn(response_format=given | {"schema": None}).response_format == ResponseFormat("json_object")


FORMATS: list[tuple[Any, str]] = [
    ("json_object", "response_format"),
    ({}, "response_format.type"),
    ({"type": "grammar"}, "response_format.type"),
    ({"type": "json_object", "schema": 123}, "response_format.schema"),
    ({"type": "json_schema"}, "response_format.json_schema"),
    ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
    ({"type": "json_schema", "json_schema": {"schema": []}}, "response_format.json_schema.schema"),
    (
        {"type": "json_schema", "json_schema": {"schema": {}, "name": "a b"}},
        "response_format.json_schema.name",
    ),
    (
        {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}},
        "response_format.json_schema.strict",
    ),
]


@pytest.mark.parametrize(("given_format", "param"), FORMATS, ids=[param for _, param in FORMATS])
def test_malformed_response_formats(given_format: Any, param: str) -> None:
    assert refusal(response_format=given_format).param == param


@pytest.mark.parametrize(
    "name",
    [
        "functions",
        "function_call",
        "chat_template",
        "continue_final_message",
        "grammar",
        "json_schema",
        "guided_json",
        "guided_regex",
    ],
)
def test_promises_that_would_not_be_kept_are_refused(name: str) -> None:
    error = refusal(**{name: {"a": 1}})
    assert (error.code, error.param) == ("unsupported_parameter", name)


# Sampling and lengths.


def test_sampling_fields() -> None:
    fields = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.05,
        "frequency_penalty": -2,
        "presence_penalty": 2.0,
        "repeat_penalty": 1.1,
        "seed": -1,
        "logit_bias": {"5": -100, "999": 1.5},
        "logprobs": True,
        "top_logprobs": 20,
    }
    assert turn(**fields).sampling == Sampling(
        0.0, 0.5, 40, 0.05, -2.0, 2.0, 1.1, 2**32 - 1, ((5, -100.0), (999, 1.5)), 20
    )
    assert turn().sampling == Sampling()


def test_whole_floats_are_integers_and_large_values_are_clamped() -> None:
    found = turn(n=2.0, max_tokens=10**30, top_k=10**30, seed=10**30)
    assert (found.choices, found.max_tokens, found.sampling.top_k) == (2, limits.TOKENS, limits.TOKENS)
    assert found.sampling.seed == 10**30 % 2**32
    assert turn(top_k=-1).sampling.top_k == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": None}, None),
    ],
)
def test_max_tokens_has_two_names(fields: dict[str, Any], expected: int | None) -> None:
    assert turn(**fields).max_tokens == expected


def test_stop_strings() -> None:
    assert turn(stop="a").stop == ("a",)
    assert turn(stop=[str(each) for each in range(16)]).stop == tuple(map(str, range(16)))
    assert turn(stop=[]).stop == ()


def test_top_logprobs_need_logprobs() -> None:
    assert turn(logprobs=True).sampling.top_logprobs == 0
    assert turn(logprobs=False, top_logprobs=0).sampling.top_logprobs is None
    assert refusal(top_logprobs=2).param == "top_logprobs"
    assert refusal(logprobs=False, top_logprobs=2).param == "top_logprobs"


VALUES: list[tuple[str, list[Any]]] = [
    ("temperature", [-0.1, 2.01, "1", True, [], 10**400]),
    ("top_p", [-1, 1.1, "1"]),
    ("top_k", [-2, 1.5, "1", False]),
    ("min_p", [-0.1, 2]),
    ("frequency_penalty", [-2.1, 3]),
    ("presence_penalty", [-2.1, 3]),
    ("repeat_penalty", [0, -1, 11]),
    ("seed", [1.5, "1", True]),
    ("n", [0, -1, 9, 1.5, "2", True, 2**63, 10**30]),
    ("max_tokens", [0, -1, 1.5, "5", True]),
    ("max_completion_tokens", [0, -1]),
    ("logprobs", [1, "true"]),
    ("stream", [1, "true", []]),
    ("parallel_tool_calls", ["no", 0]),
    ("stop", ["", 5, True, {}, ["a"] * 17, "x" * (limits.STOP_LENGTH + 1), "a\0"]),
    ("logit_bias", [[], 5, dict.fromkeys(map(str, range(1000)), 1) | {"a" * n: 1 for n in range(1, 30)}]),
    ("model", [5, [], True]),
    ("stream_options", [5, True, []]),
]


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in VALUES for value in values],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_values_out_of_range_or_type_are_refused(name: str, value: Any) -> None:
    error = refusal(**{name: value})
    assert error.param == name
    assert error.status == 400


@pytest.mark.parametrize("key", ["-1", "1000", "abc", "1.0", "01", "٣", "10" * 40, ""])
def test_logit_bias_keys_are_token_ids(key: str) -> None:
    assert refusal(logit_bias={key: 1}).param == "logit_bias"


@pytest.mark.parametrize("value", [101, -101, "1", True, None])
def test_logit_bias_values_are_numbers_in_range(value: Any) -> None:
    assert refusal(logit_bias={"7": value}).param == "logit_bias.7"


@pytest.mark.parametrize("number", [1, 20, 2**62])
def test_elements_of_stop_have_paths(number: int) -> None:
    assert refusal(stop=["a", number]).param == "stop[1]"


@pytest.mark.parametrize("fields", [{"top_logprobs": 21}, {"top_logprobs": -1}, {"top_logprobs": "1"}])
def test_top_logprobs_are_bounded(fields: dict[str, Any]) -> None:
    assert refusal(logprobs=True, **fields).param == "top_logprobs"


def test_streams() -> None:
    assert not asked(stream=False).stream
    assert asked(stream=True).stream
    assert asked(stream_options={"include_usage": True}).include_usage
    assert not asked(stream_options={}).include_usage
    assert refusal(stream_options={"include_usage": 1}).param == "stream_options.include_usage"


@pytest.mark.parametrize("body", [None, [], "x", 5, True])
def test_the_body_is_an_object(body: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(body, SERVED)
    assert caught.value.param is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = [name for name, _ in VALUES] + ["messages", "tools", "tool_choice", "response_format", "functions"]


@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=4))
def test_any_json_is_taken_or_refused_as_the_clients_mistake(fields: dict[str, Any]) -> None:
    error = mistake(fields)
    assert error is None or (error.param and len(error.message) <= 500)


def mistake(fields: dict[str, Any]) -> ToolspanError | None:
    try:
        asked(**fields)
    except (InvalidRequest, NotFound) as error:
        return error
    return None


# Thinking.


def test_thinking_is_passed_on() -> None:
    found = turn(
        reasoning_effort="low", chat_template_kwargs={"enable_thinking": False, "thinking_budget": 9}
    )
    assert found.reasoning_effort == "low"
    assert found.template_variables == (("enable_thinking", False), ("thinking_budget", 9))
    assert turn(enable_thinking=True).template_variables == (("enable_thinking", True),)
    assert turn().template_variables == ()


@pytest.mark.parametrize("name", ["thinking_budget_tokens", "thinking_token_budget", "reasoning_budget"])
def test_tokens_for_thoughts(name: str) -> None:
    assert [turn(**{name: tokens}).reasoning_budget for tokens in (0, 7, -1)] == [0, 7, -1]
    assert turn().reasoning_budget is None
    for wrong in (-2, "7", 1.5, True):
        assert refusal(**{name: wrong}).param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "very"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"enable_thinking": "yes"}, "enable_thinking"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"tools": None}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"thinking": {}}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking": 1.5}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking": "x" * 65}}, "chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"thinking_budget": 2**40}}, "chat_template_kwargs.thinking_budget"),
    ],
)
def test_what_a_template_may_not_be_given(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param
