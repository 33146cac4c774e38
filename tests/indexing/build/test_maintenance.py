"""Verify, vacuum and compact."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.index import Index
from asyncpq.indexing.kinds import Footers, Keys
from asyncpq.options import BuildOptions
from tests.indexing.build.index_checks import WHOLE_SAMPLE, check_index
from tests.lakes import FEW, KINDS, write


@pytest.mark.heavy
async def test_verify_finds_what_is_wrong(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", number)
    async with asyncpq.Session() as session:
        for kind in range(len(KINDS)):
            backend = MemoryBackend()
            index = await session.build_index(str(tmp_path), [KINDS[kind]], at=backend)
            assert (await index.verify(sample=WHOLE_SAMPLE)).problems == []
            segment = index.manifest.segments_of(index.manifest.tables[1])[0]
            table = backend._segments[segment.name][0].table
            if table.num_rows:
                await _store(backend, index, table.slice(1))
                found = await index.verify(sample=WHOLE_SAMPLE, rows=WHOLE_SAMPLE)
                assert found.problems, KINDS[kind]
            with pytest.raises(asyncpq.InvalidOptionError, match="sample=0: must be a whole number of at least 1"):
                await index.verify(sample=0)  # no file proves nothing
            await backend.delete("segments", [segment.name])
            assert any("is missing" in problem for problem in (await index.verify()).problems)


async def _store(backend: MemoryBackend, index: Index, table: pa.Table) -> None:
    segment = index.manifest.segments_of(index.manifest.tables[1])[0]
    await backend.delete("segments", [segment.name])

    async def batches() -> AsyncIterator[pa.RecordBatch]:
        for batch in table.to_batches():
            yield batch

    await backend.write_segment(segment.name, segment.table, batches())


async def test_vacuum_keeps_what_readers_may_hold(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write(lake / "0.parquet", 0)
    backend = MemoryBackend()
    async with asyncpq.Session() as session:
        index = await session.build_index(str(lake), FEW, at=backend)
        for number in range(1, 15):
            write(lake / f"{number}.parquet", number)
            await index.refresh()
        await index.compact()
        before = dict(await backend.ages("segments"))
        assert (await index.vacuum()).segments == ()  # all were the newest within seven days
        assert (await index.vacuum(older_than=timedelta(0))).snapshots
        assert len(await backend.ages("manifests")) == 10
        await index.vacuum(keep=1, older_than=timedelta(0))
        assert len(await backend.ages("manifests")) == 1
        left = await backend.ages("segments")
        assert set(left) == index.manifest.names < set(before)
        await check_index(index, lake)


async def test_segments_that_are_full_are_not_merged_again(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = BuildOptions(segment_bytes=3000, max_segments=2)
    for number in range(6):
        write(lake / f"{number}.parquet", number)
    async with asyncpq.Session() as session:
        index = await session.build_index(str(lake), [Keys("id"), Footers()], at=MemoryBackend(), building=options)
        assert all(len(index.manifest.segments_of(part)) > 2 for part in index.manifest.tables[1:])
        snapshot = index.snapshot
        assert (await index.compact()).merged == 0
        assert index.snapshot == snapshot
        write(lake / "new.parquet", 6)
        await index.refresh()
        await index.compact()
        await check_index(index, lake)


async def test_compaction_leaves_one_run_of_segments(tmp_path: Path) -> None:
    """Full ones too, where several may hold a key: however many files there are, one segment is asked for it."""
    lake = tmp_path / "lake"
    options = BuildOptions(segment_bytes=3000, max_segments=3)
    write(lake / "0.parquet", 0)
    async with asyncpq.Session() as session:
        index = await session.build_index(str(lake), [Keys("id")], at=MemoryBackend(), building=options)
        keys = next(part for part in index.manifest.tables if part.kind == "keys")

        def deepest() -> int:
            runs = [(one.low, one.high) for one in index.manifest.segments_of(keys)]
            return max(sum(low <= key < high for low, high in runs) for key, _ in runs)

        for number in range(1, 9):
            shutil.copy(lake / "0.parquet", lake / f"{number}.parquet")
            await index.refresh()
            assert deepest() <= options.max_segments
        await index.compact()
        assert len(index.manifest.segments_of(keys)) > options.max_segments  # they are as full as they may be
        assert deepest() <= 1
        assert (await index.compact()).merged == 0
        await check_index(index, lake)
