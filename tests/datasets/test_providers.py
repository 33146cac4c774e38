"""Providers of files: those given, those listed (again, within an age, while they are read), and a table's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import DataFile, FileList, TableField, View
from asyncpq.datasets.providers import CatalogReader, FileSet, GivenFiles, ListedFiles, TableFiles
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import RequestContext

FILES = [DataFile(url="a"), DataFile(url="b")]
REQUEST = ScanRequest()


class Listings:
    """Lists what it is told, and counts how often."""

    def __init__(self, files: list[DataFile]) -> None:
        self.files = files
        self.count = 0

    async def __call__(self, context: RequestContext) -> FileSet:
        self.count += 1
        return FileSet(list(self.files), listed_at=0.0)


async def test_given_files_are_not_looked_for() -> None:
    async with asyncpq.Session() as session:
        operation = session.runtime.operation("files", "x")
        given = GivenFiles(FILES)
        assert (given.view, given.description) == (View.LISTED, "2 files, as given")
        assert (await given.files(REQUEST, operation)).files == FILES
        assert operation.metrics.requests == 0


async def test_each_read_lists_and_an_equal_listing_is_the_earlier_one() -> None:
    async with asyncpq.Session() as session:
        operation, listings = session.runtime.operation("files", "x"), Listings(FILES)
        first = FileSet(FILES, listed_at=0.0)
        listed = ListedFiles(session.runtime, "x", listings, first, 0.0)
        again = await listed.files(REQUEST, operation)
        assert (listings.count, again.listed_now, again.renewal) == (1, True, None)
        assert again.files is FILES
        listings.files = [DataFile(url="c")]
        assert (await listed.files(REQUEST, operation)).files == [DataFile(url="c")]
        listings.files = FILES
        stale = await listed.files(REQUEST, operation, allow_stale=True)
        assert stale.files == [DataFile(url="c")]
        assert stale.renewal is not None
        assert (await stale.renewal).files == FILES
        assert listings.count == 3


async def test_a_young_listing_serves_while_no_file_has_changed() -> None:
    changed = False

    def check(files: Iterable[tuple[str, Any]]) -> bool:
        assert [url for url, _ in files] == ["a", "b"]
        return changed

    async with asyncpq.Session() as session:
        operation, listings = session.runtime.operation("files", "x"), Listings(FILES)
        first = FileSet(FILES, listed_at=float("inf"))
        listed = ListedFiles(session.runtime, "x", listings, first, 60.0, check)
        assert listed.description == "files of x, listed at most 60 s before a read"
        assert await listed.files(REQUEST, operation) is first
        changed = True
        await listed.files(REQUEST, operation)
        assert listings.count == 1


async def test_a_table_prunes_by_its_bounds_only_where_they_are_trusted() -> None:
    asked: list[object] = []

    class Table(FileList):
        async def files(self, where: object, reader: object) -> tuple[DataFile, ...]:
            asked.append(where)
            return self.data_files

    where = col("id") == 1
    for trusted in (True, False):
        async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=trusted)) as session:
            table = TableFiles(session.runtime, Table(description="t", data_files=tuple(FILES)))
            operation = session.runtime.operation("files", "t")
            assert (await table.files(ScanRequest(where=where), operation)).files == tuple(FILES)
    assert asked == [where, None]


async def test_the_reader_for_catalogs(tmp_path: Path) -> None:
    table = pa.table({"id": range(100), "name": [f"n{row}" for row in range(100)]})
    url = str(tmp_path / "x.parquet")
    pq.write_table(table, url, row_group_size=10)
    (tmp_path / "below").mkdir()
    (tmp_path / "log.json").write_bytes(b"0123456789")
    fields = (TableField(name="key", type=pa.int64(), names=("id",)), TableField(name="part", type=pa.string()))
    async with asyncpq.Session() as session:
        reader = CatalogReader(session.runtime, session.runtime.operation("open", "t"))
        assert await reader.read_bytes(str(tmp_path / "log.json"), 2, 5) == b"234"
        assert await reader.read_bytes(str(tmp_path / "log.json"), 7) == b"789"
        assert await reader.list_names(str(tmp_path)) == ["log.json", "x.parquet"]
        assert await reader.read_table(url, ["name"], col("id") < 2) == table.select(["name"]).slice(0, 2)
        near = [batch async for batch in reader.read_rows(url, fields, constants={"part": "p"}, near=col("key") == 42)]
        numbers = [row for rows, _ in near for row in rows.to_pylist()]
        assert numbers == list(range(40, 50))  # the whole row group comes
        assert pa.concat_tables(part for _, part in near).to_pydict() == {"key": numbers, "part": ["p"] * 10}

        async def make() -> tuple[list[int], int]:
            return [1], 100

        assert await reader.once("k", make) is await reader.once("k", make)
