"""Names and schemas under Spark's settings, without a JVM."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from asyncpq.errors import AmbiguousColumnError, SchemaMismatchError
from asyncpq.spark.types.read_conf import (
    CHAR_VARCHAR_KEY,
    ReadConf,
    check_names,
    first_name,
    merged_schema,
    nullable,
    unquoted,
    without_char_and_varchar,
)

_CONF, _EXACT = ReadConf(), ReadConf(case_sensitive=True)


def test_names_ignore_case_unless_spark_is_set_otherwise() -> None:
    assert _CONF.find(["a", "ID"], "id") == 1
    assert _EXACT.find(["a", "ID"], "id") is None
    assert _EXACT.find(["id", "ID"], "ID") == 1
    with pytest.raises(AmbiguousColumnError, match="'id', 'ID'"):
        _CONF.find(["id", "ID"], "Id")


def test_equal_names_are_refused_at_any_depth() -> None:
    inner = StructType([StructField("x", LongType()), StructField("X", LongType())])
    schema = StructType([StructField("s", ArrayType(inner))])
    check_names(schema, _EXACT)
    with pytest.raises(AmbiguousColumnError, match=r"s\.element\.X"):
        check_names(schema, _CONF)


def test_names_in_backquotes() -> None:
    assert first_name("a.b") == "a"
    assert first_name("`a.b``c`.d") == "a.b`c"
    assert unquoted("`a.b`") == "a.b"
    assert unquoted("`a`.b") == "`a`.b"


def test_everything_becomes_nullable() -> None:
    strict = ArrayType(StructType([StructField("x", LongType(), False)]), False)
    assert nullable(strict) == ArrayType(StructType([StructField("x", LongType())]))


def test_varchar_becomes_a_string_with_its_type_in_the_metadata() -> None:
    schema = without_char_and_varchar(StructType([StructField("v", VarcharType(3)), StructField("n", LongType())]))
    assert [field.dataType for field in schema] == [StringType(), LongType()]
    assert [field.metadata.get(CHAR_VARCHAR_KEY) for field in schema] == ["varchar(3)", None]


def test_schemas_are_merged_with_the_first_files_columns_first() -> None:
    first = StructType([StructField("b", DecimalType(9, 2)), StructField("a", LongType(), False)])
    second = StructType(
        [StructField("A", LongType()), StructField("c", StringType()), StructField("b", DecimalType(5, 2))]
    )
    merged = merged_schema([first, second], _CONF)
    assert merged.simpleString() == "struct<b:decimal(9,2),a:bigint,c:string>"
    assert merged["a"].nullable
    assert merged_schema([], _CONF) == StructType([])
    with pytest.raises(SchemaMismatchError, match="bigint and int"):
        merged_schema([first, StructType([StructField("a", IntegerType())])], _CONF)
