"""Who is let in: keys on every route, hosts, origins, CORS, header limits. Over a socket, as only there the
raw bytes are the client's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from serving import Serving, order, request_bytes, serving

from server.api import limits
from server.api.app import operations, routes
from server.api.guard import OPEN
from server.api.metrics import Metrics
from server.settings import Settings
from server.supervisor import Supervisor

KEYS = ("key-one", "key-two")
PAGE = "https://app.example"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(
        api_key=KEYS, allowed_host=("Box.local", "[fd00::1]"), allowed_origin=(PAGE,), slots=2
    ) as running:
        yield running


@pytest.fixture(scope="module")
def closed() -> Iterator[Serving]:
    """Without keys, and without CORS."""
    with serving() as running:
        yield running


def every_route() -> list[tuple[str, str]]:
    """Each method and path that is served, read from the routers."""
    settings = Settings()
    supervisor = Supervisor(settings)
    metrics = Metrics(supervisor)
    family = routes(settings, supervisor, metrics)
    found = []
    for prefix, router in (("", family), ("/v1", family), ("", operations(supervisor, metrics))):
        for route in router.routes:
            assert isinstance(route, APIRoute)
            path = prefix + route.path.replace("{name:path}", "fake")
            found += [(method, path) for method in sorted(route.methods)]
    return found


LOCKED = [(method, path) for method, path in every_route() if path not in OPEN]


POSTS = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/messages",
    "/messages/count_tokens",
    "/embeddings",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/tools/check",
)
GETS = ("/models", "/models/fake", "/responses/fake")


def test_the_routes_are_these() -> None:
    assert sorted(every_route()) == sorted(
        [
            *(("GET", path) for path in ("/", "/health", "/v1/health", "/metrics")),
            *(("HEAD", path) for path in ("/", "/health", "/v1/health")),
            *(("GET", prefix + path) for prefix in ("", "/v1") for path in GETS),
            *(("DELETE", f"{prefix}/responses/fake") for prefix in ("", "/v1")),
            *(("POST", prefix + path) for prefix in ("", "/v1") for path in POSTS),
        ]
    )


BAD_KEYS: list[Any] = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer key-on"},
    {"authorization": "Bearer key-onee"},
    {"authorization": "Bearer KEY-ONE"},
    {"authorization": "Bearer key-one key-two"},
    {"authorization": "key-one"},
    {"authorization": "Basic key-one"},
    {"x-api-key": "wrong"},
    {"x-api-key": ""},
    {"authorization": "Bearer key-one", "x-api-key": "wrong"},
    {"authorization": "Bearer key-one", "x-api-key": "key-two"},
    [("authorization", "Bearer key-one"), ("authorization", "Bearer wrong")],
    {"authorization": b"Bearer \xff\xfe"},
]


@pytest.mark.parametrize(("method", "path"), [*LOCKED, ("GET", "/nowhere"), ("GET", "/v1"), ("POST", "/v1/")])
def test_every_route_but_health_and_the_page_needs_a_key(server: Serving, method: str, path: str) -> None:
    for headers in BAD_KEYS:
        reply = server.request(method, path + "?api_key=key-one", headers=headers)
        assert (reply.status_code, headers) == (401, headers)
        assert reply.json()["error"]["type"] == "authentication_error"
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer key-one"},
        {"authorization": "bearer  key-two"},
        {"x-api-key": "key-two"},
        {"authorization": "Bearer key-one", "x-api-key": "key-one"},
    ],
)
def test_either_key_opens(server: Serving, headers: dict[str, str]) -> None:
    assert server.get("/v1/models", headers=headers).status_code == 200
    assert server.post(order(), headers=headers).status_code == 200


@pytest.mark.parametrize("path", sorted(OPEN))
def test_health_and_the_page_are_open(server: Serving, path: str) -> None:
    assert server.get(path).status_code == 200
    assert server.request("HEAD", path).status_code == 200


def test_keys_are_partitions(server: Serving) -> None:
    turns = [
        server.post(order(["echo"]), headers={"x-api-key": key}).json()["choices"][0]["message"]["content"]
        for key in (*KEYS, KEYS[0])
    ]
    assert turns[0] == turns[2] != turns[1]
    assert not any(key in turn for key in KEYS for turn in turns)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_another_method_is_refused_with_the_right_one(closed: Serving, method: str) -> None:
    reply = closed.request(method, "/v1/chat/completions")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"
    assert reply.json()["error"]["code"] == "method_not_allowed"


def test_all_methods_of_a_path_are_named(closed: Serving) -> None:
    for prefix in ("/v1", ""):
        assert closed.request("PUT", f"{prefix}/responses/r").headers["allow"] == "DELETE, GET"
        assert closed.request("PUT", f"{prefix}/health").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v2/models", "/v1/chat/completions/", "//v1/models", "/docs", "/redoc"]
)
def test_unknown_routes(closed: Serving, path: str) -> None:
    reply = closed.get(path)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "unknown_route"


# Hosts.


def host_status(server: Serving, *lines: str) -> int:
    wire = "\r\n".join(["GET /health HTTP/1.1", *lines, "Connection: close", "", ""])
    return server.exchange(wire.encode("latin-1"))[0]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1",
        "127.0.0.1:9",
        "[::1]",
        "[0:0::1]:8080",
        "box.local",
        "[fd00::1]",
    ],
)
def test_own_hosts(server: Serving, host: str) -> None:
    assert host_status(server, f"Host: {host}") == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "notlocalhost",
        "10.0.0.1",
        "[::2]",
        "box",
    ],
)
def test_foreign_hosts(server: Serving, host: str) -> None:
    assert host_status(server, f"Host: {host}") == 403


@pytest.mark.parametrize(
    "lines",
    [
        ["Host: localhost/x?"],
        ["Host: localhost#a"],
        ["Host: a@localhost"],
        ["Host: localhost:80:80"],
        ["Host: localhost:x"],
        ["Host:"],
        ["Host: local host"],
        ["Host: \xff"],
        ["Host: localhost", "Host: localhost"],
        ["Host: localhost", "Host: evil.example"],
        [],
    ],
)
def test_malformed_hosts(server: Serving, lines: list[str]) -> None:
    assert host_status(server, *lines) == 400


def test_a_host_is_needed_in_http_1_0_too(server: Serving) -> None:
    assert server.exchange(b"GET /health HTTP/1.0\r\n\r\n")[0] == 400
    assert server.exchange(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")[0] == 200


# Origins.


def cors(reply: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control")}


FOREIGN = [
    "https://evil.example",
    "null",
    "http://localhost.evil.example",
    "http://notlocalhost",
    PAGE + ".x",
]


@pytest.mark.parametrize("origin", [*FOREIGN, PAGE])
def test_without_cors_no_page_may_post_or_read(closed: Serving, origin: str) -> None:
    reply = closed.post(order(), headers={"origin": origin})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
    for got in (reply, closed.get("/v1/models", headers={"origin": origin})):
        assert not cors(got)


def test_a_page_of_this_server_may_post(closed: Serving) -> None:
    assert closed.post(order(), headers={"origin": closed.url}).status_code == 200


@pytest.mark.parametrize("origin", FOREIGN)
def test_with_cors_other_pages_may_still_not(server: Serving, origin: str) -> None:
    headers = {"origin": origin, "x-api-key": KEYS[0]}
    assert server.post(order(), headers=headers).status_code == 403
    reply = server.get("/v1/models", headers=headers)
    assert not cors(reply)
    assert reply.headers["vary"] == "Origin"
    asking = {"origin": origin, "access-control-request-method": "POST"}
    reply = server.request("OPTIONS", "/v1/models", headers=asking)
    assert (reply.status_code, reply.content) == (200, b"")
    assert not cors(reply)


def test_an_allowed_page_may_ask_and_read(server: Serving) -> None:
    asking = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    reply = server.request("OPTIONS", "/v1/chat/completions", headers=asking)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in reply.headers
    for key, status in ((KEYS[0], 200), ("wrong", 401)):
        reply = server.post(order(), headers={"origin": PAGE, "x-api-key": key})
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == PAGE


LOCAL = [
    "http://localhost",
    "http://localhost:3000",
    "https://127.0.0.1",
    "http://127.0.0.1:8080",
    "http://[::1]:5",
]
NOT_LOCAL = [
    *FOREIGN,
    PAGE,
    "http://localhost:3000.evil.example",
    "http://localhost:",
    "http://localhost:3000/",
    "http://evil.example/http://localhost",
    "http://LOCALHOST.evil.example",
    "file://localhost",
    "http://localhost@evil.example",
    "localhost",
    "http://localhost\n",
]


@pytest.fixture(scope="module")
def local() -> Iterator[Serving]:
    with serving(allowed_origin=("localhost",)) as running:
        yield running


@pytest.mark.parametrize("origin", LOCAL)
def test_pages_of_this_machine_may_be_allowed(local: Serving, origin: str) -> None:
    reply = local.post(order(), headers={"origin": origin})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, origin)


@pytest.mark.parametrize("origin", NOT_LOCAL)
def test_pages_that_only_look_like_that_are_not(local: Serving, origin: str) -> None:
    with contextlib.suppress(httpx.LocalProtocolError):
        reply = local.post(order(), headers={"origin": origin})
        assert reply.status_code == 403
        assert not cors(reply)


# Header limits.


def lines(*, count: int = 0, size: int = 0) -> bytes:
    many = [f"X-{number}: y" for number in range(count)]
    large = ["X-Large: " + "x" * size] if size else []
    head = ["GET /health HTTP/1.1", "Host: localhost", "Connection: close", *many, *large]
    return "\r\n".join([*head, "", ""]).encode()


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (lines(count=limits.HEADERS - 2), 200),
        (lines(count=limits.HEADERS - 1), 431),
        (lines(size=limits.HEADER_BYTES - 200), 200),
        (lines(size=limits.HEADER_BYTES), 431),
        (lines(size=200_000), 431),
        (lines(count=50_000), 431),
        (b"GET /health?" + b"x" * 50_000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 431),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value),
)
def test_headers_are_bounded(server: Serving, wire: bytes, status: int) -> None:
    found, got = server.exchange(wire)
    assert found == status
    assert status == 200 or b"header_too_large" in got
    assert server.get("/health").status_code == 200


def test_a_body_has_one_framing(closed: Serving) -> None:
    wire = request_bytes(b"{}", "Transfer-Encoding: chunked", "Connection: close")
    assert closed.exchange(wire)[0] == 400
