"""Where a session, its metrics and its blocking form show the cache tiers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
import asyncpq.blocking
from asyncpq.testing import ObjectServer


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(1000)}), sink, write_page_index=True)
    return bytes(sink.getvalue())


def test_a_session_shows_its_tiers(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    session = asyncpq.Session(disk_cache=folder, shared_cache="valkey://user:hunter2@cache.internal:6380/0")
    assert repr(session) == (
        f"Session(memory_cache=0 of {256 << 20} bytes, disk_cache=DiskCache({folder!r}), "
        "shared_cache=SharedCache('cache.internal:6380'))"
    )
    asyncio.run(session.close())


async def test_a_read_says_which_tier_had_what(server: ObjectServer, tmp_path: Path) -> None:
    server.put("bucket/a.parquet", parquet())
    for hits in (False, True):
        async with asyncpq.Session(server.storage_options, disk_cache=tmp_path / "cache") as session:
            file = await session.open_file("s3://bucket/a.parquet")
            await file.lookup({"id": 7})
            text = str(file.metrics)
            assert ("on disk" in text) is hits
            if hits:
                cost = file.metrics
                assert f"cache hits {cost.cache_hits} ({cost.disk_hits} of them on disk), misses 0" in text


def test_lower_tiers_side_by_side() -> None:
    metrics = asyncpq.ReadMetrics(cache_hits=7, disk_hits=2, shared_hits=1)
    assert "cache hits 7 (2 of them on disk, 1 of them shared), misses 0" in str(metrics)
    assert "cache hits 7, misses 0" in str(asyncpq.ReadMetrics(cache_hits=7))


def test_blocking_sessions_have_them_too(tmp_path: Path) -> None:
    with ObjectServer.in_thread() as server:
        server.put("bucket/a.parquet", parquet())
        options = server.storage_options
        with asyncpq.blocking.Session(options, disk_cache=tmp_path / "cache") as session:
            session.open_file("s3://bucket/a.parquet")
            assert session.memory_cache.current_bytes > 0
            assert session.cache_counters()["disk"]["misses"] == 1
            with asyncpq.blocking.Session(options, memory_cache=session.memory_cache) as other:
                other.open_file("s3://bucket/a.parquet")
                assert other.metrics.requests == 0
