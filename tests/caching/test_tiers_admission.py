"""Which reads reach the disk cache: each tier decides by its own budget, whatever memory has room for; pages of column
chunks that came whole are kept once they have turned out to be good, and chunks never are."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.options import MIB
from asyncpq.testing import ObjectServer
from tests.caching.disk_folders import entry_files
from tests.parquet_bytes import parquet_bytes

ROWS = 40_000
URL = "s3://bucket/a.parquet"
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "user": [f"user {row * 7919 % 999}" for row in range(ROWS)],
        "price": [float(row * 31 % 10_007) for row in range(ROWS)],
        "place": [{"x": row % 57, "y": None if row % 5 else row} for row in range(ROWS)],
    }
)


def parquet(*, page_index: bool = True, plain: bool = False) -> bytes:
    return parquet_bytes(
        TABLE,
        row_group_size=10_000,
        max_rows_per_page=500,
        write_batch_size=500,
        compression="none",
        write_page_index=page_index,
        use_dictionary=not plain,
        write_page_checksum=True,
    )


DATA = parquet()
Reading = Callable[[asyncpq.File], Awaitable[None]]


@pytest.fixture
def options(server: ObjectServer, tmp_path: Path) -> dict[str, Any]:
    """Of sessions over one disk cache."""
    server.put("bucket/a.parquet", DATA)
    return {
        "storage_options": server.storage_options,
        "disk_cache": asyncpq.DiskCacheOptions(path=str(tmp_path / "cache"), max_bytes=64 * MIB, timeout_s=60.0),
        "cache_policy": asyncpq.immutable(),
        "requests": asyncpq.RequestOptions(tail_bytes=1 << 14),
    }


async def data_requests(options: dict[str, Any], *reads: Reading) -> list[int]:
    """GETs for pages that each read takes, each in a session of its own: as processes that follow one another."""
    counts: list[int] = []
    for read in reads:
        async with asyncpq.Session(**options) as session:
            await read(await session.open_file(URL))
            counts.append(session.metrics.requests_by_purpose.get("data", 0))
    return counts


async def scan(file: asyncpq.File) -> None:
    """Without a predicate: whole column chunks."""
    assert await file.read() == TABLE


async def proven_scan(file: asyncpq.File) -> None:
    """Statistics prove that all rows of three row groups match: their chunks come whole."""
    assert await file.read(where=col("id") >= 10_000) == TABLE.slice(10_000)


async def filtered_scan(file: asyncpq.File) -> None:
    assert (await file.read(where=col("price") >= 0.5)).num_rows == ROWS - TABLE["price"].to_pylist().count(0.0)


async def large_take(file: asyncpq.File) -> None:
    assert await file.take(range(0, ROWS, 100)) == TABLE.take(list(range(0, ROWS, 100)))


async def lookups(file: asyncpq.File) -> None:
    for key in range(10_000, ROWS, 3_333):
        assert await file.lookup({"id": key}) == TABLE.slice(key, 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("memory_cache_bytes", [0, 300_000, 256 * MIB])
@pytest.mark.parametrize("read", [scan, proven_scan, filtered_scan, large_take])
async def test_a_later_process_finds_the_pages(options: dict[str, Any], read: Reading, memory_cache_bytes: int) -> None:
    """Also if memory had no room for the read."""
    assert len(DATA) > 300_000
    follows = large_take if read is large_take else lookups
    first, second = await data_requests({**options, "memory_cache_bytes": memory_cache_bytes}, read, follows)
    assert first > 0
    assert second == 0


async def test_a_read_too_large_for_the_disk_is_not_put_there(options: dict[str, Any], tmp_path: Path) -> None:
    """More than 1/16 of the budget; footer and indexes are, and lookups' pages."""
    small = asyncpq.DiskCacheOptions(path=str(tmp_path / "small"), max_bytes=8 * MIB, timeout_s=60.0)
    assert len(DATA) > small.max_bytes / 16
    scanned, again, looked_up = await data_requests({**options, "disk_cache": small}, filtered_scan, lookups, lookups)
    assert scanned > 0
    assert again > 0
    assert looked_up == 0


async def test_nothing_is_put_that_nobody_would_find(
    server: ObjectServer, options: dict[str, Any], tmp_path: Path
) -> None:
    """Without an OffsetIndex, another process does not know where the pages are; chunks are no unit of the cache."""
    server.put("bucket/a.parquet", parquet(page_index=False))
    await data_requests(options, scan, filtered_scan)
    entries = [path for path in (tmp_path / "cache").glob("??/*") if path.stat().st_size > 20_000]
    assert not entries
    assert len(list((tmp_path / "cache").glob("??/*"))) == 2, "footer and pointer"


async def test_a_chunk_damaged_on_its_way_leaves_nothing(server: ObjectServer, options: dict[str, Any]) -> None:
    """Neither in memory nor on disk: the next read asks the store."""
    good = parquet(plain=True)
    damaged = bytearray(good)
    damaged[good.index(struct.pack("<qqq", 25_122, 25_123, 25_124))] ^= 1
    etag = server.put("bucket/a.parquet", good).etag
    async with asyncpq.Session(**options) as session:
        file = await session.open_file(URL)
        server.put("bucket/a.parquet", bytes(damaged), etag=etag)
        with pytest.raises(asyncpq.CorruptFileError):
            await file.read()
        server.put("bucket/a.parquet", good, etag=etag)
        assert await file.lookup({"id": 25_000}) == TABLE.slice(25_000, 1)
    async with asyncpq.Session(**options) as session:
        file = await session.open_file(URL)
        assert await file.lookup({"id": 25_000}) == TABLE.slice(25_000, 1)


async def test_a_page_that_is_not_decoded_yet_is_not_told(
    server: ObjectServer, options: dict[str, Any], tmp_path: Path
) -> None:
    """Chunks of one row group that come in several units: of one column more rows have come than of the other."""
    rows = 300_000
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "code": pa.array([row.to_bytes(16, "big") for row in range(rows)], pa.binary(16)),
        }
    )
    good = parquet_bytes(
        table, compression="none", use_dictionary=False, write_page_index=True, write_page_checksum=True
    )
    damaged = bytearray(good)
    damaged[good.index(struct.pack("<qqq", 90_000, 90_001, 90_002))] ^= 1
    options["disk_cache"] = str(tmp_path / "large")
    options["limits"] = asyncpq.LimitOptions(unit_bytes=1 * MIB)
    etag = server.put("bucket/a.parquet", good).etag
    async with asyncpq.Session(**options) as session:
        file = await session.open_file(URL)
        server.put("bucket/a.parquet", bytes(damaged), etag=etag)
        async with file.scan() as scanning:
            await anext(scanning)
            with pytest.raises(asyncpq.CorruptFileError):
                async for _ in scanning:
                    pass
        server.put("bucket/a.parquet", good, etag=etag)
    for key, requests in ((90_000, True), (1000, False)):
        async with asyncpq.Session(**options) as session:
            assert await (await session.open_file(URL)).lookup({"id": key}) == table.slice(key, 1)
            assert ("data" in session.metrics.requests_by_purpose) is requests


async def test_a_scan_is_told_once(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What memory has was told by whoever put it there."""
    told: list[int] = []

    async def put_many(_: object, entries: dict[object, bytes], *, scan: bool = False) -> None:
        assert scan or len(entries) < 20
        told.append(len(entries))

    monkeypatch.setattr("asyncpq.caching.disk.DiskCache.put_many", put_many)
    async with asyncpq.Session(**options) as session:
        file = await session.open_file(URL)
        await scan(file)
        first = sum(told)
        assert first > 300
        await scan(file)
        assert sum(told) == first


async def test_local_files_are_not_kept_a_second_time(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(DATA)
    where = col("id") == 17
    for url, kept in ((str(tmp_path / "a.parquet"), False), (URL, True)):
        async with asyncpq.Session({"s3": options["storage_options"]}, disk_cache=options["disk_cache"]) as session:
            assert (await (await session.open_file(url)).read(where=where)).num_rows == 1
        assert bool(entry_files(tmp_path / "cache")) is kept


async def test_what_an_index_is_built_of_is_not_kept(
    server: ObjectServer, options: dict[str, Any], tmp_path: Path
) -> None:
    for name in "bcdef":
        server.put(f"bucket/lake/{name}.parquet", DATA)
    async with asyncpq.Session({"s3": options["storage_options"]}, disk_cache=options["disk_cache"]) as session:
        kinds = [Bounds("id"), Footers(), Keys("user")]
        await session.build_index("s3://bucket/lake/", kinds, at=str(tmp_path / "index"))
    assert len(entry_files(tmp_path / "cache")) == 2  # the first one's footer, of which the columns are known
