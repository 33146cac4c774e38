"""Random queries by every way to read a lake on Spark: the rows of plain Spark over the same files.

Plain Spark reads with ``spark.sql.parquet.filterPushdown`` off, since it loses rows with NaN otherwise; asyncpq's
ways are asked with it on. ``ASYNCPQ_SPARK_QUERIES`` is the number of queries of each test.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from unittest import mock

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, StructField, StructType

import asyncpq.blocking
import asyncpq.spark
from asyncpq import col
from asyncpq.errors import AsyncpqError, QueryError
from asyncpq.expressions import Expression
from asyncpq.indexing import Bloom, Bounds, Footers, IndexKind, Keys
from asyncpq.spark.join_strategy import JoinStrategy
from asyncpq.spark.reads import task_rows
from asyncpq.spark.reads.conditions import Condition
from asyncpq.spark.reads.reader_choice import ReaderName
from asyncpq.spark.types.read_conf import ReadConf
from tests.example_counts import examples
from tests.spark import evolved_lakes, scan_lakes
from tests.spark.joined import HOWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUERIES: Final = int(os.environ.get("ASYNCPQ_SPARK_QUERIES") or examples(24, thorough=100))
_ROUND: Final = 12  # queries of a lake and a pair of settings, which are two jobs
_PUSHDOWN: Final = "spark.sql.parquet.filterPushdown"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_COST_BASED: Final = "spark.sql.cbo.enabled"
_MICROS: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_FORMATS: Final = {"timestampFormat": _MICROS, "timestampNTZFormat": _MICROS}
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

Index = str | Literal[False] | None
#: What a user does with a DataFrame, and how it is told.
Shape = tuple[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Query:
    """One question: of plain Spark, and of asyncpq."""

    label: str
    native: DataFrame
    ask: Callable[[], DataFrame]


@dataclass(frozen=True)
class Lake:
    """Files, and how plain Spark reads them.

    Attributes:
        indexes: what readers are told of an index.
        columns: names or paths that queries select.
        keys: columns that joins may have as keys, with some of their values.
        sql: makes a condition.
        schema: that is asked for; None: that of the files.
    """

    url: str
    native: DataFrame
    indexes: Sequence[Index]
    columns: Sequence[str]
    keys: dict[str, Sequence[Any]]
    sql: Callable[[random.Random], str]
    schema: str | None = None


def _shown(frame: DataFrame) -> DataFrame:
    return frame.select(F.to_json(F.struct("*"), _FORMATS).alias("row"))


def _answers(frames: Sequence[DataFrame]) -> list[list[str]]:
    """The rows of each as texts, in order: one job for all."""
    tagged = [_shown(frame.toDF(*_names(frame))).withColumn("at", F.lit(at)) for at, frame in enumerate(frames)]
    found: list[list[str]] = [[] for _ in frames]
    for row in reduce(lambda one, other: one.unionAll(other), tagged).collect():
        found[row["at"]].append(str(row["row"]))
    return [sorted(rows) for rows in found]


def _names(frame: DataFrame) -> list[str]:
    """Names that occur once."""
    return [f"c{at}" for at in range(len(frame.columns))]


def _differences(spark: SparkSession, queries: Sequence[Query]) -> list[str]:
    """What asyncpq answers otherwise than plain Spark."""
    spark.conf.set(_PUSHDOWN, "false")
    try:
        expected = _answers([query.native for query in queries])
    finally:
        spark.conf.set(_PUSHDOWN, "true")
    try:
        found = _answers([query.ask() for query in queries])
    except Exception:  # noqa: BLE001  # whatever it is, each query says by itself
        found = [_alone(query) for query in queries]
    return [
        f"{query.label}: {len(mine)} rows for {len(theirs)}: {_first(mine, theirs)} for {_first(theirs, mine)}"
        for query, mine, theirs in zip(queries, found, expected, strict=True)
        if mine != theirs
    ]


def _alone(query: Query) -> list[str]:
    try:
        return _answers([query.ask()])[0]
    except Exception as error:  # noqa: BLE001  # is the answer
        lines = [line for line in str(error).splitlines() if "Error" in line]
        return [f"{type(error).__name__}: {lines[-1] if lines else str(error)[:500]}"]


def _first(rows: list[str], others: list[str]) -> str:
    known = set(others)
    return next((row for row in rows if row not in known), "-")[:300]


# -- lakes ----------------------------------------------------------------------------------------


def _typed_lake(spark: SparkSession, rng: random.Random, folder: Path) -> Lake:
    """Values of many types, with NaN, -0.0 and nulls, by pyarrow or by asyncpq's own writer; perhaps partitioned."""
    source, rows = folder / "lake", rng.choice([30, 150, 400])
    partitions = rng.choice([(), ("part",), ("part", "d2")])
    for number in range(rng.randrange(1, 5)):
        values = {"part": rng.choice(["0", "1", _NULL]), "d2": rng.choice(["2024-01-01", "2024-01-02"])}
        path = source.joinpath(*[f"{name}={values[name]}" for name in partitions]) / f"{number}.parquet"
        scan_lakes.write(path, scan_lakes.table(rng, rows, rows * number), **_layout(rng))
    native = spark.read.parquet(str(source))
    url = str(source)
    indexes: list[Index] = [False]
    if rng.random() < 0.25:
        url = str(folder / "written")
        native.write.format("asyncpq").mode("append").option("publish", "plain").save(url)
        native = spark.read.option("recursiveFileLookup", "true").parquet(url)
        indexes = [None]  # its own says which files are live
    kinds: list[IndexKind] = [Footers(), Bounds("row", "i", "d", "s"), Keys("i"), Keys("s", "d"), Keys("d"), Bloom("s")]
    indexes += _indexed(rng, url, folder, rng.sample(kinds, k=rng.randrange(1, len(kinds))))
    keys: dict[str, Sequence[Any]] = {name: scan_lakes.COLUMNS[name][1] for name in ("i", "l", "s", "d", "f", "day")}
    keys |= {"n": scan_lakes.COLUMNS["n"][1], "ts": scan_lakes.COLUMNS["ts"][1], "row": range(3 * rows)}
    if partitions and native.schema["part"].dataType == IntegerType():  # else all are null
        keys["part"] = [0, 1, 2]
    columns = ["row", *scan_lakes.COLUMNS, "st.D", "st", "li", *partitions]
    return Lake(url, native, indexes, columns, keys, lambda rng: scan_lakes.sql(rng, 1))


def _layout(rng: random.Random) -> dict[str, Any]:
    """Options of pyarrow's writer."""
    return {
        "row_group_size": rng.choice([100, 400]),
        "max_rows_per_page": rng.choice([20, 50]),
        "write_page_index": rng.random() < 0.7,
        "use_dictionary": rng.choice([True, False, ["s", "i"]]),
        "compression": rng.choice(["snappy", "zstd"]),
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "bloom_filter_options": rng.choice([None, {"l": {"ndv": 10, "fpp": 0.01}, "d": {"ndv": 10, "fpp": 0.01}}]),
    }


def _evolved_lake(spark: SparkSession, rng: random.Random, folder: Path) -> Lake:
    """Each file has the columns in a way of its own."""
    shapes = {name: evolved_lakes.shape(rng) for name in "pqr"}
    leaves = [leaf for name, asked in shapes.items() for leaf in asked.leaves(name)]
    types = [
        {name: evolved_lakes.file_type(rng, asked, cases=True, same_leaves=False) for name, asked in shapes.items()}
        for _ in range(rng.randrange(1, 4))
    ]
    evolved_lakes.write_files(rng, folder / "lake", types, 40, int96=rng.random() < 0.3)
    schema = ", ".join(f"{name} {asked.ddl}" for name, asked in shapes.items())
    url = str(folder / "lake")
    native = spark.read.schema(schema).parquet(url)
    indexes = _indexed(rng, url, folder, [Footers(), *[Bounds(name) for name, kind in leaves[:1] if "." not in name]])
    columns = [*shapes, *[path for path, _ in leaves]]
    sql = (lambda rng: evolved_lakes.condition(rng, leaves)) if leaves else (lambda rng: "true")
    return Lake(url, native, [False, *indexes], columns, {}, sql, schema)


def _indexed(rng: random.Random, url: str, folder: Path, kinds: Sequence[IndexKind]) -> list[Index]:
    """The url of an index, unless the types have no common one."""
    if rng.random() < 0.4:
        return []
    with asyncpq.blocking.Session() as session, contextlib.suppress(AsyncpqError):
        session.build_index(url, list(kinds), at=str(folder / "index"), schema_policy="permissive")
        return [str(folder / "index")]
    return []


# -- queries --------------------------------------------------------------------------------------


def _shape(rng: random.Random, columns: Sequence[str], where: Callable[[], str]) -> Shape:
    """What is made of the rows: conditions, selections, counts, and one frame used twice."""
    some = rng.sample(list(columns), k=min(len(columns), rng.randrange(1, 4)))
    one, other = where(), where()
    return rng.choice(
        [
            ("all", lambda frame: frame),
            (f"filter {one}", lambda frame: frame.filter(one)),
            (f"filter {one} select {some}", lambda frame: frame.filter(one).select(*some)),
            (f"select {some}", lambda frame: frame.select(*some)),
            (f"filter {one} count", lambda frame: frame.filter(one).groupBy().count()),
            ("count", lambda frame: frame.groupBy().count()),
            ("count of some", lambda frame: frame.agg(F.count(some[0]), F.count("*"))),
            (
                f"union of {one} and {other} select {some}",
                lambda frame: frame.filter(one).select(*some).unionAll(frame.filter(other).select(*some)),
            ),
            (
                f"{one} crossed with the number of {other}",
                lambda frame: frame.filter(one).crossJoin(frame.filter(other).groupBy().count()),
            ),
        ]
    )


def _scan_query(spark: SparkSession, rng: random.Random, lake: Lake) -> Query:
    reader = rng.choice(get_args(ReaderName))
    where: str | Expression | None = rng.choice([None, lake.sql(rng)])
    if lake.schema is None and rng.random() < 0.4:
        where = scan_lakes.condition(rng)
    columns = None
    if rng.random() < 0.3:
        columns = rng.sample([name for name in lake.columns if "." not in name], k=2)
    told, shape = _shape(rng, columns or lake.columns, lambda: "true" if columns else lake.sql(rng))
    native = lake.native
    if where is not None:
        native = native.filter(Condition(where).column(native.schema, ReadConf.of(spark)))
    if columns is not None:
        native = native.select(*columns)
    index, schema = rng.choice(lake.indexes), lake.schema

    driver_bytes = rng.choice([0, task_rows.MOST_BYTES])

    def ask() -> DataFrame:
        with mock.patch.object(task_rows, "MOST_BYTES", driver_bytes):
            found = asyncpq.spark.scan(spark, lake.url, where, columns, index, schema=schema, reader=reader)
        return shape(found)  # type: ignore[no-any-return]

    by = f"{reader} ({driver_bytes} bytes on the driver)"
    return Query(f"scan by {by}, where {where}, columns {columns}, index {bool(index)}: {told}", shape(native), ask)


def _source_query(spark: SparkSession, rng: random.Random, lake: Lake) -> Query:
    where = rng.choice([None, lake.sql(rng)])
    told, shape = _shape(rng, lake.columns, lambda: lake.sql(rng))
    index = rng.choice(lake.indexes)

    def ask() -> DataFrame:
        source = spark.read.format("asyncpq").option("sessionTimeZone", "UTC")
        source = source if index is None else source.option("index", index or "false")
        source = source if lake.schema is None else source.schema(lake.schema)
        if where is None:
            return shape(source.load(lake.url))  # type: ignore[no-any-return]
        return shape(source.option("where", where).load(lake.url).filter(where))  # type: ignore[no-any-return]

    native = lake.native if where is None else lake.native.filter(where)
    return Query(f"source, where {where}, index {bool(index)}: {told}", shape(native), ask)


def _join_query(spark: SparkSession, rng: random.Random, lake: Lake) -> Query:
    strategy, how = rng.choice(get_args(JoinStrategy)), rng.choice(HOWS)
    on = rng.sample(list(lake.keys), k=rng.choice([1, 1, 2]))
    native = lake.native
    rows = [
        (*[rng.choice([None, *rng.sample(lake.keys[name], k=2)]) for name in on], number)
        for number in range(rng.choice([1, 4, 40]))
    ]
    fields = [StructField(name, native.schema[name].dataType) for name in on]
    left = spark.createDataFrame(rows, StructType([*fields, StructField("w", native.schema["row"].dataType)]))
    columns = rng.choice([None, [name for name in rng.sample(list(lake.columns), k=3) if "." not in name]])
    named = native.columns if columns is None else [*on, *[name for name in columns if name not in on]]
    index, driver_bytes = rng.choice(lake.indexes), rng.choice([0, task_rows.MOST_BYTES])

    def ask() -> DataFrame:
        options: dict[str, Any] = {"columns": columns, "how": how, "index": index}
        with mock.patch.object(task_rows, "MOST_BYTES", driver_bytes):
            try:
                return asyncpq.spark.lookup_join(left, lake.url, on, strategy=strategy, **options)
            except QueryError:
                assert strategy == "lookups"
                return asyncpq.spark.lookup_join(left, lake.url, on, **options)

    told = f"{strategy} ({driver_bytes} bytes on the driver), {len(rows)} keys of {on}, columns {columns}"
    label = f"{how} join by {told}, index {bool(index)}"
    return Query(label, left.join(native.select(*named), on=on, how=how), ask)


def _round(spark: SparkSession, rng: random.Random, folder: Path, count: int) -> list[str]:
    """The differences of some queries over a new lake."""
    make = rng.choice([_typed_lake, _typed_lake, _evolved_lake])
    lake = make(spark, rng, folder)
    kinds = [_scan_query, _scan_query, _source_query, *([_join_query] if lake.keys else [])]
    return _differences(spark, [rng.choice(kinds)(spark, rng, lake) for _ in range(count)])


def _all_differences(spark: SparkSession, seed: str, folder: Path) -> str:
    asyncpq.spark.register(spark)
    found: list[str] = []
    for number, first in enumerate(range(0, _QUERIES, _ROUND)):
        rng = random.Random(f"{seed} {number}")
        here = folder / str(number)
        found += [f"lake {number}, {line}" for line in _round(spark, rng, here, min(_ROUND, _QUERIES - first))]
    return "\n".join(found)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("adaptive", "cost_based"), [("true", "false"), pytest.param("false", "true", marks=pytest.mark.slow)]
)
def test_random_queries(
    spark: SparkSession, restored_conf: Any, tmp_path: Path, adaptive: str, cost_based: str
) -> None:
    restored_conf.set(_ADAPTIVE, adaptive)
    restored_conf.set(_COST_BASED, cost_based)
    assert _all_differences(spark, f"queries {adaptive} {cost_based}", tmp_path) == ""


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_queries_by_spark_connect(connect: SparkSession, tmp_path: Path) -> None:
    assert _all_differences(connect, "connect", tmp_path) == ""


def test_a_difference_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Of rows and of errors."""
    asyncpq.spark.register(spark)
    lake = _typed_lake(spark, random.Random(3), tmp_path)
    fewer = Query("fewer", lake.native, lambda: lake.native.filter("row <> 5"))
    refused = Query("refused", lake.native, lambda: asyncpq.spark.scan(spark, lake.url, where=col("no_column") == 1))
    same = Query("same", lake.native, lambda: asyncpq.spark.scan(spark, lake.url))
    found = _differences(spark, [fewer, refused, same])
    assert [line.partition(":")[0] for line in found] == ["fewer", "refused"]
