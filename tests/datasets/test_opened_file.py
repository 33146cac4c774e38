"""Datasets whose files, listings and credentials change in ways that a listing does not tell; and how many are open."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import DataFile, DataFiles
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.objects.runtime import LoopTurns, Runtime
from asyncpq.storage.local import LocalStore
from asyncpq.testing import Fault, ObjectServer
from tests.costs import cost_of
from tests.parquet_bytes import parquet_bytes


def file_bytes(start: int, stop: int) -> bytes:
    table = pa.table({"id": pa.array(range(start, stop), pa.int64())})
    return parquet_bytes(table, compression="none", use_dictionary=False)


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        yield running


async def ids(dataset: asyncpq.Dataset, where: asyncpq.Expression | None = None) -> list[int]:
    return list((await dataset.read(["id"], where))["id"].to_pylist())


async def test_one_file_is_followed(server: ObjectServer) -> None:
    """The listing of what lies below the file's url is empty whatever the file is."""
    server.put("bucket/one.parquet", file_bytes(0, 10))
    async with asyncpq.Session(server.storage_options) as s:
        dataset = await s.open_dataset("s3://bucket/one.parquet")
        assert await ids(dataset) == list(range(10))
        server.put("bucket/one.parquet", file_bytes(5, 500))
        assert await ids(dataset) == list(range(5, 500))
        server.put("bucket/one.parquet", file_bytes(505, 1000))  # as long as the one before
        assert await ids(dataset, col("id") >= 600) == list(range(600, 1000))
        server.delete("bucket/one.parquet")
        assert await ids(dataset) == []


async def test_a_few_files_begin_in_one_iteration_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local files are opened without a wait: all at once, they would keep other tasks waiting."""
    for number in range(64):
        (tmp_path / f"{number:02}.parquet").write_bytes(file_bytes(number, number + 1))
    opened, in_one = 0, list[int]()
    original = OpenedFile.open

    async def counted(*arguments: Any, **options: Any) -> OpenedFile:
        nonlocal opened
        opened += 1
        return await original(*arguments, **options)

    async def tick() -> None:
        while True:
            before = opened
            await asyncio.sleep(0)
            in_one.append(opened - before)

    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        monkeypatch.setattr(OpenedFile, "open", counted)
        ticker = asyncio.create_task(tick())
        assert await dataset.count() == 64
        ticker.cancel()
    assert opened == 64
    assert max(in_one) <= 16


async def test_the_only_file_of_a_lookup_has_no_deadline_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the lookup ends before it. Each deadline is one of the calls that wait for their turns."""
    (tmp_path / "one.parquet").write_bytes(file_bytes(0, 10))
    calls, original = list[int](), OpenedFile.open

    async def counted(runtime: Runtime, *arguments: Any, **options: Any) -> OpenedFile:
        calls.append(len(runtime.calls))
        return await original(runtime, *arguments, **options)

    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        monkeypatch.setattr(OpenedFile, "open", counted)
        assert (await dataset.lookup({"id": 3})).num_rows == 1
    assert calls == [1]


async def test_many_lookups_of_one_file_wait_for_turns_to_plan_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 lookups at once took a tenth more CPU time without these turns."""
    (tmp_path / "one.parquet").write_bytes(file_bytes(0, 100))
    turns, original = 0, LoopTurns.turn

    async def counted(self: LoopTurns) -> None:
        nonlocal turns
        turns += 1
        await original(self)

    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        monkeypatch.setattr(LoopTurns, "turn", counted)
        counts = []
        for few in (1, 0):
            turns = 0
            monkeypatch.setattr("asyncpq.datasets.opened_file.FEW_CALLS", few)
            await dataset.lookup({"id": 3})
            counts.append(turns)
        assert counts[1] == counts[0] + 1


@pytest.mark.heavy
async def test_rows_that_are_known_are_counted_without_an_object_of_each_file_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.parquet").write_bytes(file_bytes(0, 3))
    for number in range(1, 1200):  # so many are kept as rows
        os.link(tmp_path / "0.parquet", tmp_path / f"{number}.parquet")
    made_here = 0
    original, here = DataFiles._file, threading.get_ident()

    def counted(self: DataFiles, row: Any) -> DataFile:
        nonlocal made_here
        made_here += threading.get_ident() == here
        return original(self, row)

    monkeypatch.setattr(DataFiles, "_file", counted)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        assert await dataset.count() == 3600
        made_here = 0
        assert await dataset.count() == 3600
        assert made_here < 10
        (tmp_path / "5.parquet").unlink()
        (tmp_path / "5.parquet").write_bytes(file_bytes(0, 10))
        assert await dataset.count() == 3607


@pytest.mark.parametrize("max_age_s", [0, 60])
async def test_files_whose_versions_cannot_be_told_apart(server: ObjectServer, max_age_s: float) -> None:
    """What an earlier version's footer said is not taken for what this one says."""
    server.put("bucket/h.parquet", file_bytes(0, 10))
    server.faults = [Fault(times=None, headers={"ETag": None, "Last-Modified": None})]
    async with asyncpq.Session(cache_policy=asyncpq.etag(max_age_s)) as s:
        dataset = await s.open_dataset([f"{server.endpoint}/bucket/h.parquet"])
        assert await ids(dataset, col("id") < 50) == list(range(10))
        assert await dataset.count(col("id") > 50) == 0
        server.put("bucket/h.parquet", file_bytes(100, 110))
        s.memory_cache.clear()
        assert await ids(dataset, col("id") > 50) == list(range(100, 110))
        assert await dataset.count(col("id") < 50) == 0


async def test_a_file_that_grows_behind_a_listing_without_versions(server: ObjectServer) -> None:
    server.put("bucket/lake/0.parquet", file_bytes(0, 10))
    options = server.storage_options | {"version_aware": True}  # then listings name no versions
    async with asyncpq.Session(options, cache_policy=asyncpq.etag(0)) as s:
        dataset = await s.open_dataset("s3://bucket/lake/", listing_max_age_s=60)
        server.put("bucket/lake/0.parquet", file_bytes(0, 500))
        assert await ids(dataset) == list(range(500))


async def test_refused_credentials_are_no_bad_file(server: ObjectServer) -> None:
    for number in range(3):
        server.put(f"bucket/lake/{number}.parquet", file_bytes(number, number + 5))
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as s:
        dataset = await s.open_dataset("s3://bucket/lake/", on_bad_file="skip")
        server.faults = [Fault(path="lake/1", status=403, code="AccessDenied", times=None)]
        assert await ids(dataset) == [*range(5), *range(2, 7)]
        server.faults = [Fault(path="lake/2", status=403, code="ExpiredToken", times=None)]
        s.memory_cache.clear()
        with pytest.raises(asyncpq.CredentialsError):
            await ids(dataset)
        with pytest.raises(asyncpq.CredentialsError):
            await dataset.lookup({"id": 3})


async def test_bad_paths_that_a_new_listing_has_are_reported(server: ObjectServer) -> None:
    server.put("bucket/lake/day=1/0.parquet", file_bytes(0, 5))
    async with asyncpq.Session(server.storage_options) as s:
        dataset = await s.open_dataset("s3://bucket/lake/", on_bad_file="skip")
        server.put("bucket/lake/day=monday/1.parquet", file_bytes(5, 10))
        assert await ids(dataset) == list(range(5))
        assert [skipped.url for skipped in dataset.skipped] == ["s3://bucket/lake/day=monday/1.parquet"]
        assert (dataset.metrics.files_total, dataset.metrics.files_skipped) == (2, 1)


async def test_files_are_counted_as_the_listing_has_them_that_came_meanwhile(server: ObjectServer) -> None:
    for number in range(3):
        server.put(f"bucket/lake/{number}.parquet", file_bytes(number, number + 5))
    async with asyncpq.Session(server.storage_options) as s:
        dataset = await s.open_dataset("s3://bucket/lake/")
        assert await dataset.count(col("id") >= 2) == 12
        server.put("bucket/lake/3.parquet", file_bytes(3, 8))
        server.faults = [Fault(path="/bucket", ranged=False, latency_s=0.3, times=None)]
        with asyncpq.measure() as cost:
            assert await dataset.count(col("id") >= 2) == 17
        assert (cost.files_total, cost.files_opened) == (4, 4)


@pytest.mark.parametrize("ordered", [True, False])
async def test_few_files_are_open_at_once(tmp_path: Path, ordered: bool) -> None:
    """However small they are: each holds a descriptor."""
    for number in range(60):
        (tmp_path / f"{number:02}.parquet").write_bytes(file_bytes(number, number + 1))
    async with asyncpq.Session(limits=asyncpq.LimitOptions(files_ahead=4)) as s:
        dataset = await s.open_dataset(tmp_path)
        store, _ = await s._runtime.store(str(tmp_path))
        assert isinstance(store, LocalStore)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(store._objects))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        async with dataset.scan(ordered=ordered) as scan:
            found = (await anext(scan))["id"].to_pylist()
            await asyncio.sleep(0.3)
            found += [value for batch in [batch async for batch in scan] for value in batch["id"].to_pylist()]
        assert sorted(found) == list(range(60))
        assert (await dataset.lookup({"id": list(range(60))})).num_rows == 60
        watching.cancel()
        assert most <= 8


async def test_files_that_are_gone_are_forgotten(server: ObjectServer) -> None:
    async with asyncpq.Session(server.storage_options) as s:
        server.put("bucket/lake/0.parquet", file_bytes(0, 5))
        dataset = await s.open_dataset("s3://bucket/lake/")
        for number in range(1, 10):
            assert await ids(dataset, col("id") >= number) == list(range(number, number + 4))
            server.put(f"bucket/lake/{number}.parquet", file_bytes(number, number + 5))
            server.delete(f"bucket/lake/{number - 1}.parquet")
        assert len(dataset._state.known._learnt["id"]) <= 2


async def test_datasets_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """A service may open a dataset for each request."""
    (tmp_path / "0.parquet").write_bytes(file_bytes(0, 5))
    async with asyncpq.Session() as s:
        kept: set[int] = set()
        for number in range(150):
            assert await ids(await s.open_dataset(tmp_path), col("id") >= number % 5) == list(range(number % 5, 5))
            version = (await s.open_file(tmp_path / "0.parquet"))._version
            if number >= 5:
                kept.add(len(version._derived))
        assert len(kept) == 1


async def test_the_listing_of_a_read_validates_what_the_caches_have(server: ObjectServer) -> None:
    """However many files there are: no store is asked for each of them."""
    for number in range(6):
        server.put(f"bucket/lake/{number}.parquet", file_bytes(number, number + 5))
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0)) as s:
        dataset = await s.open_dataset("s3://bucket/lake/")
        everything = await ids(dataset)
        with asyncpq.measure() as cost:
            assert await ids(dataset) == everything
        assert cost.requests_by_purpose == {"list": 1}
        cost = await cost_of(ids(dataset, col("id") > 6))  # some of the files are ruled out by their footers
        assert cost.requests_by_purpose == {"list": 1}
        cost = await cost_of(dataset.lookup({"id": [3, 4]}))
        assert cost.requests_by_purpose == {"list": 1}
        server.put("bucket/lake/5.parquet", file_bytes(8, 13))
        server.faults = [Fault(path="/bucket", ranged=False, latency_s=0.2, times=None)]
        assert await ids(dataset, col("id") > 9) == [10, 11, 12]
