"""Pydantic AI: its own loop on both APIs, and typed answers by a tool and by a schema."""

from __future__ import annotations

import asyncio

from meter import BASE_URL, KEY, MODEL, QUESTION, read_meter, run
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
chat_model = OpenAIChatModel(MODEL, provider=provider)
responses_model = OpenAIResponsesModel(MODEL, provider=provider)


class Reading(BaseModel):
    room: str
    value: int = Field(ge=3)


def whole(model: OpenAIChatModel | OpenAIResponsesModel) -> str:
    return asyncio.run(Agent(model, tools=[read_meter]).run(QUESTION)).output


def streamed(model: OpenAIChatModel | OpenAIResponsesModel) -> str:
    async def follow() -> str:
        async with Agent(model, tools=[read_meter]).run_stream(QUESTION) as running:
            return await running.get_output()

    return asyncio.run(follow())


def chat() -> str:
    return whole(chat_model)


def chat_streamed() -> str:
    return streamed(chat_model)


def responses() -> str:
    return whole(responses_model)


def responses_streamed() -> str:
    return streamed(responses_model)


for form in (ToolOutput, NativeOutput):
    agent = Agent(chat_model, output_type=form(Reading))
    typed = asyncio.run(agent.run("What does it show?")).output
    assert isinstance(typed, Reading), typed
run(chat, chat_streamed, responses, responses_streamed)
