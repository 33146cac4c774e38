"""Files that Spark wrote in its old calendar, read without Spark's types: the values are those that Spark reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from asyncpq import ReadOptions, Session, col
from asyncpq.decoding.calendars import rebase_timestamps
from asyncpq.parquet.calendars import zone_offsets

if TYPE_CHECKING:
    from pyspark.sql.conf import RuntimeConfig

# The years 1 to 1902, days around the gap of 1582, and seconds around the changes of zones' clocks.
_OLD = """
    SELECT id, date_add(date'0001-01-01', cast(id * 347 AS int)) AS d,
        timestamp_micros(-62135424000000000 + id * 29998765432101) AS t,
        named_struct('d', date_add(date'1582-10-25', -cast(id % 30 AS int)),
            't', array(timestamp_micros(-2208988800000000 + (id - 1000) * 86399000000))) AS s,
        map(date_add(date'1000-01-01', cast(id as int)), timestamp_micros(-2717650800000000 + id * 10000000)) AS m
    FROM range(2000)
"""
_NUMBERS = (
    *("id", "unix_date(d)", "unix_micros(t)", "unix_date(s.d)", "unix_micros(s.t[0])"),
    *("unix_date(map_keys(m)[0])", "unix_micros(map_values(m)[0])"),
)
_ZONES = ("America/Los_Angeles", "Europe/Amsterdam", "Asia/Kolkata", "Asia/Manila", "UTC", "+05:30")


def _numbers(array: pa.Array | pa.ChunkedArray) -> list[int]:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    return (array.cast(pa.int32()) if pa.types.is_date(array.type) else array).to_pylist()


def _rows(table: pa.Table) -> list[tuple[int, ...]]:
    table = table.sort_by("id").combine_chunks()
    s, m = table["s"].combine_chunks(), table["m"].combine_chunks()
    arrays = [table["id"], table["d"], table["t"], s.field("d"), s.field("t").values, m.keys, m.items]
    return list(zip(*map(_numbers, arrays), strict=True))


@pytest.mark.parametrize("unit", ["TIMESTAMP_MICROS", "TIMESTAMP_MILLIS", "INT96"])
@pytest.mark.parametrize("zone", _ZONES)
async def test_values_are_those_that_spark_reads(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, zone: str, unit: str
) -> None:
    restored_conf.set("spark.sql.session.timeZone", zone)
    restored_conf.set("spark.sql.parquet.outputTimestampType", unit)
    for kind in ("datetime", "int96"):
        restored_conf.set(f"spark.sql.parquet.{kind}RebaseModeInWrite", "LEGACY")
    options = {"parquet.page.row.count.limit": "100", "parquet.bloom.filter.enabled#d": "true"}
    spark.sql(_OLD).coalesce(1).write.options(**options).parquet(str(tmp_path / "old"))
    (path,) = (tmp_path / "old").glob("*.parquet")
    expected = [tuple(row) for row in spark.read.parquet(str(path)).selectExpr(*_NUMBERS).orderBy("id").collect()]
    async with Session(read=ReadOptions(int96_unit="us")) as session:
        file = await session.open_file(str(path))
        table = await file.read()
        assert _rows(table) == expected
        drawn = random.Random(zone + unit)
        for day in drawn.sample(table["d"].to_pylist(), 20):
            assert await file.count(col("d") == day) == 1
            assert await file.count(col("d") < day) == pc.sum(pc.less(table["d"], day)).as_py()
        for moment in drawn.sample(table["t"].to_pylist(), 20):
            assert await file.count(col("t") == moment) == 1
            assert await file.count(col("t") >= moment) == pc.sum(pc.greater_equal(table["t"], moment)).as_py()


def test_offsets_of_all_zones(spark: SparkSession) -> None:
    """Times around each change of a zone's clock, and of the calendars, for a sample of Spark's zones."""
    jvm = spark._jvm  # type: ignore[attr-defined]
    rebase = jvm.org.apache.spark.sql.catalyst.util.RebaseDateTime.rebaseJulianToGregorianMicros
    zones = sorted(jvm.java.util.TimeZone.getAvailableIDs())
    drawn = random.Random(7)
    for zone in [*drawn.sample([zone for zone in zones if "SystemV" not in zone], 40), "GMT+05:30", "-08:00", "Z"]:
        offsets = zone_offsets(zone)
        seconds = [-62_135_769_600 + drawn.randrange(60_000_000_000) for _ in range(4)]
        for start in (*offsets.local.starts[1:], -12_219_292_800, -17_981_568_000):
            seconds += [start - offsets.standard + delta for delta in (-1, 0)]
        micros = [second * 1_000_000 for second in seconds]
        rebased = rebase_timestamps(pa.array(micros, pa.int64()), 1_000_000, offsets).to_pylist()
        assert rebased == [rebase(zone, micro) for micro in micros], zone
