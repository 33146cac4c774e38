"""The main job on a real S3: lookup, scan, take, count and plan against LocalStack, equal to pyarrow."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import asyncpq
from asyncpq import col
from localstack.seed import seed
from tests.parquet_bytes import parquet_bytes

ROWS = 30_000


def trips(offset: int = 0) -> pa.Table:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array(range(offset, offset + ROWS * 2, 2), pa.int64()),
            "ts": pa.array([start + dt.timedelta(seconds=row) for row in range(ROWS)], pa.timestamp("us", "UTC")),
            "user": pa.array([f"user {row * 7919 % 5000}" for row in range(ROWS)]),
            "kind": pa.array([["walk", "ride", None][row % 3] for row in range(ROWS)]),
            "price": pa.array([row / 8 for row in range(ROWS)], pa.float64()),
            "tags": pa.array([[row % 5] * (row % 3) for row in range(ROWS)], pa.list_(pa.int32())),
        }
    )


def encoded(table: pa.Table, **options: Any) -> bytes:
    return parquet_bytes(
        table, row_group_size=10_000, max_rows_per_page=1000, compression="zstd", write_page_index=True, **options
    )


def session(endpoint: str, **options: Any) -> asyncpq.Session:
    storage = {"key": "test", "secret": "test", "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    return asyncpq.Session(storage, **options)


async def test_every_verb_equals_pyarrow(localstack: str, bucket: str) -> None:
    table = trips()
    await seed(localstack, bucket, {"trips/one.parquet": encoded(table)})
    async with session(localstack) as s:
        file = await s.open_file(f"s3://{bucket}/trips/one.parquet")
        assert file.opening is not None
        assert file.opening.requests == 1
        assert file.opening.guarantee == "pinned"
        assert file.schema.equals(table.schema)
        assert file.num_rows == ROWS
        assert file.version.etag is not None
        assert (await file.lookup({"id": 4242})).equals(table.slice(2121, 1))
        assert (await file.lookup({"id": [8, 3, 6, 59_998]}, columns=["user", "tags"])).equals(
            table.select(["user", "tags"]).take([3, 4, 29_999])
        )
        pair = await file.lookup({"id": [8, 6], "kind": ["ride", "walk"]}, columns=["id"], with_keys=True)
        assert pair.to_pylist() == [{"id": 6, "key_position": 1}, {"id": 8, "key_position": 0}]
        since = dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)
        where = (col("ts") >= since) & ~(col("kind") == "walk")
        wanted = table.filter((pc.field("ts") >= since) & ~(pc.field("kind") == "walk"))
        async with file.scan(columns=["id", "kind"], where=where, batch_size=777) as scan:
            batches = [batch async for batch in scan]
        assert pa.Table.from_batches(batches).equals(wanted.select(["id", "kind"]))
        assert await file.count(where) == wanted.num_rows
        assert await file.count() == ROWS
        assert (await file.read(where=[("user", "in", ["user 7", "user 8"])])).equals(
            table.filter(pc.field("user").isin(["user 7", "user 8"]))
        )
        assert (await file.take([29_999, 0, 12_345, 0])).equals(table.take([29_999, 0, 12_345, 0]))
        plan = await file.plan(columns=["price"], where=col("id") == 58_000)
        assert plan.num_requests <= 2
        assert "row groups: 1 of 3" in plan.explain()


async def test_overwritten_object_is_read_anew(localstack: str, bucket: str) -> None:
    url = f"s3://{bucket}/one.parquet"
    await seed(localstack, bucket, {"one.parquet": encoded(trips())})
    async with session(localstack, requests=asyncpq.RequestOptions(tail_bytes=10_000)) as s:
        file = await s.open_file(url)
        await seed(localstack, bucket, {"one.parquet": encoded(trips(offset=1))})
        assert (await file.lookup({"id": 4243}, ["id"])).to_pylist() == [{"id": 4243}]
        assert file.metrics.restarts == 1
        await seed(localstack, bucket, {"one.parquet": encoded(trips())})
        with pytest.raises(asyncpq.ObjectChangedError):
            await file.take([29_000], ["price"])


async def test_errors_of_the_store(localstack: str, bucket: str) -> None:
    await seed(localstack, bucket, {"empty": b"", "text": b"not parquet at all, but long enough"})
    async with session(localstack) as s:
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await s.open_file(f"s3://{bucket}/none")
        with pytest.raises(asyncpq.BucketNotFoundError):
            await s.open_file("s3://no-such-bucket-here/none")
        with pytest.raises(asyncpq.NotParquetError, match="empty"):
            await s.open_file(f"s3://{bucket}/empty")
        with pytest.raises(asyncpq.NotParquetError):
            await s.open_file(f"s3://{bucket}/text")


def test_blocking(localstack: str) -> None:
    import asyncio

    table = trips()
    asyncio.run(seed(localstack, "asyncpq-blocking", {"one.parquet": encoded(table)}))
    storage = {"key": "test", "secret": "test", "endpoint_url": localstack}
    with asyncpq.blocking.Session(storage) as s:
        file = s.open_file("s3://asyncpq-blocking/one.parquet")
        assert file.lookup({"id": 4242}).equals(table.slice(2121, 1))
        assert sum(batch.num_rows for batch in file.scan(["id"])) == ROWS
        for _ in file.scan(["id"], batch_size=10):
            break
        with file.scan(["id"], limit=5) as scan:
            assert pa.Table.from_batches(list(scan)).column("id").to_pylist() == [0, 2, 4, 6, 8]
        assert file.count(col("id") < 100) == 50
        assert file.take([5], ["id"]).to_pylist() == [{"id": 10}]
        assert "asyncpq" not in repr(s) or "test" not in repr(s)
    with pytest.raises(asyncpq.UsageError):
        file.count()


async def test_two_hundred_openers_are_one_get(localstack: str, bucket: str) -> None:
    import asyncio

    await seed(localstack, bucket, {"one.parquet": encoded(trips())})
    async with session(localstack) as s:
        url = f"s3://{bucket}/one.parquet"
        first = asyncio.ensure_future(s.open_file(url))
        others = [asyncio.ensure_future(s.open_file(url)) for _ in range(199)]
        await asyncio.sleep(0.01)
        first.cancel()
        files = await asyncio.gather(*others)
        assert {file.num_rows for file in files} == {ROWS}
        assert s.metrics.requests == 1
