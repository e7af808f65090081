"""The numbers at ``/metrics``: Prometheus' own reader takes them, and they count what happened."""

from __future__ import annotations

import json
import os
import signal

from prometheus_client.parser import text_string_to_metric_families
from serving import Serving, eventually, order, request_bytes, serving


def samples(server: Serving) -> dict[tuple[str, ...], float]:
    reply = server.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(reply.text)
        for each in family.samples
    }


def test_what_happened_is_counted() -> None:
    with serving(slots=2) as server:
        server.chat(["text", "x"])
        server.streamed(["text", "x"])
        server.chat(n=100)
        server.get("/nowhere/" + "x" * 100)
        found = samples(server)
        chat = "/chat/completions"
        assert found["toolspan_requests_total", "", chat, "200"] == 2
        assert found["toolspan_requests_total", "invalid_value", chat, "400"] == 1
        assert found["toolspan_requests_total", "unknown_route", "none", "404"] == 1
        assert found["toolspan_tokens_total", "prompt"] == 14
        assert found["toolspan_tokens_total", "completion"] == 10
        assert found["toolspan_tokens_total", "forced"] == 2
        assert found["toolspan_tokens_total", "drafted"] == 4
        assert found["toolspan_tokens_total", "rejected"] == 6
        assert found["toolspan_phase_seconds_count", "decode"] == 2
        assert found["toolspan_phase_seconds_sum", "decode"] == 0.006
        assert found["toolspan_requests_in_flight",] == 0
        assert found["toolspan_runner_ready",] == 1
        assert found["toolspan_runner_restarts_total",] == 0
        assert server.runner
        os.kill(server.runner, signal.SIGKILL)
        assert eventually(lambda: samples(server)["toolspan_runner_restarts_total",] == 1)


def test_a_client_that_left_is_a_status_of_its_own() -> None:
    with serving() as server:
        with server.raw(request_bytes(json.dumps(order(["sleep", 60])).encode())):
            assert eventually(lambda: server.in_flight == 1)
        gone = ("toolspan_requests_total", "", "/chat/completions", "499")
        assert eventually(lambda: samples(server).get(gone) == 1)
