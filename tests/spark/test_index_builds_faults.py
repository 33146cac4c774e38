"""Index builds on Spark whose tasks, executors or drivers fail, and files that change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

import asyncpq
from asyncpq.distributed import build_steps as index_steps
from asyncpq.distributed import build_tasks
from asyncpq.distributed.build_tasks import TaskExecutor
from asyncpq.errors import CredentialsError, StoreError, TransportError, UsageError
from asyncpq.indexing import FolderBackend
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.commits import load
from asyncpq.options import BuildOptions
from asyncpq.spark import index_builds
from asyncpq.spark.index_builds import build_index, verify_index
from tests.lakes import FEW, write
from tests.spark import index_tasks
from tests.spark.index_lakes import open_index, write_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.cluster import Cluster

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_tasks, "_PLANNER_BYTES", 0)
    monkeypatch.setattr(index_steps, "TASK_BYTES", 1 << 20)
    monkeypatch.setattr(index_steps, "_LEAST_RANGE_BYTES", 40_000)


async def _names(at: str) -> tuple[set[str], set[str]]:
    """Of segments that are there, and that the newest snapshot has."""
    async with asyncpq.Session() as session:
        backend = FolderBackend(session, at)
        manifest = await load(backend)
        assert manifest is not None
        return set(await backend.ages("segments")), set(manifest.names)


@pytest.mark.slow  # the cluster tries a task again after a while
def test_tasks_that_fail_are_tried_again(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    write_lake(lake)
    failing = [("CollectFiles", "CollectThenFailOnce"), ("WriteSegments", "WriteThenFailOnce")]
    for name, other in failing:
        flag = str(tmp_path / other)
        monkeypatch.setattr(index_steps, name, partial(getattr(index_tasks, other), flag=flag))
    build_index(spark, str(lake), FEW, at=at)
    assert all((tmp_path / other).exists() for _, other in failing)
    _, wrong = asyncio.run(open_index(at))
    assert wrong == []
    there, named = asyncio.run(_names(at))
    assert named < there  # those of the attempt that failed are left for vacuum


@pytest.mark.slow
def test_executors_that_die_are_replaced(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    write_lake(lake)
    dying = [("CollectFiles", "CollectOrDieOnce"), ("WriteSegments", "WriteThenDieOnce")]
    for name, other in dying:
        flag = str(tmp_path / other)
        monkeypatch.setattr(index_steps, name, partial(getattr(index_tasks, other), flag=flag))
    assert build_index(spark, str(lake), FEW, at=at).files == 16
    assert all((tmp_path / other).exists() for _, other in dying)
    _, wrong = asyncio.run(open_index(at))
    assert wrong == []
    cluster.wait_for_executors(spark.sparkContext.applicationId)


def test_an_error_of_a_task_is_the_build_s(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    write_lake(lake, num_files=1)
    with monkeypatch.context() as patched:
        patched.setattr(index_steps, "CollectFiles", index_tasks.CollectWithoutRights)
        with pytest.raises(CredentialsError, match=r"expired.*s3://lake/day=1/a.parquet"):
            build_index(spark, str(lake), FEW, at=at)
    with pytest.raises(UsageError, match="the first build of the index has not ended"):
        verify_index(spark, at)
    assert build_index(spark, str(lake), FEW, at=at).files == 5


def test_rows_that_are_lost_are_missed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    write_lake(lake, num_files=1)
    monkeypatch.setattr(index_steps, "CutPieces", index_tasks.LosePieces)
    with pytest.raises(StoreError, match="were lost or duplicated"):
        build_index(spark, str(lake), FEW, at=at)
    with pytest.raises(UsageError, match="the first build of the index has not ended"):
        verify_index(spark, at)


def test_a_build_whose_driver_died_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    for number in range(10):
        write(lake / f"{number}.parquet", number)
    options = BuildOptions(checkpoint_files=4)
    real, chunks = TaskExecutor.segments, list[int]()

    async def segments(self: TaskExecutor, works: Sequence[FileTask], *rest: Any) -> Any:
        if len(chunks) == 2:
            raise TransportError("the driver is gone")
        chunks.append(len(works))
        return await real(self, works, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(TaskExecutor, "segments", segments)
        with pytest.raises(TransportError):
            build_index(spark, str(lake), FEW, at=at, building=options)
    assert chunks == [4, 4]
    write(lake / "1.parquet", 111)
    built = build_index(spark, str(lake), FEW, at=at, building=options)
    assert (built.files, built.added, built.resumed) == (10, 10, 7)  # but for the one that has changed
    _, wrong = asyncio.run(open_index(at))
    assert wrong == []


def test_a_file_that_changes_between_two_readings_is_read_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that were lost are made again, perhaps of another version; no segment has rows of both."""
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    write_lake(lake)
    real, times = index_builds.SparkSteps._written, list[int]()

    def written(self: Any, *steps: Any) -> pa.Table:
        times.append(1)
        if len(times) == 1:
            self._rows.unpersist(blocking=True)
            write(lake / "3.parquet", 333)
            (lake / "4.parquet").unlink()
        return real(self, *steps)

    monkeypatch.setattr(index_builds.SparkSteps, "_written", written)
    built = build_index(spark, str(lake), FEW, at=at)
    assert len(times) == 2
    assert built.files == 15
    found, wrong = asyncio.run(open_index(at))
    assert wrong == []
    assert {row[0] for row in found["files ()"][1:]} == {path.name for path in lake.glob("*.parquet")}


def test_a_listed_file_that_is_gone_or_replaced_is_no_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    write_lake(lake)
    real = index_builds.SparkSteps._pieces

    def pieces(self: Any, *given: Any) -> pa.Table:
        write(lake / "3.parquet", 333)
        (lake / "4.parquet").unlink()
        return real(self, *given)

    monkeypatch.setattr(index_builds.SparkSteps, "_pieces", pieces)
    assert build_index(spark, str(lake), FEW, at=at).files == 15
    _, wrong = asyncio.run(open_index(at))
    assert wrong == []
