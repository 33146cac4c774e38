"""Timestamps of nanoseconds and INT96 on their way through ``optimize``."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from asyncpq.errors import SchemaMismatchError, UnsupportedFeatureError
from asyncpq.spark.lake_writer import FrameWrite
from asyncpq.spark.optimize_lake import optimize, write_frame
from asyncpq.spark.optimize_source import TimestampSearch
from asyncpq.spark.settings import SparkSettings
from tests.spark.optimized import files_left, table_of, write_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MICROS = [None, -1, 0, 1, 1_700_000_000_123_456, -(2**62) // 1000]
_NS, _NZ = pa.timestamp("ns"), pa.timestamp("ns", "UTC")


def _nanoseconds(digits: int) -> pa.Table:
    exact = [None if one is None else one * 1000 + digits for one in _MICROS]
    return pa.table(
        {
            "id": pa.array(range(len(exact)), pa.int32()),
            "a": pa.array(exact, _NS),
            "b": pa.array(exact, _NZ),
            "s": pa.array(
                [{"x": one, "l": [one, None]} for one in exact], pa.struct([("x", _NZ), ("l", pa.list_(_NS))])
            ),
            "m": pa.array([[(1, one)] for one in exact], pa.map_(pa.int32(), _NZ)),
        }
    )


def test_nanoseconds_become_microseconds_if_that_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source = write_lake(tmp_path / "source", _nanoseconds(0))
    result = optimize(spark, source, str(tmp_path / "target"), ["b", "id"], partitions=1)
    found = table_of(result).sort_by("id")
    assert found["a"].type == pa.timestamp("us")
    assert found["b"].type == pa.timestamp("us", "UTC")
    for name, unit in [("a", found["a"]), ("b", found["b"])]:
        assert unit.cast(pa.int64()).to_pylist() == _MICROS, name
    assert [None if row["x"] is None else row["x"] for row in found["s"].to_pylist()] == found["b"].to_pylist()
    assert [row["l"] for row in found["s"].to_pylist()] == [[one, None] for one in found["a"].to_pylist()]
    assert [row[0][1] for row in found["m"].to_pylist()] == found["b"].to_pylist()


def test_files_whose_digits_were_looked_at_are_closed(tmp_path: Path) -> None:
    urls = [write_lake(tmp_path / str(number), _nanoseconds(0), files=1) for number in range(5)]
    files = [str(path) for url in urls for path in Path(url).glob("*.parquet")]
    search = TimestampSearch(frozenset({"a"}), frozenset({"a"}), SparkSettings(disk_cache="off"))

    def held() -> int:
        found = [row for batch in search(iter([pa.record_batch({"url": files})])) for row in batch.to_pylist()]
        assert found == []
        return len(os.listdir("/proc/self/fd"))

    assert held() == held()


def test_digits_below_a_microsecond_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    for column in ("a", "b", "s", "m"):
        table = _nanoseconds(0)
        lossy = table.set_column(table.schema.get_field_index(column), column, _nanoseconds(1)[column])
        source = write_lake(tmp_path / column, lossy, files=1)
        with pytest.raises(UnsupportedFeatureError, match="below a microsecond") as caught:
            optimize(spark, source, target, "id")
        assert caught.value.column == column
        assert not files_left(tmp_path / "target")
    for columns in (["id", "A"], ["ID", "s.x"], ["`a`"], ["*"]):  # however they are spelled, and parts of them
        lossy = _nanoseconds(1)
        source = write_lake(tmp_path / f"columns {columns[-1].replace('*', 'all')}", lossy, files=1)
        with pytest.raises(UnsupportedFeatureError, match="below a microsecond"):
            optimize(spark, source, target, "a" if columns == ["`a`"] else "id", columns=columns)
    optimize(spark, str(tmp_path / "m"), target, "id", partitions=1, columns=["id", "a", "b", "s"])


def test_digits_below_a_microsecond_are_dropped_if_that_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    source = write_lake(tmp_path / "source", _nanoseconds(999))
    result = optimize(spark, source, str(tmp_path / "target"), "id", partitions=1, timestamp_loss="truncate")
    found = table_of(result)
    assert found["a"].cast(pa.int64()).to_pylist() == _MICROS
    assert [row["x"] for row in found["s"].to_pylist()] == found["b"].to_pylist()


def test_lakes_are_optimized_at_once(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both need settings of the one session: who ends first leaves them to the other."""
    source = write_lake(tmp_path / "source", _nanoseconds(0))
    begun, ended = threading.Event(), threading.Event()
    real = write_frame

    def in_turn(frame: DataFrame, write: FrameWrite) -> Any:
        if write.folder.endswith("first/"):
            assert begun.wait(120)
        else:
            begun.set()
            assert ended.wait(120)
        return real(frame, write)

    monkeypatch.setattr("asyncpq.spark.optimize_lake.write_frame", in_turn)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(optimize, spark, source, str(tmp_path / "first"), "id", partitions=1)
        second = pool.submit(optimize, spark, source, str(tmp_path / "second"), "id", partitions=1)
        found = table_of(first.result(240))
        ended.set()
        assert table_of(second.result(240)).equals(found)


def test_int96_is_refused_where_spark_would_drop_digits(spark: SparkSession, tmp_path: Path) -> None:
    exact = pa.table({"t": pa.array([1_000, None, -2_000], _NS)})
    source = write_lake(tmp_path / "exact", exact, files=1, use_deprecated_int96_timestamps=True)
    result = optimize(spark, source, str(tmp_path / "a"), "t", partitions=1)
    assert table_of(result)["t"].cast(pa.int64()).to_pylist() == [None, -2, 1]
    lossy = pa.table({"t": pa.array([1_001], _NS)})
    source = write_lake(tmp_path / "lossy", lossy, files=1, use_deprecated_int96_timestamps=True)
    with pytest.raises(UnsupportedFeatureError, match="below a microsecond"):
        optimize(spark, source, str(tmp_path / "b"), "t")


def test_files_of_two_units_are_refused_since_spark_would_take_one_for_the_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = Path(write_lake(tmp_path / "source", pa.table({"t": pa.array([1_000], _NS)}), files=1))
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us"))}), folder / "part-1.parquet")
    for loss in ("error", "truncate"):
        with pytest.raises(SchemaMismatchError, match="nanosecond timestamps"):
            optimize(spark, str(folder), str(tmp_path / "target"), "t", timestamp_loss=loss)
