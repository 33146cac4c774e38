"""Ranges of any object: its bytes, one version of them, and no byte fetched twice."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.engine.byte_readers import TAIL_BYTES, present_version, read_ranges
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.source import ObjectSource, open_source
from asyncpq.storage.base import RequestContext
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import FAST_RETRIES

DATA = random.Random(2).randbytes(200_000)


@asynccontextmanager
async def opened(data: bytes = DATA, **options: object) -> AsyncIterator[tuple[ObjectServer, ObjectSource]]:
    async with ObjectServer() as server:
        server.put("bucket/data", data)
        settings = {"retry": FAST_RETRIES, "requests": asyncpq.RequestOptions(gap_bytes=0)} | options
        async with asyncpq.Session(server.storage_options, **settings) as session:  # type: ignore[arg-type]
            source = await open_source(session._runtime, "s3://bucket/data")
            yield server, source
            await source.handle.close()


def context() -> RequestContext:
    return RequestContext(ReadMetrics())


@pytest.mark.parametrize("seed", range(20))
async def test_ranges_are_the_objects_bytes(seed: int) -> None:
    """Overlapping ones, empty ones, and those that reach beyond the end or into the tail."""
    choose = random.Random(seed)
    data = DATA[: choose.choice([1, 7, 8, 9, 1000, TAIL_BYTES, TAIL_BYTES + 1, len(DATA)])]
    async with opened(data) as (server, source):
        version = await present_version(source, context())
        for _ in range(5):
            starts = [choose.randrange(len(data) + 5) for _ in range(choose.randint(0, 12))]
            ranges = [(start, start + choose.choice([0, 1, 50, 30_000])) for start in starts]
            assert await read_ranges(source, version, ranges, context()) == [data[slice(*part)] for part in ranges]
            assert await read_ranges(source, version, ranges, context()) == [data[slice(*part)] for part in ranges]
        fetched = [request.headers["range"] for request in server.log]
        assert len(fetched) == len(set(fetched))


async def test_the_tail_is_not_fetched_again() -> None:
    async with opened() as (server, source):
        version = await present_version(source, context())
        assert await read_ranges(source, version, [(0, len(DATA))], context()) == [DATA]
        assert sum(request.sent for request in server.log) == len(DATA)


async def test_a_known_version_is_validated_when_it_is_old() -> None:
    async with opened(cache_policy=asyncpq.etag(max_age_s=0)) as (server, source):
        first = await present_version(source, context())
        assert (await present_version(source, context())).digest == first.digest
        assert [request.headers["range"] for request in server.log] == ["bytes=-65536", "bytes=199992-199999"]
        server.put("bucket/data", DATA[:50])
        assert (await present_version(source, context())).size == 50
        server.delete("bucket/data")
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await present_version(source, context())


@pytest.mark.parametrize("size", [1, 5])
async def test_short_objects_are_validated(size: int) -> None:
    async with opened(DATA[:size], cache_policy=asyncpq.etag(max_age_s=0)) as (_, source):
        for _ in range(2):
            version = await present_version(source, context())
            assert await read_ranges(source, version, [(0, 9)], context()) == [DATA[:size]]


async def test_an_empty_object() -> None:
    async with opened(b"") as (_, source):
        version = await present_version(source, context())
        assert version.size == 0
        assert await read_ranges(source, version, [(0, 9), (3, 4)], context()) == [b"", b""]


async def test_a_file_and_its_bytes_share_what_is_known() -> None:
    """The footer's reader has fetched the tail already, and knows the version."""
    data = parquet_bytes(pa.table({"id": range(1000)}))
    async with opened(data) as (server, source):
        await source.version(context())
        server.log.clear()
        version = await present_version(source, context())
        assert await read_ranges(source, version, [(4, 900)], context()) == [data[4:900]]
        assert server.log == []
