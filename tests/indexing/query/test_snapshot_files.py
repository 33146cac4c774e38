"""The files that an index lists: the first ones by url, without what the index knows of the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.manifest.commits import Head
from asyncpq.indexing.query import snapshot_files
from asyncpq.indexing.query.file_entries import FileEntry
from asyncpq.indexing.query.file_selection import SnapshotRead
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.indexed_files import entries_of
from asyncpq.indexing.query.snapshot_files import SnapshotFiles
from asyncpq.pruning.row_ranges import RowRanges
from tests.indexing.query.one_column_lakes import make, write


@pytest.fixture
async def session() -> AsyncIterator[asyncpq.Session]:
    async with asyncpq.Session(cache_policy=asyncpq.etag(0)) as running:
        yield running


async def test_the_first_files_are_those_of_the_lowest_urls(
    session: asyncpq.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["b.parquet", "ä.parquet", "d.parquet", "a.parquet", "Z.parquet", "c.parquet", "e.parquet"]
    backend = MemoryBackend()
    paths = write(tmp_path, {name: [number] for number, name in enumerate(names)})
    retired = ["Z.parquet", "a.parquet", "b.parquet"]
    manifest = await make(session, backend, tmp_path, paths, retired=retired)
    source = SnapshotFiles(session.runtime, OpenIndex(backend, Head(backend, manifest)))
    read = list[int]()

    async def counted(reads: SnapshotRead, ids: RowRanges, *args: Any) -> dict[int, FileEntry]:
        read.append(ids.num_rows)
        return await entries_of(reads, ids, *args)

    monkeypatch.setattr(snapshot_files, "entries_of", counted)
    for count, expected in ((1, ["c"]), (2, ["c", "d"]), (4, ["c", "d", "e", "ä"]), (9, ["c", "d", "e", "ä"])):
        found = await source.first(count, session.runtime.operation("open", str(tmp_path)))
        assert [Path(file.url).stem for file in found] == expected
    assert read == [1, 2, 4, 4]
