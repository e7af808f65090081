"""``GET /v1/models``: what is served, under which names, and what it can do."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from server.api.replies import reply
from server.errors import NotFound, Unavailable, quoted
from server.frames import ModelFacts
from server.settings import Settings
from server.supervisor import Supervisor


class Models:
    def __init__(self, settings: Settings, supervisor: Supervisor) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._created = int(time.time())

    async def all(self) -> Response:
        return reply({"object": "list", "data": [self._model(name) for name in self._names()]})

    async def one(self, name: str) -> Response:
        if name not in self._names():
            raise NotFound(f"the model {quoted(name)} does not exist", param="model")
        return reply(self._model(name))

    def _names(self) -> tuple[str, ...]:
        return (self._facts().name, *self._settings.alias)

    def _facts(self) -> ModelFacts:
        facts = self._supervisor.facts
        if facts is None:
            raise Unavailable("the model is loading", code="loading", retry_after=5)
        return facts

    def _model(self, name: str) -> dict[str, Any]:
        facts = self._facts()
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "toolspan",
            "root": facts.name,
            "architecture": facts.architecture,
            "context_length": facts.context,
            "context_length_trained": facts.context_train,
            "slots": facts.slots,
            "dialect": facts.dialect,
            "tools": facts.tools,
            "parallel_tool_calls": facts.parallel_calls,
            "reasoning": facts.reasoning,
            "embedding": facts.embedding,
            "warnings": facts.warnings,
        }
