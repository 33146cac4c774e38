"""Index builds whose tasks run in other processes make the index that one process makes."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import UsageError
from asyncpq.distributed import BuildTask, build_index, build_steps, build_tasks, close_workers
from asyncpq.distributed.build_tasks import worker_processes
from asyncpq.errors import InvalidOptionError, UnsupportedStoreError
from asyncpq.indexing import Bounds, Footers, Keys, MemoryBackend, Text
from asyncpq.options import BuildOptions
from asyncpq.testing import ObjectServer
from tests.lakes import write
from tests.spark.index_lakes import content, open_index, write_lake

KINDS: list[Any] = [Bounds("id"), Keys("id"), Text("name"), Footers()]


@pytest.fixture(autouse=True)
def no_sessions() -> Iterator[None]:
    yield
    close_workers()


@pytest.fixture
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_tasks, "_PLANNER_BYTES", 0)
    monkeypatch.setattr(build_steps, "TASK_BYTES", 1 << 20)
    monkeypatch.setattr(build_steps, "_LEAST_RANGE_BYTES", 40_000)


def call(task: BuildTask) -> pa.Table:
    return task.run()


class Engine:
    """Runs tasks in processes, and notes them."""

    def __init__(self, workers: ProcessPoolExecutor) -> None:
        self.tasks: list[BuildTask] = []
        self._workers = workers

    async def run(self, task: BuildTask) -> pa.Table:
        self.tasks.append(task)
        return await asyncio.wrap_future(self._workers.submit(call, task))

    @property
    def kinds(self) -> dict[str, int]:
        names = [type(task).__name__ for task in self.tasks]
        return {name: names.count(name) for name in names}


def left_pieces(at: str) -> list[Path]:
    """Pieces, and folders of them."""
    return list(Path(at).rglob("*pieces*"))


async def built_here(lake: Path, at: str) -> tuple[Any, list[str]]:
    async with asyncpq.Session() as session:
        await session.build_index(str(lake), KINDS, at=at)
    return await open_index(at, same_ids=False)


@pytest.mark.heavy
@pytest.mark.parametrize("by_planner", [False, True], ids=["tasks write", "the planner writes"])
async def test_tasks_make_the_index_of_one_process(
    tmp_path: Path, workers: ProcessPoolExecutor, many_tasks: None, monkeypatch: pytest.MonkeyPatch, by_planner: bool
) -> None:
    lake, at, engine = tmp_path / "lake", str(tmp_path / "index"), Engine(workers)
    write_lake(lake)
    if by_planner:
        monkeypatch.setattr(build_tasks, "_PLANNER_BYTES", 1 << 30)
    async with asyncpq.Session() as session:
        index = await build_index(session, str(lake), KINDS, engine.run, at=at)
    assert index.refreshed is not None
    assert [path for path, _ in index.refreshed.problems] == ["bad.parquet", "cut.parquet"]
    found, problems = await open_index(at, same_ids=False)
    assert (found, problems) == await built_here(lake, str(tmp_path / "here"))
    assert problems == []
    assert engine.kinds["CollectTask"] > 1
    assert (engine.kinds.get("WriteTask", 0) > 1) is not by_planner
    assert max(len(pickle.dumps(task)) for task in engine.tasks) < 65_536
    assert not left_pieces(at)


async def test_an_index_on_s3_is_refreshed(workers: ProcessPoolExecutor, many_tasks: None, tmp_path: Path) -> None:
    engine, files = Engine(workers), [tmp_path / f"{number}.parquet" for number in range(4)]
    for number, path in enumerate(files):
        write(path, number, 60)
    async with ObjectServer() as server, asyncpq.Session(server.storage_options) as session:
        for path in files[:2]:
            server.put(f"bucket/lake/{path.name}", path.read_bytes())
        await build_index(session, "s3://bucket/lake/", KINDS, engine.run)
        for path in files[2:]:
            server.put(f"bucket/lake/{path.name}", path.read_bytes())
        del server.objects[f"bucket/lake/{files[0].name}"]
        index = await build_index(session, "s3://bucket/lake/", KINDS, engine.run)
        assert index.refreshed is not None
        assert (index.refreshed.added, index.refreshed.removed) == (len(files) - 2, 1)
        assert (await index.verify(sample=100)).problems == []
        assert {row[0] for row in (await content(index, same_ids=False))["files ()"][1:]} == {p.name for p in files[1:]}
        assert not [name for name in server.objects if name.endswith(".pieces")]
        assert index.manifest.num_files == len(files) - 1


async def test_a_task_that_fails_ends_the_build_and_the_next_one_goes_on(
    tmp_path: Path, workers: ProcessPoolExecutor, many_tasks: None
) -> None:
    lake, at, engine = tmp_path / "lake", str(tmp_path / "index"), Engine(workers)
    for number in range(6):
        write(lake / f"{number}.parquet", number, 60)

    async def failing(task: BuildTask) -> pa.Table:
        if type(task).__name__ == "WriteTask":
            raise ConnectionError("the worker died")
        return await engine.run(task)

    async with asyncpq.Session() as session:
        with pytest.raises(ConnectionError, match="the worker died"):
            await build_index(session, str(lake), KINDS, failing, at=at)
        assert not left_pieces(at)
        with pytest.raises(UsageError, match="the first build of the index has not ended"):
            await (await session.open_index(at)).verify()
        await build_index(session, str(lake), KINDS, engine.run, at=at, building=BuildOptions(checkpoint_files=2))
    assert engine.kinds["CollectTask"] >= 3
    assert (await open_index(at))[1] == []


async def test_pieces_lie_in_the_work_folder_if_the_index_has_none(
    tmp_path: Path, workers: ProcessPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, engine = tmp_path / "lake", Engine(workers)
    write(lake / "0.parquet", 1, 60)
    at = f"sqlite:///{tmp_path}/index.db"
    async with asyncpq.Session() as session:
        with pytest.raises(InvalidOptionError, match="work_folder"):
            await build_index(session, str(lake), [Keys("id")], engine.run, at=at)
        index = await build_index(session, str(lake), [Keys("id")], engine.run, at=at, work_folder=str(tmp_path / "w"))
        assert index.manifest.num_files == 1
        assert (await index.verify()).problems == []
    assert engine.kinds == {"CollectTask": 1}


async def test_an_index_without_a_url_is_written_by_the_planner_if_it_is_small(
    tmp_path: Path, workers: ProcessPoolExecutor, many_tasks: None
) -> None:
    lake, engine = tmp_path / "lake", Engine(workers)
    write(lake / "0.parquet", 1, 60)
    async with asyncpq.Session() as session:
        work = str(tmp_path / "w")
        with pytest.raises(UnsupportedStoreError, match="workers can only write to a url"):
            await build_index(session, str(lake), [Keys("id")], engine.run, at=MemoryBackend(), work_folder=work)


@pytest.mark.heavy
async def test_a_local_build_in_processes(tmp_path: Path, many_tasks: None) -> None:
    lake, at, ended = tmp_path / "lake", str(tmp_path / "index"), list[str]()
    write_lake(lake)

    def note(event: object) -> None:
        if isinstance(event, asyncpq.FileEnded):
            ended.append(event.url)

    async with asyncpq.Session(on_event=note) as session:
        index = await session.build_index(str(lake), KINDS, at=at, workers=2)
        assert index.manifest.num_files == len(ended) == 16
        with pytest.raises(InvalidOptionError, match="workers"):
            await session.build_index(str(lake), KINDS, at=at, workers=0)
    found, problems = await open_index(at, same_ids=False)
    assert (found, problems) == await built_here(lake, str(tmp_path / "here"))


class Dies:
    """A task whose process ends."""

    def run(self) -> None:
        os._exit(1)


@pytest.mark.heavy
async def test_a_process_that_ends_is_said() -> None:
    async with worker_processes(1) as run:
        with pytest.raises(UsageError, match="a worker process ended before its task"):
            await run(Dies())


async def test_a_cancelled_block_does_not_wait_for_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_tasks, "_GRACE_S", 0.1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), worker_processes(1) as run:
            await run(SimpleNamespace(run=partial(time.sleep, 1000)))
