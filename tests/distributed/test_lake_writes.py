"""Writes in tasks: the files of one task, and the commit of what tasks in other processes have written."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'asyncpq-parquet[spark]'")

from asyncpq.distributed import LakeWrite, WrittenPart, lake_writes, plan_write
from asyncpq.distributed.lake_writes import TAIL_TASKS
from asyncpq.errors import CredentialsError, InvalidOptionError, SchemaMismatchError
from asyncpq.indexing import Keys
from asyncpq.indexing.build.adding import AddedFile
from asyncpq.objects.runtime import Runtime
from asyncpq.spark.settings import SparkSettings
from asyncpq.testing import ObjectServer, StoreWrite, WrappedStore
from asyncpq.writing import TAIL_BYTES, WriteOptions, write_files

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
_SMALL_GROUPS = WriteOptions(row_group_rows=1000)


def pulled(stop: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, stop, 1000):
        ids = range(start, start + 1000)
        yield pa.record_batch([pa.array(ids), pa.array([f"name {number}" for number in ids])], schema=SCHEMA)


def plan(folder: Path, options: WriteOptions = _SMALL_GROUPS, **more: Any) -> LakeWrite:
    settings = SparkSettings(disk_cache="off")
    return LakeWrite(folder=f"file://{folder}/", job="job", schema=SCHEMA, options=options, settings=settings, **more)


def test_a_task_writes(tmp_path: Path) -> None:
    written = plan(tmp_path).write(pulled(5000), 3, "4")
    assert [(file.path, file.num_rows) for file in written.files] == [("data/job/00003-4-00000.parquet", 5000)]
    assert plan(tmp_path).write(pulled(0), 3).files == ()


@pytest.mark.parametrize("names", [["name", "id"], ["id"], ["id", "name", "other"], ["id", "Name"]])
def test_rows_with_other_columns_are_not_written(tmp_path: Path, names: list[str]) -> None:
    columns = {"id": pa.array([1]), "name": pa.array(["a"])}
    batch = pa.record_batch([columns.get(name, columns["name"]) for name in names], names=names)
    with pytest.raises(SchemaMismatchError, match="names are not matching"):
        plan(tmp_path).write([batch], 0)


def test_rows_that_were_taken_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With new credentials, the rest of them would be taken for all."""
    attempts: list[str] = []

    class Refusing(WrappedStore):
        async def around_write(self, call: StoreWrite, write: Any) -> Any:
            raise AssertionError

        async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: Any) -> bool:
            attempts.append(url)
            await anext(pieces)
            raise CredentialsError("they have expired", url=url)

    async def wrapped(runtime: Runtime, *arguments: Any) -> list[AddedFile]:
        runtime.wrap_store(str(tmp_path), Refusing)
        return await write_files(runtime, *arguments)

    monkeypatch.setattr(lake_writes, "write_files", wrapped)
    monkeypatch.setattr("asyncpq.distributed.worker_sessions._renewed", lambda *_: True)
    with pytest.raises(CredentialsError, match="Set credentials_provider"):
        plan(tmp_path).write(pulled(5000), 0)
    assert len(attempts) == 1
    monkeypatch.undo()  # who comes next gets another session
    assert plan(tmp_path).write(pulled(5000), 0).files


@pytest.mark.heavy
def test_what_the_driver_is_sent_has_a_limit(tmp_path: Path) -> None:
    """However many tasks there are, and files of each."""
    options = WriteOptions(row_group_rows=100, file_bytes=1)
    for partition in (0, TAIL_TASKS - 1, TAIL_TASKS):
        tails = [len(file.tail) for file in plan(tmp_path, options).write(pulled(12_000), partition).files]
        assert len(tails) == 120
        if partition == TAIL_TASKS:
            assert not any(tails)
        else:
            assert TAIL_BYTES - 2 * max(tails) < sum(tails) <= TAIL_BYTES


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("bucket/other", b"")
        yield running


def ids(first: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, stop), pa.int64()), pa.array(["x"] * (stop - first))], schema=SCHEMA)


async def written_by(workers: ProcessPoolExecutor, write: LakeWrite, *ranges: tuple[int, int]) -> list[WrittenPart]:
    tasks = [workers.submit(write.write, [ids(*range_)], number) for number, range_ in enumerate(ranges)]
    return await asyncio.gather(*map(asyncio.wrap_future, tasks))


LAKE = "s3://bucket/lake/"


async def read_ids(session: asyncpq.Session) -> list[int]:
    table = await (await session.open_dataset(LAKE)).read()
    return sorted(table.column("id").to_pylist())


async def test_parts_of_workers_are_committed_at_once(server: ObjectServer, workers: ProcessPoolExecutor) -> None:
    async with asyncpq.Session(server.storage_options) as session:
        write = await plan_write(session, LAKE, SCHEMA, index_kinds=[Keys("id")])
        parts = await written_by(workers, write, (0, 10), (10, 20))
        assert max(len(pickle.dumps(part)) for part in (write, *parts)) < 16_384
        again = await written_by(workers, write, (0, 10))  # a second attempt of the first task
        assert await write.commit(session, [*parts, *again]) > 0
        assert await read_ids(session) == [*range(20)]
        more = await plan_write(session, LAKE, SCHEMA)
        await more.commit(session, await written_by(workers, more, (20, 25)))
        assert await read_ids(session) == [*range(25)]
        assert (await (await session.open_index(f"{LAKE}_asyncpq")).verify(sample=100)).problems == []
        other = await plan_write(session, LAKE, SCHEMA, overwrite=True)
        await other.commit(session, await written_by(workers, other, (7, 9)))
        assert await read_ids(session) == [7, 8]


async def test_a_write_that_is_given_up_leaves_no_files(server: ObjectServer, workers: ProcessPoolExecutor) -> None:
    async with asyncpq.Session(server.storage_options) as session:
        first = await plan_write(session, LAKE, SCHEMA)
        await first.commit(session, await written_by(workers, first, (0, 3)))
        there = set(server.objects)
        write = await plan_write(session, LAKE, SCHEMA)
        await written_by(workers, write, (3, 6))
        assert set(server.objects) != there
        await write.discard(session)
        assert set(server.objects) == there
        assert await read_ids(session) == [0, 1, 2]


async def test_a_batch_is_written_once(server: ObjectServer, workers: ProcessPoolExecutor) -> None:
    async with asyncpq.Session(server.storage_options) as session:
        for first in (0, 50):
            write = await plan_write(session, LAKE, SCHEMA, batch=("copy", 7))
            await write.commit(session, await written_by(workers, write, (first, first + 2)))
        assert await read_ids(session) == [0, 1]


async def test_a_write_that_does_not_fit_the_lake_is_not_planned(
    server: ObjectServer, workers: ProcessPoolExecutor
) -> None:
    async with asyncpq.Session(server.storage_options) as session:
        write = await plan_write(session, LAKE, SCHEMA)
        await write.commit(session, await written_by(workers, write, (0, 3)))
        other = pa.schema([("id", pa.int32()), ("name", pa.string())])
        with pytest.raises(SchemaMismatchError, match="int32"):
            await plan_write(session, LAKE, other)
        with pytest.raises(InvalidOptionError, match="index_kinds: an append cannot change"):
            await plan_write(session, LAKE, SCHEMA, index_kinds=[Keys("id")])
        server.put("bucket/foreign/a.parquet", b"PAR1")
        with pytest.raises(InvalidOptionError, match="files that asyncpq did not write"):
            await plan_write(session, "s3://bucket/foreign/", SCHEMA)


@pytest.mark.parametrize("url", ["lake/", "lake", "lake/0.parquet", ".", "lake/inside/0.parquet"])
async def test_targets_that_overlap(tmp_path: Path, url: str) -> None:
    async with asyncpq.Session() as session:
        with pytest.raises(InvalidOptionError, match="overlap"):
            await LakeWrite.check_folder(session, f"{tmp_path}/lake/", [f"{tmp_path}/{url}"])


async def test_many_files_are_compared_with_the_target_in_a_thread(tmp_path: Path) -> None:
    threads: list[threading.Thread] = []

    def urls() -> Iterator[str]:
        threads.append(threading.current_thread())
        yield f"{tmp_path}/source/0.parquet"

    async with asyncpq.Session() as session:
        await LakeWrite.check_folder(session, f"{tmp_path}/lake/", urls())
    assert threading.main_thread() not in threads


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("tasks", "at_once", "found"), [(1, 2, 1), (5, 2, 6), (3, 2, 3), (4, 2, 4), (9, 8, 9), (63, 64, 64), (500, 64, 512)]
)
def test_all_tasks_of_the_last_round_have_work_if_they_stay_large(
    tmp_path: Path, tasks: int, at_once: int, found: int
) -> None:
    write = plan(tmp_path, WriteOptions(file_bytes=1000))
    assert write.num_tasks(tasks * 1000, at_once) == found
