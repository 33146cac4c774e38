"""What caches outside of the process hold; tests/caching/test_upkeep.py tries folders and servers that fail."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.engine.caches import cache_entries
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes


async def test_a_disk_cache_is_counted_and_cleared(tmp_path: Path) -> None:
    cache = asyncpq.DiskCacheOptions(path=str(tmp_path / "cache"))
    with pytest.raises(asyncpq.InvalidOptionError, match="there is no disk cache"):
        await cache_entries(cache)
    data = parquet_bytes(pa.table({"id": range(1000)}))
    async with ObjectServer() as server:
        server.put("bucket/a.parquet", data)
        async with asyncpq.Session(server.storage_options, disk_cache=cache) as session:
            assert await (await session.open_file("s3://bucket/a.parquet")).count("id < 10") == 10
    held = await cache_entries(cache)
    assert held.entries > 0
    assert held.bytes is not None
    assert held.removed is None
    assert await cache_entries(cache, clear=True) == (0, 0, held.entries)
