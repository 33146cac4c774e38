"""The operations that faults happen to, and what pyarrow says that each of them must give."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import asyncpq
from asyncpq import col
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

ROWS = 4000
KEYS = [5]
NUMBERS = [7, 3500, 7]
FROM = "name 000001750"  # in the middle of a page
WHERE = (col("name") >= FROM) | (col("id") == 3)
# A tail that is shorter than the footer, and no merging: footer, indexes and pages take GETs of their own.
REQUESTS = asyncpq.RequestOptions(tail_bytes=1700, gap_bytes=0, late_materialization="never")


def parquet(offset: int = 0) -> bytes:
    """A file of 4 row groups with 10 pages a column. Files of other offsets have other rows and as many bytes."""
    rows = range(ROWS)
    table = pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "value": pa.array([offset + row for row in rows], pa.int64()),
            "name": [f"name {offset + row:09d}" for row in rows],
        }
    )
    return parquet_bytes(
        table,
        row_group_size=ROWS // 4,
        max_rows_per_page=100,
        write_batch_size=100,
        data_page_size=100,
        write_page_index=True,
        use_dictionary=False,
        compression="none",
    )


def options_for(client: str, server: ObjectServer) -> dict[str, Any]:
    """storage_options: "S3", "s3fs" (the same through s3fs's own calls) or "HTTP"."""
    if client == "HTTP":
        return {}
    return {
        **server.storage_options,
        **({"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if client == "s3fs" else {}),
    }


def url_for(client: str, server: ObjectServer, path: str) -> str:
    """The object at ``path`` ("bucket/key")."""
    return f"{server.endpoint}/{path}" if client == "HTTP" else f"s3://{path}"


@dataclass
class Rows:
    """What an operation has given so far: it may raise after it gave some."""

    value: pa.Table | None = None
    metrics: asyncpq.ReadMetrics | None = None  # of the operation itself, without the opening


async def _open(file: asyncpq.File, rows: Rows) -> None:
    rows.value = pa.table({"rows": [file.num_rows], "names": [file.schema.names]})


async def _lookup(file: asyncpq.File, rows: Rows) -> None:
    with asyncpq.measure() as rows.metrics:
        rows.value = await file.lookup({"id": KEYS}, ["value", "name"])


async def _scan(file: asyncpq.File, rows: Rows) -> None:
    batches: list[pa.RecordBatch] = []
    async with file.scan(["value"], where=WHERE, batch_size=250) as scan:
        async for batch in scan:
            batches.append(batch)
            rows.value = pa.Table.from_batches(batches)
    rows.metrics = scan.metrics


async def _take(file: asyncpq.File, rows: Rows) -> None:
    with asyncpq.measure() as rows.metrics:
        rows.value = await file.take(NUMBERS, ["id", "name"])


async def _count(file: asyncpq.File, rows: Rows) -> None:
    with asyncpq.measure() as rows.metrics:
        rows.value = pa.table({"rows": [await file.count(WHERE)]})


OPERATIONS: Mapping[str, Callable[[asyncpq.File, Rows], Awaitable[None]]] = MappingProxyType(
    {"open": _open, "lookup": _lookup, "scan": _scan, "take": _take, "count": _count}
)


def by_pyarrow(operation: str, data: bytes) -> pa.Table:
    """The same from the whole file."""
    table = pq.read_table(io.BytesIO(data))
    matching = table.filter((pc.field("name") >= FROM) | (pc.field("id") == 3))
    return {
        "open": pa.table({"rows": [table.num_rows], "names": [table.column_names]}),
        "lookup": table.filter(pc.field("id").isin(KEYS)).select(["value", "name"]),
        "scan": matching.select(["value"]),
        "take": table.take(pa.array(NUMBERS)).select(["id", "name"]),
        "count": pa.table({"rows": [matching.num_rows]}),
    }[operation]
