"""Types and values of asyncpq's batches against Spark's own Parquet reader."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import VariantVal

import asyncpq.spark
from asyncpq.errors import AsyncpqError
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.spark.types.conversion import arrow_schema, from_spark
from asyncpq.spark.types.parquet_schema import ROW_METADATA_KEY, spark_schema
from asyncpq.spark.types.read_conf import ReadConf, nullable_struct
from tests.parquet_files import Struct
from tests.spark.types.test_parquet_schema import GROUPS, LEAVES, REFUSED, footer_of
from tests.spark.types_files import (
    assert_same,
    batches_of_paths,
    every_type,
    metadata_of,
    read_as_spark,
    required,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql.conf import RuntimeConfig

#: Through the tasks of asyncpq, however small the lakes are.
scan = partial(asyncpq.spark.scan, reader="asyncpq")


@pytest.fixture
def conf(spark: SparkSession) -> ReadConf:
    return ReadConf.of(spark)


def assert_read_as_spark_does(spark: SparkSession, path: Path, conf: ReadConf) -> None:
    frame = spark.read.parquet(str(path))
    assert spark_schema(metadata_of(path), conf) == frame.schema
    got = read_as_spark(path, conf)
    assert got.schema.equals(arrow_schema(frame.schema))
    assert_same(got, frame.toArrow())


def test_every_arrow_type(spark: SparkSession, conf: ReadConf, tmp_path: Path) -> None:
    columns = every_type()
    assert_read_as_spark_does(spark, write(tmp_path, "arrow", pa.table(columns)), conf)
    plain = write(tmp_path, "plain", pa.table(columns), version="1.0", store_schema=False, use_dictionary=False)
    assert_read_as_spark_does(spark, plain, conf)
    assert_read_as_spark_does(spark, write(tmp_path, "required", required(columns)), conf)


def test_settings_of_types(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    columns = every_type()
    columns["timestamp_ns"] = pa.array([1, None, -1001], pa.timestamp("ns"))
    columns["time_us"] = pa.array([1, None, 86_399_999_999], pa.time64("us"))
    columns["time_ns"] = pa.array([1, None, 86_399_999_999_999], pa.time64("ns"))
    for key in (
        "spark.sql.legacy.parquet.nanosAsLong",
        "spark.sql.parquet.binaryAsString",
        "spark.sql.parquet.reader.respectUnknownTypeAnnotation.enabled",
        "spark.sql.timeType.enabled",
        "spark.sql.caseSensitive",
    ):
        restored_conf.set(key, "true")
    restored_conf.set("spark.sql.parquet.inferTimestampNTZ.enabled", "false")
    restored_conf.set("spark.sql.session.timeZone", "America/New_York")
    columns["binary"] = pa.array([b"a", None, b"b"])
    columns["BINARY"] = columns["binary"]
    conf = ReadConf.of(spark)
    assert conf.nanos_as_long
    assert conf.case_sensitive
    assert conf.session_time_zone == "America/New_York"
    assert_read_as_spark_does(spark, write(tmp_path, "settings", pa.table(columns)), conf)


def _named(elements: Sequence[Struct], name: str) -> list[Struct]:
    """The field ``c`` under another name."""
    first = Struct(elements[0])
    first.put(4, name.encode())
    return [first, *elements[1:]]


def test_hand_made_schemas(spark: SparkSession, conf: ReadConf, tmp_path: Path) -> None:
    """All that Spark has a type for, in one file; ``c_tuple`` has its meaning in ``c`` alone."""
    fields: list[Sequence[Struct]] = [[leaf] for _, leaf in LEAVES]
    fields += [elements for expected, elements in GROUPS if expected is not None]
    elements: list[Struct] = []
    for at, field in enumerate(fields):
        keeps = any(element.value(4) == b"c_tuple" for element in field)
        elements += field if keeps else _named(field, f"c{at}")
    path = tmp_path / "made.parquet"
    path.write_bytes(footer_of(*elements, top=len(fields)).data())
    schema = spark.read.parquet(str(path)).schema
    assert len(schema) == len(fields)
    assert spark_schema(metadata_of(path), conf) == schema


@pytest.mark.slow
def test_hand_made_schemas_that_spark_refuses(spark: SparkSession, tmp_path: Path) -> None:
    refused: list[Sequence[Struct]] = [[leaf] for _, leaf in REFUSED]
    refused += [elements for expected, elements in GROUPS if expected is None]
    for at, elements in enumerate(refused):
        path = tmp_path / f"{at}.parquet"
        path.write_bytes(footer_of(*elements).data())
        with pytest.raises(Exception, match=r"PARQUET_TYPE|Invalid|TIME|FOOTER|DECIMAL"):
            _ = spark.read.parquet(str(path)).schema


def _random_type(chance: random.Random, depth: int) -> pa.DataType:
    leaves = [
        pa.int8(),
        pa.uint32(),
        pa.int64(),
        pa.large_string(),
        pa.float32(),
        pa.bool_(),
        pa.timestamp("ms", "UTC"),
    ]
    leaves += [pa.uint64(), pa.decimal128(20, 3), pa.date32(), pa.binary(2)]
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(leaves)
    inner = _random_type(chance, depth - 1)
    return chance.choice(
        [
            pa.list_(inner),
            pa.large_list(pa.field("item", inner, nullable=False)),
            pa.struct([("A", inner), pa.field("b c", _random_type(chance, 0), nullable=False)]),
            pa.map_(pa.int16(), inner),
        ]
    )


def _random_value(chance: random.Random, kind: Any, nullable: bool = True) -> Any:
    if nullable and chance.random() < 0.2:
        return None
    if isinstance(kind, pa.StructType):
        return {field.name: _random_value(chance, field.type, field.nullable) for field in kind}
    if isinstance(kind, pa.MapType):
        return [(at, _random_value(chance, kind.item_type)) for at in range(chance.randrange(3))]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        field = kind.value_field
        return [_random_value(chance, field.type, field.nullable) for _ in range(chance.randrange(4))]
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_large_string(kind):
        return chance.choice(["", "x", "yy"])
    if pa.types.is_fixed_size_binary(kind):
        return chance.choice([b"ab", b"\x00\xff"])
    if pa.types.is_float32(kind):
        return chance.choice([float("nan"), -0.0, 1.5])
    number = chance.choice([0, 1, 100])
    return pa.scalar(number, pa.int64()).cast(pa.int32()).cast(kind).as_py() if pa.types.is_date(kind) else number


def test_random_nested_types(spark: SparkSession, conf: ReadConf, tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(3):
        kinds = [_random_type(chance, 3) for _ in range(12)]
        columns = {
            f"c{at}": pa.array([_random_value(chance, kind) for _ in range(50)], kind) for at, kind in enumerate(kinds)
        }
        assert_read_as_spark_does(spark, write(tmp_path, f"random{number}", pa.table(columns), row_group_size=17), conf)


# By the name in every_type, types that Spark's reader gives it beside its own.
_WIDER = {
    "int8": "int, bigint, double, decimal(10,0), decimal(38,4), date, smallint",
    "int16": "tinyint, int, bigint, decimal(12,2)",
    "int32": "tinyint, smallint, bigint, double, decimal(20,0)",
    "uint8": "tinyint, int, bigint, double",
    "uint32": "double",
    "int64": "decimal(20,0), decimal(38,10), interval day to second",
    "float": "double",
    "string": "binary",
    "fixed": "binary",
    "date": "int, bigint, timestamp_ntz",
    "timestamp_ms": "timestamp, bigint",
    "timestamp_us_paris": "timestamp_ntz, bigint, interval day to second",
    "duration_us": "interval day to second, decimal(20,0)",
    "decimal5": "decimal(5,2), decimal(15,2), decimal(25,4), decimal(38,2)",
    "decimal64": "decimal(17,4)",
    "struct": "struct<B:binary,a:bigint>, struct<c:int>, struct<a:int,z:array<string>>",
    "list": "array<bigint>",
    "map": "map<string,double>",
    "null": "int",
}
_REFUSED = {
    "int64": "int, double, decimal(12,2), timestamp, string",
    "uint32": "int, smallint, decimal(20,0), date",
    "uint64": "bigint, interval day to second",
    "double": "float",
    "string": "int",
    "fixed": "string",
    "date": "timestamp",
    "timestamp_ms": "int",
    "decimal38": "decimal(20,2)",
    "struct": "array<int>",
    "list": "array<string>",
}


def _names_and_types(types: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, several in types.items():
        depth, start = 0, 0
        for at, letter in enumerate(several + ","):
            depth += (letter in "(<") - (letter in ")>")
            if letter == "," and not depth:
                yield name, several[start:at].strip()
                start = at + 1


def test_given_schemas(spark: SparkSession, conf: ReadConf, tmp_path: Path) -> None:
    """As many copies of the columns as types are asked for, some asked in other cases, and some that are missing."""
    columns, words = every_type(), []
    table: dict[str, pa.Array] = {}
    for name, kind in _names_and_types(_WIDER):
        key = f"{name}_{len(table)}"
        table[key] = columns[name]
        words.append(f"`{key.upper() if len(table) % 2 else key}` {kind}")
    words += ["missing struct<a:int>", "`also missing` timestamp"]
    path = write(tmp_path, "given", pa.table(table))
    frame = spark.read.schema(", ".join(words)).parquet(str(path))
    assert_same(read_as_spark(path, conf, frame.schema), frame.toArrow())


def test_given_schemas_that_are_refused(spark: SparkSession, conf: ReadConf, tmp_path: Path) -> None:
    columns = every_type()
    for name, kind in _names_and_types(_REFUSED):
        path = write(tmp_path, name, pa.table({name: columns[name]}))
        schema = spark.createDataFrame([], f"`{name}` {kind}").schema
        with pytest.raises(AsyncpqError, match=name) as raised:
            read_as_spark(path, conf, schema)
        assert str(raised.value.column).split(".")[0] == name
    frame = spark.read.schema("int64 int").parquet(str(tmp_path / "int64.parquet"))
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        frame.collect()


@pytest.mark.slow
def test_that_spark_refuses_them_all(spark: SparkSession, tmp_path: Path) -> None:
    columns = every_type()
    for name, kind in _names_and_types(_REFUSED):
        path = write(tmp_path, name, pa.table({name: columns[name]}))
        with pytest.raises(Exception, match=r"FAILED_READ_FILE|UnsupportedOperation"):
            spark.read.schema(f"`{name}` {kind}").parquet(str(path)).collect()


_SPARK_TYPES = """
    SELECT id > 1 AS boolean, cast(id AS tinyint) AS tinyint, cast(id AS smallint) AS smallint, cast(id AS int) AS int,
        id AS bigint, cast(id AS float) / 3 AS float, id / 3 AS double, cast(id AS decimal(9,2)) AS decimal9,
        cast(id AS decimal(18,2)) AS decimal18, cast(id AS decimal(38,2)) AS decimal38, cast(id AS string) AS string,
        cast(cast(id AS string) AS binary) AS binary, date_add(date'2020-01-01', cast(id AS int)) AS date,
        timestamp'2020-01-01 12:34:56.123456Z' + make_dt_interval(cast(id AS int)) AS timestamp,
        timestamp_ntz'2020-01-01 12:34:56.123456' AS timestamp_ntz,
        make_dt_interval(cast(id AS int), 1, 2, 3.000004) AS day_time, array(id, null) AS array,
        map(cast(id AS string), named_struct('a', id, 'b', array(cast(id AS int)))) AS map,
        named_struct('x', nullif(id, 1), 'Y',
            if(id = 1, null, named_struct('z', nullif(timestamp'2020-01-01 00:00:00Z', null)))) AS struct,
        parse_json(concat('{"a": [', id, ', null, "x"]}')) AS variant,
        'Straße' COLLATE UNICODE_CI AS collated
    FROM range(3)
    UNION ALL SELECT null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
        null, null, null, parse_json('null'), null
"""


def test_every_spark_type(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    """Files of Spark, in each of its ways to write timestamps."""
    frame = spark.sql(_SPARK_TYPES).coalesce(1)
    restored_conf.set("spark.sql.variant.writeShredding.enabled", "false")
    for unit in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        restored_conf.set("spark.sql.parquet.outputTimestampType", unit)
        frame.write.parquet(str(tmp_path / unit))
        (path,) = (tmp_path / unit).glob("*.parquet")
        assert_read_as_spark_does(spark, path, ReadConf.of(spark))


_VARIANTS = """
    SELECT id, parse_json(CASE id % 9
        WHEN 0 THEN concat('{"a": ', id, ', "b": ["x", 1.25, {"c": null}], "ü": {"d": true, "e": "', id, '"}}')
        WHEN 1 THEN '{"a": "text", "b": []}'
        WHEN 2 THEN '{"b": [], "c": {"z": 1, "a": 1e30}}'
        WHEN 3 THEN concat('[', id * 1000000000, ', null, "x", {}]')
        WHEN 4 THEN 'null'
        WHEN 5 THEN null
        WHEN 6 THEN concat('"', repeat('x', id::int), '"')
        WHEN 7 THEN concat('123456789012345678901234567.', id)
        ELSE '{}'
    END) AS v FROM range(300)
    UNION ALL SELECT 300, to_variant_object(named_struct('a', 1.5d, 'b', array(date'2020-01-01'), 'c', 2.5f,
        'd', X'00ff', 'e', timestamp'2020-01-01 00:00:00.000001Z', 'f', timestamp_ntz'1900-01-01 00:00:00'))
"""


@pytest.mark.parametrize(
    "shredding",
    [
        None,
        "a int, b array<variant>",
        "a string, b array<struct<c string>>, `ü` struct<d boolean, e string>",
        "a double, b array<date>, c float, d binary, e timestamp, f timestamp_ntz",
        "array<bigint>",
        "decimal(38, 3)",
        "string",
    ],
    ids=str,
)
def test_shredded_variant(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, shredding: str | None
) -> None:
    """None: as Spark shreds it by default, where most values look alike. Forced, it can be at the top alone."""
    frame = spark.sql(_VARIANTS)
    if shredding is None:
        frame = frame.where("id % 9 in (0, 5, 8)").selectExpr("*", "array(v, null) AS l", "struct(v) AS s")
    else:
        restored_conf.set("spark.sql.variant.inferShreddingSchema", "false")
        restored_conf.set("spark.sql.variant.forceShreddingSchemaForTest", shredding)
    frame.coalesce(1).write.parquet(str(tmp_path / "t"))
    (path,) = (tmp_path / "t").glob("*.parquet")
    assert "typed_value" in str(pq.read_schema(path))
    frame = spark.read.parquet(str(path))
    conf = ReadConf.of(spark)
    assert spark_schema(metadata_of(path), conf) == frame.schema
    got = [_shown(row) for row in read_as_spark(path, conf).to_pylist()]
    expected = [_shown(row) for row in frame.collect()]
    assert got == expected
    if shredding is None:
        scanned = scan(spark, str(tmp_path / "t"), where="variant_get(v, '$.a', 'int') >= 9")
        assert [_shown(row) for row in scanned.collect()] == [
            row for row in expected if row[0] % 9 == 0 and row[0] >= 9
        ]


_DIFFERENT = (
    "'{}'",
    """concat('{"a":', id, '}')""",
    """concat('{"a":1,"b":"', id, '"}')""",
    """'{"b":"y","z":[1,2]}'""",
)


@pytest.mark.parametrize("first", [0, 1, pytest.param(3, marks=pytest.mark.slow)])
def test_variants_that_files_shred_differently(spark: SparkSession, tmp_path: Path, first: int) -> None:
    """As Spark does by default: by the values of each file. What is not in the first file's columns is not lost."""
    lake, one = tmp_path / "t", tmp_path / "one"
    for number in range(4):
        json = _DIFFERENT[(first + number) % 4]
        frame = spark.sql(f"SELECT id + {number * 100} AS id, parse_json({json}) AS v FROM range(100)")
        frame = frame.selectExpr("id", "v", "struct(v, id AS n) AS s", "array(v) AS l", "map('k', v) AS m")
        frame.coalesce(1).write.parquet(str(one), mode="overwrite")
        (path,) = one.glob("*.parquet")
        lake.mkdir(exist_ok=True)
        path.rename(lake / f"{number}.parquet")
    frame = spark.read.parquet(str(lake))
    expected = sorted([_shown(row) for row in frame.collect()])
    assert len({row[1] for row in expected}) > 100

    def check(found: DataFrame) -> None:
        assert found.schema.simpleString() == frame.schema.simpleString()
        assert sorted([_shown(row) for row in found.collect()]) == expected

    asyncpq.spark.register(spark)
    url = str(lake)
    check(scan(spark, url))
    check(scan(spark, url, schema=frame.schema))
    check(scan(spark, url, schema_policy="permissive"))
    check(spark.read.format("asyncpq").schema(frame.schema).load(url))
    asyncpq.spark.build_index(spark, url, [Bounds("id"), Keys("id"), Footers()])
    check(scan(spark, url))
    keys = spark.range(0, 400, 1, 2)
    check(asyncpq.spark.lookup_join(keys, url, on="id"))
    asyncpq.spark.optimize(spark, url, str(tmp_path / "optimized"), sort_by=["id"])
    check(scan(spark, str(tmp_path / "optimized")))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("one", "other", "asked"),
    [
        ("struct(v, id AS n)", "struct(v)", "struct<v: variant, n: bigint>"),
        (
            "struct(v, cast(id AS int) AS n)",
            "struct(v, id AS n, cast(id AS string) AS extra)",
            "struct<v: variant, n: bigint, extra: string>",
        ),
        ("array(struct(v, id AS n))", "array(struct(v))", "array<struct<v: variant, n: bigint>>"),
    ],
    ids=["less", "wider", "list"],
)
def test_what_lies_beside_a_variant_may_differ(
    spark: SparkSession, tmp_path: Path, one: str, other: str, asked: str, swapped: bool
) -> None:
    """One file says what is a VARIANT, all of them together what else there is."""
    lake, url = tmp_path / "t", str(tmp_path / "t")
    lake.mkdir()
    for number, column in enumerate([other, one] if swapped else [one, other]):
        frame = spark.sql(f"SELECT id, parse_json(concat('[', id, ']')) AS v FROM range({number * 10}, 10)")
        frame.selectExpr("id", f"{column} AS s").coalesce(1).write.parquet(str(tmp_path / f"{number}"))
        (path,) = (tmp_path / f"{number}").glob("*.parquet")
        path.rename(lake / f"{number}.parquet")

    def check(found: DataFrame) -> None:
        frame = spark.read.schema(f"id bigint, s {asked}").parquet(url)
        assert found.schema.simpleString() == frame.schema.simpleString()
        assert sorted([_shown(row) for row in found.collect()]) == sorted([_shown(row) for row in frame.collect()])

    check(scan(spark, url, schema_policy="permissive"))
    asyncpq.spark.build_index(spark, url, [Keys("id")], schema_policy="permissive")
    check(scan(spark, url, view="snapshot"))
    check(asyncpq.spark.lookup_join(spark.range(20), url, on="id", view="snapshot"))
    shutil.copy(lake / "0.parquet", lake / "again.parquet")
    asyncpq.spark.refresh_index(spark, f"{url}/_asyncpq")
    check(scan(spark, url, view="snapshot"))


def _shown(found: Any) -> Any:
    """Values in words: the same ones may be encoded with other numbers of their names."""
    if isinstance(found, dict) and {*found} == {"value", "metadata"}:
        found = VariantVal(found["value"], found["metadata"])
    if isinstance(found, VariantVal):
        return repr(found.toPython()), len(found.value)
    if isinstance(found, (tuple, dict)):
        return [_shown(one) for one in (found.values() if isinstance(found, dict) else found)]
    return [_shown(one) for one in found] if isinstance(found, list) else found


def test_char_and_varchar(spark: SparkSession, conf: ReadConf, tmp_path: Path) -> None:
    spark.sql(
        f"CREATE TABLE chars (c char(5), v varchar(3), l array<varchar(4)>) USING parquet LOCATION '{tmp_path}/t'"
    )
    try:
        spark.sql("INSERT INTO chars VALUES ('a', 'b', array('c')), (null, 'ddd', null)").collect()
    finally:
        spark.sql("DROP TABLE chars")
    for path in (tmp_path / "t").glob("*.parquet"):
        assert_read_as_spark_does(spark, path, conf)


def test_what_asyncpq_writes(spark: SparkSession, conf: ReadConf, tmp_path: Path) -> None:
    """Spark's batches, written by pyarrow with what ``from_spark`` says, are the same to Spark."""
    frame = spark.sql(_SPARK_TYPES).coalesce(1)
    frame = frame.withMetadata("string", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(9)", "comment": "ü"})
    writing = from_spark(frame.schema, conf)
    batches = [writing.convert(batch) for batch in frame.toArrow().to_batches()]
    path = write(tmp_path, "written", pa.Table.from_batches(batches), store_decimal_as_integer=True)
    again = spark.read.parquet(str(path))
    assert again.schema == nullable_struct(frame.schema)
    assert_same(again.toArrow(), frame.toArrow())
    assert_read_as_spark_does(spark, path, conf)
    stored = pq.read_schema(path)
    assert stored.field("timestamp").type == pa.timestamp("us", "UTC")
    assert stored.field("timestamp_ntz").type == pa.timestamp("us")
    assert ROW_METADATA_KEY.encode() in stored.metadata
    assert b"org.apache.spark.version" in stored.metadata  # its dates are not taken for those of the old calendar


def test_spark_takes_the_batches(spark: SparkSession, conf: ReadConf, tmp_path: Path) -> None:
    path = write(tmp_path, "arrow", pa.table(every_type()))
    expected = spark.read.parquet(str(path))
    paths = spark.createDataFrame([(str(path),)], "path string")
    assert_same(paths.mapInArrow(batches_of_paths, expected.schema).toArrow(), expected.toArrow())
