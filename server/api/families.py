"""The API families that are served."""

from __future__ import annotations

from server.api import (
    chat_request,
    completions_request,
    messages_request,
    responses_request,
    responses_stored,
    sse,
)
from server.api.chat_answer import ChatEncoder
from server.api.chat_request import ChatRequest
from server.api.completions_answer import CompletionsEncoder
from server.api.completions_request import CompletionsRequest
from server.api.family import Encoder, Family, fingerprint
from server.api.messages_answer import MessagesEncoder
from server.api.messages_request import MessagesRequest
from server.api.responses_answer import ResponsesEncoder
from server.api.responses_request import ResponsesRequest
from server.frames import ModelFacts


def _chat_encoder(asked: ChatRequest | CompletionsRequest, facts: ModelFacts) -> Encoder:
    made = ChatEncoder if isinstance(asked, ChatRequest) else CompletionsEncoder
    return made(
        facts.name,
        fingerprint(facts),
        sum(each.choices for each in asked.turns),
        include_usage=asked.include_usage,
        logprobs=asked.turns[0].sampling.top_logprobs is not None,
    )


def _messages_encoder(asked: MessagesRequest, facts: ModelFacts) -> Encoder:
    return MessagesEncoder(facts.name)


def _responses_encoder(asked: ResponsesRequest, facts: ModelFacts) -> Encoder:
    return ResponsesEncoder(facts.name, asked.echo)


CHAT = Family(chat_request.decode, _chat_encoder, sse.event, sse.DONE)
COMPLETIONS = Family(completions_request.decode, _chat_encoder, sse.event, sse.DONE)
RESPONSES = Family(responses_request.decode, _responses_encoder, sse.typed_event, keep=responses_stored.keep)
MESSAGES = Family(messages_request.decode, _messages_encoder, sse.typed_event)
