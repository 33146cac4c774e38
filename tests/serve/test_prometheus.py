"""The counters for Prometheus."""

from __future__ import annotations

from asyncpq.metrics import ReadMetrics
from asyncpq.serve.prometheus import ServiceMetrics


def test_the_page_has_what_was_counted() -> None:
    metrics = ServiceMetrics()
    metrics.ended("trips", "scan", "200", 0.02, 500)
    metrics.ended("trips", "scan", "gone", 2.0, 70)
    metrics.read("trips", "scan", ReadMetrics(requests=3, bytes_fetched=1000), 12)
    media_type, page = metrics.page()
    assert media_type.startswith("text/plain")
    lines = page.decode().splitlines()
    labels = 'dataset="trips",verb="scan"'
    for line in (
        'asyncpq_serve_requests_total{dataset="trips",status="gone",verb="scan"} 1.0',
        f"asyncpq_serve_request_seconds_count{{{labels}}} 2.0",
        f"asyncpq_serve_sent_bytes_total{{{labels}}} 570.0",
        f"asyncpq_serve_rows_total{{{labels}}} 12.0",
        f"asyncpq_serve_store_requests_total{{{labels}}} 3.0",
        f"asyncpq_serve_store_bytes_total{{{labels}}} 1000.0",
        'asyncpq_serve_tier_total{dataset="trips",tier="store",verb="scan"} 1.0',
    ):
        assert line in lines
    assert ServiceMetrics().page()[1] != page  # each service has its own
