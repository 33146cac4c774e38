"""The tasks of a scan, read in other processes, give the rows of the dataset's own scan."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import asyncpq
from asyncpq import col
from asyncpq.distributed import ScanTask, ScanTasks, TaskScan, WorkerOptions, close_workers, packing, plan_scan
from asyncpq.errors import (
    ColumnNotFoundError,
    InvalidOptionError,
    ObjectChangedError,
    PredicateTypeError,
    SchemaMismatchError,
    UsageError,
)
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.scan.executor import one_table
from asyncpq.testing import Fault, ObjectServer
from tests.ducklake_lakes import Lake
from tests.parquet_bytes import parquet_bytes
from tests.tables.iceberg.test_iceberg_catalog import merged_on_read

FILES, ROWS = 6, 500


def rows(number: int) -> pa.Table:
    ids = range(number * ROWS, (number + 1) * ROWS)
    place = [{"town": f"t{id_ % 5}", "zip": id_ % 11} for id_ in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "user": [f"u{id_ % 7}" for id_ in ids], "place": place})


def content(number: int, **options: Any) -> bytes:
    layout: dict[str, Any] = {"row_group_size": 100, "max_rows_per_page": 20, "write_page_index": True}
    return parquet_bytes(rows(number), **layout | options)


@pytest.fixture(autouse=True)
def no_sessions() -> Iterator[None]:
    yield
    close_workers()


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        for number in range(FILES):
            running.put(f"bucket/lake/p={number % 2}/{number}.parquet", content(number))
        yield running


def read(task: ScanTask) -> pa.Table:
    return task.to_table()


async def rows_of(tasks: ScanTasks[TaskScan], workers: ProcessPoolExecutor) -> pa.Table:
    read_tasks = [asyncio.wrap_future(workers.submit(read, task)) for task in tasks]
    tables = await asyncio.gather(*read_tasks)
    return one_table([batch for table in tables for batch in table.to_batches()], tasks.schema)


REQUESTS: list[dict[str, Any]] = [
    {},
    {"columns": ["user", "p"]},
    {"columns": [0], "where": col("id") == 1234},
    {"columns": ["place.zip"], "where": (col("user") == "u3") & (col("p") == 1)},
    {"where": "id < 250 OR place.town = 't1'"},
    {"where": col("id") < 0},
    {"where": pads.field("id") > 2700},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("request_", REQUESTS, ids=str)
@pytest.mark.parametrize("kinds", [None, [Bounds("id"), Keys("user")], [Bounds(), Footers()]], ids=str)
async def test_tasks_read_what_a_scan_reads(
    server: ObjectServer, workers: ProcessPoolExecutor, request_: dict[str, Any], kinds: list[Any] | None
) -> None:
    async with asyncpq.Session(server.storage_options) as session:
        if kinds is not None:
            await session.build_index("s3://bucket/lake/", kinds)
        dataset = await session.open_dataset("s3://bucket/lake/")
        tasks = await plan_scan(dataset, **request_, task_bytes=4096, parallelism=3)
        expected = await dataset.read(**request_)
    assert (await rows_of(tasks, workers)).equals(expected)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    assert sum(task.num_bytes for task in tasks) == tasks.num_bytes
    assert max([len(pickle.dumps(task)) for task in tasks], default=0) < 16_384


async def test_tasks_of_files_without_versions(server: ObjectServer) -> None:
    server.faults = [Fault(times=None, etag="none", headers={"Last-Modified": None})]
    urls = [f"{server.endpoint}/bucket/lake/p={number % 2}/{number}.parquet" for number in range(2)]
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(urls)
        tasks = await plan_scan(dataset, ["id"], task_bytes=1, parallelism=10)
        expected = await dataset.read(["id"])
    assert len(tasks) == 10
    parts = [await asyncio.to_thread(read, task) for task in tasks]
    assert pa.concat_tables(parts).equals(expected)


def delta_table(folder: Path) -> dict[str, Any]:
    """With rows that a deletion vector or a rewrite has deleted."""
    for number in range(3):
        write_deltalake(str(folder), rows(number), mode="append")
    DeltaTable(str(folder)).delete("user = 'u3'")
    return {"target": str(folder), "format": "delta"}


def iceberg_table(folder: Path) -> dict[str, Any]:
    """With renamed and added columns, position deletes and deletion vectors."""
    return {"target": merged_on_read(folder)}


def ducklake_table(folder: Path) -> dict[str, Any]:
    """With rows that lie in the catalog, and deleted ones."""
    folder.mkdir()
    with Lake(folder, inline_rows=10) as lake:
        lake.sql("CREATE TABLE lake.t (id INTEGER, name VARCHAR)")
        lake.sql(
            "INSERT INTO lake.t SELECT i, 'n' || i FROM range(1000) t(i)", "INSERT INTO lake.t VALUES (2000, 'few')"
        )
        lake.sql("DELETE FROM lake.t WHERE id % 7 = 0")
        return {"target": lake.table("t")}


def damaged_lake(folder: Path) -> dict[str, Any]:
    """With a file that is none, which is left out."""
    folder.mkdir(exist_ok=True)
    for number in range(2):
        (folder / f"{number}.parquet").write_bytes(content(number))
    (folder / "bad.parquet").write_bytes(b"PAR1 and no more")
    return {"target": str(folder), "on_bad_file": "skip"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", [None, "id > 3 AND id < 900", "id = 2000"])
@pytest.mark.parametrize("make", [delta_table, iceberg_table, ducklake_table, damaged_lake])
async def test_tables_and_damaged_lakes(
    tmp_path: Path, workers: ProcessPoolExecutor, make: Callable[[Path], dict[str, Any]], where: str | None
) -> None:
    options = make(tmp_path / "it")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(options.pop("target"), **options)
        tasks = await plan_scan(dataset, where=where)
        expected = await dataset.read(where=where)
    found = await rows_of(tasks, workers)
    assert found.schema.equals(expected.schema)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # NaN is not equal to itself


async def test_files_of_other_columns(tmp_path: Path, workers: ProcessPoolExecutor) -> None:
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"id": pa.array([3], pa.int32()), "more": ["x"]}), tmp_path / "1.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path), schema_policy="permissive")
        expected = await dataset.read()
        assert (await rows_of(await plan_scan(dataset), workers)).equals(expected)
        strict = await session.open_dataset(str(tmp_path))
        with pytest.raises(SchemaMismatchError):
            await rows_of(await plan_scan(strict), workers)
        with pytest.raises(SchemaMismatchError):
            await strict.read()


@pytest.mark.parametrize("where", [None, col("id") >= 0])
async def test_a_file_that_is_replaced_after_planning_fails(
    server: ObjectServer, workers: ProcessPoolExecutor, where: Any
) -> None:
    async with asyncpq.Session(server.storage_options) as session:
        tasks = await plan_scan(await session.open_dataset("s3://bucket/lake/"), where=where)
    server.put("bucket/lake/p=0/2.parquet", content(2, row_group_size=ROWS))
    with pytest.raises(ObjectChangedError, match=r"2\.parquet") as failed:
        await rows_of(tasks, workers)
    assert "Plan again" in str(failed.value)


async def test_tasks_carry_secrets_in_storage_options_alone(server: ObjectServer) -> None:
    shared = asyncpq.SharedCacheOptions(url="valkey://:pa55word@127.0.0.1:1/0", secret="s3cret")
    async with asyncpq.Session(server.storage_options, shared_cache=shared) as session:
        dataset = await session.open_dataset("s3://bucket/lake/")
        (task, *_) = await plan_scan(dataset, parallelism=4)
        (bare, *_) = await plan_scan(dataset, worker=WorkerOptions())
    data = pickle.dumps(task)
    assert b"pa55word" not in data
    assert b"s3cret" not in data
    assert repr(task) == f"ScanTask(number=0, num_files={task.num_files}, num_bytes={task.num_bytes})"
    secret = str(server.storage_options["secret"]).encode()
    assert secret in data
    assert secret not in pickle.dumps(bare)


async def test_a_large_plan_lies_in_the_work_folder(
    server: ObjectServer, workers: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_SENT_BYTES", 2000)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset("s3://bucket/lake/")
        tasks = await plan_scan(dataset, where=col("id") >= 7, work_folder="s3://bucket/work")
        expected = await dataset.read(where=col("id") >= 7)
    assert any(name.startswith("bucket/work/plans/") for name in server.objects)
    assert (await rows_of(tasks, workers)).equals(expected)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"columns": ["nope"]}, ColumnNotFoundError),
        ({"where": col("nope") == 1}, ColumnNotFoundError),
        ({"where": col("id") == "x"}, PredicateTypeError),
        ({"task_bytes": 0}, InvalidOptionError),
        ({"most_tasks": 0}, InvalidOptionError),
        ({"parallelism": 0}, InvalidOptionError),
    ],
    ids=str,
)
async def test_arguments_are_checked_before_anything_is_planned(
    server: ObjectServer, request_: dict[str, Any], error: type[Exception]
) -> None:
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset("s3://bucket/lake/")
        with pytest.raises(error):
            await plan_scan(dataset, **request_)


async def test_a_url_is_no_open_dataset() -> None:
    with pytest.raises(UsageError, match="not of str") as caught:
        await plan_scan("s3://bucket/lake/")  # type: ignore[arg-type]  # a url
    assert caught.value.hint is not None
    assert "open_dataset" in caught.value.hint


async def test_many_tasks_are_made_fewer_and_larger(server: ObjectServer, workers: ProcessPoolExecutor) -> None:
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset("s3://bucket/lake/")
        tasks = await plan_scan(dataset, task_bytes=1024, most_tasks=2)
        expected = await dataset.read()
        (counting,) = await plan_scan(dataset, columns=[], where=col("id") >= 2900)
    assert len(tasks) == 2
    assert (await asyncio.to_thread(read, counting)).num_rows == 100
    assert (await rows_of(tasks, workers)).equals(expected)
    assert [task.data for task in tasks] == tasks.encoded()
    assert (await asyncio.to_thread(read, ScanTask(tasks.scan, 0, tasks.one_task(), FILES, 0))).equals(expected)
