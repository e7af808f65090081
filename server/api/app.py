"""The HTTP application: routes to what answers them, inside the middleware every request passes.

A new API family is a module for its bodies (to ``Turn``) and one for its answers (frames to its shapes), as
``chat_request`` and ``chat_answer`` are, an entry in ``families`` and its lines in ``routes``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Scope

from server.api import operations as described
from server.api.auth import Keys
from server.api.body import ClientGone
from server.api.edge import CLIENT_GONE, PREFIX, CancelWhenGone, Edge
from server.api.embeddings import Embeddings
from server.api.families import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from server.api.family import Answers
from server.api.guard import HEALTH, Guard
from server.api.metrics import Metrics
from server.api.models import Models
from server.api.openapi import OPERATION, Document
from server.api.operations import Operation
from server.api.page import Page
from server.api.prompts import Prompts
from server.api.replies import error_reply, reply
from server.api.responses_stored import StoredResponses
from server.api.store import Store
from server.api.tools_check import ToolsCheck
from server.errors import MethodNotAllowed, NotFound, ToolspanError
from server.settings import Settings
from server.supervisor import State, Supervisor

STATES = {
    State.LOADING: "loading",
    State.READY: "ok",
    State.DOWN: "degraded",
    State.STOPPING: "draining",
}


def create_app(settings: Settings, supervisor: Supervisor, keys: Keys, store: Store | None = None) -> ASGIApp:
    """The whole application."""
    metrics = Metrics(supervisor)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    family = routes(settings, supervisor, metrics, store)
    others = operations(supervisor, metrics)
    document = Document([(PREFIX, family.routes), ("", others.routes)])
    _add(others, "/openapi.json", document.show, described.DOCUMENT)
    app.include_router(family, prefix=PREFIX)
    app.include_router(family)
    app.include_router(others)
    app.add_exception_handler(ToolspanError, _refused)
    app.add_exception_handler(HTTPException, _Unrouted([*family.routes, *others.routes]).refuse)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(Exception, _broken)
    return Edge(Guard(CancelWhenGone(app), settings, keys), metrics, [*family.routes, *others.routes])


def routes(
    settings: Settings, supervisor: Supervisor, metrics: Metrics, store: Store | None = None
) -> APIRouter:
    """What is served with and without ``/v1``."""
    router = APIRouter()
    chat, completions, responses, messages = (
        Answers(each, settings, supervisor, metrics, store)
        for each in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
    )
    models = Models(settings, supervisor)
    _add(router, "/chat/completions", chat.answer, described.CHAT, "POST")
    _add(router, "/completions", completions.answer, described.COMPLETIONS, "POST")
    _add(router, "/responses", responses.answer, described.RESPONSES, "POST")
    stored = StoredResponses(store)
    _add(router, "/responses/{name:path}", stored.one, described.STORED)
    _add(router, "/responses/{name:path}", stored.delete, described.DELETED, "DELETE")
    _add(router, "/messages", messages.answer, described.MESSAGES, "POST")
    _add(router, "/messages/count_tokens", messages.count, described.COUNT, "POST")
    _add(router, "/embeddings", Embeddings(settings, supervisor).create, described.EMBEDDINGS, "POST")
    prompts = Prompts(settings, supervisor)
    _add(router, "/tokenize", prompts.tokenize, described.TOKENIZE, "POST")
    _add(router, "/detokenize", prompts.detokenize, described.DETOKENIZE, "POST")
    _add(router, "/apply-template", prompts.apply_template, described.APPLY_TEMPLATE, "POST")
    _add(router, "/tools/check", ToolsCheck(settings).report, described.TOOLS_CHECK, "POST")
    _add(router, "/models", models.all, described.MODELS)
    _add(router, "/models/{name:path}", models.one, described.MODEL)
    return router


def operations(supervisor: Supervisor, metrics: Metrics) -> APIRouter:
    """What an operator asks."""
    router = APIRouter()

    async def health() -> Response:
        facts, state = supervisor.facts, supervisor.state
        content: dict[str, Any] = {"status": STATES[state]}
        if facts is not None and state is State.READY:
            content |= {"model": facts.name, "context_length": facts.context, "slots": facts.slots}
            return reply(content)
        reason = supervisor.reason or ("the model is loading" if state is State.LOADING else "shutting down")
        return reply(content | {"reason": reason}, 503, {"retry-after": "5"})

    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type=metrics.CONTENT_TYPE)

    for path in sorted(HEALTH):
        _add(router, path, health, described.HEALTH, "GET", "HEAD")
    _add(router, "/metrics", read_metrics, described.METRICS)
    _add(router, "/", Page().show, described.PAGE, "GET", "HEAD")
    return router


def _add(
    router: APIRouter,
    path: str,
    answer: Callable[..., Awaitable[Response]],
    operation: Operation,
    *methods: str,
) -> None:
    """A route of a router, GET unless others are named, with what is said of it."""
    router.add_api_route(path, answer, methods=list(methods) or ["GET"], openapi_extra={OPERATION: operation})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ToolspanError)
    return error_reply(error.data)


class _Unrouted:
    """The router's own refusals; ``routes`` are those of the application, without their prefix."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes

    async def refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = ", ".join(sorted(self._methods(request.scope)))
            refusal: ToolspanError = MethodNotAllowed(f"this route takes {allowed} only")
            return error_reply(refusal.data, {"allow": allowed})
        return error_reply(NotFound("there is no such route", code="unknown_route").data)

    def _methods(self, scope: Scope) -> set[str]:
        """All methods of a path: the router names those of one route."""
        asked = {
            "type": "http",
            "method": scope["method"],
            "path": scope["path"].removeprefix(PREFIX),
        }
        found = (each for each in self._routes if each.matches(asked)[0] is not Match.NONE)
        return {method for each in found for method in getattr(each, "methods", ())}


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _broken(request: Request, error: Exception) -> Response:
    """A mistake of ours; ``Edge`` gets the exception too, and logs it."""
    return error_reply(ToolspanError("an internal error happened").data)
