"""Objects that are not there: asked for each time, or not again for ``negative_ttl_s``; seen once they are there."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

URL = "s3://bucket/late.parquet"
TTL_S = 30.0


def parquet(value: int) -> bytes:
    return parquet_bytes(pa.table({"value": [value]}))


class Clock:
    """Time as the caches see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        monkeypatch.setattr("asyncpq.objects.source.time", SimpleNamespace(monotonic=self.monotonic))

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


def session(server: ObjectServer, **options: Any) -> asyncpq.Session:
    return asyncpq.Session(server.storage_options, **{"negative_ttl_s": TTL_S, **options})


async def refusal(session: asyncpq.Session, url: str = URL) -> asyncpq.ObjectNotFoundError:
    with pytest.raises(asyncpq.ObjectNotFoundError) as caught:
        await session.open_file(url)
    return caught.value


async def test_by_default_the_store_is_always_asked(server: ObjectServer) -> None:
    async with asyncpq.Session(server.storage_options) as s:
        await refusal(s)
        await refusal(s)
        assert len(server.log) == 2
        assert len(s.memory_cache) == 0
        server.put("bucket/late.parquet", parquet(1))
        assert (await s.open_file(URL)).num_rows == 1


async def test_is_not_asked_for_again_for_a_while(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with session(server) as s:
        first = await refusal(s)
        clock.ahead_s = TTL_S - 1
        again = await refusal(s)
        assert len(server.log) == 1
        assert (type(again), str(again)) == (type(first), str(first))
        assert again is not first
        missing = await refusal(s, "s3://bucket/other.parquet")
        assert "other" in str(missing)
        assert len(server.log) == 2
        server.put("bucket/late.parquet", parquet(1))
        clock.ahead_s = TTL_S + 1
        assert (await s.open_file(URL)).num_rows == 1


async def test_the_bucket_is_named_as_what_is_missing(server: ObjectServer) -> None:
    async with session(server) as s:
        first = await refusal(s, "s3://nowhere/file.parquet")
        again = await refusal(s, "s3://nowhere/file.parquet")
        assert len(server.log) == 1
        assert isinstance(again, asyncpq.BucketNotFoundError)
        assert again.hint == first.hint is not None


async def test_each_session_has_its_own_patience(server: ObjectServer) -> None:
    cache = asyncpq.MemoryCache(1 << 20)
    async with (
        session(server, memory_cache=cache) as patient,
        session(server, memory_cache=cache, negative_ttl_s=0) as eager,
    ):
        await refusal(patient)
        server.put("bucket/late.parquet", parquet(1))
        await refusal(patient)
        assert (await eager.open_file(URL)).num_rows == 1
        assert (await patient.open_file(URL)).num_rows == 1  # known to be there by now
        cache.discard_if(lambda key: "version" in str(key))
        assert (await patient.open_file(URL)).num_rows == 1


async def test_an_object_that_comes_back_is_seen_by_those_who_had_it_open(server: ObjectServer) -> None:
    server.put("bucket/late.parquet", parquet(1))
    async with session(server, cache_policy=asyncpq.etag(0)) as s:
        file = await s.open_file(URL)
        server.delete("bucket/late.parquet")
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await file.read()
        await refusal(s)
        server.put("bucket/late.parquet", parquet(2))
        await refusal(s)  # opened anew, it is still missing
        await file.refresh()
        assert (await file.read()).to_pylist() == [{"value": 2}]
        assert (await s.open_file(URL)).num_rows == 1


async def test_other_failures_are_not_kept(server: ObjectServer) -> None:
    server.put("bucket/late.parquet", b"not Parquet, but long enough for a footer")
    async with session(server) as s:
        for _ in range(2):
            with pytest.raises(asyncpq.NotParquetError):
                await s.open_file(URL)
        assert len(server.log) == 2


@pytest.mark.parametrize("value", [-1.0, "5", None, True])
def test_the_option_is_checked(value: Any) -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match="negative_ttl_s"):
        asyncpq.Session(negative_ttl_s=value)
