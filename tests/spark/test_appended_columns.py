"""Columns of appended rows, in the lake's order and types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from asyncpq.errors import AmbiguousColumnError, SchemaMismatchError
from asyncpq.spark.appended_columns import arranged, fitted
from asyncpq.spark.types.read_conf import ReadConf

LAKE = pa.schema({"id": pa.int64(), "price": pa.float64(), "n": pa.int16(), "s": pa.string()})
CONF = ReadConf()


_TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "double": DoubleType(),
    "float": FloatType(),
    "int": IntegerType(),
    "large decimal": DecimalType(20, 0),
    "smallint": ShortType(),
    "string": StringType(),
    "tinyint": ByteType(),
}


def columns_of(text: str) -> StructType:
    """The columns of a text as ``id bigint, s string``."""
    pairs = [column.split(" ", 1) for column in text.split(", ")]
    return StructType([StructField(name, _TYPES[dtype]) for name, dtype in pairs])


def fit(text: str, conf: ReadConf = CONF) -> tuple[StructType, tuple[int | None, ...]]:
    return fitted(columns_of(text), LAKE, conf, "s3://b/lake/")


def test_the_lake_s_order_and_spelling() -> None:
    struct, order = fit("S string, ID bigint, n smallint, price double")
    assert struct.names == LAKE.names
    assert order == (1, 3, 2, 0)


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_columns_in_any_order_and_missing_ones(order: list[int], missing: set[int]) -> None:
    """Values stay with their names; a missing column is null."""
    table = pa.table({"id": [1, 2], "price": [0.5, None], "n": pa.array([3, None], pa.int16()), "s": ["a", None]})
    table = table.cast(LAKE)
    names = [LAKE.names[at] for at in order if at not in missing]
    types = {"id": "bigint", "price": "double", "n": "smallint", "s": "string"}
    _, places = fit(", ".join(f"{name} {types[name]}" for name in names) or "id bigint")
    given_columns = table.select(names or ["id"])
    (batch,) = given_columns.combine_chunks().to_batches()
    found = pa.table(arranged(batch, places, LAKE))
    assert found.schema.equals(LAKE)
    for name in LAKE.names:
        expected = table[name] if name in given_columns.column_names else pa.nulls(2, LAKE.field(name).type)
        assert found[name].to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("text", "values"),
    [("id int, n tinyint", ([2**31 - 1, -(2**31)], [127, -128])), ("id tinyint, price float", ([1, -1], [0.5, -0.0]))],
)
def test_narrower_numbers_are_widened(text: str, values: tuple[list[Any], ...]) -> None:
    struct, order = fit(text)
    assert [field.dataType for field in struct] == [field.dataType for field in fit("id bigint, n smallint")[0]]
    types = {"int": pa.int32(), "tinyint": pa.int8(), "float": pa.float32()}
    arrays = [pa.array(column, types[one.split()[1]]) for column, one in zip(values, text.split(", "), strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[one.split()[0] for one in text.split(", ")])
    found = arranged(batch, order, LAKE)
    assert found.schema.equals(LAKE)
    for name, column in zip(batch.schema.names, values, strict=True):
        assert str(found.column(name).to_pylist()) == str(column)  # -0.0 too


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("id bigint, extra int", "extra"),
        ("id large decimal", "id"),
        ("n int", "n"),  # wider than the lake's
        ("price bigint", "price"),  # not all integers are floats
        ("s binary", "s"),
        ("id double", "id"),
    ],
)
def test_other_columns_are_refused(text: str, column: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        fit(text)
    assert caught.value.column == column
    assert "s3://b/lake/" in str(caught.value)


def test_names_that_differ_in_case_alone() -> None:
    with pytest.raises(AmbiguousColumnError):
        fit("id bigint, ID bigint")
