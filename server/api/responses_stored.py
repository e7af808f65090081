"""Responses that are kept: what is kept of an answer, and ``GET`` and ``DELETE /v1/responses/{id}``."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.replies import reply
from server.api.responses_request import ResponsesRequest
from server.api.store import Store
from server.errors import NotFound, quoted


def keep(asked: ResponsesRequest, told: dict[str, Any], store: Store) -> None:
    """Keeps a whole response, or that of a stream's last event, if the request wants it. Where that fails it
    says that it is not stored."""
    response = told.get("response", told)
    if asked.store:
        items = [*asked.items, *response["output"]]
        response["store"] = store.keep(response["id"], asked.turn.partition, items, response)


class StoredResponses:
    def __init__(self, store: Store | None) -> None:
        self._store = store

    async def one(self, request: Request, name: str) -> Response:
        store = self._needed()
        found = await asyncio.to_thread(store.response, name, request.state.partition)
        if found is None:
            raise _unknown(name)
        return reply(found)

    async def delete(self, request: Request, name: str) -> Response:
        store = self._needed()
        if not await asyncio.to_thread(store.delete, name, request.state.partition):
            raise _unknown(name)
        return reply({"id": name, "object": "response", "deleted": True})

    def _needed(self) -> Store:
        if self._store is None:
            message = "this server keeps no responses (--store makes it)"
            raise NotFound(message, code="response_not_found")
        return self._store


def _unknown(name: str) -> NotFound:
    return NotFound(f"the response {quoted(name)} is not kept here (any more)", code="response_not_found")
