"""Server-sent events: one line of JSON each, sent as they are made, and a source that is always closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Scope

from server.api.sse import DONE, EventStream, event

SCOPE: Scope = {"type": "http"}


@given(st.text() | st.lists(st.text()))
def test_an_event_is_one_line(content: str | list[str]) -> None:
    data = event(content).decode()
    assert data.splitlines(keepends=False)[0].startswith("data: ")
    assert data.startswith("data: ")
    assert data.endswith("\n\n")
    assert "\n" not in data[:-2]
    assert "\r" not in data
    assert json.loads(data.removeprefix("data: ")) == content


def test_events_leave_one_by_one_and_headers_before_the_first() -> None:
    async def test() -> None:
        sent: list[Message] = []
        given = asyncio.Queue[bytes | None]()

        async def source() -> AsyncGenerator[bytes, None]:
            while (data := await given.get()) is not None:
                yield data

        async def send(message: Message) -> None:
            sent.append(message)

        async def until(count: int) -> None:
            while len(sent) < count:
                await asyncio.sleep(0)

        sending = asyncio.create_task(EventStream(source())(SCOPE, _nothing, send))
        await until(1)
        headers = dict(sent[0]["headers"])
        assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert b"content-length" not in headers
        given.put_nowait(DONE)
        await until(2)
        assert (sent[1]["body"], sent[1]["more_body"]) == (DONE, True)
        given.put_nowait(None)
        await sending
        assert (sent[2]["body"], sent[2]["more_body"]) == (b"", False)

    asyncio.run(asyncio.wait_for(test(), 20))


@pytest.mark.parametrize("how", ["cancelled", "broken"])
def test_the_source_is_closed_when_sending_ends_early(how: str) -> None:
    closed: list[str] = []

    async def source() -> AsyncGenerator[bytes, None]:
        try:
            yield b"x"
        finally:
            closed.append(how)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            if how == "broken":
                raise OSError
            await asyncio.Future()

    async def test() -> None:
        events = source()
        sending = asyncio.create_task(EventStream(events)(SCOPE, _nothing, send))
        await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert closed == [how]  # by the response, not when the last reference goes

    asyncio.run(test())


async def _nothing() -> Message:
    return await asyncio.Future()
