"""Rows in key ranges, out of sorted tables; requests to servers are counted."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from asyncpq.events import Operation
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.backends.sorted_rows import counted_request
from asyncpq.indexing.index_model import TABLE_SCHEMAS, VALUE_TAG, KeyRange, SegmentQuery
from asyncpq.testing.backend_contract import write


@pytest.mark.parametrize("seed", range(4))
async def test_many_zones_some_of_which_reach_far(seed: int) -> None:
    """What is asked of zones looks at few of many, and gives just those whose intervals end late enough."""
    numbers = random.Random(seed)
    zones = []
    for file in range(3000):
        low = numbers.randrange(10_000)
        high = low + (numbers.randrange(10_000) if numbers.random() < 0.01 else numbers.randrange(20))
        zones.append((VALUE_TAG + low.to_bytes(4, "big"), VALUE_TAG + high.to_bytes(4, "big"), file, 0, 1))
    zones.sort()
    schema = TABLE_SCHEMAS["bounds"]
    rows = pa.Table.from_pylist([dict(zip(schema.names, zone, strict=True)) for zone in zones], schema)
    backend = MemoryBackend()
    segment = await write(backend, "a", "bounds", rows)
    for _ in range(50):
        ends = sorted(VALUE_TAG + numbers.randrange(12_000).to_bytes(4, "big") for _ in range(3))
        for ranges, within in (
            (None, zones),
            ([KeyRange(b"", ends[2])], [zone for zone in zones if zone[0] < ends[2]]),
        ):
            found = await backend.read_segment(segment, SegmentQuery(ranges, at_least=("max", ends[1])))
            assert found is not None
            assert found["file"].to_pylist() == [zone[2] for zone in within if zone[1] >= ends[1]]


def test_a_request_is_one_round_with_its_bytes() -> None:
    operation = Operation("read", "index", (), None)
    with counted_request(operation, "SELECT") as sent:
        sent.bytes = 10
    assert (operation.metrics.requests, operation.metrics.rounds, operation.metrics.bytes_fetched) == (1, 1, 10)


def test_a_request_that_fails_is_counted() -> None:
    operation = Operation("read", "index", (), None)
    with pytest.raises(OSError, match="down"), counted_request(operation, "SELECT"):
        raise OSError("down")
    assert operation.metrics.requests == 1


def test_without_an_operation_nothing_is_counted() -> None:
    with counted_request(None, "SELECT") as sent:
        sent.bytes = 10
