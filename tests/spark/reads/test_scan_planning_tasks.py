"""Plans that Spark tasks make are those that the driver makes."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import asyncpq.spark
from asyncpq import col
from asyncpq.datasets.model import DataFile, IndexEntry
from asyncpq.distributed import scan_planning
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.distributed.scan_planning import PlannedChunk, is_planned_by_workers
from asyncpq.distributed.scan_tasks import PlannedFile, decode_files, unpack_task
from asyncpq.errors import CorruptFileError, FormatError
from asyncpq.expressions import Expression
from asyncpq.indexing import Bounds, Footers
from asyncpq.session import Session
from asyncpq.spark.reads import lake_scan
from asyncpq.spark.reads.lake_scan import LakePlan, LakeScan, PlanFiles, is_stored_alike, plan_lake
from asyncpq.spark.reads.opened_lake import LakeTarget, open_lake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

FILES, ROWS = 10, 400


def write_lake(folder: Path) -> str:
    """Files of two partitions, whose ids overlap little. One has a narrower type, one has no row group that matches."""
    for number in range(FILES):
        path = folder / f"p={number % 2}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int32() if number == 3 else pa.int64())
        table = pa.table({"id": ids, "text": [f"{value % 7}" for value in range(ROWS)]})
        pq.write_table(table, path, row_group_size=100, max_rows_per_page=20, write_page_index=True)
    return str(folder)


class Jobs:
    """The jobs of a plan, run in this process as Spark runs them."""

    def __init__(self, size: int) -> None:
        self.planned: list[PlannedChunk] = []
        self._size = size

    async def chunks(self, lake: LakeScan, files: Sequence[DataFile], *, skips: bool) -> AsyncIterator[PlannedChunk]:
        work = PlanFiles(pickle.loads(pickle.dumps(lake)), skips, len(files))
        for start in range(0, len(files), self._size):
            data = pickle.dumps(files[start : start + self._size])
            batch = pa.record_batch({"id": pa.array([start], pa.int32()), "payload": pa.array([data], pa.binary())})
            # as in an executor: the session's loop is another thread's
            (result,) = await asyncio.to_thread(list, work(iter([batch])))
            assert result.column("id").to_pylist() == [start]
            self.planned.append(pickle.loads(result.column("payload")[0].as_py()))
            yield self.planned[-1]


def plan(lake: str, where: Expression | None, jobs: Jobs | None = None, **options: Any) -> LakePlan:
    # tasks get other sessions than the driver, so that they know nothing of each other
    settings = SparkSettings(disk_cache="off", memory_cache_bytes=(1 << 26) + (jobs is None))

    async def work(session: Session) -> LakePlan:
        opened = await open_lake(session, LakeTarget(target=lake, **options), ReadConf())
        used: Any = jobs
        sent = replace(settings, memory_cache_bytes=1 << 25)
        return await plan_lake(opened, settings=sent, where=where, jobs=used)

    try:
        return sessions.run_on_worker(settings, work)
    finally:
        sessions.close_workers()


def files_of(found: LakePlan) -> list[PlannedFile]:
    pieces = [piece for task in found.encoded() for piece in unpack_task(task)]
    return [file for piece in pieces if isinstance(piece, bytes) for file in decode_files(piece)]


@pytest.fixture
def by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_planning, "MOST_PLANNED_HERE", 0)


@pytest.mark.parametrize("size", [1, 3, FILES])
@pytest.mark.parametrize(
    "where",
    [col("id") == 1234, (col("id") > 700) & (col("p") == 1), col("id") >= 0, col("id") < 0, col("text") == "3"],
    ids=str,
)
def test_tasks_plan_as_the_driver_does(tmp_path: Path, by_tasks: None, where: Expression, size: int) -> None:
    lake, jobs = write_lake(tmp_path), Jobs(size)
    here, there = plan(lake, where), plan(lake, where, jobs)
    assert files_of(there) == files_of(here)
    assert list(there.versions.items()) == list(here.versions.items())
    assert (there.num_rows, there.num_bytes, is_stored_alike(there)) == (
        here.num_rows,
        here.num_bytes,
        is_stored_alike(here),
    )
    counts = [
        (one.files_total, one.files_ruled_out, one.files_opened, one.row_groups_read)
        for one in (here.metrics, there.metrics)
    ]
    assert counts[0] == counts[1]
    assert sum(chunk.metrics.files_opened for chunk in jobs.planned) == there.metrics.files_opened > 0


def test_few_files_are_planned_on_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, jobs = write_lake(tmp_path), Jobs(3)
    monkeypatch.setattr(scan_planning, "MOST_PLANNED_HERE", FILES // 2)
    assert plan(lake, col("p") == 1, jobs).metrics.files_opened == FILES // 2  # those that the partition leaves
    assert jobs.planned == []
    plan(lake, col("id") >= 0, jobs)
    assert len(jobs.planned) == 4


@pytest.mark.parametrize(("kinds", "count"), [([Bounds()], FILES // 2), ([Bounds(), Footers()], 0)])
def test_files_whose_footers_an_index_has_are_planned_on_the_driver(
    tmp_path: Path, by_tasks: None, kinds: list[Any], count: int
) -> None:
    lake, jobs = write_lake(tmp_path), Jobs(100)

    async def build() -> None:
        async with Session() as session:
            await session.build_index(lake, kinds)

    asyncio.run(build())
    where = (col("p") == 1) & (col("text") == "3")
    here, there = plan(lake, where), plan(lake, where, jobs)
    assert files_of(there) == files_of(here) != []
    assert sum(chunk.metrics.files_opened for chunk in jobs.planned) == count


def test_statistics_that_tasks_return_serve_the_next_plan(tmp_path: Path, by_tasks: None) -> None:
    lake, settings = write_lake(tmp_path), SparkSettings(disk_cache="off")
    opened: list[int] = []
    try:
        for where in (col("id") == 1234, col("id") == 1234, col("id") > 3700, col("text") == "3"):
            jobs = Jobs(4)

            async def work(session: Session, where: Expression = where, jobs: Any = jobs) -> LakePlan:
                lake_opened = await open_lake(session, LakeTarget(target=lake), ReadConf())
                return await plan_lake(lake_opened, settings=settings, where=where, jobs=jobs)

            sessions.run_on_worker(settings, work)
            opened.append(sum(chunk.metrics.files_opened for chunk in jobs.planned))
    finally:
        sessions.close_workers()
    # file 3 stores another type, so the lake's condition does not judge its statistics; it is opened again
    assert opened == [FILES, 1, 2, FILES]


def test_bad_files_in_tasks(tmp_path: Path, by_tasks: None) -> None:
    lake = write_lake(tmp_path)
    (tmp_path / "p=1" / "5.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    raised: list[str] = []
    for bad in (None, Jobs(4)):
        with pytest.raises(FormatError, match=r"5\.parquet") as error:
            plan(lake, col("id") >= 0, bad)
        raised.append(str(error.value))
    assert raised[0] == raised[1]
    jobs = Jobs(4)
    found = plan(lake, col("id") >= 0, jobs, on_bad_file="skip")
    assert (found.num_files, found.metrics.files_skipped) == (FILES - 1, 1)


def test_what_only_the_driver_plans() -> None:
    async def known(operation: Any) -> None:
        return None

    file = DataFile(url="s3://lake/a.parquet")
    assert is_planned_by_workers(file)
    assert is_planned_by_workers(replace(file, entry=IndexEntry()))
    assert not is_planned_by_workers(replace(file, content=b"PAR1"))
    assert not is_planned_by_workers(replace(file, unreadable=CorruptFileError("no")))
    assert not is_planned_by_workers(replace(file, entry=IndexEntry(known=known)))


# -- on a cluster ----------------------------------------------------------------------------------


@pytest.fixture
def in_jobs(by_tasks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several jobs of several tasks."""
    monkeypatch.setattr(lake_scan, "JOB_FILES", 6)
    monkeypatch.setattr(lake_scan, "_LEAST_TASK_FILES", 2)


@pytest.mark.spark
def test_a_scan_that_is_planned_in_jobs(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, in_jobs: None
) -> None:
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")
    lake = write_lake(tmp_path)
    native = spark.read.parquet(lake)
    for where in ("id = 1234", "id > 700 and p = 1", "text = '3'"):
        found = asyncpq.spark.explain_scan(spark, lake, where=where, reader="asyncpq")
        assert sorted(found.frame(spark).collect()) == sorted(native.where(where).collect()) != []
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None
    shown = descriptions(spark)
    assert any(text.startswith("asyncpq plans ") and "files 1 to 6 of 10" in text for text in shown)
    assert any("files 7 to 10 of 10" in text for text in shown)


@pytest.mark.spark
def test_an_error_of_a_planning_task_is_that_of_the_driver(spark: SparkSession, tmp_path: Path, in_jobs: None) -> None:
    lake = write_lake(tmp_path)
    (tmp_path / "p=1" / "5.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(asyncpq.AsyncpqError, match=r"5\.parquet"):
        asyncpq.spark.scan(spark, lake, where="id = 1234")


def descriptions(spark: SparkSession) -> list[str]:
    """Return the descriptions of the jobs that Spark's UI shows."""
    read: Callable[..., Any] = spark.sparkContext._jsc.sc().statusStore().jobsList
    jobs = read(None)
    found = [jobs.apply(at).description() for at in range(jobs.size())]
    return [text.get() for text in found if text.isDefined()]
