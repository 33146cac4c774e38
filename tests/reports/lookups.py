"""Files whose lookups are measured: what a session that has seen nothing of a file pays, on average over some keys."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

import asyncpq
from asyncpq.reports.documents import Cause, Lint
from asyncpq.reports.lookup_cost import KEYS
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

URL = "s3://bucket/file.parquet"
REQUESTS = asyncpq.RequestOptions(latency_s=0.03, bandwidth_bytes_s=200e6, tail_bytes=64 * 1024)
ROWS = 300_000
#: As lint advises.
GOOD: dict[str, Any] = {
    "write_page_index": True,
    "max_rows_per_page": 8192,
    "data_page_size": 256 * 1024,
    "compression": "zstd",
    "row_group_size": 100_000,
    "use_dictionary": ["kind"],
}


class Cost(NamedTuple):
    """Requests and bytes of one lookup."""

    requests: float
    num_bytes: float


@functools.cache
def trips() -> pa.Table:
    chosen = random.Random(5)
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "user": [f"user-{chosen.randrange(10**9):09}" for _ in range(ROWS)],
            "amount": [chosen.random() for _ in range(ROWS)],
            "kind": [chosen.choice(["alpha", "beta", "gamma"]) for _ in range(ROWS)],
            "note": [f"{chosen.randrange(10**12):012} {chosen.randrange(10**12):012}" for _ in range(ROWS)],
        }
    )


def encoded(table: pa.Table, **options: Any) -> bytes:
    return parquet_bytes(table, **{**GOOD, **options})


def some_keys(table: pa.Table, column: str, count: int = KEYS) -> list[Any]:
    values = table.column(column)
    return [values[(2 * number + 1) * len(values) // (2 * count)].as_py() for number in range(count)]


async def measured(data: bytes, column: str, table: pa.Table, keys: Sequence[Any] = ()) -> Cost:
    """The mean cost of opening the file and looking one key up, in a new session for each key."""
    requests = num_bytes = 0
    keys = keys or some_keys(table, column)
    async with ObjectServer() as server:
        server.put("bucket/file.parquet", data)
        for key in keys:
            async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
                file = await session.open_file(URL)
                assert (await file.lookup({column: key})).num_rows >= 1
                requests += session.metrics.requests
                num_bytes += session.metrics.bytes_fetched
    return Cost(requests / len(keys), num_bytes / len(keys))


async def linted(data: bytes, columns: Sequence[str] | None = None) -> Lint:
    async with ObjectServer() as server:
        server.put("bucket/file.parquet", data)
        async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
            file = await session.open_file(URL)
            document = (await file.lint(columns)).to_dict()
            assert file.metrics.requests == document["requests"]
            return document


def finding(document: Lint, rule: str) -> Cause:
    (found,) = (cause for cause in document["findings"] if cause["id"] == rule)
    return found


def rules(document: Lint) -> list[str]:
    return [cause["id"] for cause in document["findings"]]
