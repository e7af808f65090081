"""The API families that are served."""

from __future__ import annotations

from server.api import chat_request, messages_request, sse
from server.api.chat_answer import ChatEncoder
from server.api.chat_request import ChatRequest
from server.api.family import Encoder, Family, fingerprint
from server.api.messages_answer import MessagesEncoder
from server.api.messages_request import MessagesRequest
from server.api.replies import error_object, messages_error
from server.frames import ModelFacts


def _chat_encoder(asked: ChatRequest, facts: ModelFacts) -> Encoder:
    return ChatEncoder(
        facts.name,
        fingerprint(facts),
        asked.turn.choices,
        include_usage=asked.include_usage,
        logprobs=asked.turn.sampling.top_logprobs is not None,
    )


def _messages_encoder(asked: MessagesRequest, facts: ModelFacts) -> Encoder:
    return MessagesEncoder(facts.name)


CHAT = Family(chat_request.decode, _chat_encoder, sse.event, error_object, sse.DONE)
MESSAGES = Family(messages_request.decode, _messages_encoder, sse.typed_event, messages_error)
