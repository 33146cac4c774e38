"""The types of partition columns, as Spark infers them from paths."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, DoubleType, IntegerType, StringType, TimeType

from asyncpq.errors import PartitionError
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.partition_types import DEFAULT_PARTITION, partition_scalar, partition_type
from asyncpq.spark.types.read_conf import ReadConf
from tests.spark.types_files import shown

if TYPE_CHECKING:
    from pyspark.sql.conf import RuntimeConfig

_NONE = DEFAULT_PARTITION
# Of two files; each pair is a column.
_VALUES = [
    *(("1", "2"), ("1", "3000000000"), ("007", "-0"), ("1", "1.5"), ("3000000000", "1.5"), ("1e5", "1e5")),
    *(("1E2", "1"), ("12345678901234567890", "1"), ("12345678901234567890", "1.5"), ("1" * 39, "1"), ("1.0", "1.")),
    *((".5", "1d"), ("NaN", "-Infinity"), ("nan", "1"), ("2020-01-01", "9999-12-31"), ("2020-1-1", "2020-02-30")),
    *(("2020-01-01", "2020-01-01 10:00:00"), ("2020-01-01 10:00:00.5", _NONE), ("2020-01-01 10:00:00.55", "1")),
    *(("2020-03-29 02:30:00", "2020-10-25 02:30:00"), ("1800-01-01 00:00:00", _NONE), ("2020-01-01", "1")),
    *(("a b", "%,=:"), (_NONE, "1"), (_NONE, "x"), (_NONE, _NONE), ("true", "false"), ("0x1p3", "1")),
    *(("12:00:00", "23:59:59.123456"), ("12:00", "24:00:00"), ("12:00:00", "1"), ("1e400", "0e5"), ("1.5e1", "1")),
    *(("0000001234567890123456789012345678901234567890", "1"), ("2020-01-01 24:00:00", _NONE), ("1_000", "1")),
]


@pytest.mark.parametrize(("inferred", "kind"), [("true", "TIMESTAMP_LTZ"), ("true", "TIMESTAMP_NTZ"), ("false", None)])
def test_types_and_values(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, inferred: str, kind: str | None
) -> None:
    restored_conf.set("spark.sql.session.timeZone", "Europe/Paris")
    restored_conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", inferred)
    if kind is not None:
        restored_conf.set("spark.sql.timestampType", kind)
    for row in range(2):
        folder = tmp_path.joinpath(*[f"p{at}={quote(pair[row], safe='')}" for at, pair in enumerate(_VALUES)])
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"row": [row]}), folder / f"{row}.parquet")
    frame = spark.read.parquet(str(tmp_path)).orderBy("row")
    expected = frame.toArrow()
    conf = ReadConf.of(spark)
    for at, pair in enumerate(_VALUES):
        field = frame.schema[f"p{at}"]
        texts = [quote(value, safe="") for value in pair]
        found = partition_type(texts, conf)
        assert found == field.dataType, pair
        values = [partition_scalar(text, found, conf) for text in texts]
        array = pa.array([value.as_py() for value in values], arrow_schema(frame.schema).field(field.name).type)
        assert all(value.type == array.type for value in values)
        assert shown(pa.chunked_array([array])) == shown(expected[field.name]), pair


def test_values_that_are_not_of_the_type(spark: SparkSession) -> None:
    conf = ReadConf.of(spark)
    for asked, value in ((IntegerType(), "1.5"), (DateType(), "2020-02-30"), (DoubleType(), "x"), (TimeType(6), "9")):
        with pytest.raises(PartitionError, match="is not a valid"):
            partition_scalar(value, asked, conf)
    with pytest.raises(PartitionError, match="empty"):
        partition_type([""], conf)
    assert partition_scalar("ü", StringType(), conf).as_py() == "ü"
    zoned = ReadConf(session_time_zone="+05:30")
    kind = partition_type(["2020-01-01 00:00:00"], zoned)
    assert partition_scalar("2020-01-01 00:00:00", kind, zoned).as_py() == dt.datetime(
        2019, 12, 31, 18, 30, tzinfo=dt.UTC
    )
