"""Warm lookups of one key each (the workload W2 of the benchmarks), and what they ask a store for."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import asyncpq
from tests.parquet_bytes import parquet_bytes

ROWS = 60_000
KEYS = [int(key) for key in np.random.default_rng(5).integers(0, ROWS, 20)]
COLUMNS = ["id", "user", "price"]


@functools.cache
def table() -> pa.Table:
    numbers = np.random.default_rng(4)
    unread = memoryview(numbers.bytes(20 * ROWS))
    return pa.table(
        {
            "id": pa.array(np.arange(ROWS)),
            "user": pa.array([f"user {number}" for number in numbers.integers(0, 1 << 40, ROWS)]),
            "price": pa.array(numbers.random(ROWS)),
            "unread": pa.array([bytes(unread[start : start + 20]) for start in range(0, 20 * ROWS, 20)]),
        }
    )


def parquet(rows: pa.Table) -> bytes:
    return parquet_bytes(
        rows, row_group_size=20_000, data_page_size=16_384, write_page_index=True, use_dictionary=False
    )


class Cost(NamedTuple):
    """What lookups asked: for each, the GETs as (purpose, start, stop, bytes); and how many infos beside them."""

    gets: list[list[tuple[str, int, int, int]]]
    infos: int


#: Fixed, so that no measured time decides which ranges are fetched together.
REQUESTS = asyncpq.RequestOptions(tail_bytes=65_536, gap_bytes=4096, latency_s=0.02, bandwidth_bytes_s=200e6)


async def warm_lookups(url: str, storage_options: dict[str, Any], rows: pa.Table) -> Cost:
    """Open the file, look one key up, then each of KEYS; check the rows and return what KEYS cost."""
    gets: list[list[tuple[str, int, int, int]]] = []
    infos = 0
    async with asyncpq.Session(
        requests=REQUESTS, cache_policy=asyncpq.etag(0), storage_options=storage_options
    ) as session:
        file = await session.open_file(url)
        await file.lookup({"id": -1}, COLUMNS)
        await file.lookup({"id": KEYS[0] // 2}, COLUMNS)
        for key in KEYS:
            with asyncpq.measure() as metrics:
                found = await file.lookup({"id": key}, COLUMNS)
            assert found.equals(rows.filter(pc.equal(rows["id"], key)).select(COLUMNS))
            asked = [record for record in metrics.log if record.method == "GET"]
            infos += len(metrics.log) - len(asked)
            assert metrics.retries == 0
            gets.append(sorted((one.purpose, one.start, one.stop, one.bytes) for one in asked))
    return Cost(gets, infos)
