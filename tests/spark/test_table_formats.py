"""Delta, Iceberg and DuckLake on Spark: each verb gives the rows of a version, without those that were deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")
pytest.importorskip("deltalake", reason="needs deltalake: pip install asyncpq-parquet[delta]")
pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install asyncpq-parquet[iceberg]")
pytest.importorskip("sqlalchemy", reason="needs SQLAlchemy: pip install asyncpq-parquet[ducklake]")

from deltalake import DeltaTable, write_deltalake

import asyncpq.spark
from asyncpq.errors import InvalidOptionError, UnsupportedFeatureError
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.spark import build_index, explain_scan, lookup_join, optimize, refresh_index, scan, verify_index
from asyncpq.spark.join_strategy import JoinStrategy
from tests.ducklake_lakes import Lake
from tests.iceberg_tables import make_table
from tests.spark.joined import HOWS, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])
#: Ids of the rows of the older version, and of the newest: 5 is deleted, 103 came once more.
_OLD: Final = list(range(200))
_NEW: Final = sorted([*(number for number in _OLD if number != 5), 103])


def _rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table({"id": numbers, "name": [f"n{n % 10}" for n in numbers]}, _SCHEMA)


@dataclass(frozen=True)
class Versions:
    """Two versions of a table, each as ``scan`` takes it: the target and options.

    Attributes:
        as_text: the target is a url, which options of the source can hold.
        append: adds the ids 300 to 309; what is then the newest version.
    """

    new: tuple[Any, dict[str, Any]]
    old: tuple[Any, dict[str, Any]]
    append: Callable[[], tuple[Any, dict[str, Any]]]
    as_text: bool = field(default=True)


def _delta(folder: Path) -> Versions:
    url = str(folder / "delta")
    write_deltalake(url, _rows(0, 100))
    write_deltalake(url, _rows(100, 200), mode="append")
    old = DeltaTable(url).version()
    DeltaTable(url).delete("id = 5")
    write_deltalake(url, _rows(103, 104), mode="append")

    def append() -> tuple[str, dict[str, Any]]:
        write_deltalake(url, _rows(300, 310), mode="append")
        return url, {"format": "delta"}

    return Versions((url, {"format": "delta"}), (url, {"format": "delta", "version": old}), append)


def _iceberg(folder: Path) -> Versions:
    table = make_table(folder / "iceberg", _SCHEMA)
    table.append(_rows(0, 100))
    table.append(_rows(100, 200))
    old = table.current_snapshot()
    assert old is not None
    table.delete("id = 5")
    table.append(_rows(103, 104))
    options = {"format": "iceberg", "version": old.snapshot_id}

    def append() -> tuple[str, dict[str, Any]]:
        table.append(_rows(300, 310))
        return table.metadata_location, {"format": "iceberg"}

    location = table.metadata_location
    return Versions((location, {"format": "iceberg"}), (location, options), append)


def _ducklake(folder: Path) -> Versions:
    folder = folder / "ducklake"
    folder.mkdir()
    text = "SELECT range AS id, 'n' || range % 10 AS name FROM range({}, {})"
    with Lake(folder) as lake:
        lake.sql(f"CREATE TABLE t AS {text.format(0, 100)}", f"INSERT INTO t {text.format(100, 200)}")
        old = lake.newest
        lake.sql("DELETE FROM t WHERE id = 5", f"INSERT INTO t {text.format(103, 104)}")

    def append() -> tuple[Any, dict[str, Any]]:
        with Lake(folder) as lake:
            lake.sql(f"INSERT INTO t {text.format(300, 310)}")
        return lake.table("t"), {}

    return Versions((lake.table("t"), {}), (lake.table("t", snapshot=old), {}), append, as_text=False)


_FORMATS: Final = {"delta": _delta, "iceberg": _iceberg, "ducklake": _ducklake}


@pytest.fixture(scope="module", params=_FORMATS)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return _FORMATS[request.param](tmp_path_factory.mktemp("formats"))


@pytest.fixture(params=["new", "old"])
def version(request: pytest.FixtureRequest, table: Versions) -> tuple[Any, dict[str, Any], list[int]]:
    """A version's target and options, and the ids of its rows."""
    target, options = table.new if request.param == "new" else table.old
    return target, options, _NEW if request.param == "new" else _OLD


def _ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.collect())


def _native(spark: SparkSession, ids: Sequence[int]) -> DataFrame:
    return spark.createDataFrame([(number, f"n{number % 10}") for number in ids], "id bigint, name string")


def test_scans(spark: SparkSession, version: tuple[Any, dict[str, Any], list[int]]) -> None:
    target, options, ids = version
    assert _ids(scan(spark, target, **options)) == ids
    assert _ids(scan(spark, target, where="id > 3 AND id < 8", **options)) == [n for n in ids if 3 < n < 8]
    assert scan(spark, target, columns=[], **options).count() == len(ids)
    plan = explain_scan(spark, target, where="id = 150", columns=["name"], **options)
    assert (plan.reader, plan.files) == ("asyncpq", 1)
    assert [row["name"] for row in plan.frame(spark).collect()] == ["n0"]
    with pytest.raises(UnsupportedFeatureError, match="a table defines"):
        scan(spark, target, reader="spark", **options)


def test_the_source(spark: SparkSession, table: Versions, version: tuple[Any, dict[str, Any], list[int]]) -> None:
    target, options, ids = version
    if not table.as_text:
        pytest.skip("the source takes urls")
    asyncpq.spark.register(spark)
    loaded = spark.read.format("asyncpq").options(**{name: str(value) for name, value in options.items()}).load(target)
    assert _ids(loaded) == ids


@pytest.mark.parametrize("strategy", ["auto", "lookups", "spark"])
def test_joins(spark: SparkSession, version: tuple[Any, dict[str, Any], list[int]], strategy: JoinStrategy) -> None:
    target, options, ids = version
    left = spark.createDataFrame([(3,), (5,), (103,), (103,), (250,), (None,)], "id bigint")
    native = _native(spark, ids)
    joined = [lookup_join(left, target, "id", how=how, strategy=strategy, **options) for how in HOWS]
    same(joined, [left.join(native, "id", how) for how in HOWS])


def test_indexes(spark: SparkSession, version: tuple[Any, dict[str, Any], list[int]], tmp_path: Path) -> None:
    target, options, ids = version
    built = build_index(spark, target, [Bounds("id"), Keys("name"), Footers()], at=str(tmp_path / "index"), **options)
    assert built.problems == ()
    plan = explain_scan(spark, target, where="name = 'n3'", index=built.at, **options)
    assert plan.read.index_report
    assert _ids(plan.frame(spark)) == [n for n in ids if n % 10 == 3]
    left = spark.createDataFrame([("n5",), ("x",)], "name string")
    joined = lookup_join(left, target, "name", index=built.at, strategy="lookups", **options)
    assert _ids(joined) == [n for n in ids if n % 10 == 5]


def test_optimize(spark: SparkSession, version: tuple[Any, dict[str, Any], list[int]], tmp_path: Path) -> None:
    target, options, ids = version
    done = optimize(spark, target, str(tmp_path / "all"), "id", **options)
    assert done.rows == len(ids)
    assert done.bytes_before is not None
    assert _ids(scan(spark, done.target)) == ids
    few = optimize(spark, target, str(tmp_path / "few"), "name", columns=["name"], where="id < 10", **options)
    names = sorted(f"n{number}" for number in ids if number < 10)
    assert [row["name"] for row in scan(spark, few.target).orderBy("name").collect()] == names


def test_optimize_does_not_commit_to_tables(spark: SparkSession, tmp_path: Path) -> None:
    target, options = _delta(tmp_path).new
    with pytest.raises(InvalidOptionError, match=r"overlap.*\n?.*asyncpq does not commit to tables"):
        optimize(spark, target, f"{target}/sorted", "id", **options)
    with pytest.raises(InvalidOptionError, match="the source is a DataFrame"):
        optimize(spark, scan(spark, target, **options), str(tmp_path / "sorted"), "id", **options)
    for wrong in ({"format": "parquet"}, {"version": 1}):
        with pytest.raises(InvalidOptionError, match=r"must be 'delta' or 'iceberg'|only Delta and Iceberg tables"):
            optimize(spark, target, str(tmp_path / "sorted"), "id", **wrong)


@pytest.mark.parametrize("name", _FORMATS)
def test_an_index_of_an_older_version(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """It serves the newest version until it is refreshed, and afterwards."""
    made = _FORMATS[name](tmp_path)
    at = str(tmp_path / "index")
    build_index(spark, made.old[0], [Keys("id"), Footers()], at=at, **made.old[1])
    target, options = made.append()
    newest = [*_NEW, *range(300, 310)]
    for where, ids in (("id IN (5, 6, 103, 305)", [6, 103, 103, 305]), (None, newest)):
        assert _ids(scan(spark, target, where=where, index=at, **options)) == ids
    refresh_index(spark, at, table=target, **options)
    assert verify_index(spark, at, table=target, **options).problems == []
    plan = explain_scan(spark, target, where="id IN (5, 6, 103, 305)", index=at, **options)
    assert _ids(plan.frame(spark)) == [6, 103, 103, 305]
    assert _ids(scan(spark, target, index=at, **options)) == newest
