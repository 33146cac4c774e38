"""Counters of the service for Prometheus."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

from asyncpq.errors import UsageError, install_hint
from asyncpq.metrics import ReadMetrics
from asyncpq.serve.responses import tier_of

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ServiceMetrics:
    """Counters of one service, in a registry of its own. Names of datasets are labels; those of tokens are not."""

    def __init__(self) -> None:
        try:
            import prometheus_client as prometheus
        except ModuleNotFoundError as error:
            raise UsageError(
                "the service requires the package prometheus-client, which is not installed",
                hint=install_hint("prometheus-client", "serve"),
            ) from error
        self._prometheus: Any = prometheus
        self.registry: Any = prometheus.CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        by_dataset = ["dataset", "verb"]
        self._requests = prometheus.Counter(
            "asyncpq_serve_requests", "Requests that ended.", [*by_dataset, "status"], **own
        )
        self._seconds = prometheus.Histogram(
            "asyncpq_serve_request_seconds", "Time of a request.", by_dataset, buckets=_SECONDS, **own
        )
        self._sent = prometheus.Counter("asyncpq_serve_sent_bytes", "Bytes of bodies sent.", by_dataset, **own)
        self._rows = prometheus.Counter("asyncpq_serve_rows", "Rows sent.", by_dataset, **own)
        self._store_requests = prometheus.Counter(
            "asyncpq_serve_store_requests", "Requests to stores.", by_dataset, **own
        )
        self._store_bytes = prometheus.Counter(
            "asyncpq_serve_store_bytes", "Bytes fetched from stores.", by_dataset, **own
        )
        self._tiers = prometheus.Counter(
            "asyncpq_serve_tier", "Reads, by the farthest place they went to.", [*by_dataset, "tier"], **own
        )
        self.in_flight: Any = prometheus.Gauge(
            "asyncpq_serve_requests_in_flight", "Requests under way.", multiprocess_mode="livesum", **own
        )

    def ended(self, dataset: str, verb: str, status: str, seconds: float, sent: int) -> None:
        """Count a finished request. ``verb``: such as "lookup"; ``status``: the HTTP status, or "gone" if the client
        left, or "aborted"; ``sent``: bytes of the response's body."""
        self._requests.labels(dataset, verb, status).inc()
        self._seconds.labels(dataset, verb).observe(seconds)
        self._sent.labels(dataset, verb).inc(sent)

    def read(self, dataset: str, verb: str, metrics: ReadMetrics, rows: int) -> None:
        """Add the cost of the read that answered a request."""
        self._store_requests.labels(dataset, verb).inc(metrics.requests)
        self._store_bytes.labels(dataset, verb).inc(metrics.bytes_fetched)
        self._tiers.labels(dataset, verb, tier_of(metrics)).inc()
        self._rows.labels(dataset, verb).inc(rows)

    def page(self) -> tuple[str, bytes]:
        """Return the media type and the text for Prometheus: of this process, or the sum of all workers."""
        registry = self.registry
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):  # asyncpq.serve.workers sets it, and perhaps another server
            multiprocess: Any = import_module("prometheus_client.multiprocess")
            registry = self._prometheus.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)
        return self._prometheus.CONTENT_TYPE_LATEST, self._prometheus.generate_latest(registry)
