"""The outermost middleware: ids, the log line, what is made of exceptions, and of clients that leave."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.body import ClientGone
from server.api.edge import CLIENT_GONE, CancelWhenGone, Edge
from server.api.metrics import Metrics
from server.errors import ConstraintDeadEnd, NotFound, SchemaNotSatisfied, ToolspanError
from server.settings import Settings
from server.supervisor import Supervisor

SECRET = "what the user wrote"
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
PART: Message = {"type": "http.response.body", "body": b"x", "more_body": True}
END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


def scope() -> Scope:
    return {
        "type": "http",
        "method": "GET",
        "path": "/a",
        "raw_path": b"/a\xe9%0a",
        "query_string": b"k=secret",
    }


async def nothing() -> Message:
    return await asyncio.Future()


def through(app: ASGIApp, receive: Receive = nothing) -> list[Message]:
    """What is sent to a client of ``app`` behind the edge."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Edge(app, Metrics(Supervisor(Settings())))(scope(), receive, send))
    return sent


def header(message: Message, name: bytes) -> bytes:
    return dict(message["headers"])[name]


def test_every_answer_has_an_id_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in (START | {"headers": []}, PART, END):
            await send(message)

    with caplog.at_level(logging.INFO, "toolspan"):
        ids = {header(through(app)[0], b"x-request-id").decode() for _ in range(3)}
    assert len(ids) == 3
    lines = [each.getMessage() for each in caplog.records if each.name == "toolspan.http"]
    assert [line.split()[0] in ids for line in lines] == [True] * 3
    assert all("GET none 200 " in line for line in lines)
    assert "secret" not in caplog.text


def test_only_at_debug_is_what_was_asked_for_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "toolspan"):
        through(raising(NotFound("no")))
    assert "asked for /a\xe9%0a?k=secret" in caplog.text
    assert "GET none 404 model_not_found " in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [(NotFound("no"), False), (SchemaNotSatisfied("no"), True), (ConstraintDeadEnd("no"), True)],
)
def test_clients_are_told_what_not_to_try_again(error: ToolspanError, told: bool) -> None:
    start, _ = through(raising(error))
    assert dict(start["headers"]).get(b"x-should-retry") == (b"false" if told else None)


def raising(error: Exception, *before: Message) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in before:
            await send(dict(message))
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "status"), [(NotFound("no"), 404), (ValueError(SECRET), 500), (KeyError(SECRET), 500)]
)
def test_exceptions_become_errors(error: Exception, status: int, caplog: pytest.LogCaptureFixture) -> None:
    start, body = through(raising(error))
    assert start["status"] == status
    assert body["body"].startswith(b'{"error":{"message":"')
    assert header(start, b"x-request-id")
    assert SECRET not in caplog.text + str(body)


def test_an_internal_error_is_told_by_type_and_place(caplog: pytest.LogCaptureFixture) -> None:
    through(raising(ValueError(SECRET)))
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "ValueError in app (test_edge.py:" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize("error", [NotFound("no"), ValueError("x"), ClientGone()])
def test_an_answer_that_has_begun_is_not_begun_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sent = through(raising(error, START, PART))
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]
    assert f" {CLIENT_GONE} " in caplog.text


def test_other_protocols_get_nothing() -> None:
    async def test() -> None:
        async def send(message: Message) -> None:
            raise AssertionError

        await Edge(raising(ValueError()), Metrics(Supervisor(Settings())))(
            {"type": "websocket"}, nothing, send
        )

    asyncio.run(test())


# Clients that leave.


def leaving(app: ASGIApp, *messages: dict[str, Any]) -> list[Message]:
    waiting = list(messages)

    async def receive() -> Message:
        return waiting.pop(0) if waiting else await asyncio.Future()

    return through(CancelWhenGone(app), receive)


BODY = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


def test_what_is_running_is_cancelled_when_the_client_leaves() -> None:
    ended: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await asyncio.Future()
        finally:
            ended.append("cancelled")

    assert leaving(app, BODY, GONE) == []
    assert ended == ["cancelled"]


def test_the_body_is_the_applications_to_read() -> None:
    read: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            read.append((await receive())["body"])
        for message in (START, END):
            await send(dict(message))

    sent = leaving(app, BODY | {"body": b"1", "more_body": True}, BODY | {"body": b"2"})
    assert read == [b"1", b"2"]
    assert len(sent) == 2


def test_an_answer_that_is_complete_is_not_cancelled() -> None:
    after: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        for message in (START, END):
            await send(dict(message))
        await asyncio.sleep(0.01)
        after.append("done")

    assert len(leaving(app, BODY, GONE)) == 2
    assert after == ["done"]
