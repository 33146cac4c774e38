"""Filters that Spark pushes: right wherever the option is allowed, and refused where Spark would give wrong rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import UnsupportedFeatureError
from tests.spark.source_lake import ROWS, write_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.conf import RuntimeConfig

spark_source = pytest.importorskip("pyspark.sql.datasource", reason="needs pyspark: pip install asyncpq-parquet[spark]")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_lake(tmp_path_factory.mktemp("pushdown"))


def test_dots_between_fields_are_none_of_names() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    from asyncpq.spark.data_source import pushed_expression
    from asyncpq.spark.reads.conditions import Condition
    from asyncpq.spark.types.read_conf import ReadConf

    pushed = pushed_expression([spark_source.EqualTo(("a", "b"), 2)])
    inner = pa.struct([("b", pa.int64())])
    for names, wanted in ((["a"], "a.b == 2"), (["a.b", "a"], "None")):
        schema = pa.schema([(name, pa.int64() if "." in name else inner) for name in names])
        condition = Condition(pushed, by_fields=True)
        assert str(condition.terms(from_arrow_schema(schema), schema, ReadConf(), {})) == wanted


# -- the reader, called as PySpark calls it -------------------------------------------------------

VALUES: dict[str, list[Any]] = {
    "id": [-1, 0, 777, 2999, 10**12],
    "x": [0.0, -0.0, 97.125, math.nan, math.inf, -math.inf, 1e300],
    "Name": ["", "name-050", "name-0", "name-099", "zzz"],
    "day": [date.fromordinal(738_000), date.fromordinal(738_030), date(2100, 1, 1)],
    "price": [Decimal("0.00"), Decimal("7.77"), Decimal("12345.67")],
    "at": [datetime(1970, 1, 1, 5, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)],
    "raw": [b"", b"\x05", b"\x05\xff"],
}
COMPARED = ["EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]


def _order(value: Any) -> Any:
    """As Spark compares: NaN equals itself and is greater than all, the zeros are equal."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def _holds(filter_: Any, row: dict[str, Any]) -> bool | None:
    """Whether Spark's filter is true; None for null."""
    name = type(filter_).__name__
    if name == "Not":
        inner = _holds(filter_.child, row)
        return None if inner is None else not inner
    value = row[filter_.attribute[0]]
    if name in ("IsNull", "IsNotNull"):
        return (value is None) is (name == "IsNull")
    if name == "EqualNullSafe" and (value is None or filter_.value is None):
        return value is filter_.value
    if value is None:
        return None
    if name == "In":
        known = [one for one in filter_.value if one is not None]
        found = any(_order(value) == _order(one) for one in known)
        return found or (False if len(known) == len(filter_.value) else None)
    if name.startswith("String"):
        said: bool = {
            "StringStartsWith": str.startswith,
            "StringEndsWith": str.endswith,
            "StringContains": str.__contains__,
        }[name](value, filter_.value)
        return said
    left, right = _order(value), _order(filter_.value)
    compared: dict[str, Callable[[], bool]] = {
        "EqualTo": lambda: left == right,
        "EqualNullSafe": lambda: left == right,
        "GreaterThan": lambda: left > right,
        "GreaterThanOrEqual": lambda: left >= right,
        "LessThan": lambda: left < right,
        "LessThanOrEqual": lambda: left <= right,
    }
    return compared[name]()


@st.composite
def pushed(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(list(VALUES)))
    values = st.sampled_from(VALUES[column])
    some = st.lists(values | st.none(), min_size=1, max_size=3).map(tuple)
    made: list[st.SearchStrategy[Any]] = [
        st.builds(getattr(spark_source, name), st.just((column,)), values) for name in COMPARED
    ]
    made.append(st.builds(spark_source.In, st.just((column,)), some))
    made += [st.just(spark_source.IsNull((column,))), st.just(spark_source.IsNotNull((column,)))]
    made.append(st.just(spark_source.EqualNullSafe((column,), None)))
    if column == "Name":
        made += [
            st.builds(getattr(spark_source, name), st.just((column,)), values)
            for name in ("StringStartsWith", "StringEndsWith", "StringContains")
        ]
    found = draw(st.one_of(made))
    return spark_source.Not(found) if draw(st.booleans()) else found


@cache
def _rows(lake: str) -> list[dict[str, Any]]:
    table = ds.dataset(lake, partitioning="hive").to_table(columns=list(VALUES))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _pushed_ids(lake: str, filters: list[Any]) -> list[int]:
    from asyncpq.spark.data_source import PushdownReader
    from asyncpq.spark.source_options import SourceOptions
    from tests.spark import source_calls

    schema = source_calls.source(path=lake, columns="id").schema()
    reader = PushdownReader(SourceOptions.parse({"path": lake, "pushdown": "true"}), schema)
    assert list(reader.pushFilters(filters)) == filters
    task = source_calls.pickled(reader)
    table: pa.Table = source_calls.rows_of(task, reader.partitions(), schema)
    ids: list[int] = table.column("id").to_pylist()
    return ids


@given(st.lists(pushed(), min_size=1, max_size=3))
def test_what_is_left_out_matches_no_filter(lake: str, filters: list[Any]) -> None:
    found = _pushed_ids(lake, filters)
    wanted = {row["id"] for row in _rows(lake) if all(_holds(one, row) is True for one in filters)}
    assert wanted <= set(found)
    assert len(found) == len(set(found)) <= ROWS


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda s: [s.EqualTo(("id",), 777)], 1),
        (lambda s: [s.EqualNullSafe(("id",), 777)], 1),
        (lambda s: [s.In(("id",), (5, 777))], 2),
        (lambda s: [s.StringStartsWith(("Name",), "name-05")], 300),
        (lambda s: [s.GreaterThan(("day",), date.fromordinal(738_058))], 50),
        (lambda s: [s.Not(s.LessThan(("price",), Decimal("29.95")))], 5),
        (lambda s: [s.IsNotNull(("id",)), s.LessThan(("id",), 3)], 3),
        (lambda s: [s.EqualTo(("nothing", "there"), 1)], ROWS),
    ],
)
def test_rows_are_left_out(lake: str, make: Callable[[Any], list[Any]], most: int) -> None:
    found = _pushed_ids(lake, make(spark_source))
    assert 0 < len(found) <= most


@pytest.mark.parametrize("version", ["4.1.0", "4.3.0", "4.10.2", "unknown"])
def test_versions_with_the_leak_are_refused(version: str) -> None:
    from asyncpq.spark.data_source import require_safe_pushdown

    with pytest.raises(UnsupportedFeatureError, match=r"SPARK-58551.*scan\("):
        require_safe_pushdown(version)


@pytest.mark.parametrize("version", ["5.0.0", "5.1.0.dev0", "10.0.0"])
def test_versions_without_it_are_not(version: str) -> None:
    from asyncpq.spark.data_source import require_safe_pushdown

    require_safe_pushdown(version)


# -- on Spark: one relation that is scanned twice -------------------------------------------------


def leak_queries(frame: DataFrame, spark: SparkSession, table: str) -> dict[str, Any]:
    """Five queries that Spark answered wrongly with filters pushed; each uses ``frame`` or ``table`` twice."""
    none = f"id = {10 * ROWS}"
    answers: dict[str, Any] = {}
    answers["filtered, then not"] = (frame.filter(none).count(), frame.count())
    united = frame.filter("id = 5").union(frame.filter(none)).union(frame.filter("id = 7"))
    answers["union"] = sorted(row["id"] for row in united.collect())
    both = frame.filter("id = 5").crossJoin(frame.groupBy().count())
    answers["with an aggregate"] = [tuple(row) for row in both.collect()]
    frame.createOrReplaceTempView("leak_view")
    sql = "SELECT count(*) FROM leak_view"
    answers["view"] = [spark.sql(one).collect()[0][0] for one in (f"{sql} WHERE {none}", sql, f"{sql} WHERE id = 7")]
    spark.catalog.dropTempView("leak_view")
    pair = f"SELECT (SELECT count(*) FROM {table} WHERE id = 5), (SELECT count(*) FROM {table})"
    answers["two references"] = tuple(spark.sql(pair).collect()[0])
    return answers


def expected_answers(rows: int) -> dict[str, Any]:
    return {
        "filtered, then not": (0, rows),
        "union": [5, 7],
        "with an aggregate": [(5, rows)],
        "view": [0, rows, 1],
        "two references": (1, rows),
    }


@pytest.fixture
def source_name(spark: SparkSession, restored_conf: RuntimeConfig) -> str:
    from asyncpq.spark.shipping import register

    register(spark)
    restored_conf.set("spark.sql.python.filterPushdown.enabled", "true")
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")  # it loses NaN rows
    return "asyncpq"


@pytest.mark.parametrize("mode", ["plain", "predicate", "where"])
def test_the_leak_queries_are_right_in_every_mode(spark: SparkSession, source_name: str, lake: str, mode: str) -> None:
    options = {"path": lake, "columns": "id"}
    rows = ROWS
    if mode == "predicate":
        options["predicate"], rows = '[["id", "<", 100]]', 100
    elif mode == "where":
        options["where"], rows = "id < 100", 100
    frame = spark.read.format(source_name).options(**options).load()
    given = ", ".join(f"{name} = '{value}'" for name, value in options.items())
    spark.sql("CREATE TABLE leak_table (id BIGINT) USING asyncpq")
    try:
        answers = leak_queries(frame, spark, f"leak_table WITH ({given})")
    finally:
        spark.sql("DROP TABLE leak_table")
    assert answers == expected_answers(rows)


def test_pushdown_is_refused_before_anything_is_read(spark: SparkSession, source_name: str, lake: str) -> None:
    from pyspark.errors import AnalysisException

    frame = spark.read.format(source_name).option("pushdown", "true").load(lake)
    for query in (frame, frame.filter("id = 5")):
        with pytest.raises(AnalysisException, match="SPARK-58551"):
            query.collect()


def test_pushdown_would_be_right_for_relations_that_are_scanned_once(
    spark: SparkSession, source_name: str, lake: str
) -> None:
    """And it is refused for a reason: Spark 4.3 gives one relation's scans the filters of the last one."""
    from tests.spark.leaky_source import LeakySource

    spark.dataSource.register(LeakySource)
    reader = spark.read.format(LeakySource.name()).option("pushdown", "true").option("columns", "id, x, Name")
    conditions = ["id = 777", "x = 'NaN'", "Name LIKE 'name-05%' AND id > 1600", "NOT x <= 300", "Name IS NULL"]
    oracle = spark.read.parquet(lake)
    counted = [reader.load(lake).filter(one).selectExpr("count(*)", "sum(id)") for one in conditions]
    expected = [oracle.filter(one).selectExpr("count(*)", "sum(id)") for one in conditions]
    for frames in (counted, expected):
        while len(frames) > 1:
            frames[:2] = [frames[0].union(frames[1])]
    assert sorted(counted[0].collect()) == sorted(expected[0].collect())
    frame = reader.load(lake)
    assert frame.filter("id = -1").count() == 0
    assert frame.count() != ROWS, "Spark has mended SPARK-58551: see asyncpq/spark/data_source.py"
