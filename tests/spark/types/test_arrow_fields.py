"""Arrow fields for Spark's types; the reads of files with them are tested with the lakes that need them."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from asyncpq.spark.types.arrow_fields import for_other_files, lake_column, lake_field
from asyncpq.spark.types.read_conf import ReadConf

_CONF = ReadConf(case_sensitive=False)
_UTC = pa.timestamp("us", "UTC")


def _lake_type(known: pa.DataType, asked: DataType, conf: ReadConf = _CONF) -> pa.DataType:
    field = lake_field(pa.field("Name", known), StructField("name", asked), conf)
    assert field.name == "Name"  # the name in files, whatever case Spark uses
    return field.type


def test_a_type_that_spark_reads_as_the_requested_one_stays() -> None:
    assert _lake_type(pa.int32(), IntegerType()) == pa.int32()
    assert _lake_type(pa.large_string(), StringType()) == pa.large_string()
    assert _lake_type(pa.uint32(), LongType()) == pa.uint32()  # Spark reads unsigned integers as the next wider type


def test_another_type_becomes_the_requested_one() -> None:
    assert _lake_type(pa.int32(), LongType()) == pa.int64()
    assert _lake_type(pa.timestamp("us"), TimestampType()) == _UTC


def test_parts_of_nested_columns_change_alone() -> None:
    known = pa.struct([("A", pa.large_string()), ("b", pa.list_(pa.int32())), ("unused", pa.int8())])
    asked = StructType(
        [
            StructField("a", StringType()),
            StructField("b", ArrayType(LongType())),
            StructField("new", MapType(StringType(), IntegerType())),
        ]
    )
    read = _lake_type(known, asked)
    assert [field.name for field in read] == ["A", "b", "new"]
    assert read.field("A").type == pa.large_string()
    assert read.field("b").type.value_type == pa.int64()
    assert read.field("new").type.item_type == pa.int32()
    names = [field.name for field in _lake_type(known, asked, ReadConf(case_sensitive=True))]
    assert names == ["a", "b", "new"]  # "a" is another column than "A"


def test_maps_keep_the_types_that_fit() -> None:
    read = _lake_type(pa.map_(pa.large_string(), pa.int32()), MapType(StringType(), LongType()))
    assert (read.key_type, read.item_type) == (pa.large_string(), pa.int64())


def test_a_missing_column_has_sparks_type() -> None:
    assert lake_column(StructField("at", TimestampType())).type == _UTC
    assert lake_column(StructField("n", IntegerType())).type == pa.int32()


@pytest.mark.parametrize(
    ("known", "asked", "expected"),
    [
        (pa.timestamp("ns"), TimestampType(), _UTC),
        (pa.timestamp("us"), TimestampNTZType(), pa.timestamp("us")),
        (pa.timestamp("ms", "UTC"), TimestampType(), pa.timestamp("ms", "UTC")),
        (pa.int32(), LongType(), pa.int32()),
        (pa.uint32(), LongType(), pa.int64()),
        (pa.uint8(), ShortType(), pa.int16()),
        (pa.uint64(), DecimalType(20, 0), pa.uint64()),
        (pa.list_(pa.uint16()), ArrayType(IntegerType()), pa.list_(pa.int32())),
    ],
)
def test_types_of_one_file_hold_the_values_of_others(
    known: pa.DataType, asked: DataType, expected: pa.DataType
) -> None:
    assert for_other_files(pa.field("t", known), StructField("t", asked)).type == expected
