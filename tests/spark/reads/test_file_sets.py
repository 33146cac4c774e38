"""Plans from an index of very many files, which are planned set by set, are those of all files at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import asyncpq
from asyncpq.distributed import engine_scans, scan_planning
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.distributed.scan_tasks import PlannedFile, decode_files, read_task, unpack_task
from asyncpq.errors import AsyncpqError
from asyncpq.events import Operation
from asyncpq.expressions import parse_where
from asyncpq.indexing import Bounds, Footers
from asyncpq.session import Session
from asyncpq.spark.reads.lake_scan import LakePlan, plan_lake
from asyncpq.spark.reads.opened_lake import LakeTarget, open_lake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf

FILES = 11
#: Conditions, and whether they are true of a row with this id.
KEPT: dict[str, Callable[[int], bool]] = {
    "id >= 0": lambda number: True,
    "id == 45": lambda number: number == 45,
    "id < 60 AND p == 1": lambda number: number < 60 and number // 10 % 3 == 1,
    "p == 2": lambda number: number // 10 % 3 == 2,
    "id < 0": lambda number: False,
}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Path]:
    for number in range(FILES):
        path = tmp_path / f"p={number % 3}" / f"{number:02}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10), "other": [number] * 10}), path)
    yield tmp_path
    sessions.close_workers()


def plan(lake: Path, where: str | None, may_sample: bool) -> LakePlan:
    async def work(session: Session) -> LakePlan:
        opened = await open_lake(session, LakeTarget(target=str(lake), view="snapshot"), ReadConf())
        condition = None if where is None else parse_where(where)
        return await plan_lake(opened, settings=SparkSettings(), where=condition, may_sample=may_sample)

    return sessions.run_on_worker(SparkSettings(), work)


def files_of(planned: LakePlan) -> list[PlannedFile]:
    parts = [part for task in planned.encoded() for part in unpack_task(task)]
    return [file for part in parts if isinstance(part, bytes) for file in decode_files(part)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("indexes", [[Bounds("id")], [Bounds("id"), Footers()]], ids=["bounds", "footers"])
@pytest.mark.parametrize(("most_files", "gathered"), [(1, 1), (4, 1), (4, 6), (FILES - 1, 100)])
@pytest.mark.parametrize("where", [None, *KEPT])
async def test_sets_make_the_plan_of_all_files(
    lake: Path, monkeypatch: pytest.MonkeyPatch, indexes: list[Any], where: str | None, most_files: int, gathered: int
) -> None:
    async with asyncpq.Session() as session:
        await session.build_index(lake, indexes)
    whole = plan(lake, where, may_sample=False)
    monkeypatch.setattr(engine_scans, "SET_FILES", most_files)
    monkeypatch.setattr(scan_planning, "GATHERED_FILES", gathered)
    found = plan(lake, where, may_sample=False)
    assert files_of(found) == files_of(whole)
    for name in ("num_files", "whole_bytes", "versions", "num_rows", "facts", "unopened", "num_bytes", "scan"):
        assert getattr(found, name) == getattr(whole, name), name
    assert found.metrics.files_total == whole.metrics.files_total == FILES
    assert found.metrics.files_ruled_out == whole.metrics.files_ruled_out
    tables = [pa.Table.from_batches([batch]) for task in found.encoded() for batch in read_task(found.scan, task)]
    rows = pa.concat_tables(tables) if tables else pa.table({"id": pa.array([], pa.int64())})
    assert rows.num_rows <= found.num_rows
    numbers = [number for number in range(10 * FILES) if where is None or KEPT[where](number)]
    assert set(numbers) <= set(rows["id"].to_pylist())


async def test_few_files_that_are_left_of_many_sets_are_sampled(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncpq.Session() as session:
        await session.build_index(lake, [Bounds("id")])
    monkeypatch.setattr(engine_scans, "SET_FILES", 2)
    monkeypatch.setattr(scan_planning, "_LEAST_SAMPLED", 2)
    monkeypatch.setattr(scan_planning, "_SAMPLE", 2)
    for gathered, is_sampled in ((100, True), (4, True), (3, False)):  # of 4 files with p = 1
        monkeypatch.setattr(scan_planning, "GATHERED_FILES", gathered)
        assert plan(lake, "p == 1 AND other >= 0", may_sample=True).is_sampled is is_sampled


async def test_progress_goes_on_from_set_to_set(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncpq.Session() as session:
        await session.build_index(lake, [Bounds("id")])
    monkeypatch.setattr(engine_scans, "SET_FILES", 4)
    monkeypatch.setattr(scan_planning, "GATHERED_FILES", 3)
    ended = list[int]()
    record = Operation.part_ended

    def part_ended(self: Operation, part: Operation, error: AsyncpqError | None, done: int) -> None:
        ended.append(done)
        record(self, part, error, done)

    monkeypatch.setattr(Operation, "part_ended", part_ended)
    plan(lake, "id >= 0", may_sample=False)
    assert ended == [*range(1, FILES + 1)]
