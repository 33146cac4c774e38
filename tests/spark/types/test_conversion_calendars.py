"""Old calendars: files that Spark wrote as its versions before 3.0 did, read by asyncpq and by Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType, TimestampType

from asyncpq.distributed import FooterFacts
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.spark.types.read_conf import ReadConf, jvm_time_zone
from tests.parquet_files import EditedFile
from tests.spark.types_files import assert_same, metadata_of, read_as_spark, to_spark, write

if TYPE_CHECKING:
    from pyspark.sql.conf import RuntimeConfig

# Days around all switches of the two calendars, and clocks around those of the zones.
_OLD = """
    SELECT date_add(date'0001-01-01', cast(id * 487 AS int)) AS date,
        timestamp_micros(unix_micros(timestamp'0001-01-05 01:02:03.456789') + id * 42098765432101) AS timestamp,
        array(named_struct('d', date_add(date'1582-10-20', -cast(id % 20 AS int)))) AS nested,
        timestamp_ntz'1000-01-01 00:00:00' AS local
    FROM range(1500)
"""
_WRITE = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
_READ = ("spark.sql.parquet.datetimeRebaseModeInRead", "spark.sql.parquet.int96RebaseModeInRead")


def _written(
    spark: SparkSession, conf: RuntimeConfig, folder: Path, zone: str, unit: str, mode: str = "LEGACY"
) -> Path:
    conf.set("spark.sql.session.timeZone", zone)
    conf.set("spark.sql.parquet.outputTimestampType", unit)
    for key in _WRITE:
        conf.set(key, mode)
    target = folder / f"{zone.replace('/', '_')}-{unit}-{mode}"
    spark.sql(_OLD).coalesce(1).write.parquet(str(target))
    (path,) = target.glob("*.parquet")
    return path


@pytest.mark.parametrize(
    ("zone", "unit"),
    [
        ("America/Los_Angeles", "TIMESTAMP_MICROS"),
        ("Europe/Paris", "TIMESTAMP_MILLIS"),
        ("Asia/Shanghai", "INT96"),
        ("UTC", "INT96"),
    ],
)
def test_files_of_the_old_calendar(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, zone: str, unit: str
) -> None:
    path = _written(spark, restored_conf, tmp_path, zone, unit)
    conf = ReadConf.of(spark)
    dates = conf.of_file(metadata_of(path))
    assert (dates.int96 if unit == "INT96" else dates.datetime) == ("LEGACY", zone)
    assert_same(read_as_spark(path, conf), spark.read.parquet(str(path)).toArrow())


def test_files_of_todays_calendar(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    """INT96 reaches further than nanoseconds in 64 bits do."""
    path = _written(spark, restored_conf, tmp_path, "UTC", "INT96", "CORRECTED")
    for key in _READ:  # what the file says goes before what is set
        restored_conf.set(key, "LEGACY")
    conf = ReadConf.of(spark)
    dates = conf.of_file(metadata_of(path))
    assert (dates.datetime.mode, dates.int96.mode, dates.int96_zone) == ("CORRECTED", "CORRECTED", None)
    assert_same(read_as_spark(path, conf), spark.read.parquet(str(path)).toArrow())


def _anonymous(path: Path) -> Path:
    """The file without a word on its writer."""
    edited = EditedFile(path.read_bytes())
    edited.footer.put(5, None)
    copy = path.parent / "anonymous.parquet"
    copy.write_bytes(edited.data())
    return copy


@pytest.mark.parametrize("unit", ["TIMESTAMP_MICROS", "INT96"])
def test_files_that_do_not_say(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, unit: str) -> None:
    path = _anonymous(_written(spark, restored_conf, tmp_path, "UTC", unit))
    restored_conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # the JVM's counts
    for mode in ("CORRECTED", "LEGACY"):
        for key in _READ:
            restored_conf.set(key, mode)
        conf = replace(ReadConf.of(spark), jvm_time_zone=jvm_time_zone(spark))
        assert_same(read_as_spark(path, conf), spark.read.parquet(str(path)).toArrow())
    conf = ReadConf.of(spark)
    with pytest.raises(UnsupportedFeatureError, match="the time zone of its writer") as raised:
        read_as_spark(path, conf)
    assert raised.value.column == "timestamp"
    for key in _READ:
        restored_conf.set(key, "EXCEPTION")
    with pytest.raises(UnsupportedFeatureError, match="READ_ANCIENT_DATETIME"):
        read_as_spark(path, ReadConf.of(spark))
    with pytest.raises(Exception, match="READ_ANCIENT_DATETIME"):
        spark.read.parquet(str(path)).collect()


def test_int96_beside_other_timestamps_in_one_column() -> None:
    """Which of them is which is not known any more: that matters where they are read in different ways."""

    def leaf(kind: PhysicalType, logical: LogicalKind | None, field: int) -> Any:
        named = None if logical is None else SimpleNamespace(kind=logical)
        return SimpleNamespace(element=SimpleNamespace(physical_type=kind), logical_type=named, field_index=field)

    leaves = [
        *(leaf(PhysicalType.INT96, None, 0), leaf(PhysicalType.INT64, LogicalKind.TIMESTAMP, 0)),
        *(leaf(PhysicalType.INT96, None, 1), leaf(PhysicalType.INT64, None, 1)),
        leaf(PhysicalType.INT64, LogicalKind.TIMESTAMP, 2),
    ]
    schema = SimpleNamespace(leaves=leaves, fields=[SimpleNamespace(name=name) for name in "abc"])
    metadata: Any = SimpleNamespace(schema=schema, key_value_metadata={}, created_by="other")
    conf = ReadConf(session_time_zone="Europe/Paris", int96_timestamp_conversion=True)
    dates = conf.of_file(FooterFacts(metadata))
    assert (sorted(dates.int96_fields), sorted(dates.mixed_fields)) == (["a", "b"], ["a"])
    batch = pa.record_batch(
        {name: [{"t": None}] for name in "ab"},
        pa.schema([(name, pa.struct([("t", pa.timestamp("us", "UTC"))])) for name in "ab"]),
    )
    struct = StructType([StructField(name, StructType([StructField("t", TimestampType())])) for name in "ab"])
    with pytest.raises(UnsupportedFeatureError, match="Spark reads differently") as raised:
        to_spark(batch, struct, conf, dates)
    assert raised.value.column == "a.t"
    assert to_spark(batch, struct, conf, replace(dates, int96_zone=None)).num_rows == 1


def test_int96_of_other_writers(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    """``int96TimestampConversion`` takes the values for the clock of the session's zone."""
    restored_conf.set("spark.sql.parquet.int96TimestampConversion", "true")
    restored_conf.set("spark.sql.session.timeZone", "Europe/Paris")
    hours = [at * 3_600_000_000 for at in range(-30_000, 500_000, 397)]
    path = write(
        tmp_path, "clock", pa.table({"t": pa.array(hours, pa.timestamp("us"))}), use_deprecated_int96_timestamps=True
    )
    conf = ReadConf.of(spark)
    assert conf.of_file(metadata_of(path)).int96_zone == "Europe/Paris"
    frame = spark.read.parquet(str(path))
    assert_same(read_as_spark(path, conf), frame.toArrow())
