"""Reads that end early leave no cycles: what they hold is free at once, not when the garbage collector runs next.

A cancelled task holds its traceback, and so all that its frames hold: a few scans that were left would keep gigabytes.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.scan.file_scan import FileScan


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of which each unit takes some milliseconds to decode."""
    path = tmp_path_factory.mktemp("garbage") / "a.parquet"
    rows = pa.array(range(400_000))
    columns = {f"c{n}": rows for n in range(4)} | {"text": rows.cast(pa.string())}
    pq.write_table(pa.table(columns), path, row_group_size=50_000, use_dictionary=False)
    return str(path)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """The file scans that begin meanwhile, without the garbage collector."""
    begun: list[weakref.ref[Any]] = []
    make = FileScan.__init__

    def recording(self: FileScan, *arguments: Any, **options: Any) -> None:
        begun.append(weakref.ref(self))
        make(self, *arguments, **options)

    monkeypatch.setattr(FileScan, "__init__", recording)
    gc.collect()
    gc.disable()
    yield begun
    gc.enable()


async def all_are_free(scans: list[weakref.ref[Any]]) -> None:
    """Wait until no scan is alive, which needs the ends of tasks and threads, but no garbage collection."""
    assert scans
    for _ in range(1000):
        if all(scan() is None for scan in scans):
            break
        await asyncio.sleep(0.005)
    assert not [scan() for scan in scans if scan() is not None]
    scans.clear()


@pytest.mark.heavy
async def test_scans_that_are_cancelled_or_left(file: str, scans: list[weakref.ref[Any]]) -> None:
    limits = asyncpq.LimitOptions(unit_bytes=1 << 18, inline_decode_bytes=0)
    async with asyncpq.Session(limits=limits) as session:
        opened = await session.open_file(file)
        dataset = await session.open_dataset([file])

        async def consume(source: Any, where: Any, batches: list[int]) -> None:
            async with source.scan(where=where) as scan:
                async for _ in scan:
                    batches[0] += 1

        for source in (opened, dataset):
            for where in (None, col("text").like("%1_2_3%")):
                for after in range(0, 6, 2):
                    batches = [0]
                    task = asyncio.create_task(consume(source, where, batches))
                    while batches[0] < after and not task.done():  # noqa: ASYNC110
                        await asyncio.sleep(0)
                    await asyncio.sleep(0.002 * after)
                    task.cancel()
                    await asyncio.wait((task,))
                    del task
                    await all_are_free(scans)
            async with source.scan() as scan:
                async for _ in scan:
                    break
            del scan, _
            await all_are_free(scans)
            counting = asyncio.create_task(source.count(col("text").like("%1_2_3%")))
            while not scans:  # noqa: ASYNC110
                await asyncio.sleep(0)
            counting.cancel()
            await asyncio.wait((counting,))
            del counting
            await all_are_free(scans)
