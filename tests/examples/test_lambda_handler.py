"""examples/lambda_handler.py: fresh processes find their row, and a warm call is shorter than the first."""

from __future__ import annotations

from examples.lambda_handler import cold_starts


def test_cold_starts() -> None:
    ((imports, first, warm),) = cold_starts(1, rows=50_000, latency_s=0.0)
    assert imports > 0
    assert first > warm > 0
