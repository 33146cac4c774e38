"""Indexes that Spark builds hold what indexes that one process builds do."""

from __future__ import annotations

import asyncio
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

import asyncpq
from asyncpq.distributed import build_steps as index_steps
from asyncpq.distributed import build_tasks
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError, UnsupportedStoreError
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.kinds import Bounds, Footers, Keys
from asyncpq.options import BuildOptions
from asyncpq.spark import lookup_join, optimize, scan
from asyncpq.spark.index_builds import build_index, refresh_index, vacuum, verify_index
from tests.lakes import FEW, KINDS, write
from tests.spark.credentials import CANARY
from tests.spark.index_lakes import content, open_index, write_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

    from tests.spark.lake_store import LakeStore

_SMALL = BuildOptions(segment_bytes=20_000, max_segments=50)


@pytest.fixture
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a large lake: executors write, and each step has several tasks."""
    monkeypatch.setattr(build_tasks, "_PLANNER_BYTES", 0)
    monkeypatch.setattr(index_steps, "TASK_BYTES", 1 << 20)
    monkeypatch.setattr(index_steps, "_LEAST_RANGE_BYTES", 40_000)


def _local(lake: Path, at: str) -> None:
    async def build() -> None:
        async with asyncpq.Session() as session:
            await session.build_index(str(lake), KINDS, at=at)

    asyncio.run(build())


def test_an_index_of_every_kind_is_as_one_process_builds_it(
    spark: SparkSession, tmp_path: Path, many_tasks: None
) -> None:
    lake, at, local = tmp_path / "lake", str(tmp_path / "spark"), str(tmp_path / "local")
    write_lake(lake)
    built = build_index(spark, str(lake), KINDS, at=at, building=_SMALL)
    assert (built.files, built.added, built.removed, built.resumed) == (16, 16, 0, 0)
    assert built.rows == 12 * 60 + 3000
    problems = {problem.path: problem.error for problem in built.problems}
    assert set(problems) == {"bad.parquet", "cut.parquet"}
    assert all(issubclass(getattr(asyncpq.errors, name), asyncpq.errors.FormatError) for name in problems.values())
    table = spark.createDataFrame(built.problems)
    assert (table.columns, table.count()) == (["path", "error", "message"], 2)
    _local(lake, local)
    (found, wrong), (expected, _) = asyncio.run(open_index(at)), asyncio.run(open_index(local))
    assert wrong == []
    assert found == expected
    asyncio.run(_check_segments(at))
    assert verify_index(spark, at, sample=3, rows=10).problems == []


async def _check_segments(at: str) -> None:
    """Of parts with many rows there are several, each with a range of keys of its own, and none too large."""
    async with asyncpq.Session() as session:
        manifest = (await session.open_index(at)).manifest
    for part in manifest.tables[1:]:
        some = sorted(manifest.segments_of(part), key=lambda segment: (segment.low, segment.high))
        assert all(segment.data_bytes <= 2 * _SMALL.segment_bytes for segment in some), part
        assert all(one.high <= other.low for one, other in pairwise(some)), part
    keys = [segment for segment in manifest.segments if segment.table.kind == "keys"]
    assert len(keys) > 6


def test_what_is_small_the_driver_writes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, local = tmp_path / "lake", str(tmp_path / "local")
    write_lake(lake, num_files=3)
    build_index(spark, lake, KINDS)
    _local(lake, local)
    (found, wrong), (expected, _) = asyncio.run(open_index(f"{lake}/_asyncpq")), asyncio.run(open_index(local))
    assert wrong == []
    assert found == expected
    backend = MemoryBackend()
    assert build_index(spark, str(lake), FEW, at=backend).files == 7
    monkeypatch.setattr(build_tasks, "_PLANNER_BYTES", 0)
    with pytest.raises(UnsupportedStoreError, match="workers can only write to a url"):
        build_index(spark, str(lake), FEW, at=MemoryBackend())


def test_a_refresh_reads_what_is_new(
    spark: SparkSession, tmp_path: Path, many_tasks: None, restored_conf: RuntimeConfig
) -> None:
    lake, at, local = tmp_path / "lake", str(tmp_path / "spark"), str(tmp_path / "local")
    write_lake(lake)
    restored_conf.set("spark.sql.execution.arrow.maxBytesPerBatch", "64m")  # as bytes may be written
    build_index(spark, str(lake), KINDS, at=at, building=_SMALL)
    assert restored_conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == "64m"
    write(lake / "3.parquet", 333, 50)
    (lake / "4.parquet").unlink()
    write(lake / "new.parquet", 5)
    write(lake / "bad.parquet", 6)
    done = refresh_index(spark, at, building=_SMALL)
    assert (done.added, done.removed, len(done.problems)) == (3, 3, 0)
    assert refresh_index(spark, at, building=_SMALL).snapshot == done.snapshot
    (lake / "5.parquet").unlink()
    write(lake / "6.parquet", 66)
    named = refresh_index(spark, at, files=[f"{lake}/5.parquet"], building=_SMALL)
    assert (named.added, named.removed) == (0, 1)
    assert refresh_index(spark, at, building=_SMALL).added == 1
    _local(lake, local)
    found, wrong = asyncio.run(open_index(at, same_ids=False))
    assert wrong == []
    assert found == asyncio.run(open_index(local, same_ids=False))[0]
    assert vacuum(spark, at).segments == ()


def test_spark_and_a_process_build_at_once(spark: SparkSession, tmp_path: Path, many_tasks: None) -> None:
    lake, at = tmp_path / "lake", str(tmp_path / "index")
    write_lake(lake)

    async def build() -> None:
        async with asyncpq.Session() as session:
            for _ in range(3):
                await session.build_index(str(lake), FEW, at=at)
                await asyncio.sleep(0.2)

    other = threading.Thread(target=lambda: asyncio.run(build()))
    other.start()
    for number in range(3):
        build_index(spark, str(lake), FEW, at=at)
        write(lake / f"{number}.parquet", 1000 + number)
    other.join()
    refresh_index(spark, at)
    found, wrong = asyncio.run(open_index(at))
    assert wrong == []
    assert len(found["files ()"]) == 1 + 16


def test_to_an_object_store(spark: SparkSession, lake_store: LakeStore, tmp_path: Path, many_tasks: None) -> None:
    write_lake(tmp_path, num_files=4)
    for path in tmp_path.iterdir():
        lake_store.put(f"lake/day={path.name[0]}/{path.name}", path.read_bytes())
    built = build_index(spark, f"{lake_store.url}/lake", KINDS, **lake_store.settings)
    assert (built.files, len(built.problems)) == (8, 2)
    assert CANARY not in str(built)
    assert verify_index(spark, built.at, sample=8, rows=1000, **lake_store.settings).problems == []

    async def found() -> None:
        async with asyncpq.Session(lake_store.session_options) as session:
            index = await session.open_index(built.at)
            assert all(len(rows) > 1 for rows in (await content(index)).values())
            lake = await session.open_dataset(f"{lake_store.url}/lake", index=index, on_bad_file="skip")
            assert await lake.count(where=asyncpq.col("id") == 7) >= 2000
            assert lake.metrics.files_opened < 8

    asyncio.run(found())


def test_what_makes_no_sense_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 1)
    with pytest.raises(InvalidOptionError, match="credential"):
        build_index(spark, str(tmp_path), FEW, at="s3://key:secret@bucket/index")
    with pytest.raises(InvalidOptionError, match="at must be given, since only the index of a prefix"):
        build_index(spark, [f"{tmp_path}/a.parquet"], FEW)
    with pytest.raises(InvalidOptionError, match="kinds"):
        build_index(spark, str(tmp_path), "Keys")  # type: ignore[arg-type]
    with pytest.raises(ObjectNotFoundError):
        refresh_index(spark, str(tmp_path / "nothing"))
    build_index(spark, str(tmp_path), [Footers()])
    with pytest.raises(InvalidOptionError, match="another index is there"):
        build_index(spark, str(tmp_path), [Bounds()])


def test_local_paths_are_made_whole(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "lake" / "a.parquet", 1)
    monkeypatch.chdir(tmp_path)
    assert build_index(spark, "lake", [Keys("id")]).files == 1
    shutil.rmtree(tmp_path / "lake")


def test_paths_mean_what_they_mean_to_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors work elsewhere."""
    write(tmp_path / "lake" / "a.parquet", 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = spark.read.parquet(str(tmp_path / "lake")).count()
    for lake in ("lake", "~/lake", ["lake/a.parquet"]):
        assert scan(spark, lake).count() == rows
    build_index(spark, "~/lake", [Keys("id")], at="~/index")
    for index in ("index", "~/index"):
        assert scan(spark, "lake", index=index).count() == rows
        for lake in ("lake", "~/lake"):
            keys = scan(spark, lake, where="id IS NOT NULL").select("id")
            assert lookup_join(keys, lake, on="id", how="semi", index=index).count() == keys.count() > 0
    assert optimize(spark, "~/lake", "sorted", "id").rows == rows
    assert scan(spark, tmp_path / "sorted").count() == rows
    assert refresh_index(spark, "index").files == 1
    with pytest.raises(InvalidOptionError, match="only one slash"):
        build_index(spark, "lake", [Keys("id")], at="file:/index")
