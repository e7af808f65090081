"""What each route takes and answers, for the document at ``/openapi.json``; a route names its operation where
it is made (``app.routes``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from server import errors
from server.api.shapes import chat, completions, messages, others, responses
from server.api.shapes.common import Error, MessagesError
from server.errors import ToolspanError

Errors = tuple[type[ToolspanError], ...]

ANY: Errors = (errors.InvalidRequest, errors.Forbidden, errors.HeadersTooLarge, ToolspanError)
"""What any route may answer."""
WITH_KEY: Errors = (*ANY, errors.Unauthorized)
WITH_BODY: Errors = (
    *WITH_KEY,
    errors.RequestTimeout,
    errors.TooLarge,
    errors.UnsupportedMediaType,
)
WITH_MODEL: Errors = (*WITH_BODY, errors.NotFound, errors.Unavailable)
GENERATES: Errors = (*WITH_MODEL, errors.QueueFull, errors.GenerationTimeout)
ASKS: Errors = (*WITH_MODEL, errors.QueueFull)


@dataclass(frozen=True, slots=True)
class Operation:
    """``asked`` is the type of the body, ``answer`` that of the reply, ``events`` that of a stream's events
    where the request wants one; ``media_type`` is the reply's. ``error`` has the shape of ``errors``, and
    ``others`` are replies of other statuses."""

    summary: str
    answer: Any
    errors: Errors
    asked: Any = None
    events: Any = None
    media_type: str = "application/json"
    error: Any = Error
    others: dict[int, Any] = field(default_factory=dict)
    done: bool = False

    @property
    def types(self) -> list[Any]:
        found = [self.asked, self.answer, self.events, self.error, *self.others.values()]
        return [each for each in found if each is not None]


CHAT = Operation(
    "Answers a conversation.",
    chat.ChatCompletion,
    GENERATES,
    asked=chat.ChatCompletionRequest,
    events=chat.ChatCompletionChunk,
    done=True,
)
COMPLETIONS = Operation(
    "Goes on with prompts that are taken as they are.",
    completions.TextCompletion,
    GENERATES,
    asked=completions.CompletionRequest,
    events=completions.TextCompletionChunk,
    done=True,
)
RESPONSES = Operation(
    "Answers a conversation, as items.",
    responses.Response,
    GENERATES,
    asked=responses.ResponseRequest,
    events=responses.ResponsesEvent,
)
STORED = Operation("A response that was kept.", responses.Response, (*WITH_KEY, errors.NotFound))
DELETED = Operation("Deletes a kept response.", responses.DeletedResponse, (*WITH_KEY, errors.NotFound))
MESSAGES = Operation(
    "Answers a conversation, as content blocks.",
    messages.MessagesAnswer,
    GENERATES,
    asked=messages.MessagesRequest,
    events=messages.MessagesEvent,
    error=MessagesError,
)
COUNT = Operation(
    "Counts the tokens of a conversation.",
    messages.TokenCount,
    ASKS,
    asked=messages.MessagesRequest,
    error=MessagesError,
)
EMBEDDINGS = Operation(
    "Makes vectors of texts, with a model for that.",
    others.EmbeddingList,
    ASKS,
    asked=others.EmbeddingRequest,
)
TOKENIZE = Operation("Makes tokens of text.", others.TokenList, ASKS, asked=others.TokenizeRequest)
DETOKENIZE = Operation("Makes text of tokens.", others.DetokenizedText, ASKS, asked=others.DetokenizeRequest)
APPLY_TEMPLATE = Operation(
    "Makes the prompt of a conversation.", others.AppliedTemplate, ASKS, asked=chat.ChatCompletionRequest
)
TOOLS_CHECK = Operation(
    "Tells what of the tools' schemas is enforced.",
    others.ToolsCheck,
    WITH_BODY,
    asked=others.ToolsCheckRequest,
)
MODELS = Operation("What is served.", others.ModelList, (*WITH_KEY, errors.Unavailable))
MODEL = Operation("A model.", others.Model, (*WITH_KEY, errors.NotFound, errors.Unavailable))
HEALTH = Operation("Whether the model is ready.", others.Healthy, ANY, others={503: others.Unhealthy})
METRICS = Operation("Numbers for Prometheus.", None, WITH_KEY, media_type="text/plain")
PAGE = Operation("A page to try the model on.", None, ANY, media_type="text/html")
DOCUMENT = Operation("This document.", dict[str, Any], WITH_KEY)
