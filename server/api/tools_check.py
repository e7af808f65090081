"""``POST /v1/tools/check``: what of the tools' schemas is enforced, verified or refused. Needs no model.

The work is done in a process of its own, as it is in the runner for an answer: no schema can hold up or
end this one.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api import body, limits
from server.api.fields import Field
from server.api.replies import reply
from server.errors import InvalidSchema
from server.programs import program
from server.settings import Settings

COMMAND = program("server.schema.report")


class ToolsCheck:
    """Reports on tools, a few at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._free = asyncio.Semaphore(limits.TOOL_CHECKS)

    async def report(self, request: Request) -> Response:
        raw = await body.read(request, self._settings.max_body, self._settings.receive_timeout)
        root = Field(await asyncio.to_thread(body.parse, raw))
        root.object()
        tools = root.need("tools").items(limits.TOOLS_SENT)
        async with self._free:
            found = await _reported([each.value for each in tools])
        refused = any(each["refusal"] for each in found)
        return reply({"object": "tools.check", "ok": not refused, "tools": found})


async def _reported(tools: list[Any]) -> list[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    try:
        async with asyncio.timeout(limits.TOOL_CHECK_SECONDS):
            given = await asyncio.to_thread(json.dumps, tools)
            written, _ = await process.communicate(given.encode())
    except TimeoutError:
        raise InvalidSchema(
            f"the tools could not be checked within {limits.TOOL_CHECK_SECONDS:g} s",
            code="schema_too_large",
            param="tools",
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in (0, 1):
        raise InvalidSchema("the tools can't be checked", code="schema_too_large", param="tools")
    found: list[dict[str, Any]] = await asyncio.to_thread(json.loads, written)
    return found
