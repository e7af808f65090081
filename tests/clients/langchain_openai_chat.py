"""LangChain's ChatOpenAI: bound tools on both APIs, a forced call, and its two ways to a typed answer."""

from __future__ import annotations

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from meter import BASE_URL, KEY, MODEL, QUESTION, read_meter, run
from pydantic import BaseModel, Field

meter = tool(read_meter)


class Reading(BaseModel):
    room: str
    value: float = Field(gt=2)


def model(**options: object) -> ChatOpenAI:
    return ChatOpenAI(base_url=BASE_URL, api_key=KEY, model=MODEL, max_retries=0, **options)


def converse(llm: ChatOpenAI, *, stream: bool) -> str:
    bound = llm.bind_tools([meter])
    messages = [SystemMessage("Read meters."), HumanMessage(QUESTION)]
    while True:
        if stream:
            first, *rest = bound.stream(messages)
            answer = sum(rest, first)
        else:
            answer = bound.invoke(messages)
        if not answer.tool_calls:
            return answer.text
        messages += [answer, *map(meter.invoke, answer.tool_calls)]


def chat() -> str:
    return converse(model(), stream=False)


def chat_streamed() -> str:
    return converse(model(stream_usage=True), stream=True)


def responses() -> str:
    return converse(model(use_responses_api=True), stream=False)


def responses_streamed() -> str:
    return converse(model(use_responses_api=True), stream=True)


def forced() -> str:
    """The named tool is called, whatever the words are."""
    answer = model().bind_tools([meter], tool_choice="read_meter", strict=True).invoke(QUESTION)
    (call,) = answer.tool_calls
    return meter.invoke(call).content


for method in ("json_schema", "function_calling"):
    typed = model().with_structured_output(Reading, method=method).invoke("What does it show?")
    assert isinstance(typed, Reading), typed
run(chat, chat_streamed, responses, responses_streamed, forced)
