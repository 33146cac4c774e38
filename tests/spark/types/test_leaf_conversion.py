"""Arrays without children as Spark's types, without a JVM."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from asyncpq.errors import SchemaMismatchError
from asyncpq.spark.types.calendars import FileDates
from asyncpq.spark.types.leaf_conversion import LeafRules, leaf_conversion

_RULES = LeafRules(FileDates(), is_int96=False)


def _converted(array: pa.Array, target: DataType) -> list[Any]:
    convert = leaf_conversion(array.type, target, _RULES)
    values: list[Any] = (array if convert is None else convert(array)).to_pylist()
    return values


@pytest.mark.parametrize(
    ("array", "target", "values"),
    [
        (pa.array([1, None], pa.int32()), LongType(), [1, None]),
        (pa.array([1, 2], pa.int32()), DoubleType(), [1.0, 2.0]),
        (pa.array([300, -1], pa.int32()), ByteType(), [44, -1]),  # the low bits
        (pa.array([7], pa.int64()), DecimalType(20, 0), [Decimal(7)]),
        (pa.array([1.5], pa.float32()), DoubleType(), [1.5]),
        (pa.array(["a"]).dictionary_encode(), StringType(), ["a"]),
        (pa.array(["a"], pa.large_string()), StringType(), ["a"]),
        (pa.array([b"a"]), BinaryType(), [b"a"]),
        (pa.nulls(2), LongType(), [None, None]),
        (pa.array([dt.date(2024, 5, 1)]), DateType(), [dt.date(2024, 5, 1)]),
    ],
)
def test_values_are_those_of_sparks_reader(array: pa.Array, target: DataType, values: list[Any]) -> None:
    assert _converted(array, target) == values


def test_equal_types_need_no_conversion() -> None:
    assert leaf_conversion(pa.int64(), LongType(), _RULES) is None
    assert leaf_conversion(pa.timestamp("us", "UTC"), TimestampType(), _RULES) is None


@pytest.mark.parametrize(
    ("source", "target"),
    [(pa.string(), LongType()), (pa.int64(), IntegerType()), (pa.float64(), LongType()), (pa.int32(), BooleanType())],
)
def test_types_that_spark_does_not_read_are_refused(source: pa.DataType, target: DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="Spark cannot read as"):
        leaf_conversion(source, target, _RULES)
