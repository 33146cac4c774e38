"""Requests to database servers are counted in the caller's operation."""

from __future__ import annotations

import pytest

from asyncpq.events import Operation
from asyncpq.indexing.backends.counted import counted_request
from asyncpq.metrics import ReadMetrics


def test_a_request_is_one_round_with_its_bytes() -> None:
    operation = Operation("read", "index", ReadMetrics(), None)
    with counted_request(operation, "SELECT") as sent:
        sent.bytes = 10
    assert (operation.metrics.requests, operation.metrics.rounds, operation.metrics.bytes_fetched) == (1, 1, 10)


def test_a_request_that_fails_is_counted() -> None:
    operation = Operation("read", "index", ReadMetrics(), None)
    with pytest.raises(OSError, match="down"), counted_request(operation, "SELECT"):
        raise OSError("down")
    assert operation.metrics.requests == 1


def test_without_an_operation_nothing_is_counted() -> None:
    with counted_request(None, "SELECT") as sent:
        sent.bytes = 10
