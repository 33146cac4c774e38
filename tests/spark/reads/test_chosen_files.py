"""Which of the listed files Spark reads: those of its own reader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from asyncpq.datasets.model import DataFile
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.errors import NotParquetError, PartitionError
from asyncpq.session import Session
from asyncpq.spark.reads.chosen_files import read_by_spark
from asyncpq.spark.reads.lake_scan import LakePlan, plan_lake
from asyncpq.spark.reads.opened_lake import LakeTarget, open_lake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write(root: Path, *paths: str) -> str:
    """Write one row to each path; a path that ends in ``!`` becomes an empty file."""
    for number, path in enumerate(paths):
        file = root / path.removesuffix("!")
        file.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("!"):
            file.touch()
        else:
            pq.write_table(pa.table({"id": [number]}), file)
    return str(root)


def planned(root: str, conf: ReadConf = ReadConf()) -> list[str]:  # noqa: B008
    """Return the relative paths of the files that a scan reads."""

    async def plan(session: Session) -> LakePlan:
        return await plan_lake(await open_lake(session, LakeTarget(target=root), conf), settings=SparkSettings())

    from asyncpq.distributed.scan_tasks import decode_files, unpack_task

    tasks = sessions.run_on_worker(SparkSettings(), plan).encoded()
    files = [file for task in tasks for part in unpack_task(task) for file in decode_files(bytes(part))]  # type: ignore[arg-type]
    return sorted(file.url[len(root) + 1 :] for file in files)


LAKES = {
    "empty first": (["a.parquet!", "b.parquet"], ["b.parquet"]),
    "empty last": (["a.parquet", "b.parquet!"], ["a.parquet"]),
    "copying": (["a.parquet", "b.parquet._COPYING_", "c._COPYING_x"], ["a.parquet", "c._COPYING_x"]),
    "beside": (["a.parquet", "p=1/b.parquet", "p=2/c.parquet!"], ["p=1/b.parquet"]),
    "within": (["p=1/a.parquet", "p=2/b.parquet"], ["p=1/a.parquet", "p=2/b.parquet"]),
}


@pytest.mark.parametrize("name", LAKES)
def test_files_are_chosen(name: str, tmp_path: Path) -> None:
    paths, expected = LAKES[name]
    assert planned(write(tmp_path, *paths)) == expected


@pytest.mark.parametrize("other", ["q=1/b.parquet", "p=1/q=2/b.parquet"])
def test_folders_of_different_columns_are_refused(other: str, tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="CONFLICTING_PARTITION_COLUMN_NAMES"):
        planned(write(tmp_path, "p=1/a.parquet", other))


def test_names_that_differ_in_case_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="differ in case, P and p; Spark reads them as one"):
        planned(write(tmp_path, "P=1/a.parquet", "p=2/b.parquet"))


@pytest.mark.parametrize("paths", [["=1/a.parquet"], ["p=1/=2/a.parquet"]])
def test_a_column_without_a_name_is_refused(paths: list[str], tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="EMPTY_PARTITION_COLUMN_NAME"):
        planned(write(tmp_path, *paths))


def test_files_of_patterns_and_lists_need_no_partition_folder() -> None:
    files = [DataFile(url="lake/a.parquet"), DataFile(url="lake/p=1/b.parquet"), DataFile(url="lake/q=1/c.parquet")]
    assert all(map(read_by_spark(files, None), files))


def test_a_setting_of_spark_leaves_corrupt_files_out(tmp_path: Path) -> None:
    root = write(tmp_path, "b.parquet")
    (tmp_path / "a.parquet").write_bytes(b"damaged")
    with pytest.raises(NotParquetError, match=r"a\.parquet"):
        planned(root)
    assert planned(root, ReadConf(ignore_corrupt_files=True)) == ["b.parquet"]


def test_spark_chooses_the_same_files(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    from asyncpq.spark import register, scan

    register(spark)
    for number, (paths, _) in enumerate(LAKES.values()):
        root = write(tmp_path / str(number), *paths)
        expected = sorted(map(tuple, spark.read.parquet(root).collect()))
        assert sorted(map(tuple, scan(spark, root).collect())) == expected
        assert sorted(map(tuple, scan(spark, root, reader="asyncpq").collect())) == expected
        assert sorted(map(tuple, spark.read.format("asyncpq").load(root).collect())) == expected
    with pytest.raises(PySparkException, match="CONFLICTING_PARTITION_COLUMN_NAMES"):
        spark.read.parquet(write(tmp_path / "x", "p=1/a.parquet", "q=1/b.parquet"))
    (tmp_path / "1" / "c.parquet").write_bytes(b"damaged")
    skipping = spark.read.format("asyncpq").option("onBadFile", "skip").load(str(tmp_path / "1"))
    assert skipping.count() == 1
