"""Streams of new files, called as PySpark calls them, without Spark (see test_streaming_spark for that)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles
from pyspark.sql.types import LongType, StructField, StructType

import asyncpq.blocking
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.errors import InvalidOptionError, ObjectChangedError, StoreError, UsageError
from asyncpq.indexing import Bounds
from asyncpq.indexing.manifest import Manifest
from asyncpq.spark.data_source import MAX_FILES, FileStreamReader
from asyncpq.spark.lake_writer import lake_writer
from tests.spark import source_calls

if TYPE_CHECKING:
    from tests.spark.lake_store import LakeStore

SCHEMA = StructType([StructField("id", LongType())])


@pytest.fixture(autouse=True)
def _sessions() -> Iterator[None]:
    yield
    sessions.close_workers()


class Files:
    """A folder of files, whose ids begin with the number of the file that was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written = 0
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, *, modified_s: float | None = None, rows: int = 10) -> range:
        """Write a file, or replace it; returns its ids."""
        self._written += 1
        ids = range(self._written * 1000, self._written * 1000 + rows)
        path = self.folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f"_{path.name}")
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), hidden)
        os.rename(hidden, path)
        at = 1e9 + self._written if modified_s is None else modified_s
        os.utime(path, (at, at))
        return ids

    def delete(self, name: str) -> None:
        (self.folder / f"{name}.parquet").unlink()


class Query:
    """What Spark keeps of a query in its checkpoint, and how it goes on from there."""

    def __init__(self, folder: Path | str, **options: str) -> None:
        self.options = {"path": str(folder), **options}
        self.offsets: list[dict[str, Any]] = []
        self.committed = 0
        self.start()

    def start(self) -> None:
        """A process of its own, which knows but the checkpoint."""
        reader = source_calls.source(**self.options).streamReader(SCHEMA)
        assert isinstance(reader, FileStreamReader)
        self.reader = reader
        self.executor = source_calls.pickled(reader)

    @property
    def last(self) -> dict[str, Any]:
        return self.offsets[-1] if self.offsets else self.reader.initialOffset()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Write the next offset into the checkpoint; whether there is anything new."""
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        start = self.last
        end = json.loads(json.dumps(self.reader.latestOffset(start, limit)))
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def read(self) -> list[int]:
        """The batch that was planned and not committed."""
        start = self.offsets[self.committed - 1] if self.committed else self.reader.initialOffset()
        found = self.reader.partitions(start, self.offsets[self.committed])
        table = source_calls.rows_of(self.executor, found, SCHEMA)
        return sorted(table.column("id").to_pylist())

    def commit(self) -> None:
        self.reader.commit(self.offsets[self.committed])
        self.committed += 1

    def batches(self, limit: ReadLimit | None = None) -> list[list[int]]:
        """All that is new."""
        found: list[list[int]] = []
        while self.plan(limit):
            found.append(self.read())
            self.commit()
        return found


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "lake")


def test_new_files_in_their_order(files: Files) -> None:
    query = Query(files.folder)
    assert query.batches() == []
    first, second = files.put("b"), files.put("a")
    assert query.batches() == [[*first, *second]]
    assert query.batches() == []
    third = files.put("deep/er/c")
    assert query.batches() == [[*third]]


def test_limits(files: Files) -> None:
    ids = [files.put(f"f{number}") for number in range(5)]
    size = (files.folder / "f0.parquet").stat().st_size
    pairs = [[*ids[0], *ids[1]], [*ids[2], *ids[3]], [*ids[4]]]
    everything = [sorted(one for some in ids for one in some)]
    assert Query(files.folder, maxFilesPerTrigger="2").batches() == pairs
    assert Query(files.folder, maxBytesPerTrigger=str(2 * size + 5)).batches() == pairs
    assert Query(files.folder, maxBytesPerTrigger="1").batches() == [[*some] for some in ids]
    assert Query(files.folder).batches() == everything
    assert Query(files.folder, maxFilesPerTrigger="2").batches(ReadAllAvailable()) == everything
    limits = [Query(files.folder, **{name: "7"}).reader for name in ("maxFilesPerTrigger", "maxBytesPerTrigger")]
    assert [reader.getDefaultReadLimit() for reader in limits] == [ReadMaxFiles(7), ReadMaxBytes(7)]
    assert Query(files.folder).reader.getDefaultReadLimit() == ReadMaxFiles(MAX_FILES)


def test_restarts_at_every_point(files: Files) -> None:
    query = Query(files.folder, maxFilesPerTrigger="2")
    ids = [files.put(f"f{number}") for number in range(5)]
    read: list[list[int]] = []
    while True:
        query.start()  # before anything was planned
        if not query.plan():
            break
        query.start()  # before it was read
        first = query.read()
        late = files.put(f"late{len(read)}", modified_s=1e9)  # changes nothing of this batch
        ids.append(late)
        query.start()  # before it was committed
        assert query.read() == first
        query.commit()
        read.append(first)
        if len(ids) > 8:
            break
    read += query.batches()
    assert sorted(one for batch in read for one in batch) == sorted(one for some in ids for one in some)


def test_late_files_are_read_as_long_as_they_are_within_the_age(files: Files) -> None:
    query = Query(files.folder, maxFileAge="100s")
    files.put("a", modified_s=1e9)
    files.put("b", modified_s=1e9 + 1000)
    assert len(query.batches()) == 1
    files.put("c", modified_s=1e9 + 1001)
    assert len(query.batches()) == 1  # now a is forgotten: what is not newer than it counts as read
    files.put("too late", modified_s=1e9 - 1)
    late = files.put("late", modified_s=1e9 + 950)
    assert query.batches() == [[*late]]
    query.start()
    assert query.batches() == []


def test_a_replaced_file_is_read_again_as_what_it_is_now(files: Files) -> None:
    query = Query(files.folder)
    files.put("a")
    query.batches()
    new = files.put("a")
    assert query.batches() == [[*new]]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_goes_between_planning_and_reading(files: Files, restart: bool, replaced: bool) -> None:
    query = Query(files.folder)
    kept, _ = files.put("a"), files.put("b")
    assert query.plan()
    new = files.put("b") if replaced else range(0)
    if not replaced:
        files.delete("b")
    if restart:
        query.start()
    with pytest.raises(StoreError) as caught:
        query.read()
    if restart:
        assert "1 of the 2 files" in str(caught.value)
    else:
        assert "b.parquet" in str(caught.value)
    query.options["ignoreMissingFiles"] = "true"
    query.start()
    assert query.read() == [*kept]
    query.commit()
    assert query.batches() == ([[*new]] if new else [])


def test_a_file_that_goes_between_partitions_and_tasks_is_named(files: Files) -> None:
    query = Query(files.folder)
    files.put("a")
    query.plan()
    found = query.reader.partitions(query.reader.initialOffset(), query.last)
    files.put("a")
    sessions.close_workers()  # tasks have caches of their own
    with pytest.raises(ObjectChangedError, match=r"a\.parquet.*Plan again"):
        source_calls.rows_of(query.executor, found, SCHEMA)


def test_a_folder_whose_files_an_index_lists_meanwhile(files: Files) -> None:
    """A listing would show what was replaced or never committed, so the stream does not go on by it."""
    query = Query(files.folder)
    kept = files.put("a")
    assert query.batches() == [[*kept]]
    files.delete("a")
    writer = lake_writer({"path": str(files.folder)}, SCHEMA, overwrite=False)
    writer.commit([writer.write(iter([pa.record_batch({"id": [1, 2]})]))])
    with pytest.raises(InvalidOptionError, match="index knows now"):
        query.plan()
    every = Query(files.folder, format="parquet")
    assert every.batches() == [[1, 2]]


def test_all_files_of_a_batch_are_gone(files: Files) -> None:
    query = Query(files.folder, ignoreMissingFiles="true")
    files.put("a")
    query.plan()
    files.delete("a")
    assert query.read() == []
    query.commit()
    new = files.put("b")
    assert query.batches() == [[*new]]


def test_available_now_reads_what_was_there_and_ends(files: Files) -> None:
    ids = [files.put(f"f{number}") for number in range(3)]
    query = Query(files.folder, maxFilesPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan()
    files.put("later")
    files.put("late", modified_s=1e9)
    read = [query.read()]
    query.commit()
    files.delete("f2")
    assert read + query.batches() == [[*ids[0], *ids[1]]]
    query.start()
    query.reader.prepareForTriggerAvailableNow()
    assert sum(map(len, query.batches())) == 20


def test_available_now_of_an_empty_folder(files: Files) -> None:
    query = Query(files.folder)
    query.reader.prepareForTriggerAvailableNow()
    files.put("a")
    assert query.batches() == []


def test_hidden_files_and_those_that_do_not_match_are_not_read(files: Files) -> None:
    ids = files.put("2024/a")
    files.put("2025/b")
    files.put("_temporary/c")
    (files.folder / "_SUCCESS").touch()
    assert Query(files.folder / "2024*" / "*.parquet").batches() == [[*ids]]
    assert len(Query(files.folder).batches()[0]) == 20


def test_offsets_are_equal_where_nothing_is_new(files: Files) -> None:
    query = Query(files.folder)
    assert query.reader.latestOffset(query.last, ReadAllAvailable()) == query.last
    files.put("a")
    query.batches()
    assert query.reader.latestOffset(query.last, ReadAllAvailable()) is query.last
    assert query.reader.partitions(query.last, query.last) == []


def test_files_in_s3(lake_store: LakeStore) -> None:
    settings = lake_store.settings
    query = Query(
        f"{lake_store.url}/lake/",
        storageOptions=json.dumps(settings["storage_options"]),
        credentialsProvider=settings["credentials_provider"],
    )
    tables = [pa.table({"id": pa.array([number], pa.int64())}) for number in range(3)]
    for number, table in enumerate(tables[:2]):
        lake_store.put_table(f"lake/part={number}/a.parquet", table)
    assert query.batches() == [[0, 1]]
    query.start()
    assert query.batches() == []
    lake_store.put_table("lake/part=0/a.parquet", tables[2])
    assert query.batches() == [[2]]
    lake_store.put_table("lake/part=0/b.parquet", tables[0])
    query.plan()
    lake_store.delete("lake/part=0/b.parquet")
    with pytest.raises(StoreError, match=r"b\.parquet"):
        query.read()


# -- an index's snapshots -------------------------------------------------------------------------


class Indexed(Files):
    """A folder whose files are those that its index lists."""

    def refresh(self, *names: str) -> None:
        """List what is there, or these files only."""
        with asyncpq.blocking.Session() as session:
            session.build_index(str(self.folder), [Bounds("id")])


@pytest.fixture
def indexed(tmp_path: Path) -> Indexed:
    return Indexed(tmp_path / "lake")


def test_only_files_that_the_index_lists(indexed: Indexed) -> None:
    first = indexed.put("a")
    indexed.refresh()
    query = Query(indexed.folder, view="snapshot")
    second = indexed.put("b")
    assert query.batches() == [[*first]]
    assert query.batches() == []
    indexed.refresh()
    query.start()
    assert query.batches() == [[*second]]
    late = indexed.put("0", modified_s=1.0)
    indexed.refresh()
    assert query.batches() == [[*late]]


@pytest.mark.parametrize("limit", [{"maxFilesPerTrigger": "1"}, {"maxBytesPerTrigger": "1"}], ids=str)
def test_limits_with_an_index(indexed: Indexed, limit: dict[str, str]) -> None:
    ids = [indexed.put(f"f{number}") for number in range(3)]
    indexed.refresh()
    query = Query(indexed.folder, index=str(indexed.folder / "_asyncpq"), **limit)
    read: list[list[int]] = []
    while query.plan():
        query.start()
        read.append(query.read())
        query.commit()
    assert read == [[*some] for some in ids]


def test_available_now_with_an_index(indexed: Indexed) -> None:
    first = indexed.put("a")
    indexed.refresh()
    query = Query(indexed.folder, view="snapshot")
    query.reader.prepareForTriggerAvailableNow()
    second = indexed.put("b")
    indexed.refresh()
    assert query.batches() == [[*first]]
    query.start()
    query.reader.prepareForTriggerAvailableNow()
    assert query.batches() == [[*second]]


@pytest.mark.parametrize("refreshed", [False, True])
def test_a_replaced_file_with_an_index(indexed: Indexed, refreshed: bool) -> None:
    kept = indexed.put("a")
    indexed.put("b")
    indexed.refresh()
    query = Query(indexed.folder, view="snapshot")
    query.plan()
    new = indexed.put("b")
    if refreshed:
        indexed.refresh()
    with pytest.raises(StoreError, match="1 of the 2 files" if refreshed else r"b\.parquet"):
        query.read()
    if refreshed:
        query.options["ignoreMissingFiles"] = "true"
        query.start()
        assert query.read() == [*kept]
        query.commit()
        assert query.batches() == [[*new]]


def test_an_index_that_comes_later_changes_nothing(indexed: Indexed) -> None:
    query = Query(indexed.folder)
    indexed.put("a")
    query.batches()
    indexed.refresh()
    query.start()
    new = indexed.put("b")
    assert query.batches() == [[*new]]


def test_a_first_build_that_has_not_ended_is_no_index(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    known = indexed.put("a")
    indexed.refresh()
    new = indexed.put("b")
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "is_built", property(lambda manifest: False))
        query = Query(indexed.folder)
        read = query.batches()
    assert read == [[*known, *new]]
    new = indexed.put("c")
    query.start()
    assert query.batches() == [[*new]]


def test_files_that_are_written_are_there_once_they_are_committed(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    query = Query(lake)

    def written(start: int, *, commits: bool) -> None:
        writer = lake_writer({"path": str(lake)}, SCHEMA, overwrite=False)
        batch = pa.record_batch({"id": pa.array(range(start, start + 10), pa.int64())})
        message = writer.write(iter([batch]))
        if commits:
            writer.commit([message])

    written(0, commits=False)
    assert query.batches() == []
    for start in (10, 20):
        written(start, commits=True)
        assert query.batches() == [[*range(start, start + 10)]]


def test_another_index_is_another_stream(indexed: Indexed) -> None:
    indexed.put("a")
    indexed.refresh()
    query = Query(indexed.folder, view="snapshot")
    query.batches()
    shutil.rmtree(indexed.folder / "_asyncpq")
    indexed.refresh()
    query.start()
    with pytest.raises(UsageError, match="another index"):
        query.plan()


# -- what is no stream ----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"format": "delta"}, {"format": "iceberg"}], ids=str)
def test_tables_are_refused(files: Files, options: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError, match="table"):
        Query(files.folder, **options)


def test_several_paths_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="several paths"):
        source_calls.source(paths='["/a", "/b"]').streamReader(SCHEMA)


def test_a_table_s_folder_is_refused(files: Files) -> None:
    files.put("a")
    (files.folder / "_delta_log").mkdir()
    (files.folder / "_delta_log" / "00000000000000000000.json").touch()
    with pytest.raises(InvalidOptionError, match="Delta"):
        Query(files.folder).plan()
    assert len(Query(files.folder, format="parquet").batches()) == 1


def test_a_file_is_refused(files: Files) -> None:
    files.put("a")
    with pytest.raises(InvalidOptionError, match="folder"):
        Query(files.folder / "a.parquet").plan()
