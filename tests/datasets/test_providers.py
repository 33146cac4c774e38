"""Providers of files: those given, those listed (again, within an age, while they are read), and a table's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.datasets import providers
from asyncpq.datasets.model import DataFile, FileList, TableField, View
from asyncpq.datasets.providers import FileSet, GivenFiles, ListedFiles, RuntimeReader, TableFiles
from asyncpq.expressions import Expression
from asyncpq.objects import runtime
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import RequestContext

FILES = [DataFile(url="a"), DataFile(url="b")]
REQUEST = ScanRequest()


class Listings:
    """Lists what it is told, and counts how often; of requests with a predicate the files that it leaves."""

    def __init__(self, files: list[DataFile]) -> None:
        self.now = files
        self.count = 0

    async def conditions(self, ask: ScanRequest) -> Expression | None:
        return ask.where

    async def files(self, context: RequestContext, where: Expression | None) -> FileSet:
        self.count += 1
        return FileSet(list(self.now), listed_at=time.monotonic(), where=where)


async def test_given_files_are_not_looked_for() -> None:
    async with asyncpq.Session() as session:
        operation = session._runtime.operation("files", "x")
        given = GivenFiles(FILES)
        assert (given.view, given.description) == (View.LISTED, "2 files, as given")
        assert (await given.files(REQUEST, operation)).files == FILES
        assert operation.metrics.requests == 0


async def test_each_read_lists_and_an_equal_listing_is_the_earlier_one() -> None:
    async with asyncpq.Session() as session:
        operation, listings = session._runtime.operation("files", "x"), Listings(FILES)
        first = FileSet(FILES, listed_at=0.0)
        listed = ListedFiles(session._runtime, "x", listings, first, 0.0)
        again = await listed.files(REQUEST, operation)
        assert (listings.count, again.listed_now, again.renewal) == (1, True, None)
        assert again.files is FILES
        listings.now = [DataFile(url="c")]
        assert (await listed.files(REQUEST, operation)).files == [DataFile(url="c")]
        listings.now = FILES
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
        operation, listings = session._runtime.operation("files", "x"), Listings(FILES)
        first = FileSet(FILES, listed_at=float("inf"))
        listed = ListedFiles(session._runtime, "x", listings, first, 60.0, check)
        assert listed.description == "files of x, listed at most 60 s before a read"
        assert await listed.files(REQUEST, operation) is first
        changed = True
        await listed.files(REQUEST, operation)
        assert listings.count == 1


async def test_a_listing_of_some_files_serves_reads_of_the_same_condition() -> None:
    async with asyncpq.Session() as session:
        operation, listings = session._runtime.operation("files", "x"), Listings(FILES)
        listed = ListedFiles(session._runtime, "x", listings, FileSet(FILES, listed_at=float("-inf")), 60.0)
        some = ScanRequest(where=col("day") == 1)
        assert (await listed.files(some, operation)).where is not None
        again = await listed.files(ScanRequest(where=col("day") == 1), operation)
        assert (listings.count, again.files is FILES) == (1, True)
        assert again.listed_at is not None
        assert again.listed_at > 0
        for count, other in enumerate((ScanRequest(where=col("day") == 2), REQUEST), start=2):
            await listed.files(other, operation)
            assert listings.count == count
        assert await listed.files(some, operation) is listed.known, "all files were listed since"


async def test_a_young_listing_of_all_files_serves_without_a_look_at_the_conditions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(self: Listings, ask: ScanRequest) -> Expression | None:
        raise AssertionError("the listing is of all folders")

    monkeypatch.setattr(Listings, "conditions", refuse)
    async with asyncpq.Session() as session:
        operation, first = session._runtime.operation("files", "x"), FileSet(FILES, listed_at=float("inf"))
        listed = ListedFiles(session._runtime, "x", Listings(FILES), first, 60.0)
        assert await listed.files(ScanRequest(where=col("day") == 1), operation) is first


class Slow(list[DataFile]):
    """Files whose comparison waits for an event."""

    compared = threading.Event()

    def __eq__(self, other: object) -> bool:
        assert self.compared.wait(60)
        return super().__eq__(other)

    __hash__ = None


async def test_a_listing_of_some_files_takes_no_place_of_one_that_has_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reads of different conditions list at once; what the second finds is not lost when the first ends later."""
    monkeypatch.setattr(providers, "_FEW_EQUAL", 1)
    async with asyncpq.Session() as session:
        operation, listings = session._runtime.operation("files", "x"), Listings([DataFile(url="c"), DataFile(url="b")])
        listed = ListedFiles(session._runtime, "x", listings, FileSet(Slow(FILES), listed_at=float("-inf")), 60.0)
        one, other = (ScanRequest(where=col("day") == day) for day in (1, 2))
        first = asyncio.ensure_future(listed.files(one, operation))
        await asyncio.sleep(0)
        assert listings.count == 1
        listings.now = [*listings.now, DataFile(url="d")]
        await listed.files(other, operation)
        Slow.compared.set()
        await first
        assert len((await listed.files(other, operation)).files) == 3
        assert listings.count == 2
        assert len((await listed.files(one, operation)).files) == 3


async def test_a_listing_that_began_earlier_and_ends_later_makes_others_as_old() -> None:
    """It may have files of the same folders, and those are now known as they were then."""
    late, wide = asyncio.Event(), col("day") >= 1

    class Late(Listings):
        async def files(self, context: RequestContext, where: Expression | None) -> FileSet:
            if where == wide:
                await late.wait()
            return await super().files(context, where)

    async with asyncpq.Session() as session:
        operation = session._runtime.operation("files", "x")
        listed = ListedFiles(session._runtime, "x", Late(FILES), FileSet(FILES, listed_at=float("-inf")), 60.0)
        waiting = asyncio.ensure_future(listed.files(ScanRequest(where=wide), operation))
        await asyncio.sleep(0)
        began = time.monotonic()
        await listed.files(ScanRequest(where=col("day") == 1), operation)
        late.set()
        await waiting
        known = await listed.files(ScanRequest(where=col("day") == 1), operation)
        assert known.listed_at is not None
        assert known.listed_at < began


async def test_a_table_prunes_by_its_bounds_only_where_they_are_trusted() -> None:
    asked: list[object] = []

    class Table(FileList):
        async def files(self, where: object, reader: object) -> Sequence[DataFile]:
            asked.append(where)
            return self.data_files

    where = col("id") == 1
    for trusted in (True, False):
        async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=trusted)) as session:
            table = TableFiles(session._runtime, Table(description="t", data_files=tuple(FILES)))
            operation = session._runtime.operation("files", "t")
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
        reader = RuntimeReader(session._runtime, session._runtime.operation("open", "t"))
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


async def test_a_file_of_a_table_that_is_read_whole_is_bounded(tmp_path: Path) -> None:
    """No more than one byte beyond the limit is fetched, however long the object is."""
    path = tmp_path / "00000000000000000000.json"
    path.write_bytes(bytes(100))
    url = str(path)

    async def read(limit: int, start: int = 0, stop: int | None = None, at_most: int | None = None) -> int:
        async with asyncpq.Session(limits=asyncpq.LimitOptions(max_decoded_bytes=limit)) as session:
            operation = session._runtime.operation("open", "t")
            try:
                data = await RuntimeReader(session._runtime, operation).read_bytes(url, start, stop, at_most=at_most)
            finally:
                assert operation.metrics.bytes_fetched <= limit + 1
        return len(data)

    assert await read(100) == 100
    assert await read(100, 90) == 10
    assert await read(10, 90, 100) == 10
    assert await read(100, at_most=100) == 100
    for limit, start, stop in ((99, 0, None), (20, 90, None), (9, 90, 100), (1 << 20, 0, 1 << 60)):
        with pytest.raises(asyncpq.ResourceLimitError, match=f"more bytes than max_decoded_bytes={limit},") as caught:
            await read(limit, start, stop)
        assert caught.value.url == url
    with pytest.raises(asyncpq.ResourceLimitError, match=r"more than 99 bytes, .*its kind") as caught:
        await read(1 << 20, at_most=99)
    assert caught.value.url == url


async def test_what_the_metadata_of_a_table_may_decode_to_is_bounded(tmp_path: Path) -> None:
    """Whatever the number of row groups: each alone is within the limit. Large checkpoints are read."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": pa.nulls(1 << 20, pa.int64())}), path, row_group_size=1 << 17, write_statistics=False)
    assert path.stat().st_size * 256 < 8 << 20
    for most, is_read in ((4 << 20, False), (16 << 20, True)):
        async with asyncpq.Session(limits=asyncpq.LimitOptions(max_decoded_bytes=most, unit_bytes=1)) as session:
            reader = RuntimeReader(session._runtime, session._runtime.operation("open", "t"))
            assert reader.limits.max_decoded_bytes == most
            if is_read:
                assert (await reader.read_table(str(path))).num_rows == 1 << 20
            else:
                with pytest.raises(asyncpq.ResourceLimitError, match="max_decoded_bytes=4194304") as caught:
                    await reader.read_table(str(path))
                assert caught.value.url == str(path)


async def test_a_fresh_listing_serves_without_the_conditions_of_its_folders() -> None:
    class Unasked(Listings):
        async def conditions(self, ask: ScanRequest) -> Expression | None:
            raise AssertionError("no folder is listed")

    async with asyncpq.Session() as session:
        operation, listings = session._runtime.operation("files", "x"), Unasked(FILES)
        listed = ListedFiles(session._runtime, "x", listings, FileSet(FILES, listed_at=time.monotonic()), 600.0)
        found = await listed.files(ScanRequest(where=col("a") == 1), operation, allow_stale=True)
        assert (found.files, found.renewal, listings.count) == (FILES, None, 0)


async def test_many_small_local_files_leave_iterations_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the commits of a table: they are read where they are asked for."""
    monkeypatch.setattr(runtime, "SLICE_S", 0.0)
    (tmp_path / "log.json").write_bytes(b"0123456789")
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    async with asyncpq.Session() as session:
        reader = RuntimeReader(session._runtime, session._runtime.operation("open", "t"))
        beside = asyncio.ensure_future(other())
        for _ in range(20):
            await reader.read_bytes(str(tmp_path / "log.json"))
        beside.cancel()
    assert others >= 10
