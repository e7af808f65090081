"""The Agents SDK: its own loop, on both of OpenAI's APIs."""

from __future__ import annotations

import asyncio

import agents
from meter import BASE_URL, KEY, MODEL, QUESTION, read_meter, run
from openai import AsyncOpenAI

agents.set_tracing_disabled(True)
loop = asyncio.new_event_loop()
client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
chat_model = agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
responses_model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)


def whole(model: agents.Model) -> str:
    return loop.run_until_complete(agents.Runner.run(reader(model), QUESTION)).final_output


def streamed(model: agents.Model) -> str:
    async def follow() -> str:
        running = agents.Runner.run_streamed(reader(model), QUESTION)
        async for _ in running.stream_events():
            pass
        return running.final_output

    return loop.run_until_complete(follow())


def reader(model: agents.Model) -> agents.Agent:
    tools = [agents.function_tool(read_meter)]
    return agents.Agent(name="reader", instructions="Read meters.", model=model, tools=tools)


def chat() -> str:
    return whole(chat_model)


def chat_streamed() -> str:
    return streamed(chat_model)


def responses() -> str:
    return whole(responses_model)


def responses_streamed() -> str:
    return streamed(responses_model)


run(chat, chat_streamed, responses, responses_streamed)
