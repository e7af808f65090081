"""The HTTP application: routes to what answers them, inside the middleware every request passes.

A new API family is a module for its bodies (to ``Turn``) and one for its answers (frames to its shapes), as
``chat_request`` and ``chat_answer`` are, an entry in ``families`` and its lines in ``routes``.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from server.api.auth import Keys
from server.api.body import ClientGone
from server.api.edge import CLIENT_GONE, PREFIX, CancelWhenGone, Edge
from server.api.embeddings import Embeddings
from server.api.families import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from server.api.family import Answers
from server.api.guard import HEALTH, Guard
from server.api.metrics import Metrics
from server.api.models import Models
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
    app = FastAPI(title="Toolspan", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    family = routes(settings, supervisor, metrics, store)
    others = operations(supervisor, metrics)
    app.include_router(family, prefix=PREFIX)
    app.include_router(family)
    app.include_router(others)
    app.add_exception_handler(ToolspanError, _refused)
    app.add_exception_handler(HTTPException, _unrouted)
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
    router.add_api_route("/chat/completions", chat.answer, methods=["POST"])
    router.add_api_route("/completions", completions.answer, methods=["POST"])
    router.add_api_route("/responses", responses.answer, methods=["POST"])
    stored = StoredResponses(store)
    router.add_api_route("/responses/{name:path}", stored.one, methods=["GET"])
    router.add_api_route("/responses/{name:path}", stored.delete, methods=["DELETE"])
    router.add_api_route("/messages", messages.answer, methods=["POST"])
    router.add_api_route("/messages/count_tokens", messages.count, methods=["POST"])
    router.add_api_route("/embeddings", Embeddings(settings, supervisor).create, methods=["POST"])
    prompts = Prompts(settings, supervisor)
    router.add_api_route("/tokenize", prompts.tokenize, methods=["POST"])
    router.add_api_route("/detokenize", prompts.detokenize, methods=["POST"])
    router.add_api_route("/apply-template", prompts.apply_template, methods=["POST"])
    checks = ToolsCheck(settings)
    router.add_api_route("/tools/check", checks.report, methods=["POST"])
    router.add_api_route("/models", models.all, methods=["GET"])
    router.add_api_route("/models/{name:path}", models.one, methods=["GET"])
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
        router.add_api_route(path, health, methods=["GET", "HEAD"])
    router.add_api_route("/metrics", read_metrics, methods=["GET"])
    router.add_api_route("/", Page().show, methods=["GET", "HEAD"])
    return router


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ToolspanError)
    return error_reply(error.data)


async def _unrouted(request: Request, error: Exception) -> Response:
    """The router's own refusals."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refusal: ToolspanError = MethodNotAllowed(f"this route takes {allowed} only")
        return error_reply(refusal.data, {"allow": allowed})
    return error_reply(NotFound("there is no such route", code="unknown_route").data)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _broken(request: Request, error: Exception) -> Response:
    """A mistake of ours; ``Edge`` gets the exception too, and logs it."""
    return error_reply(ToolspanError("an internal error happened").data)
