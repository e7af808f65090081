"""What is served, as ``/models`` and ``/health`` tell it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Serving, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(model="tiny", alias=("gpt-4o", "org/name"), slots=3) as running:
        yield running


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_the_list_has_the_model_and_its_aliases(server: Serving, prefix: str) -> None:
    found = server.get(prefix + "/models").json()
    assert found["object"] == "list"
    assert [each["id"] for each in found["data"]] == ["tiny", "gpt-4o", "org/name"]


@pytest.mark.parametrize("name", ["tiny", "gpt-4o", "org/name", "org%2Fname"])
def test_a_model_tells_what_it_can(server: Serving, name: str) -> None:
    found = server.get(f"/v1/models/{name}").json()
    assert found["object"] == "model"
    assert found["root"] == "tiny"
    assert (found["context_length"], found["context_length_trained"], found["slots"]) == (4096, 8192, 3)
    assert (found["dialect"], found["tools"], found["parallel_tool_calls"]) == ("hermes", True, True)
    assert isinstance(found["created"], int)


@pytest.mark.parametrize("name", ["other", "..%2f..%2fetc%2fpasswd", "%00", "Tiny", "x" * 1000])
def test_another_model_is_not_found(server: Serving, name: str) -> None:
    reply = server.get(f"/v1/models/{name}")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"
    assert len(reply.text) < 300


def test_health_has_the_basic_facts(server: Serving) -> None:
    reply = server.get("/health")
    assert reply.status_code == 200
    assert reply.json() == {"status": "ok", "model": "tiny", "context_length": 4096, "slots": 3}
