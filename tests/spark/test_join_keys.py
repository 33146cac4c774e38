"""Keys of a lookup join are compared as Spark compares them, whatever the types of the two sides."""

from __future__ import annotations

import itertools
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq.blocking
from asyncpq.indexing import Keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAN: Final = float("nan")
UTC: Final = "UTC"
_INTS: Final = [0, 1, 2, -1, 127, None]
_TIMES: Final = [datetime(2024, 3, 1), datetime(1850, 1, 1), datetime(2011, 12, 31, 10), datetime(2024, 3, 1, 2, 30)]
#: By the type in SQL: as Arrow has it, and values that meet others of other types.
TYPES: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "boolean": (pa.bool_(), [True, False, None]),
    "tinyint": (pa.int8(), _INTS),
    "smallint": (pa.int16(), [*_INTS, 300]),
    "int": (pa.int32(), [*_INTS, 300, 2**31 - 1, 16_777_217]),
    "bigint": (pa.int64(), [*_INTS, 2**40, 2**53, 2**53 + 1, 2**53 + 2, -(2**63), 2**63 - 1]),
    "float": (pa.float32(), [0.0, -0.0, 1.0, 1.5, 0.1, NAN, 16_777_216.0, None]),
    "double": (pa.float64(), [0.0, -0.0, 1.0, 1.5, 0.1, NAN, 2.0**53, -(2.0**63), 2.0**63, float("inf"), None]),
    "decimal(5,1)": (pa.decimal128(5, 1), [Decimal("1.0"), Decimal("1.5"), Decimal("0.1"), Decimal("127.0"), None]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("1.50"), Decimal("0.10"), Decimal("0.01"), None]),
    "decimal(38,0)": (pa.decimal128(38, 0), [Decimal(1), Decimal(2**40), Decimal(10**30), None]),
    "string": (pa.string(), ["1", "0", "127", None]),
    "binary": (pa.binary(), [b"1", b"0", b"\xff", b"", None]),
    "date": (pa.date32(), [date(2024, 3, 1), date(1850, 1, 1), date(2011, 12, 30), date(2011, 12, 31), None]),
    "timestamp": (pa.timestamp("us", UTC), [*_TIMES, datetime(2011, 12, 30, 10), None]),
    "timestamp_ntz": (pa.timestamp("us"), [*_TIMES, datetime(2011, 12, 31), None]),
}
#: Pairs that only a scan can join, in a zone with gaps.
SCANNED: Final = {
    *[(other, "string") for other in TYPES if other not in ("string", "binary")],
    *[(other, lake) for other in ("float", "double", "string") for lake in TYPES if lake.startswith("decimal")],
    *[("decimal(38,0)", lake) for lake in ("decimal(5,1)", "decimal(10,2)")],
    ("timestamp", "timestamp_ntz"),
}


def _columns(prefix: str, rows: int) -> pa.Table:
    """A column for each type, its values over and over."""
    arrays = {
        f"{prefix}_{name}": pa.array(list(itertools.islice(itertools.cycle(values), rows)), type_)
        for name, (type_, values) in TYPES.items()
    }
    return pa.table({"row": pa.array(range(rows), pa.int32()), **arrays})


def _frame(spark: SparkSession, prefix: str) -> DataFrame:
    """Of one partition."""
    schema = ", ".join(["row int", *[f"`{prefix}_{name}` {name}" for name in TYPES]])
    return spark.createDataFrame(_columns(prefix, 12), schema).coalesce(1)


def _comparable(spark: SparkSession, left: DataFrame, lake: DataFrame) -> list[tuple[str, str]]:
    from pyspark.errors import AnalysisException

    found = []
    for pair in itertools.product(TYPES, TYPES):
        try:
            left.select(left[f"l_{pair[0]}"].alias("k")).join(lake.select(lake[f"r_{pair[1]}"].alias("k")), on="k")
        except AnalysisException:
            continue
        found.append(pair)
    return found


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.slow), "Pacific/Apia"])
def test_the_values_that_a_key_may_be_are_those_that_spark_finds_equal(
    spark: SparkSession, restored_conf: Any, zone: str
) -> None:
    from pyspark.sql import functions

    from asyncpq.spark.join_keys import KeyRefused, key_rules

    restored_conf.set("spark.sql.session.timeZone", zone)
    left = _frame(spark, "l").drop("row")
    lake = _frame(spark, "r").drop("row")
    pairs = _comparable(spark, left, lake)
    fields = [(left.schema[f"l_{a}"], lake.schema[f"r_{b}"]) for a, b in pairs]
    checks = {}
    refused = set()
    for pair, rule in zip(pairs, key_rules(spark, fields, zone), strict=True):
        if isinstance(rule, KeyRefused):
            refused.add(pair)
            continue
        key, value = _column(f"l_{pair[0]}"), _column(f"r_{pair[1]}")
        if pair[0] == "string":  # one that can be cast
            key = _column(f"l_{pair[1]}").cast("string")
        compared = value.cast("double") if rule.form == "rounded" else value
        one_of = reduce(
            lambda a, b: a | b, [functions.coalesce(one == compared, functions.lit(False)) for one in rule.columns(key)]
        )
        equal = functions.coalesce(key == value, functions.lit(False))
        name = f"{pair[0]} = {pair[1]}"
        checks[name] = functions.concat_ws(
            " ", functions.sum((equal != one_of).cast("int")), functions.sum(equal.cast("int"))
        )
    expected = SCANNED - {("timestamp", "timestamp_ntz")} if zone == "UTC" else SCANNED
    assert refused == expected & set(pairs)
    (row,) = left.crossJoin(lake).agg(*[check.alias(name) for name, check in checks.items()]).collect()
    counts = {name: tuple(map(int, row[name].split())) for name in checks}
    assert not {name: count for name, count in counts.items() if count[0]}
    assert sum(1 for _, equal in counts.values() if equal) > 60


def _column(name: str) -> Any:
    from pyspark.sql import functions

    return functions.col(f"`{name}`")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("typed")
    for number in range(2):
        table = _columns("r", 15)
        table = table.set_column(0, "row", pa.array(range(15 * number, 15 * number + 15), pa.int32()))
        pq.write_table(table, folder / f"{number}.parquet", write_page_index=True)
    with asyncpq.blocking.Session() as session:
        session.build_index(f"{folder}/", [Keys(f"r_{name}") for name in TYPES])
    return f"{folder}/"


#: Each with what it is about.
JOINED: Final = [
    ("bigint", "int"),  # values that the lake's type cannot hold
    ("double", "int"),
    ("double", "bigint"),  # rounded
    ("float", "double"),
    ("double", "float"),
    ("double", "double"),  # NaN, zeros
    ("decimal(10,2)", "bigint"),
    ("decimal(10,2)", "decimal(5,1)"),
    ("string", "int"),
    ("string", "double"),
    ("binary", "string"),
    ("binary", "binary"),
    ("date", "timestamp"),
    ("timestamp", "date"),
    ("timestamp_ntz", "timestamp_ntz"),
    ("boolean", "boolean"),
    ("timestamp", "timestamp"),
]


@pytest.mark.parametrize("how", ["inner", pytest.param("left", marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", ["lookups", pytest.param("auto", marks=pytest.mark.slow)])
def test_joins_on_keys_of_other_types(
    spark: SparkSession, restored_conf: Any, lake: str, how: Any, strategy: Any
) -> None:
    from pyspark.sql import functions

    from asyncpq.spark.joins import lookup_join

    restored_conf.set("spark.sql.parquet.filterPushdown", "false")
    restored_conf.set("spark.sql.session.timeZone", "Pacific/Apia")
    left = _frame(spark, "l").toDF("i", *TYPES)
    native = spark.read.parquet(lake)
    mine: list[DataFrame] = []
    theirs: list[DataFrame] = []
    for number, (left_type, lake_type) in enumerate(JOINED):
        name = f"r_{lake_type}"
        some = left.select("i", _column(left_type).alias(name))
        found = lookup_join(some, lake, name, ["row"], how, strategy=strategy)
        expected = some.join(native.select(_column(name), "row"), on=name, how=how)
        assert found.schema == expected.schema
        case = functions.lit(f"{number} {left_type} {lake_type}").alias("case")
        for frames, frame in ((mine, found), (theirs, expected)):
            frames.append(frame.select(case, "i", "row", _column(name).cast("string")))
    assert _rows(reduce(lambda a, b: a.union(b), mine)) == _rows(reduce(lambda a, b: a.union(b), theirs))


def _rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))
