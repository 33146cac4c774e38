"""Indexes of files on disk, built, refreshed, compacted, vacuumed and verified: they know what the files hold, read
only what is new, and go on where a build was broken off."""

from __future__ import annotations

import asyncio
import collections
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.errors import (
    ColumnNotFoundError,
    InvalidOptionError,
    ObjectNotFoundError,
    StaleSnapshotError,
    TransportError,
    UsageError,
)
from asyncpq.events import Event, FileEnded, Operation
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.build import build_executor
from asyncpq.indexing.build.build_executor import SortedTables
from asyncpq.indexing.build.file_rows import FileCollector, FileRows
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.build.sorting import ExternalSort
from asyncpq.indexing.commits import files_of, load
from asyncpq.indexing.kinds import Bounds, Footers, Keys, Text, ValueSet
from asyncpq.options import BuildOptions
from asyncpq.parquet import row_group
from asyncpq.parquet.column_chunk import ColumnChunk, decode_column_chunk
from asyncpq.parquet.schema import Leaf
from tests.example_counts import examples
from tests.indexing.build.index_checks import WHOLE_SAMPLE, check_index
from tests.lakes import FEW, KINDS, builder, change, rows, write
from tests.leaks import assert_back_to, held


@pytest.mark.heavy
@given(st.integers(0, 1 << 30))
@settings(max_examples=examples(1, thorough=50))
def test_after_any_changes(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Files come, change and go; refreshes, compactions and vacuums in between; with checkpoints and split segments."""
    choose, lake = random.Random(seed), tmp_path_factory.mktemp("lake")
    options = BuildOptions(
        checkpoint_files=choose.choice([1, 3, 100]),
        segment_rows=choose.choice([50, 1_000_000]),
        memory_bytes=choose.choice([1, 1 << 20]),
        max_segments=choose.choice([1, 8]),
    )

    async def run() -> None:
        backend = MemoryBackend()
        async with asyncpq.Session() as session:
            write(lake / "first.parquet", seed)
            for _ in range(5):
                change(lake, choose)
            index = await session.build_index(str(lake), KINDS, at=backend, building=options)
            await check_index(index, lake)
            for _ in range(3):
                for _ in range(choose.randrange(4)):
                    change(lake, choose)
                await index.refresh()
                if choose.random() < 0.5:
                    await index.compact()
                if choose.random() < 0.3:
                    await index.vacuum(keep=1, older_than=timedelta(0))
                await check_index(index, lake)

    asyncio.run(run())


async def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path / "good.parquet", 1)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 it is none")
    pq.write_table(pa.table({"id": ["x", "y"], "name": ["a", "b"], "tags": [[1], None]}), tmp_path / "other.parquet")
    damaged = bytearray((tmp_path / "good.parquet").read_bytes())
    damaged[4:200] = bytes(196)
    (tmp_path / "damaged.parquet").write_bytes(damaged)
    async with asyncpq.Session() as session:
        index = await session.build_index(
            str(tmp_path), KINDS, at=MemoryBackend(), schema=rows(1).schema, building=BuildOptions(checkpoint_files=1)
        )
        assert index.refreshed is not None
        problems = dict(index.refreshed.problems)
        assert problems.keys() == {"bad.parquet", "other.parquet", "damaged.parquet"}
        manifest = index.manifest
        (good,) = [
            f
            for f in await files_of(index._runtime, index.backend, manifest, manifest.live)
            if f.path == "good.parquet"
        ]
        for part in manifest.tables[1:]:  # of the others nothing is known
            assert list((manifest.covered(part) & manifest.live).rows()) == [good.id], part
        assert (manifest.num_files, manifest.num_rows) == (4, 100)
        assert (await index.verify(sample=WHOLE_SAMPLE)).problems == []
        # bad bytes are not looked at again, until there are others
        snapshot = index.snapshot
        await index.refresh()
        assert index.snapshot == snapshot
        write(tmp_path / "bad.parquet", 5)
        assert ((done := await index.refresh()).added, done.removed) == (1, 1)
        assert index.manifest.num_rows == 200


class FailingReads:
    """Builds note the files that they read here; while it ``fails``, the lake is gone after the seventh."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.fails = True
        real = FileCollector.collect

        async def collect(files: FileCollector, work: FileTask, operation: Operation) -> FileRows:
            if self.fails and len(self.paths) == 7:
                raise TransportError("the lake is gone")
            self.paths.append(work.path)
            return await real(files, work, operation)

        monkeypatch.setattr(FileCollector, "collect", collect)


async def test_a_build_that_failed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        write(tmp_path / f"{number}.parquet", number)
    backend, reads = MemoryBackend(), FailingReads(monkeypatch)
    options = BuildOptions(checkpoint_files=3, files_at_once=1)
    async with asyncpq.Session() as session:
        with pytest.raises(TransportError):
            await session.build_index(str(tmp_path), FEW, at=backend, building=options)
        with pytest.raises(UsageError, match="the first build of the index has not ended"):
            await session.open_index(backend)
        manifest = await load(backend)
        assert manifest is not None
        assert (manifest.num_files, manifest.live.num_rows) == (0, 0)
        (tmp_path / "1.parquet").unlink()
        write(tmp_path / "2.parquet", 55)
        reads.fails, first = False, sorted(reads.paths[:6])
        reads.paths.clear()
        index = await session.build_index(str(tmp_path), FEW, at=backend, building=options)
        assert index.refreshed is not None
        assert index.refreshed.resumed == 4  # those that were committed, but for the two that have changed
        assert sorted(reads.paths) == sorted(
            {f"{n}.parquet" for n in range(10)} - {*first} - {"1.parquet"} | {"2.parquet"}
        )
        await check_index(index, tmp_path)
        assert not index.manifest.builds
        await index.compact()
        await index.vacuum(keep=1, older_than=timedelta(0))
        await check_index(index, tmp_path)


async def test_a_build_commits_its_progress_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        write(tmp_path / f"{number}.parquet", number)
    backend, reads = MemoryBackend(), FailingReads(monkeypatch)
    monkeypatch.setattr(build_executor, "CHECKPOINT_S", 0.0)  # a minute passes with every two files
    options = BuildOptions(checkpoint_files=100, files_at_once=2, max_segments=3)
    async with asyncpq.Session() as session:
        with pytest.raises(TransportError):
            await session.build_index(str(tmp_path), FEW, at=backend, building=options)
        reads.fails = False
        index = await session.build_index(str(tmp_path), FEW, at=backend, building=options)
        assert index.refreshed is not None
        assert index.refreshed.resumed == 6
        assert sorted(reads.paths[7:]) == sorted({f"{number}.parquet" for number in range(10)} - {*reads.paths[:6]})
        await check_index(index, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
async def test_builders_that_are_killed(tmp_path: Path, kills: int) -> None:
    """Whatever a builder was at: readers see whole snapshots, and the next one goes on."""
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    choose = random.Random(kills)
    for number in range(30):
        write(lake / f"{number}.parquet", number)
    async with asyncpq.Session() as session:
        for kill in range(kills):
            with builder(lake, at) as process:
                await asyncio.to_thread(process.join, choose.uniform(0.05, 1.2))
            try:
                index = await session.open_index(at)
            except (ObjectNotFoundError, UsageError):
                assert process.exitcode != 0
                continue
            assert (await index.verify(sample=5)).problems == []
            for _ in range(kill % 3):
                change(lake, choose)
        with builder(lake, at) as process:
            await asyncio.to_thread(process.join)
            assert process.exitcode == 0
        index = await session.open_index(at)
        await index.compact()
        await index.vacuum(keep=1, older_than=timedelta(0))
        await check_index(index, lake)


async def test_what_an_index_says_of_itself(tmp_path: Path) -> None:
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    write(lake / "a.parquet", 1)
    async with asyncpq.Session() as session:
        with pytest.raises(ObjectNotFoundError):
            await session.open_index(at)
        with pytest.raises(ColumnNotFoundError):
            await session.build_index(str(lake), [Keys("nothing")], at=at)
        index = await session.build_index(str(lake), [Bounds("id"), Footers()], at=at)
        report = await index.show()
        assert [(part.kind, part.columns, part.files) for part in report.tables] == [
            ("files", (), 1),
            ("bounds", ("id",), 1),
            ("footers", (), 1),
        ]
        assert "snapshot 2" in str(report)
        assert "bounds(id): 8 rows of 1 file," in str(report)
        with pytest.raises(InvalidOptionError, match=r"tables bounds\(id\), footers"):
            await session.build_index(str(lake), [Keys("id")], at=at)
        again = await session.open_index(at)
        assert again.manifest == index.manifest
        write(lake / "b.parquet", 2)
        await again.refresh()
        assert (await index.show()).files == 2  # who holds it sees what others have done
        older = await session.open_index(at, snapshot=2)
        assert older.manifest.num_files == 1
        await again.drop()
        with pytest.raises(ObjectNotFoundError):
            await index.refresh()
        with pytest.raises(ObjectNotFoundError):
            await session.open_index(at)
        await session.build_index(str(lake), [Bounds("id")], at=at)
        with pytest.raises(StaleSnapshotError):  # it is another index
            await index.refresh()


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
async def test_a_session_that_is_closed_during_a_build_leaves_nothing_open(tmp_path: Path, backend: str) -> None:
    for number in range(6):
        write(tmp_path / "lake" / f"{number}.parquet", number)
    options = BuildOptions(checkpoint_files=1, files_at_once=1)
    for done in (-1, 0, 1, 3):  # the first one imports what it needs
        begun = asyncio.Event()
        before = held()
        at = MemoryBackend() if backend == "memory" else f"sqlite:///{tmp_path}/{done}.sqlite"

        def note(event: Event, done: int = done, begun: asyncio.Event = begun) -> None:
            if isinstance(event, FileEnded) and event.operation == "build" and event.files_done >= done:
                begun.set()

        async with asyncpq.Session(on_event=note) as session:
            task = asyncio.create_task(session.build_index(tmp_path / "lake", KINDS, at=at, building=options))
            await begun.wait()
        with pytest.raises(UsageError):
            await task
        if done >= 0:
            await assert_back_to(before)


async def test_rows_on_their_way_leave_no_files_where_the_session_was_closed(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        parts = [part for kind in FEW for part in kind.tables(pa.schema([("id", pa.int64())]))]
        rows_of_parts = SortedTables(session._runtime, parts, BuildOptions(folder=str(tmp_path)))
        for part in parts:
            sort = rows_of_parts._sorts[part] = ExternalSort(part.schema, 1, tmp_path)
            sort.add(part.schema.empty_table())
            for _ in range(3):
                nulls = [pa.array([b""] if field.type == pa.binary() else [1], field.type) for field in part.schema]
                sort.add(pa.Table.from_arrays(nulls, schema=part.schema))
        assert os.listdir(tmp_path)
    with pytest.raises(UsageError):
        await rows_of_parts.close()
    assert os.listdir(tmp_path) == []


async def test_of_a_table(tmp_path: Path) -> None:
    """A refresh reads the files that the table has added, and forgets those that it has removed."""
    events: list[Event] = []
    table = str(tmp_path / "table")
    for number in range(3):
        write_deltalake(table, rows(number), mode="append")
    async with asyncpq.Session(on_event=events.append) as session:
        index = await session.build_index(table, FEW, at=MemoryBackend(), format="delta")
        assert (index.manifest.num_files, index.manifest.num_rows) == (3, 300)
        snapshot = index.snapshot
        await index.refresh()
        assert index.snapshot == snapshot
        write_deltalake(table, rows(7), mode="append")
        DeltaTable(table).delete("id = 500")  # in files of their own: some are written anew
        events.clear()
        done = await index.refresh()
        now = DeltaTable(table).file_uris()
        read = [event.url for event in events if isinstance(event, FileEnded)]
        assert len(read) == done.added
        assert {Path(url).name for url in read} <= {Path(url).name for url in now}
        listed = await files_of(index._runtime, index.backend, index.manifest, index.manifest.live)
        assert {Path(file.path).name for file in listed} == {Path(url).name for url in now}
        assert (await index.verify(sample=WHOLE_SAMPLE, rows=WHOLE_SAMPLE)).problems == []


async def test_of_a_footer_the_chunks_of_bounded_columns_alone_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    write(lake / "one.parquet", 1)
    parsed = collections.Counter[tuple[bytes, int]]()

    def decode(data: bytes, start: int, stop: int, leaf: Leaf) -> ColumnChunk:
        parsed[data, start] += 1
        return decode_column_chunk(data, start, stop, leaf)

    async with asyncpq.Session() as session:
        monkeypatch.setattr(row_group, "decode_column_chunk", decode)
        await session.build_index(str(lake), [Footers(), Bounds("id"), Bounds("name")], at=MemoryBackend())
        # of three row groups; and the last one, which tells when a file is opened whether its data are whole
        assert sorted(parsed.values()) == [1] * 7


async def test_postings_of_a_large_file_are_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it matter what memory another process has that verifies them."""
    lake, read = tmp_path / "lake", []
    write(lake / "large.parquet", 1, num_rows=1000)

    real = FileCollector.collect

    async def collected(*args: Any) -> FileRows:
        read.append(await real(*args))
        return read[-1]

    monkeypatch.setattr(FileCollector, "collect", collected)
    kinds, backend = [Keys("id"), Keys("tags"), Text("name"), ValueSet("id")], MemoryBackend()
    async with asyncpq.Session() as session:
        little = BuildOptions(memory_bytes=20_000, folder=str(tmp_path))
        await session.build_index(str(lake), kinds, at=backend, building=little)
        tables = {part: table for part, table in read[0].tables.items() if part.kind in ("keys", "text")}
        assert len(tables) == 3
        for part, table in tables.items():
            order = "row" if part.columns == ("id",) else "key"  # of rows with one key each, and with several
            runs = [chunk.to_pylist() for chunk in table.column(order).chunks]
            assert len(runs) > 5, part
            assert all(run == sorted(run) for run in runs)
        index = await session.open_index(backend)
        await check_index(index, lake)
        whole = await session.build_index(str(lake), kinds, at=MemoryBackend())
        assert [part.files for part in (await whole.show()).tables] == [1, 1, 1, 1, 1]
        trips = [await session.open_dataset(str(lake), index=one) for one in (index, whole)]
        for where in (asyncpq.col("id") == 7, asyncpq.col("name").has_tokens("x7"), asyncpq.col("tags").has(3)):
            assert len({str(await one.read(where=where)) for one in trips}) == 1
    assert os.listdir(tmp_path) == ["lake"]


async def test_what_was_done_is_told_without_the_manifest(tmp_path: Path) -> None:
    write(tmp_path / "lake" / "one.parquet", 1)
    async with asyncpq.Session() as session:
        index = await session.build_index(str(tmp_path / "lake"), KINDS, at=MemoryBackend())
        assert repr(index.refreshed) == "Refreshed(added=1, removed=0, problems=(), resumed=0)"
        assert repr(await index.compact()) == "Compacted(merged=0, written=0, given_up=())"
