"""Values in paths as Spark has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, StringType

from asyncpq import DataFile
from asyncpq.datasets.providers import GivenFiles
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.errors import NotParquetError, PartitionError, UnsupportedFeatureError
from asyncpq.scan.request import ScanRequest
from asyncpq.session import Session
from asyncpq.spark.reads.lake_scan import LakePlan, plan_lake
from asyncpq.spark.reads.opened_lake import (
    LakeTarget,
    PartitionTypes,
    SparkFiles,
    open_lake,
    read_by_spark,
    texts_in_paths,
)
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = ReadConf()
_FILES = [
    DataFile(url="s3://lake/p=1/q=a%20b/0.parquet", partition={"p": 1, "q": "a b"}),
    DataFile(url="s3://lake/p=02/q=%C3%A4/1.parquet", partition={"p": 2, "q": "ä"}),
]
_NO_OPERATION: Any = None


def test_texts_keep_their_escapes() -> None:
    assert texts_in_paths(_FILES, ["p", "q"], _CONF, hive=True) == {"p": {"1", "02"}, "q": {"a%20b", "%C3%A4"}}
    by_value = [DataFile(url="s3://lake/1/x.parquet", partition={"p": "5%"})]
    assert texts_in_paths(by_value, ["p"], _CONF, hive=False) == {"p": {"5%25"}}
    named = [DataFile(url="s3://lake/%C3%A4=1/x.parquet", partition={"ä": 1})]
    with pytest.raises(UnsupportedFeatureError, match="Spark reads the column name"):
        texts_in_paths(named, ["ä"], _CONF, hive=True)


async def test_files_have_sparks_values() -> None:
    types = PartitionTypes((("p", IntegerType()), ("q", StringType())), hive=True)
    files = SparkFiles(GivenFiles(_FILES), _CONF, types)
    found = await files.files(ScanRequest(), _NO_OPERATION)
    assert [file.partition for file in found.files] == [{"p": 1, "q": "a b"}, {"p": 2, "q": "Ã¤"}]
    typed = SparkFiles(GivenFiles(_FILES), _CONF, types, typed=True)
    assert (await typed.files(ScanRequest(), _NO_OPERATION)).files == _FILES


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


def test_names_that_differ_in_case_are_refused_if_case_counts(tmp_path: Path) -> None:
    root = write(tmp_path, "P=1/a.parquet", "p=2/b.parquet")
    assert planned(root) == ["P=1/a.parquet", "p=2/b.parquet"]
    with pytest.raises(PartitionError, match="CONFLICTING_PARTITION_COLUMN_NAMES"):
        planned(root, ReadConf(case_sensitive=True))


@pytest.mark.parametrize("paths", [["=1/a.parquet"], ["p=1/=2/a.parquet"]])
def test_a_column_without_a_name_is_refused(paths: list[str], tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match="EMPTY_PARTITION_COLUMN_NAME"):
        planned(write(tmp_path, *paths))


def test_files_of_patterns_and_lists_need_no_partition_folder() -> None:
    files = [DataFile(url="lake/a.parquet"), DataFile(url="lake/p=1/b.parquet"), DataFile(url="lake/q=1/c.parquet")]
    assert all(map(read_by_spark(files, None, ReadConf()), files))


def test_a_setting_of_spark_leaves_corrupt_files_out(tmp_path: Path) -> None:
    root = write(tmp_path, "b.parquet")
    (tmp_path / "a.parquet").write_bytes(b"damaged")
    with pytest.raises(NotParquetError, match=r"a\.parquet"):
        planned(root)
    assert planned(root, ReadConf(ignore_corrupt_files=True)) == ["b.parquet"]


#: Paths whose partition columns have several spellings, and conditions on these columns.
SPELLINGS = [
    (["P=1/a.parquet", "p=2/b.parquet", "p=1/c.parquet"], ["p = 1", "P = 2", "p > 1 or id = 0", "P is null"]),
    (["P=b/a.parquet", "p=2/b.parquet"], ["p = '2'", "P >= 'a'"]),
    (["p=1/Q=2/a.parquet", "P=3/q=x%20y/b.parquet"], ["q = 'x y'", "p = 3 and Q > 'a'", "q = '2'"]),
    (["aB=1/a.parquet", "Ab=2/b.parquet", "AB=__HIVE_DEFAULT_PARTITION__/c.parquet"], ["ab is null", "AB < 2"]),
    (["p=2020-01-01/a.parquet", "P=2020-01-02/b.parquet"], ["p = DATE'2020-01-02'", "P < DATE'2020-01-02'"]),
]


@pytest.mark.parametrize("number", range(len(SPELLINGS)))
def test_spellings_of_one_column_are_read_as_by_spark(spark: SparkSession, tmp_path: Path, number: int) -> None:
    from pyspark.errors import PySparkException

    from asyncpq.blocking import Session
    from asyncpq.indexing import Bounds
    from asyncpq.spark import register, scan

    register(spark)
    paths, conditions = SPELLINGS[number]
    root = write(tmp_path, *paths)

    def check(view: str | None) -> None:
        options = {} if view is None else {"view": view}
        for where in [None, *conditions]:
            plain, source = spark.read.parquet(root), spark.read.format("asyncpq").options(**options).load(root)
            frames = {"source": source if where is None else source.where(where)}
            for reader in ("spark", "asyncpq"):
                frames[reader] = scan(spark, root, where=where, reader=reader, **options)  # type: ignore[arg-type]
            expected = sorted(map(tuple, (plain if where is None else plain.where(where)).collect()), key=repr)
            for name, frame in frames.items():
                assert sorted(map(tuple, frame.collect()), key=repr) == expected, (where, view, name)

    check(None)
    with Session() as session:
        session.build_index(root, [Bounds("id")])
    check(None)
    with pytest.raises(PartitionError, match="differ only in case"):
        scan(spark, root, view="snapshot")
    with pytest.raises(PySparkException, match="differ only in case"):
        spark.read.format("asyncpq").option("view", "snapshot").load(root)


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
