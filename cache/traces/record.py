"""Record the traces of this folder anew: workloads against an object server in this process.

``python -m cache.traces.record`` writes one Parquet file for each workload. Objects, keys and order are
seeded; a trace changes where asyncpq asks its memory cache otherwise than it did.
"""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import Expression, col
from asyncpq.testing import ObjectServer
from asyncpq.testing.traces import RecordingCache, write_trace

FOLDER = Path(__file__).parent
FILES = 4
ROWS = 60_000
PAGE_ROWS = 500
COLUMNS = ["user", "price"]


class Workload:
    """Seeded keys, and the reads that they make."""

    def __init__(self, files: list[asyncpq.File]) -> None:
        self.files = files
        self.random = random.Random(4)
        total = FILES * ROWS
        self.ranked = self.random.sample(range(total), total)  # from the most to the least popular key
        self.dashboards = [
            (self.random.randrange(FILES), self.random.randrange(ROWS - 6000)) for _ in range(24)
        ]  # of 6,000 rows each

    def zipf(self, population: int) -> int:
        """A rank, from 0; the k-th is asked for in proportion to 1/k."""
        return int(population ** self.random.random()) - 1

    async def lookup(self, key: int) -> None:
        table = await self.files[key // ROWS].lookup({"id": key % ROWS}, columns=COLUMNS)
        assert table.num_rows == 1

    async def lookups(self, count: int) -> None:
        """Point lookups of Zipf-distributed keys."""
        for _ in range(count):
            await self.lookup(self.ranked[self.zipf(len(self.ranked))])

    async def uniform_lookups(self, count: int) -> None:
        for _ in range(count):
            await self.lookup(self.random.choice(self.ranked))

    async def full_scan(self, where: Expression | None, lookups_for_each_batch: int) -> None:
        """Every page of every file, while lookups go on; with a predicate page by page, else chunk by chunk."""
        for file in self.files:
            async with file.scan(where=where, batch_size=PAGE_ROWS * 10) as scan:
                async for _ in scan:
                    await self.lookups(lookups_for_each_batch)

    async def refresh_dashboards(self, count: int, lookups_for_each: int) -> None:
        """Range scans, some of them more often than others, while lookups go on."""
        for _ in range(count):
            file, start = self.dashboards[self.zipf(len(self.dashboards))]
            rows = await self.files[file].read(["price"], col("id").between(start, start + 5999))
            assert rows.num_rows == 6000
            await self.lookups(lookups_for_each)


async def lookups(work: Workload) -> None:
    await work.lookups(2500)


async def lookups_uniform(work: Workload) -> None:
    await work.uniform_lookups(2500)


async def lookups_and_a_scan(work: Workload) -> None:
    await work.lookups(1200)
    await work.full_scan(col("price") < 0.5, lookups_for_each_batch=1)
    await work.lookups(600)


async def lookups_and_many_scans(work: Workload) -> None:
    await work.lookups(600)
    for _ in range(5):
        await work.full_scan(None, lookups_for_each_batch=2)
        await work.lookups(300)


async def dashboards_and_lookups(work: Workload) -> None:
    await work.refresh_dashboards(200, lookups_for_each=8)


async def lookups_then_dashboards(work: Workload) -> None:
    await work.lookups(1000)
    await work.refresh_dashboards(300, lookups_for_each=0)


WORKLOADS: list[Callable[[Workload], Awaitable[None]]] = [
    lookups,
    lookups_uniform,
    lookups_and_a_scan,
    lookups_and_many_scans,
    dashboards_and_lookups,
    lookups_then_dashboards,
]


def objects() -> Iterator[bytes]:
    """Four files of several row groups, with page indexes."""
    for number in range(FILES):
        rng = random.Random(number)
        table = pa.table(
            {
                "id": pa.array(range(ROWS), pa.int64()),
                "user": [f"user-{rng.getrandbits(48):012x}" for _ in range(ROWS)],
                "price": [rng.random() for _ in range(ROWS)],
                "note": [f"{rng.getrandbits(160):040x}" for _ in range(ROWS)],
            }
        )
        sink = io.BytesIO()
        pq.write_table(
            table,
            sink,
            row_group_size=ROWS // 3,
            max_rows_per_page=PAGE_ROWS,
            write_batch_size=PAGE_ROWS,
            use_dictionary=False,
            compression="none",
            write_page_index=True,
        )
        yield sink.getvalue()


async def record(workload: Callable[[Workload], Awaitable[None]]) -> RecordingCache:
    """Run one workload in a session of its own; everything fits into its cache."""
    cache = RecordingCache(1 << 32)
    async with ObjectServer() as server:
        for number, data in enumerate(objects()):
            server.put(f"lake/{number}.parquet", data)
        requests = asyncpq.RequestOptions(tail_bytes=1 << 16)
        policy = asyncpq.etag(max_age_s=3600)
        async with asyncpq.Session(
            server.storage_options, memory_cache=cache, requests=requests, cache_policy=policy
        ) as session:
            files = [await session.open_file(f"s3://lake/{number}.parquet") for number in range(FILES)]
            await workload(Workload(files))
    return cache


async def main() -> None:
    for workload in WORKLOADS:
        cache = await record(workload)
        path = FOLDER / f"{workload.__name__}.parquet"
        write_trace(path, cache.trace)
        print(f"{path.name}: {len(cache.trace)} accesses, {path.stat().st_size} bytes, {cache.current_bytes} kept")


if __name__ == "__main__":
    asyncio.run(main())
