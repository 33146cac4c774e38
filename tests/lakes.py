"""A small dataset on an object server, and the ways to read it, for tests of datasets while things go wrong."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import col
from asyncpq.testing import ObjectServer

ROWS = 400
URL = "s3://bucket/lake/"
Ask = Callable[[asyncpq.Dataset], Coroutine[Any, Any, list[int]]]


def file_bytes(number: int, **columns: Any) -> bytes:
    """Ids ``[number * ROWS, (number + 1) * ROWS)``, in two row groups, with checksums."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{number} {row}" for row in ids]} | columns)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=ROWS // 2, write_page_index=True, write_page_checksum=True)
    return sink.getvalue()


def damaged(data: bytes, row_group: int = 0) -> bytes:
    """A byte of the row group's first data page is another one; the footer is right."""
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(row_group).column(0)
    at = chunk.data_page_offset + 60
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@asynccontextmanager
async def lake_server() -> AsyncIterator[ObjectServer]:
    """Four files at ``URL``."""
    async with ObjectServer() as running:
        for number in range(4):
            running.put(f"bucket/lake/{number}.parquet", file_bytes(number))
        yield running


def session(server: ObjectServer, *, max_attempts: int = 2, **options: Any) -> asyncpq.Session:
    requests = asyncpq.RequestOptions(tail_bytes=2000)
    retry = asyncpq.RetryOptions(max_attempts=max_attempts, backoff_base_s=0.001, backoff_max_s=0.002)
    return asyncpq.Session(server.storage_options, requests=requests, retry=retry, **options)


async def read_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list((await dataset.read(["id"]))["id"].to_pylist())


async def scan_ids(dataset: asyncpq.Dataset) -> list[int]:
    async with dataset.scan(["id"], batch_size=50) as scan:
        found = [value for batch in [batch async for batch in scan] for value in batch["id"].to_pylist()]
    dataset.skipped = scan.skipped
    return found


async def lookup_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list((await dataset.lookup({"id": list(range(4 * ROWS))}, ["id"]))["id"].to_pylist())


async def count_ids(dataset: asyncpq.Dataset) -> list[int]:
    return list(range(await dataset.count(col("id") >= 0)))


READS: dict[str, Ask] = {"read": read_ids, "scan": scan_ids, "lookup": lookup_ids}
