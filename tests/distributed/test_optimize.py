"""Rewrites in tasks: pyarrow's rows in order, whichever processes run the tasks, in which order and how often."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.distributed import close_workers, optimize, plan_optimize
from asyncpq.distributed.optimize import LakeRewrite, RewriteTask, RowDigest, SortTask, Tally
from asyncpq.errors import CorruptFileError, InvalidOptionError, ObjectChangedError, ObjectNotFoundError

_FILES, _ROWS = 6, 700


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(optimize, "_TASK_BYTES", 20_000)
    monkeypatch.setattr(optimize, "_PIECE_BYTES", 10_000)
    monkeypatch.setattr(optimize, "_LEAST_RANGE_BYTES", 20_000)
    yield
    close_workers()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    chance = random.Random(3)
    for number in range(_FILES):
        ids = range(number * _ROWS, (number + 1) * _ROWS)
        columns = {
            "id": pa.array(ids, pa.int64()),
            "real": [chance.choice([None, math.nan, -0.0, 1.5, chance.random()]) for _ in ids],
            "heavy": ["x" if chance.random() < 0.7 else f"user {chance.randint(0, 99)}" for _ in ids],
            "noise": [chance.randbytes(20) for _ in ids],
        }
        (tmp_path / "lake").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / "lake" / f"{number}.parquet", row_group_size=200)
    return str(tmp_path / "lake")


def sorted_rows(lake: str, sort_by: str) -> list[dict[str, Any]]:
    """pyarrow's rows in the order of the files: nulls first, NaN last."""

    def rank(value: Any) -> tuple[int, Any]:
        return (0, 0) if value is None else (2, 0) if value != value else (1, value)

    return sorted(ds.dataset(lake).to_table().to_pylist(), key=lambda row: (rank(row[sort_by]), row["id"]))


def rows_of(result: asyncpq.RewriteResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.concat_tables(
        [pq.read_table(result.target + path) for path in result.files]
    ).to_pylist()
    return rows


def below(folder: Path) -> list[str]:
    """Files, and folders of writes that have none."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    left = [path for path in [*folder.glob("data/*"), *folder.rglob("pieces-*")] if not [*path.iterdir()]]
    return sorted(str(path.relative_to(folder)) for path in [*files, *left])


class Engine:
    """Runs tasks in processes, each twice and the last one first, and notes them."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.tasks: list[Any] = []
        self._pool = pool

    async def __call__(self, task: Any) -> Any:
        self.tasks.append(task)
        if not task.number:
            await asyncio.sleep(0.1)
        await asyncio.wrap_future(self._pool.submit(run, task))
        return await asyncio.wrap_future(self._pool.submit(run, task))


def run(task: Any) -> Any:
    return task.run()


async def here(task: Any) -> Any:
    """Run a task in a thread. Nothing stops a thread, so a cancelled call waits for its end."""
    thread = asyncio.ensure_future(asyncio.to_thread(pickle.loads(pickle.dumps(task)).run))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.gather(thread, return_exceptions=True)
        raise


@pytest.mark.heavy
@pytest.mark.parametrize("sort_by", ["id", "real", "heavy"])
async def test_tasks_that_run_twice_write_each_row_once_in_order(
    tmp_path: Path, lake: str, workers: ProcessPoolExecutor, sort_by: str
) -> None:
    engine, target = Engine(workers), tmp_path / "fast"
    async with asyncpq.Session() as session:
        plan = await plan_optimize(session, lake, str(target), sort_by, parallelism=3)
        result = await plan.run(session, engine)
        found = await (await session.open_dataset(f"{target}/")).read()
    assert repr(rows_of(result)) == repr(sorted_rows(lake, sort_by))
    assert result.rows == found.num_rows == _FILES * _ROWS
    assert {type(task) for task in engine.tasks} == {SortTask, RewriteTask}
    assert len([task for task in engine.tasks if isinstance(task, RewriteTask)]) == 3
    files = [path for path in below(target) if not path.startswith("_")]
    assert files == sorted(result.files), "those of second attempts, and pieces, are gone"
    assert (target / "_SUCCESS").exists()
    assert result.bytes_before == sum((tmp_path / "lake" / name).stat().st_size for name in below(tmp_path / "lake"))


async def test_tasks_are_small_and_do_not_hold_the_session(tmp_path: Path, lake: str) -> None:
    async with asyncpq.Session() as session:
        plan = await plan_optimize(session, lake, str(tmp_path / "fast"), "id", parallelism=4, where="id >= 700")
        tasks = plan.tasks()
        assert len(tasks) > 4
        assert max(len(pickle.dumps(task)) for task in tasks) < 10_000
        results = [await here(task) for task in tasks]
        writes = plan.write_tasks(results)
        assert max(len(pickle.dumps(task)) for task in writes) < 10_000
        assert Tally.total([rows.tally for rows in results]).rows == (_FILES - 1) * _ROWS
        parts = [(await here(task)).part for task in reversed(writes)]
        await plan.write.commit(session, [*parts, *parts])
        found = await (await session.open_dataset(f"{tmp_path}/fast/")).read(["id"])
    assert found.column("id").to_pylist() == [*range(700, _FILES * _ROWS)]


@pytest.mark.heavy
@pytest.mark.parametrize("workers_", [1, 2])
async def test_local_processes_do_the_same(tmp_path: Path, lake: str, workers_: int) -> None:
    steps: list[asyncpq.Progress] = []
    note = lambda event: steps.append(event) if isinstance(event, asyncpq.Progress) else None  # noqa: E731
    (tmp_path / "local").mkdir()
    building = asyncpq.BuildOptions(folder=str(tmp_path / "local"))
    async with asyncpq.Session(on_event=note) as session:
        result = await session.optimize(
            lake, str(tmp_path / "fast"), ["heavy"], zorder_by=["id", "noise"], workers=workers_, building=building
        )
    found = rows_of(result)
    assert [row["heavy"] for row in found] == [row["heavy"] for row in sorted_rows(lake, "heavy")]
    assert sorted(row["id"] for row in found) == [*range(_FILES * _ROWS)]
    assert below(tmp_path / "local") == []
    last = steps[-1]
    assert (last.operation, last.done, last.total) == ("optimize", _FILES * _ROWS, _FILES * _ROWS)
    assert {step.step for step in steps} == (
        {"read and sort", "write", "verify"} if workers_ == 1 else {"read and sort", "write and verify"}
    )
    assert result.seconds.keys() >= {"read and sort", "commit"}


async def planned(session: asyncpq.Session, lake: str, target: Path, **more: Any) -> LakeRewrite:
    return await plan_optimize(session, lake, str(target), "id", parallelism=2, **more)


@pytest.mark.parametrize(("deleted", "error"), [(False, ObjectChangedError), (True, ObjectNotFoundError)])
async def test_a_source_that_changes_under_the_plan(
    tmp_path: Path, lake: str, deleted: bool, error: type[asyncpq.AsyncpqError]
) -> None:
    async with asyncpq.Session() as session:
        plan = await planned(session, lake, tmp_path / "fast")
        if deleted:
            os.remove(f"{lake}/3.parquet")
        else:
            pq.write_table(pa.table({"id": [1]}), f"{lake}/3.parquet")
        with pytest.raises(error, match=r"3\.parquet.*call optimize\(\) or plan_optimize\(\) again"):
            await plan.run(session, here)
    assert below(tmp_path / "fast") == []


async def test_a_target_that_others_write_to_is_not_committed(tmp_path: Path, lake: str) -> None:
    async def meanwhile(task: Any) -> Any:
        (tmp_path / "fast" / "other.txt").write_text("x")
        return await here(task)

    async with asyncpq.Session() as session:
        plan = await planned(session, lake, tmp_path / "fast")
        (tmp_path / "fast").mkdir(exist_ok=True)
        with pytest.raises(InvalidOptionError, match="not empty"):
            await plan.run(session, meanwhile)
    assert below(tmp_path / "fast") == ["other.txt"]


@pytest.mark.parametrize("lost", [SortTask, RewriteTask])
async def test_rows_that_get_lost_between_tasks_are_noticed(
    tmp_path: Path, lake: str, lost: type[SortTask | RewriteTask]
) -> None:
    async def losing(task: Any) -> Any:
        result = await here(task)
        if isinstance(task, lost) and task.number == 1:
            result = result._replace(tally=result.tally._replace(numbers=result.tally.numbers + 1))
        return result

    async with asyncpq.Session() as session:
        plan = await planned(session, lake, tmp_path / "fast")
        with pytest.raises(CorruptFileError, match="the sorted rows differ"):
            await plan.run(session, losing)
    assert below(tmp_path / "fast") == []


async def test_files_that_differ_are_not_committed(tmp_path: Path, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(map(str, range(100)))
    monkeypatch.setattr(RowDigest, "hexdigest", lambda self: next(digests))
    async with asyncpq.Session() as session:
        plan = await planned(session, lake, tmp_path / "fast")
        with pytest.raises(CorruptFileError, match="the written files differ"):
            await plan.run(session, here)
    assert below(tmp_path / "fast") == []


async def test_a_source_without_rows(tmp_path: Path, lake: str) -> None:
    async with asyncpq.Session() as session:
        plan = await planned(session, lake, tmp_path / "fast", where="id < 0")
        result = await plan.run(session, here)
        assert (await (await session.open_dataset(f"{tmp_path}/fast/")).read()).num_rows == result.rows == 0


async def test_an_unknown_option_is_named_with_the_nearest(tmp_path: Path, lake: str) -> None:
    async with asyncpq.Session() as session:
        with pytest.raises(InvalidOptionError, match="no argument zorder") as caught:
            await plan_optimize(session, lake, str(tmp_path / "fast"), zorder=["id"])  # type: ignore[call-arg]
    assert "zorder_by" in str(caught.value)
