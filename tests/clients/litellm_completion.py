"""LiteLLM as a client of chat completions, of responses and of Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

import litellm
from meter import BASE_URL, CHAT_TOOL, KEY, MODEL, QUESTION, RESPONSES_TOOL, read_meter, run

litellm.suppress_debug_info = True
CHAT = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": KEY, "max_retries": 0}
MESSAGES = CHAT | {"model": f"anthropic/{MODEL}", "api_base": BASE_URL.removesuffix("/v1")}


def converse(provider: dict[str, Any], *, stream: bool) -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        answer = litellm.completion(messages=messages, tools=[CHAT_TOOL], stream=stream, **provider)
        if stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        (choice,) = answer.choices
        if choice.finish_reason != "tool_calls":
            return choice.message.content
        messages.append(choice.message)
        for call in choice.message.tool_calls:
            said = read_meter(**json.loads(call.function.arguments))
            named = {"tool_call_id": call.id, "name": call.function.name}
            messages.append({"role": "tool", "content": said, **named})


def chat() -> str:
    return converse(CHAT, stream=False)


def chat_streamed() -> str:
    return converse(CHAT, stream=True)


def messages() -> str:
    return converse(MESSAGES, stream=False)


def messages_streamed() -> str:
    return converse(MESSAGES, stream=True)


def responses() -> str:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        answer = litellm.responses(input=items, tools=[RESPONSES_TOOL], **CHAT)
        calls = [each for each in answer.output if each.type == "function_call"]
        if not calls:
            return answer.output_text
        for call in calls:
            said = read_meter(**json.loads(call.arguments))
            output = {"type": "function_call_output", "call_id": call.call_id, "output": said}
            items += [call.model_dump(exclude_none=True), output]


run(chat, chat_streamed, messages, messages_streamed, responses)
