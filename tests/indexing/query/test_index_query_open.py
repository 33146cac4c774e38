"""Reads of a dataset with an index while that changes: newer snapshots, segments that are gone or damaged, files that
are gone; what is told of them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import View
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError, StaleSnapshotError
from asyncpq.expressions import Expression
from asyncpq.indexing import Bounds, SqlBackend, commits
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.commits import Head, new_id
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.query.file_selection import FileSlices
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.indexed_files import IndexedFiles
from asyncpq.opening.datasets import open_indexed
from asyncpq.scan.request import ScanRequest
from tests.indexing.query.one_column_lakes import make, snapshot, values, write


@pytest.fixture
async def session() -> AsyncIterator[asyncpq.Session]:
    async with asyncpq.Session(cache_policy=asyncpq.etag(0)) as running:
        yield running


async def test_a_newer_snapshot_is_seen_by_the_next_read(session: asyncpq.Session, tmp_path: Path) -> None:
    backend = MemoryBackend()
    manifest = await make(session, backend, tmp_path, write(tmp_path, {"0.parquet": [1, 2, 3], "1.parquet": [4, 5]}))
    dataset, young = snapshot(session, backend, manifest), snapshot(session, backend, manifest, max_age_s=60)
    assert await values(dataset, col("a") >= 3) == [3, 4, 5]
    assert await values(young, col("a") >= 3) == [3, 4, 5]
    paths = write(tmp_path, {"2.parquet": [3, 9]})
    assert await values(dataset, col("a") >= 3) == [3, 4, 5]  # the index does not know it
    await make(session, backend, tmp_path, ["0.parquet", "1.parquet", *paths], snapshot=2, retired=["1.parquet"])
    assert await values(dataset, col("a") >= 3) == [3, 3, 9]
    assert (await dataset.plan(where=col("a") >= 3)).explain().count("snapshot 2 of") == 1
    async with dataset.scan(where=col("a") >= 3) as scan:
        assert sum([batch.num_rows async for batch in scan]) == 3
    assert await values(young, col("a") >= 3) == [3, 4, 5]  # as it was asked to


async def test_segments_that_were_vacuumed(session: asyncpq.Session, tmp_path: Path) -> None:
    backend = MemoryBackend()
    paths = write(tmp_path, {"0.parquet": [1, 2, 3], "1.parquet": [4, 5]})
    manifest = await make(session, backend, tmp_path, paths)
    dataset, young = snapshot(session, backend, manifest), snapshot(session, backend, manifest, max_age_s=60)
    listed = open_indexed(
        session._runtime, await session.open_dataset(tmp_path), OpenIndex(backend, Head(backend, manifest))
    )
    await values(young, col("a") == 4)
    newer = await make(session, backend, tmp_path, paths, snapshot=2)
    await backend.delete("segments", [segment.name for segment in manifest.segments])
    for one in (dataset, young, listed):
        assert await values(one, col("a") > 3) == [4, 5]
    assert young.metrics.restarts == 1
    await backend.delete("segments", [segment.name for segment in newer.segments])
    for one in (dataset, young):
        with pytest.raises(StaleSnapshotError):
            await values(one, col("a") > 4)


async def test_rows_by_number_and_without_a_predicate(session: asyncpq.Session, tmp_path: Path) -> None:
    backend = MemoryBackend()
    paths = write(tmp_path, {"0.parquet": [1, 2, 3], "1.parquet": [4, 5], "2.parquet": []})
    manifest = await make(session, backend, tmp_path, paths)
    dataset = snapshot(session, backend, manifest)
    assert await values(dataset) == [1, 2, 3, 4, 5]
    assert dataset.metrics.files_total == 3
    assert await dataset.count() == 5
    files = await dataset.files()
    assert files == [f"{tmp_path}/{path}" for path in paths]
    assert await dataset.files(col("a") == 4) == [files[1]]
    found = await dataset.take([(files[1], 1), (files[0], 0), (files[1], 1)])
    assert found["a"].to_pylist() == [5, 1, 5]
    with pytest.raises(asyncpq.RowIndexError):
        await dataset.take([(f"{tmp_path}/none.parquet", 0)])
    assert (await dataset.read(limit=4)).num_rows == 4


async def test_partitions_of_paths(session: asyncpq.Session, tmp_path: Path) -> None:
    backend = MemoryBackend()
    paths = write(tmp_path, {"day=1/0.parquet": [1, 2], "day=2/0.parquet": [1, 3], "day=10/0.parquet": [1]})
    manifest = await make(session, backend, tmp_path, paths)
    manifest = replace(
        manifest,
        schema=manifest.schema.append(pa.field("day", pa.int32())),
        partitions=("day",),
        dataset={"kind": "files", "target": f"{tmp_path}/", "partitioning": "hive"},
    )
    dataset = snapshot(session, backend, manifest)
    found = await dataset.read(where=(col("a") == 1) & (col("day") >= 2))
    assert found.to_pydict() == {"a": [1, 1], "day": [10, 2]}
    assert (await dataset.lookup({"day": 2, "a": 3})).num_rows == 1


async def test_an_index_without_a_build(session: asyncpq.Session, tmp_path: Path) -> None:
    backend = MemoryBackend()
    manifest = await make(session, backend, tmp_path, write(tmp_path, {"0.parquet": [1]}))
    with pytest.raises(InvalidOptionError, match="no files yet"):
        snapshot(session, backend, replace(manifest, as_of=None))


async def test_a_first_build_that_has_not_ended_hides_no_files(session: asyncpq.Session, tmp_path: Path) -> None:
    """Nobody named the index, so the files are listed."""
    lake, at = f"{tmp_path}/lake/", f"{tmp_path}/lake/_asyncpq/"
    write(tmp_path / "lake", {"0.parquet": [1, 2]})
    index = await session.build_index(lake, [Bounds("a")])
    write(tmp_path / "lake", {"1.parquet": [3]})

    async def begin(base: Manifest, **dataset: object) -> Manifest:
        async def begun(base: Manifest | None) -> Manifest | None:
            assert base is not None
            return replace(base, as_of=None, dataset={**base.dataset, **dataset})

        committed = await commits.commit(index.backend, base, begun, new_id())
        assert committed is not None
        return committed

    assert await values(await session.open_dataset(lake, view="snapshot")) == [1, 2]
    manifest = await begin(index.manifest)
    async with asyncpq.Session() as other:
        listed = await other.open_dataset(lake, schema=pa.schema([("a", pa.int64())]))
        assert listed.view is View.LISTED
        assert await values(listed, col("a") > 1) == [2, 3]
        assert await values(await other.open_dataset(lake, index=at), col("a") > 1) == [2, 3]
        for named in (None, at):
            with pytest.raises(InvalidOptionError, match="no files yet"):
                await other.open_dataset(lake, index=named, view="snapshot")
        for path in ("0.parquet", "1.parquet"):
            (tmp_path / "lake" / path).unlink()
        with pytest.raises(ObjectNotFoundError, match="only hidden files"):
            await other.open_dataset(lake)
        await begin(manifest, committed=True)  # files are there once they are committed, which none is
        with pytest.raises(InvalidOptionError, match="no files yet"):
            await other.open_dataset(lake)


@pytest.mark.parametrize("again", [False, True])
async def test_a_dropped_index_is_noticed(
    session: asyncpq.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Also where another one is made in its place, whose snapshots have lower numbers."""
    write(tmp_path / "lake", {"0.parquet": [1, 2, 3]})
    backend, kinds = f"{tmp_path}/index/", [Bounds("a")]
    index = await session.build_index(tmp_path / "lake", kinds, at=backend)
    write(tmp_path / "lake", {"1.parquet": [4]})
    await index.refresh()
    other = await session.open_index(backend)
    dataset = await session.open_dataset(tmp_path / "lake", index=backend, view="snapshot")
    listed = await session.open_dataset(tmp_path / "lake", index=backend)
    assert await values(dataset, col("a") > 2) == [3, 4]
    assert await values(listed, col("a") > 2) == [3, 4]
    await index.drop()
    if again:
        await session.build_index(tmp_path / "lake", kinds, at=backend)
    with pytest.raises(StaleSnapshotError, match="dropped"):
        await other.show()
    assert await values(dataset, col("a") > 2) == [3, 4]  # all that it needs is in memory
    monkeypatch.setattr(commits, "_FORGOTTEN_S", 0.0)  # as if that had passed
    with pytest.raises(StaleSnapshotError, match="dropped"):
        await values(dataset, col("a") > 2)
    write(tmp_path / "lake", {"2.parquet": [5]})  # a newer snapshot may know it: that is looked for
    for _ in range(2):  # without the index, no row is another one
        assert await values(listed, col("a") > 2) == [3, 4, 5]
    assert "index at" not in listed.description


@pytest.mark.parametrize("max_restarts", [2, 0])
async def test_a_dropped_index_is_noticed_where_its_tables_are_gone(tmp_path: Path, max_restarts: int) -> None:
    async with asyncpq.Session(limits=asyncpq.LimitOptions(max_restarts=max_restarts)) as session:
        await _drop_tables_under_readers(session, tmp_path)


async def _drop_tables_under_readers(session: asyncpq.Session, tmp_path: Path) -> None:
    database = tmp_path / "index.db"
    write(tmp_path / "lake", {"0.parquet": [1, 2, 3]})
    backend = SqlBackend(f"sqlite:///{database}")
    await session.build_index(tmp_path / "lake", [Bounds("a")], at=backend)
    dataset = await session.open_dataset(tmp_path / "lake", index=backend, view="snapshot")
    listed = await session.open_dataset(tmp_path / "lake", index=backend)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in tables:
            connection.execute(f'DROP TABLE "{name}"')
        connection.commit()
    assert tables
    with pytest.raises(StaleSnapshotError):
        await values(dataset, col("a") > 2)
    assert await values(listed, col("a") > 2) == [3]
    assert any("index is not used" in line for line in listed.metrics.fallbacks)
    await backend.close()


async def test_a_snapshot_that_is_not_there(session: asyncpq.Session, tmp_path: Path) -> None:
    write(tmp_path, {"0.parquet": [1]})
    index = await session.build_index(tmp_path, [Bounds("a")])
    with pytest.raises(asyncpq.ObjectNotFoundError, match="has no snapshot 9"):
        await session.open_index(index.url, snapshot=9)
    wrong: Any = "1"
    with pytest.raises(InvalidOptionError, match="snapshot='1': must be a whole number"):
        await session.open_index(index.url, snapshot=wrong)


async def test_files_of_an_earlier_listing_are_still_known_while_the_next_is_looked_at(
    session: asyncpq.Session, tmp_path: Path
) -> None:
    backend, runtime = MemoryBackend(), session._runtime
    manifest = await make(session, backend, tmp_path, write(tmp_path, {"0.parquet": [1, 2], "1.parquet": [4, 5]}))
    base = (await session.open_dataset(tmp_path))._state.source
    files = IndexedFiles(runtime, base, OpenIndex(backend, Head(backend, manifest)))
    operation = runtime.operation("read", "lake")
    with operation:
        found = await base.files(ScanRequest(), operation)
        prune = await files._pruner(ScanRequest(), operation)
        earlier = await prune(found, operation)
        await prune(found._replace(files=found.files[:1]), operation)
        for file in earlier.files:
            assert file.entry is not None
            assert file.entry.known is not None
            assert await file.entry.known(operation) is not None


async def test_an_index_of_your_own_that_fails_leaves_nothing_behind(session: asyncpq.Session, tmp_path: Path) -> None:
    class Broken:
        async def prune(self, where: Expression) -> FileSlices:
            raise ZeroDivisionError

    class Slow:
        async def prune(self, where: Expression) -> FileSlices:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(await asyncio.sleep(0, "ended"))
            raise AssertionError("it was waited for")

    ended: list[str] = []
    backend = MemoryBackend()
    manifest = await make(session, backend, tmp_path, write(tmp_path, {"0.parquet": [1, 2], "1.parquet": [4, 5]}))
    index = OpenIndex(backend, Head(backend, manifest))
    dataset = open_indexed(session._runtime, await session.open_dataset(tmp_path), index, [Slow(), Broken()])
    with pytest.raises(ZeroDivisionError):
        await values(dataset, col("a") > 4)
    assert ended == ["ended"]
