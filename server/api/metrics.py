"""The numbers at ``/metrics``, in a registry of their own."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.events import Timings, Usage
from server.supervisor import State, Supervisor

SECONDS = (0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counts of this process, and the runner's state as it is when they are read."""

    CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, supervisor: Supervisor) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "toolspan_requests", "HTTP requests answered", ("route", "status", "error"), registry=registry
        )
        self._tokens = Counter("toolspan_tokens", "Tokens, by what they were", ("kind",), registry=registry)
        self._phases = Histogram(
            "toolspan_phase_seconds",
            "Where a request's time went",
            ("phase",),
            registry=registry,
            buckets=SECONDS,
        )
        registry.register(_Runner(supervisor))

    def answered(self, usage: Usage, timings: Timings) -> None:
        """Counts a complete answer."""
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
            ("sampled", timings.sampled_tokens),
            ("forced", timings.forced_tokens),
            ("drafted", timings.drafted_tokens),
            ("rejected", timings.rejected_tokens),
        ):
            self._tokens.labels(kind).inc(count)
        for phase in ("queue", "prepare", "prefill", "decode"):
            self._phases.labels(phase).observe(getattr(timings, f"{phase}_ms") / 1000)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Runner(Collector):
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterable[Metric]:
        runner = self._supervisor
        status = runner.status
        for name, help_line, value in (
            ("requests_in_flight", "Requests the runner has", runner.in_flight),
            ("sequences_active", "Sequences in slots", status.active),
            ("requests_waiting", "Requests without a slot", status.waiting),
            ("context_cells_used", "Context cells in use", status.used_cells),
            ("context_cells_cached", "Context cells with reusable prefixes", status.cached_tokens),
            ("runner_ready", "Whether the model is loaded", runner.state is State.READY),
        ):
            yield GaugeMetricFamily(f"toolspan_{name}", help_line, value=float(value))
        yield CounterMetricFamily(
            "toolspan_runner_restarts", "Times the runner was started again", value=float(runner.restarts)
        )
