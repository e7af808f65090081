"""One connection below HTTP: what drips, floods, is too much, or is no HTTP at all. After each of them the
server answers the next client."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from serving import JSON, Serving, eventually, order, received, request_bytes, serving

LIMIT = 64 * 1024


@pytest.fixture(scope="module")
def shared() -> Iterator[Serving]:
    with serving(receive_timeout=0.4, max_connections=6, max_body=LIMIT, slots=16) as running:
        yield running


@pytest.fixture
def server(shared: Serving) -> Iterator[Serving]:
    yield shared
    assert eventually(lambda: shared.in_flight == 0)
    assert shared.chat().status_code == 200


def code(got: bytes) -> str:
    return str(json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"])


# Slow clients.


def test_a_silent_connection_is_closed(server: Serving) -> None:
    assert server.exchange(b"") == (0, b"")


def test_half_a_header_is_a_timeout(server: Serving) -> None:
    status, got = server.exchange(b"GET /health HTTP/1.1\r\nHost: loc")
    assert (status, code(got)) == (408, "request_timeout")


def test_half_a_body_is_a_timeout(server: Serving) -> None:
    status, got = server.exchange(request_bytes(b"x" * 100)[:-50])
    assert (status, code(got)) == (408, "request_timeout")


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX-Drip: ", request_bytes(b" " * 1000)[:-1000]])
def test_dripping_does_not_extend_the_time(server: Serving, start: bytes) -> None:
    with server.raw(start) as connection:
        dripping = threading.Thread(target=drip, args=(connection,))
        dripping.start()
        got = received(connection)
        connection.close()
        dripping.join()
    assert code(got) == "request_timeout"


def drip(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for _ in range(900):
            connection.sendall(b" ")
            threading.Event().wait(0.02)


def test_an_answer_may_take_longer_than_a_request(server: Serving) -> None:
    reply = server.chat(["sleep", 1.0], ["text", "late"])
    assert reply.json()["choices"][0]["message"]["content"] == "late"


def test_a_client_that_does_not_read_is_dropped(server: Serving) -> None:
    server.server.connections.write_stall = 0.3
    body = json.dumps(order(["flood", 5000], stream=True)).encode()
    with server.raw(request_bytes(body)):
        assert eventually(lambda: server.in_flight == 1)
        assert eventually(lambda: not server.server.connections.open)


# Many connections.


def test_idle_connections_make_room(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.server.connections, "fresh", 0.0)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(server.raw(b"")) for _ in range(6)]
        assert eventually(lambda: len(server.server.connections.open) == 6)
        assert server.get("/health").status_code == 200
        assert received(idle[0]) == b""


def test_new_connections_do_not_push_out_each_other(server: Serving) -> None:
    with contextlib.ExitStack() as stack:
        new = [stack.enter_context(server.raw(b"")) for _ in range(12)]
        for each in new:
            each.sendall(request_bytes(json.dumps(order()).encode(), "Connection: close"))
        got = [received(each) for each in new]
    assert sorted(each.split()[1] for each in got) == [b"200"] * 6 + [b"503"] * 6


def test_busy_connections_do_not(server: Serving) -> None:
    body = json.dumps(order(["sleep", 60])).encode()
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(server.raw(request_bytes(body)))
        assert eventually(lambda: server.in_flight == 6)
        reply = server.get("/health")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "too_many_connections")
        assert reply.headers["retry-after"] == "5"


# Large bodies.


@pytest.mark.parametrize("size", [LIMIT + 1, 20 * 1024 * 1024, 10**18])
def test_an_announced_body_that_is_too_large_is_refused_at_once(server: Serving, size: int) -> None:
    head = request_bytes(b"").replace(b"Content-Length: 0", f"Content-Length: {size}".encode())
    status, got = server.exchange(head + b"{")
    assert (status, code(got)) == (413, "request_too_large")


def test_a_chunked_body_is_refused_as_soon_as_it_is_too_large(server: Serving) -> None:
    head = request_bytes(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    status, got = server.exchange(head + chunk * 5)  # and no end
    assert (status, code(got)) == (413, "request_too_large")


def test_a_whole_large_body_gets_its_answer(server: Serving) -> None:
    reply = server.request(
        "POST",
        "/v1/chat/completions",
        content=b'"' + b"x" * 20 * 1024 * 1024 + b'"',
        headers={"content-type": "application/json"},
    )
    assert reply.status_code == 413


def test_a_body_just_within_the_limit(server: Serving) -> None:
    body = json.dumps(order()).encode()
    data = request_bytes(body + b" " * (LIMIT - len(body)), "Connection: close")
    assert server.exchange(data)[0] == 200


def test_a_chunked_body(server: Serving) -> None:
    body = json.dumps(order()).encode()
    head = request_bytes(b"", "Connection: close").replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    assert server.exchange(head + chunks)[0] == 200


BODIES = {
    "NaN": (b'{"messages": [], "temperature": NaN}', 400, "invalid_json"),
    "twice": (b'{"n": 1, "n": 2}', 400, "invalid_json"),
    "surrogate": (rb'{"messages": [{"role": "user", "content": "\ud800"}]}', 400, "invalid_unicode"),
    "deep": (b"[" * 60_000, 400, "invalid_json"),
    "bytes": (b"\xff", 400, "invalid_json"),
    "empty": (b"", 400, "invalid_json"),
    "list": (b"[]", 400, "invalid_type"),
    "boolean": (b'{"messages": [{"role": "user"}], "n": true}', 400, "invalid_type"),
    "digits": (b'{"n": ' + b"9" * 10_000 + b"}", 400, "invalid_json"),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_no_requests(server: Serving, name: str) -> None:
    body, status, expected = BODIES[name]
    found, got = server.exchange(request_bytes(body, "Connection: close"))
    assert (found, code(got)) == (status, expected)


@pytest.mark.parametrize("line", ["Content-Encoding: gzip", "Content-Type: text/plain"])
def test_other_media(server: Serving, line: str) -> None:
    head = request_bytes(b"{}", line, "Connection: close")
    if line.startswith("Content-Type"):
        head = head.replace(b"Content-Type: application/json\r\n", b"")
    status, got = server.exchange(head)
    assert (status, code(got)) == (415, "unsupported_media_type")


# Other bytes.


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
        b"hello\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\n12345",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
    ids=range(9),
)
def test_what_is_no_http_is_told_so(server: Serving, data: bytes) -> None:
    status, got = server.exchange(data)
    assert status in (400, 501)
    assert code(got) == "invalid_http"


@pytest.mark.parametrize("path", ["/v1/messages", "/messages?beta=true", "/v1/messages/count_tokens"])
def test_what_is_no_http_is_told_in_the_shape_of_its_api(server: Serving, path: str) -> None:
    line = f"POST {path} HTTP/1.1\r\n".encode()
    many = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1000) for number in range(40))
    for data, status, kind in (
        (line + b"Host: localhost\r\nContent-Length: -1\r\n\r\n", 400, "invalid_request_error"),
        (line + b"Host: localhost\r\n" + many + b"\r\n", 431, "invalid_request_error"),
        (line + b"Host: loc", 408, "invalid_request_error"),
    ):
        got_status, got = server.exchange(data)
        told = json.loads(got.partition(b"\r\n\r\n")[2])
        assert (got_status, told["type"], told["error"]["type"]) == (status, "error", kind)
    large = server.request("POST", path, content=b" " * (LIMIT + 1), headers=JSON)
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    with server.raw(line[:12]) as connection:
        connection.sendall(line[12:] + b"Content-Length: +5\r\n\r\n")
        assert b'{"type":"error"' in received(connection)
    two = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with server.raw(two) as connection:
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(line + b"X : y\r\n\r\n")
        assert b'{"type":"error"' in received(connection)


def test_two_requests_in_one_packet_get_two_answers_in_order(server: Serving) -> None:
    first = json.dumps(order(["sleep", 0.1], ["text", "one"])).encode()
    second = json.dumps(order(["text", "two"])).encode()
    _, got = server.exchange(request_bytes(first) + request_bytes(second, "Connection: close"))
    assert got.count(b"HTTP/1.1 200") == 2
    assert got.index(b"one") < got.index(b"two")


def test_expectations_are_met(server: Serving) -> None:
    body = json.dumps(order()).encode()
    data = request_bytes(body, "Connection: close", "Expect: 100-continue")
    with server.raw(data[: -len(body)]) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert b" 200 " in received(connection)


def test_a_client_of_http_1_0(server: Serving) -> None:
    body = json.dumps(order(stream=True)).encode()
    data = request_bytes(body).replace(b"HTTP/1.1", b"HTTP/1.0")
    status, got = server.exchange(data)
    assert status == 200
    assert got.endswith(b"data: [DONE]\n\n")
