"""Files whose columns are not those of the first one, against ``spark.read.parquet``: a schema that was given, schemas
that are merged, names in other cases, wider types."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

import asyncpq
from asyncpq.errors import AmbiguousColumnError, SchemaMismatchError
from asyncpq.indexing import Bounds, Footers
from asyncpq.spark import build_index, register
from asyncpq.spark.reads import scan as scan_module
from asyncpq.spark.reads.scan import explain_scan
from tests.spark import evolved_lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

#: Through the tasks of asyncpq, however small the lakes are.
scan = partial(scan_module.scan, reader="asyncpq")

_MORNING = dt.datetime(2024, 5, 1, 6)


@pytest.fixture
def no_pushdown(restored_conf: RuntimeConfig) -> RuntimeConfig:
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")
    return restored_conf


class Pairs:
    """Pairs of DataFrames that must have the same rows: all of them in one job."""

    def __init__(self) -> None:
        self._sides: list[DataFrame] = []
        self._names: list[object] = []

    def add(self, name: object, ours: DataFrame, theirs: DataFrame) -> None:
        assert ours.schema == theirs.schema, name
        for side in (ours, theirs):
            self._sides.append(side.select(F.lit(len(self._sides)).alias("q"), F.struct("*").cast("string").alias("v")))
        self._names.append(name)

    def check(self, *, most_at_once: int = 60) -> None:
        found: dict[int, list[str]] = {}
        for start in range(0, len(self._sides), most_at_once):
            union = self._sides[start]
            for one in self._sides[start + 1 : start + most_at_once]:
                union = union.unionAll(one)
            for row in union.collect():
                found.setdefault(row["q"], []).append(row["v"])
        for at, name in enumerate(self._names):
            assert sorted(found.get(2 * at, [])) == sorted(found.get(2 * at + 1, [])), name


def files(folder: Path, *tables: pa.Table, **options: Any) -> str:
    """A lake of these files."""
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=2, write_page_index=True, **options)
    return str(folder)


def structs(values: Iterable[Any], kind: pa.DataType) -> pa.Table:
    return pa.table({"s": pa.array(values, kind)})


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


INT, LONG = pa.int32(), pa.int64()


def test_nested_fields_that_the_first_file_lacks(
    spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path
) -> None:
    lake = files(
        tmp_path / "lake",
        structs([{"a": 1}, None, {"a": 3}], struct(a=INT)),
        structs([{"a": 1, "b": 5}, {"a": 2, "b": None}, None, {"a": 4, "b": 6}], struct(a=INT, b=INT)),
        structs([{"b": 5, "A": 9}], struct(b=INT, A=LONG)),
    )
    inner = struct(x=INT)
    lists = files(
        tmp_path / "lists",
        pa.table(
            {"l": pa.array([[{"x": 1}]], pa.list_(inner)), "m": pa.array([[("k", {"x": 1})]], pa.map_("string", inner))}
        ),
        pa.table(
            {
                "l": pa.array([[{"y": 2, "x": 1}, None], None], pa.list_(struct(y=INT, x=INT))),
                "m": pa.array([[("k", {"y": 7})], []], pa.map_("string", struct(y=INT))),
            }
        ),
    )
    pairs = Pairs()
    for schema, conditions in (
        ("s struct<a:bigint,b:int>", ["s.b = 5", "s.b IS NULL", "NOT s.b = 5"]),
        ("s struct<b:int>", ["s IS NULL", "s.B > 5"]),
        ("s struct<b:bigint,c:string,a:bigint>", ["s.a = 9 OR s.b = 6", "s.c IS NULL AND s.b < 6"]),
        ("s struct<B:int>, t int", []),
    ):
        native = spark.read.schema(schema).parquet(lake)
        for where in (None, *conditions):
            theirs = native if where is None else native.filter(where)
            pairs.add((schema, where), scan(spark, lake, where=where, schema=schema), theirs)
    for schema in ("l array<struct<x:int,y:int>>, m map<string,struct<x:int,y:bigint>>", "l array<struct<Y:int>>"):
        pairs.add(schema, scan(spark, lists, schema=schema), spark.read.schema(schema).parquet(lists))
    pairs.check()


@pytest.mark.parametrize("sensitive", ["false", "true"])
def test_cases_of_nested_names(spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path, sensitive: str) -> None:
    no_pushdown.set("spark.sql.caseSensitive", sensitive)
    lake = files(
        tmp_path / "lake",
        structs([{"a": 5, "b": {"x": 1}}], struct(a=INT, b=struct(x=INT))),
        structs([{"B": {"X": 2}, "A": 5}, {"B": None, "A": 6}], struct(B=struct(X=INT), A=INT)),
        pa.table({"S": pa.array([{"A": 5}], struct(A=INT))}),
    )
    pairs = Pairs()
    for schema in (None, "s struct<a:int,b:struct<x:int>>", "S struct<A:int,B:struct<X:int>>"):
        native = (spark.read if schema is None else spark.read.schema(schema)).parquet(lake)
        some = ["s.a = 5", "S.A = 5", "s.b.x = 2", "s.a IS NULL"] if sensitive == "false" else []
        for where in (None, *some):
            theirs = native if where is None else native.filter(where)
            pairs.add((schema, where), scan(spark, lake, where=where, schema=schema), theirs)
    pairs.check()


def test_a_name_that_a_later_file_has_twice(spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path) -> None:
    nested = files(
        tmp_path / "nested", structs([{"a": 5}], struct(a=INT)), structs([{"a": 5, "A": 6}], struct(a=INT, A=INT))
    )
    top = files(tmp_path / "top", pa.table({"a": [1]}), pa.table({"a": [2], "A": [3]}))
    with pytest.raises(Exception, match="duplicate field"):
        spark.read.parquet(nested).collect()
    for lake in (nested, top):
        with pytest.raises(AmbiguousColumnError, match="'a', 'A'") as caught:
            scan(spark, lake, where="a > 0" if lake == top else "s.a > 0")
        assert caught.value.url == f"{lake}/1.parquet"


def test_a_partition_in_another_case(spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path) -> None:
    for number in (1, 2):
        files(tmp_path / "lake" / f"part={number}", pa.table({"v": [number, 7]}))
        files(tmp_path / "both" / f"part={number}", pa.table({"Part": [9, 9], "v": [number, 7]}))
    lake, both = str(tmp_path / "lake"), str(tmp_path / "both")
    pairs = Pairs()
    for indexed in (False, True):
        if indexed:
            build_index(spark, both, [Bounds(), Footers()])
        for asked in ("part = 2", "Part = 2", "part > 1 AND v = 7", "part = 3"):
            pairs.add((indexed, asked), scan(spark, both, where=asked), spark.read.parquet(both).filter(asked))
    for schema in ("PART bigint, v bigint", "v bigint, Part string", "V bigint"):
        native = spark.read.schema(schema).parquet(lake)
        for where in (None, "part = 2", "PART = 1 OR v = 7"):
            theirs = native if where is None else native.filter(where)
            pairs.add((schema, where), scan(spark, lake, schema=schema, where=where), theirs)
    pairs.check()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 5))])
def test_types_that_only_later_files_need(
    spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path, seed: int
) -> None:
    """The first file's type is none that holds the others' values; what is asked for is."""
    rng = random.Random(seed)
    big = 1 << 40
    days = [dt.date(2024, 5, 1), dt.date(2024, 5, 2)]
    lakes: list[tuple[str, list[pa.Array], list[str]]] = [
        (
            "double",
            [pa.array([0.1, 1, None], pa.float32()), pa.array([0.1, 1, 1e300]), pa.array([1, 2], INT)],
            ["x = 0.1D", "x > 0.1D", "x < 0.1D", "x = 1", "x >= 1e300", "x <> 1"],
        ),
        (
            "bigint",
            [pa.array([5, 1], INT), pa.array([5, big]), pa.array([5, 2**32 - 1], pa.uint32())],
            ["x = 5", f"x >= {big}", "x < 5", "x = 4294967295", f"x IN ({big}, 1)"],
        ),
        (
            "smallint",
            [pa.array([5, 1], pa.int16()), pa.array([65541, 5], INT)],
            ["x = 5", "x > 5", "x < 2", "NOT x = 1"],
        ),
        (
            "decimal(20,4)",
            [
                pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
                pa.array([Decimal("123456.25")], pa.decimal128(12, 2)),
                pa.array([7], INT),
            ],
            ["x = 1.5", "x > 7", "x <= 7", "x = 123456.25"],
        ),
        (
            "timestamp_ntz",
            [
                pa.array([_MORNING], pa.timestamp("us")),
                pa.array([_MORNING], pa.timestamp("ms")),
                pa.array(days, pa.date32()),
            ],
            ["x = TIMESTAMP_NTZ '2024-05-01 06:00:00'", "x >= TIMESTAMP_NTZ '2024-05-02 00:00:00'"],
        ),
    ]
    pairs = Pairs()
    for number, (kind, columns, conditions) in enumerate(lakes):
        tables = [pa.table({"x": column}) for column in columns]
        for order in (1, -1):
            lake = files(tmp_path / f"{number}{order}", *tables[::order])
            native = spark.read.schema(f"x {kind}").parquet(lake)
            indexes: list[str | None] = [None]
            if kind != "timestamp_ntz":  # asyncpq has no type for days and times
                indexes.append(f"{lake}-index")
                with asyncpq.blocking.Session() as session:
                    session.build_index(lake, [Bounds("x"), Footers()], at=indexes[1], schema_policy="permissive")
            for where in rng.sample(conditions, k=2):
                theirs = native.filter(where)
                for index in indexes:
                    # by a listing the first file has the types, which are not those of the index
                    view: Literal["snapshot"] | None = None if index is None else "snapshot"
                    ours = scan(spark, lake, schema=f"x {kind}", where=where, index=index, view=view)
                    pairs.add((kind, order, where, index), ours, theirs)
            pairs.add((kind, order), scan(spark, lake, schema=f"x {kind}"), native)
    pairs.check()


@pytest.mark.parametrize("first", ["int96", "micros"])
def test_int96_and_micros(spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path, first: str) -> None:
    """As where a lake's writers were set to another type of timestamps."""
    zoned = pa.timestamp("us", "UTC")
    times = pa.array([_MORNING, _MORNING + dt.timedelta(microseconds=1), None], zoned)
    old = pa.table({"t": times, "s": pa.array([{"t": _MORNING}] * 3, struct(t=zoned)), "n": [1, 2, 3]})
    new = pa.table({"n": [4, 5, 6], "s": pa.array([{"t": _MORNING}, None, {"t": None}], struct(t=zoned)), "T": times})
    folder = tmp_path / "lake"
    folder.mkdir()
    names = ["0", "1"] if first == "int96" else ["1", "0"]
    pq.write_table(old, folder / f"{names[0]}.parquet", use_deprecated_int96_timestamps=True)
    pq.write_table(new, folder / f"{names[1]}.parquet", write_page_index=True)
    pairs = Pairs()
    for schema in (None, "t timestamp, n bigint, s struct<t:timestamp>", "t timestamp_ntz, n bigint"):
        native = (spark.read if schema is None else spark.read.schema(schema)).parquet(str(folder))
        for where in (None, "t = TIMESTAMP '2024-05-01 06:00:00'", "t > '2024-05-01 06:00:00' AND n < 6", "n > 2"):
            theirs = native if where is None else native.filter(where)
            pairs.add((schema, where), scan(spark, str(folder), where=where, schema=schema), theirs)
    pairs.check()


def test_what_is_left_out_of_such_files(spark: SparkSession, tmp_path: Path) -> None:
    """Files, by their statistics, where the values compare as those that are asked for: else, nothing."""
    times = [pa.array([_MORNING + dt.timedelta(days=day)], pa.timestamp("us", "UTC")) for day in (0, 1, 2)]
    numbers = [pa.array([5], INT), pa.array([5]), pa.array([1 << 40])]
    lake = files(tmp_path / "lake", *[pa.table({"x": x, "t": t}) for x, t in zip(numbers, times, strict=True)])
    pq.write_table(
        pa.table({"t": times[0], "x": numbers[0]}), f"{lake}/0.parquet", use_deprecated_int96_timestamps=True
    )
    wide, short = "x bigint, t timestamp", "x smallint, t timestamp"
    for schema, where, count in (
        (wide, "x = 5", 2),
        (wide, "x > 5", 1),
        (wide, "t > '2024-05-03 00:00:00'", 2),  # nothing is known of INT96
        (wide, "t > '2024-05-03 00:00:00' AND x > 5", 1),
        (wide, "t > '2024-05-03 00:00:00' OR x = 7", 2),
        (None, "t > '2024-05-03 00:00:00'", 2),
        (short, "x = 7", 3),  # of other numbers, the low bits may be it
    ):
        assert explain_scan(spark, lake, where=where, schema=schema).files == count, (schema, where)


def test_files_that_are_given_are_looked_at_by_name(
    spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path
) -> None:
    """Spark infers columns from the first one by path, whichever is named first."""
    lake = files(tmp_path / "lake", pa.table({"a": [1], "b": [2]}), pa.table({"b": [3], "c": [4]}))
    given = [f"{lake}/1.parquet", f"{lake}/0.parquet"]
    pairs = Pairs()
    pairs.add("given", scan(spark, given, partitioning=None), spark.read.parquet(*given))
    pairs.check()


# -- merged ---------------------------------------------------------------------------------------


def test_unsigned_integers_of_the_first_file_in_an_index(spark: SparkSession, tmp_path: Path) -> None:
    """The index has the common type of all files, or that of the first one."""
    lake = files(
        tmp_path / "lake",
        *[
            pa.table({"p": pa.array([at, 5], kind), "x.y": pa.array([7, at], kind), "u": pa.array([7, 7], pa.uint32())})
            for at, kind in enumerate((pa.uint32(), INT, LONG))
        ],
    )
    index = str(tmp_path / "index")
    with asyncpq.blocking.Session() as session:
        kinds = [Bounds("p"), Bounds("x.y"), Bounds("u"), Footers()]
        session.build_index(lake, kinds, at=index, schema_policy="permissive")
    schema = "p bigint, `x.y` bigint, u bigint"
    native = spark.read.schema(schema).parquet(lake)
    pairs = Pairs()
    for where in (None, "p < 5", "u = 7 AND p = 1", "`x.y` = 2"):
        theirs = native if where is None else native.filter(where)
        pairs.add(where, scan(spark, lake, where=where, schema=schema, index=index), theirs)
    pairs.check()


@pytest.mark.parametrize("cases", [False, True])
def test_merged_schemas(spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path, cases: bool) -> None:
    no_pushdown.set("spark.sql.parquet.mergeSchema", "true")
    top, inner = ("S", "A") if cases else ("s", "a")
    short, long = pa.decimal128(5, 2), pa.decimal128(10, 2)
    later = pa.array([{"b": 5, inner: 2}], pa.struct([("b", INT), (inner, INT)]))
    lake = files(
        tmp_path / "lake",
        pa.table({"s": pa.array([{"a": 1}], struct(a=INT)), "d": pa.array([Decimal("1.25")], short)}),
        pa.table({top: later, "d": pa.array([Decimal("123456.25")], long), "u": ["x"]}),
        pa.table({"l": pa.array([[{"x": 1}]], pa.list_(struct(x=INT))), "u": ["y"]}),
        pa.table({"l": pa.array([[{"y": 2}]], pa.list_(struct(y=INT))), "d": pa.array([None], short)}),
    )
    instants = pa.table({"t": pa.array([_MORNING], pa.timestamp("us", "UTC"))})
    pq.write_table(instants, f"{lake}/4.parquet", use_deprecated_int96_timestamps=True)
    indexes: list[str | None] = [None]
    if not cases:  # to an index, these are two columns
        indexes.append(f"{lake}-index")
        with asyncpq.blocking.Session() as session:
            session.build_index(lake, [Bounds("u"), Footers()], at=indexes[1], schema_policy="permissive")
    native = spark.read.parquet(lake)
    pairs = Pairs()
    for where in (None, "s.b = 5 OR S.a = 1", "d > 2 AND u = 'x'", "t = TIMESTAMP '2024-05-01 06:00:00'"):
        theirs = native if where is None else native.filter(where)
        for index in indexes:
            pairs.add((where, index), scan(spark, lake, where=where, index=index), theirs)
    register(spark)
    no_pushdown.set("spark.sql.parquet.mergeSchema", "false")
    pairs.add("source", spark.read.format("asyncpq").option("mergeSchema", "true").load(lake), native)
    pairs.check()


@pytest.mark.parametrize(
    "types", [(INT, LONG), (pa.float32(), pa.float64()), (pa.decimal128(5, 2), pa.decimal128(7, 3)), (INT, pa.string())]
)
def test_schemas_that_do_not_merge(
    spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path, types: tuple[pa.DataType, ...]
) -> None:
    no_pushdown.set("spark.sql.parquet.mergeSchema", "true")
    lake = files(tmp_path / "lake", *[structs([{"a": None}], struct(a=kind)) for kind in types])
    with pytest.raises(Exception, match="CANNOT_MERGE"):
        spark.read.parquet(lake)
    with pytest.raises(SchemaMismatchError, match="CANNOT_MERGE_SCHEMAS") as caught:
        scan(spark, lake)
    assert caught.value.column == "s.a"
    assert caught.value.url


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ("make_dt_interval(1)::interval day", "make_dt_interval(0, 3, 4, 5.5)", "interval day to second"),
        ("make_dt_interval(0, 2)::interval hour to minute", "make_dt_interval(3)::interval day", "day to minute"),
        ("make_ym_interval(0, 3)::interval month", "make_ym_interval(2, 0)::interval year", "year to month"),
    ],
)
def test_intervals_that_merge(
    spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path, first: str, second: str, merged: str
) -> None:
    no_pushdown.set("spark.sql.parquet.mergeSchema", "true")
    for number, value in enumerate((first, second)):
        spark.range(2).selectExpr(f"{value} AS g", "id").coalesce(1).write.parquet(f"{tmp_path}/{number}")
    native, found = spark.read.parquet(f"{tmp_path}/0", f"{tmp_path}/1"), scan(spark, f"{tmp_path}/*/*.parquet")
    assert found.schema == native.schema
    assert merged in found.schema.simpleString()
    assert found.exceptAll(native).count() == native.exceptAll(found).count() == 0
    assert found.count() == 4


# -- random ---------------------------------------------------------------------------------------


def _random_pairs(
    spark: SparkSession, folder: Path, rng: random.Random, pairs: Pairs, *, given: bool, cases: bool
) -> None:
    asked = {f"c{at}": evolved_lakes.shape(rng) for at in range(3)}
    types: list[dict[str, pa.DataType]] = []
    for number in range(rng.randrange(2, 5)):
        kept = [name for name in asked if rng.random() < 0.8] or ["c0"]
        rng.shuffle(kept)
        types.append(
            {
                evolved_lakes.cased(rng, name) if cases else name: evolved_lakes.file_type(
                    rng, asked[name], cases=cases, same_leaves=not given
                )
                for name in kept
            }
        )
        types[-1][f"only{number}"] = INT
    with_ntz = any("timestamp_ntz" in shape.ddl for shape in asked.values())
    evolved_lakes.write_files(rng, folder, types, rows=20, int96=given or not with_ntz)
    schema = ", ".join(f"{name} {shape.ddl}" for name, shape in asked.items()) if given else None
    native = (spark.read if schema is None else spark.read.schema(schema)).parquet(str(folder))
    leaves = [leaf for name, shape in asked.items() if name in native.columns for leaf in shape.leaves(name)]
    conditions = [evolved_lakes.condition(rng, leaves) for _ in range(2)] if leaves and given else []
    for where in (None, *conditions):
        theirs = native if where is None else native.filter(where)
        pairs.add((schema, types, where), scan(spark, str(folder), where=where, schema=schema), theirs)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_random_schemas(spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path, seed: int) -> None:
    rng, pairs = random.Random(seed), Pairs()
    for number in range(6):
        _random_pairs(spark, tmp_path / f"{number}", rng, pairs, given=True, cases=True)
    pairs.check()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_merges(spark: SparkSession, no_pushdown: RuntimeConfig, tmp_path: Path, seed: int) -> None:
    no_pushdown.set("spark.sql.parquet.mergeSchema", "true")
    rng, pairs = random.Random(seed), Pairs()
    for number in range(6):
        _random_pairs(spark, tmp_path / f"{number}", rng, pairs, given=False, cases=True)
    pairs.check()


def test_names_with_dots(spark: SparkSession, tmp_path: Path) -> None:
    """A column of the name itself comes first."""
    table = pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], "c`d": [5, 6]})
    pq.write_table(table, tmp_path / "a.parquet")
    native = spark.read.parquet(str(tmp_path))
    for path, name in (("a.b", "`a.b`"), ("A.B", "`A.B`"), ("`a.b`", "`a.b`"), ("`a`.b", "`a`.b"), ("c`d", "`c``d`")):
        expected = native.select(name)
        found = scan(spark, str(tmp_path), columns=[path])
        assert (found.columns, found.collect()) == (expected.columns, expected.collect())
    register(spark)
    for path, name in (("a.b,a", "`a.b`"), ("`a.b`,a", "`a.b`"), ("`c``d`,a", "`c``d`")):
        expected = native.select(name, "a")
        loaded = spark.read.format("asyncpq").option("columns", path).load(str(tmp_path))
        assert (loaded.columns, loaded.collect()) == (expected.columns, expected.collect())
