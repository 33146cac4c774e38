"""The files that an index lists: the first ones by url, without what the index knows of others; very many in sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.providers import FileSet
from asyncpq.errors import CorruptIndexError
from asyncpq.indexing import Bounds
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.index_model import Segment
from asyncpq.indexing.manifest.commits import Head
from asyncpq.indexing.query import snapshot_files
from asyncpq.indexing.query.file_entries import FileEntry
from asyncpq.indexing.query.file_selection import SnapshotRead
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.indexed_files import entries_of
from asyncpq.indexing.query.snapshot_files import SnapshotFiles
from asyncpq.options import LimitOptions
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
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
    source = SnapshotFiles(session._runtime, OpenIndex(backend, Head(backend, manifest)))
    read = list[int]()

    async def counted(reads: SnapshotRead, ids: RowRanges, *args: Any) -> dict[int, FileEntry]:
        read.append(ids.num_rows)
        return await entries_of(reads, ids, *args)

    monkeypatch.setattr(snapshot_files, "entries_of", counted)
    for count, expected in ((1, ["c"]), (2, ["c", "d"]), (4, ["c", "d", "e", "ä"]), (9, ["c", "d", "e", "ä"])):
        found = await source.first(count, session._runtime.operation("open", str(tmp_path)))
        assert [Path(file.url).stem for file in found] == expected
    assert read == [1, 2, 4, 4]


@pytest.fixture
async def narrow() -> AsyncIterator[asyncpq.Session]:
    """A session to which three files are many."""
    async with asyncpq.Session(cache_policy=asyncpq.etag(0), limits=LimitOptions(files_ahead=2)) as running:
        yield running


def shown(files: Sequence[DataFile]) -> list[Any]:
    return [
        (file.url, file.validator, file.num_rows, file.partition, file.entry and file.entry.access) for file in files
    ]


async def sets_of(source: SnapshotFiles, session: asyncpq.Session, ask: ScanRequest, most_files: int) -> list[FileSet]:
    return [found async for found in source.sets(ask, session._runtime.operation("read", ""), most_files=most_files)]


@pytest.mark.parametrize("most_files", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize(
    ("where", "kept"),
    [(None, range(8)), (col("a") >= 3, range(3, 8)), (col("a") == 4, [4]), (col("a") > 100, [])],
    ids=["all", "some", "one", "none"],
)
async def test_sets_have_the_files_in_order(
    narrow: asyncpq.Session, session: asyncpq.Session, tmp_path: Path, where: Any, kept: Sequence[int], most_files: int
) -> None:
    backend = MemoryBackend()
    names = ["b", "ä", "d", "f/x", "a", "Z", "c", "e"]
    paths = write(tmp_path, {f"{name}.parquet": [number] for number, name in enumerate(names)})
    manifest = await make(session, backend, tmp_path, paths, retired=["Z.parquet"])
    ask = ScanRequest(where=where)
    index = OpenIndex(backend, Head(backend, manifest))
    few = await SnapshotFiles(session._runtime, index).files(ask, session._runtime.operation("read", ""))
    urls = [f"{tmp_path}/{names[number]}.parquet" for number in kept if names[number] != "Z"]
    assert [file.url for file in few.files] == sorted(urls)
    many = SnapshotFiles(narrow._runtime, index)
    assert shown((await many.files(ask, narrow._runtime.operation("read", ""))).files) == shown(few.files)
    sets = await sets_of(many, narrow, ask, most_files)
    assert shown([file for found in sets for file in found.files]) == shown(few.files)
    assert all(len(found.files) <= most_files for found in sets)
    assert sum(found.total or 0 for found in sets) == 7
    assert sum(found.by_index for found in sets) == 7 - len(urls)


async def test_sets_have_only_the_files_whose_rows_are_asked_for(narrow: asyncpq.Session, tmp_path: Path) -> None:
    backend = MemoryBackend()
    manifest = await make(narrow, backend, tmp_path, write(tmp_path, {f"{name}.parquet": [1] for name in "abcde"}))
    source = SnapshotFiles(narrow._runtime, OpenIndex(backend, Head(backend, manifest)))
    asked = [f"{tmp_path}/{name}.parquet" for name in "adb"]
    sets = await sets_of(source, narrow, ScanRequest(by_file=dict.fromkeys(asked, AccessPlan.all())), 2)
    assert [[file.url for file in found.files] for found in sets] == [sorted(asked)[:2], sorted(asked)[2:]]


async def test_sets_of_a_list_that_lacks_files_are_an_error(narrow: asyncpq.Session, tmp_path: Path) -> None:
    class Lossy(MemoryBackend):
        change: Callable[[pa.Table], pa.Table]

        async def read_segment(self, segment: Segment, *args: Any, **named: Any) -> pa.Table | None:
            rows = await super().read_segment(segment, *args, **named)
            return rows if rows is None or segment.table.kind != "files" else self.change(rows)

    backend = Lossy()
    manifest = await make(narrow, backend, tmp_path, write(tmp_path, {f"{name}.parquet": [1] for name in "abcd"}))
    source = SnapshotFiles(narrow._runtime, OpenIndex(backend, Head(backend, manifest)))
    for backend.change in (
        lambda rows: rows.slice(1),
        lambda rows: pa.concat_tables([rows.slice(1), rows.slice(3)]),  # a file twice, and one not at all
    ):
        with pytest.raises(CorruptIndexError, match="lacks some of its files"):
            await sets_of(source, narrow, ScanRequest(), 2)


async def test_sets_have_the_values_in_paths(narrow: asyncpq.Session, tmp_path: Path) -> None:
    write(tmp_path, {f"p={number}/x.parquet": [number] for number in range(9)})
    await narrow.build_index(tmp_path, [Bounds("a")])
    dataset = await narrow.open_dataset(tmp_path, view="snapshot")
    assert isinstance(dataset._state.source, SnapshotFiles)
    sets = await sets_of(dataset._state.source, narrow, ScanRequest(), 4)
    assert [[file.partition["p"] for file in found.files] for found in sets] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert (await dataset.read(where="p > 6 AND a < 8"))["a"].to_pylist() == [7]
