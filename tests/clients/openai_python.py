"""The official Python client on chat completions and responses, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

from meter import BASE_URL, CHAT_TOOL, KEY, MODEL, QUESTION, RESPONSES_TOOL, read_meter, run
from openai import OpenAI

client = OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)


def chat() -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
        (choice,) = answer.choices
        if choice.finish_reason != "tool_calls":
            return choice.message.content
        messages += [choice.message, *map(result, choice.message.tool_calls)]


def chat_streamed() -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=[CHAT_TOOL]) as stream:
            (choice,) = stream.get_final_completion().choices
        if choice.finish_reason != "tool_calls":
            return choice.message.content
        messages += [choice.message, *map(result, choice.message.tool_calls)]


def result(call: Any) -> dict[str, Any]:
    said = read_meter(**json.loads(call.function.arguments))
    return {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": said}]}


def responses() -> str:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        answer = client.responses.create(model=MODEL, input=items, tools=[RESPONSES_TOOL])
        calls = [each for each in answer.output if each.type == "function_call"]
        if not calls:
            return answer.output_text
        items += [*answer.output, *map(output, calls)]


def responses_streamed() -> str:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        with client.responses.stream(model=MODEL, input=items, tools=[RESPONSES_TOOL]) as stream:
            answer = stream.get_final_response()
        calls = [each for each in answer.output if each.type == "function_call"]
        if not calls:
            return answer.output_text
        items += [*answer.output, *map(output, calls)]


def output(call: Any) -> dict[str, Any]:
    said = read_meter(**json.loads(call.arguments))
    return {"type": "function_call_output", "call_id": call.call_id, "output": said}


run(chat, chat_streamed, responses, responses_streamed)
