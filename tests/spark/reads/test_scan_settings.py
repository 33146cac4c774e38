"""Settings and types by which Spark's values are others than those that files seem to have: conditions on them, against
``spark.read.parquet``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from asyncpq import col
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, QueryError
from asyncpq.spark import lookup_join
from asyncpq.spark.reads import scan as scan_module
from asyncpq.spark.reads.scan import explain_scan
from asyncpq.spark.types import read_conf
from asyncpq.spark.types.read_conf import ReadConf
from tests.spark import source_calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

#: Through the tasks of asyncpq, however small the lakes are.
scan = partial(scan_module.scan, reader="asyncpq")

_NOON = dt.datetime(2024, 1, 1, 12)


class Judge:
    """Scans and what Spark's own reader gives for the same, compared in one job."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._asked: list[tuple[object, DataFrame, DataFrame]] = []

    def add(self, lake: object, where: Any, sql: str | None = None, **options: Any) -> str:
        """The same condition for both; what rows are left out by."""
        reader = self._spark.read if "schema" not in options else self._spark.read.schema(options["schema"])
        plan = explain_scan(self._spark, str(lake), where=where, reader="asyncpq", **options)
        theirs = reader.parquet(str(lake)).filter(where if sql is None else sql)
        self._asked.append(((str(lake), where, options), plan.frame(self._spark), theirs))
        return str(plan).partition("pruned by: ")[2]

    def check(self) -> None:
        rows: list[list[list[str]]] = [[[], []] for _ in self._asked]
        lines = [
            frame.select(F.lit(at).alias("at"), F.lit(side).alias("side"), F.to_json(F.struct("*")).alias("line"))
            for at, (_, *frames) in enumerate(self._asked)
            for side, frame in enumerate(frames)
        ]
        for row in reduce(DataFrame.unionAll, lines).collect():
            rows[row["at"]][row["side"]].append(row["line"])
        for (asked, _, _), (ours, theirs) in zip(self._asked, rows, strict=True):
            assert sorted(ours) == sorted(theirs), asked


@pytest.fixture
def judge(spark: SparkSession, restored_conf: RuntimeConfig) -> Judge:
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")
    return Judge(spark)


def _written(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


# -- integers -------------------------------------------------------------------------------------


def test_types_that_are_too_narrow(judge: Judge, tmp_path: Path) -> None:
    """Spark keeps the low bits."""
    file = _written(
        tmp_path / "a" / "0.parquet",
        k=pa.array([257, 1, 300], pa.int32()),
        u=pa.array([200, 1, 2], pa.uint8()),
        w=pa.array([40_000, 1, 2], pa.uint16()),
        many=pa.array([[257], [2], [200]], pa.list_(pa.int32())),
        s=pa.array([{"x": 257}, {"x": 1}, {"x": 2}], pa.struct([("x", pa.int32())])),
    )
    lake = file.parent
    schema = "k tinyint, u tinyint, w smallint, many array<tinyint>, s struct<x: tinyint>"
    for where in ("k = 1", "k in (44, 1)", "k > 1", "u = -56", "w < 0", "s.x = 1"):
        judge.add(lake, where, schema=schema)
    judge.add(lake, col("many").has(1), "array_contains(many, 1Y)", schema=schema)
    wide = "k bigint, u smallint, w int, many array<bigint>, s struct<x: bigint>"
    for where in ("k = 257", "u = 200", "s.x = 257"):
        assert not judge.add(lake, where, schema=wide).startswith("nothing"), where
    assert not judge.add(lake, col("many").has(257), "array_contains(many, 257L)", schema=wide).startswith("nothing")
    mixed = tmp_path / "b"
    _written(mixed / "0.parquet", k=pa.array([1, 2], pa.int16()))
    _written(mixed / "1.parquet", k=pa.array([70_000, 1], pa.int32()))
    judge.add(mixed, "k = 4464")
    judge.add(mixed, "k <> 4464")
    judge.check()


# -- INT96 ----------------------------------------------------------------------------------------


def _times(path: Path, kind: str, first: int) -> None:
    times = pa.array([_NOON, _NOON + dt.timedelta(days=182, microseconds=1)], pa.timestamp("us"))
    row = pa.array([first, first + 1])
    if kind == "int96":
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"row": row, "ts": times}), path, use_deprecated_int96_timestamps=True)
    else:
        zoned = {"utc": pa.timestamp("us", "UTC"), "ms": pa.timestamp("ms", "UTC"), "ntz": pa.timestamp("us")}
        _written(path, row=row, ts=times.cast(zoned[kind], safe=False))


@pytest.mark.parametrize("converted", ["true", "false"])
def test_int96_as_the_clock_of_the_session(
    judge: Judge, spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, converted: str
) -> None:
    restored_conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    restored_conf.set("spark.sql.parquet.int96TimestampConversion", converted)
    lakes: Sequence[Sequence[str]] = (
        *(["int96"], ["utc", "int96"], ["int96", "utc"], ["ms", "int96"], ["int96", "ntz"], ["ntz", "int96"]),
    )
    for number, kinds in enumerate(lakes):
        lake = tmp_path / str(number)
        for at, kind in enumerate(kinds):
            _times(lake / f"{at}.parquet", kind, 2 * at)
        pruned = judge.add(lake, "ts = '2024-01-01 12:00:00'")
        assert pruned.startswith("nothing") is (converted == "true" and kinds[0] != "ntz"), kinds
        if converted == "true":
            judge.add(lake, "ts < '2024-01-01 12:00:00'")
            judge.add(lake, col("ts") == _NOON, "ts = timestamp '2024-01-01 12:00:00'")
    judge.check()
    keys = spark.createDataFrame([("2024-01-01 12:00:00",)], "ts string").selectExpr("cast(ts as timestamp) as ts")
    lake = tmp_path / "1"
    expected = sorted(map(tuple, keys.join(spark.read.parquet(str(lake)), on="ts").collect()))
    if converted == "true":
        with pytest.raises(QueryError, match="int96TimestampConversion"):
            lookup_join(keys, str(lake), on="ts", strategy="lookups")
    assert sorted(map(tuple, lookup_join(keys, str(lake), on="ts").collect())) == expected


def test_the_source_does_not_see_the_zone_of_int96(tmp_path: Path) -> None:
    _times(tmp_path / "0.parquet", "int96", 0)
    source = source_calls.source(path=str(tmp_path), int96TimestampConversion="true")
    with pytest.raises(InvalidOptionError, match="INT96") as raised:
        source_calls.read_table(source)
    assert "sessionTimeZone" in (raised.value.hint or "")


# -- texts ----------------------------------------------------------------------------------------


def test_collations_and_char_in_lists_and_structs(judge: Judge, spark: SparkSession, tmp_path: Path) -> None:
    lake = str(tmp_path / "collated")
    spark.sql(
        "SELECT cast(array('A') AS array<string collate UTF8_LCASE>) AS tags,"
        " named_struct('x', 'A' collate UTF8_LCASE) AS s, array('A') AS plain"
    ).coalesce(1).write.parquet(lake)
    for name in ("tags", "plain"):
        where = f"array_contains({name}, 'a')"
        pruned = judge.add(lake, col(name).has("a"), where)
        assert pruned.startswith("nothing") is (name == "tags")
    judge.add(lake, "s.x = 'a'")
    padded = tmp_path / "padded"
    frame = spark.sql("SELECT 'a    ' AS c, array('a    ') AS a, named_struct('x', 'a    ') AS s, 'a' AS v")
    kinds = {"c": "char(5)", "a": "array<char(5)>", "s": "struct<x:char(5)>", "v": "varchar(5)"}
    for name, kind in kinds.items():
        frame = frame.withMetadata(name, {read_conf.CHAR_VARCHAR_KEY: kind})
    frame.coalesce(1).write.parquet(str(padded))
    for where in ("c = 'a'", "s.x = 'a'", "v = 'b'"):
        assert judge.add(padded, where).startswith("nothing") is (where[0] != "v"), where
    assert judge.add(padded, col("a").has("a"), "array_contains(a, 'a')").startswith("nothing")
    judge.check()


def test_dates_that_are_compared_as_texts(judge: Judge, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    times = pa.array([dt.datetime(2024, 5, 1), dt.datetime(2024, 5, 2)], pa.timestamp("us", "UTC"))
    lake = _written(tmp_path / "0.parquet", t=times, d=pa.array([dt.date(2024, 5, 1), dt.date(2024, 5, 2)])).parent
    wheres = ("t > '2024-05-01'", "t <= '2024-05-01'", "d = '2024-05-01'", "d <> '2024-05-01'", "d in ('2024-05-01')")
    restored_conf.set("spark.sql.ansi.enabled", "false")
    for legacy in ("true", "FALSE"):
        restored_conf.set("spark.sql.legacy.typeCoercion.datetimeToString.enabled", legacy)
        for where in wheres:
            pruned = judge.add(lake, where)
            assert pruned.startswith("nothing") is (legacy == "true" or " in " in where), where
        assert not judge.add(lake, "t > timestamp '2024-05-01 00:00:00'").startswith("nothing")
        judge.check()  # settings are those of the query's time
        judge = Judge(judge._spark)


# -- names ----------------------------------------------------------------------------------------


def test_dots_before_fields_and_in_names(judge: Judge, tmp_path: Path) -> None:
    inner = pa.array([{"b": 1}, {"b": 2}, {"b": 3}], pa.struct([("b", pa.int64())]))
    file = _written(tmp_path / "0.parquet", **{"a.b": pa.array([10, 20, 30]), "a": inner, "c.d": pa.array([1, 2, 3])})
    lake = file.parent
    assert judge.add(lake, "a.b = 2").startswith("nothing")  # asyncpq has but one name for both
    judge.add(lake, "`a.b` = 20")
    judge.add(lake, "`c.d` = 2")
    judge.add(lake, "`a`.`b` = 3")
    assert not judge.add(lake, col("a.b") == 20, "`a.b` = 20").startswith("nothing")
    assert not judge.add(lake, col("c.d") == 2, "`c.d` = 2").startswith("nothing")
    judge.check()
    reader = source_calls.source(path=str(lake), where="a.b = 2")
    assert source_calls.read_table(reader).num_rows == 3


def test_all_columns_by_a_star(spark: SparkSession, tmp_path: Path) -> None:
    part = pa.array([{"x": 1, "y": 2}])
    lake = str(_written(tmp_path / "0.parquet", a=pa.array([1]), b=pa.array([2]), s=part).parent)
    theirs = spark.read.parquet(lake)
    for columns in (["*"], ["b", "*"], ["s.*"], ["*", "s.x"]):
        ours = scan(spark, lake, where="a = 1", columns=columns)
        assert ours.schema == theirs.select(*columns).schema
        assert ours.collect() == theirs.select(*columns).collect()
    lake = str(_written(tmp_path / "star" / "0.parquet", **{"*": pa.array([1]), "b": pa.array([2])}).parent)
    assert scan(spark, lake, columns=["*"]).columns == ["*"]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"where": "nosuch = 1"}, "nosuch"),
        ({"where": "a > 0 and (nosuch.x in (1, 2) or a is null)"}, "nosuch.x"),
        ({"where": "t.a = 1"}, "t.a"),
        ({"predicate": '[["A", "==", 1], ["nosuch", ">", 2]]'}, "nosuch"),
        ({"where": "A = 1", "caseSensitive": "true"}, "A"),
    ],
)
def test_the_source_names_a_column_that_there_is_not(tmp_path: Path, options: dict[str, str], name: str) -> None:
    lake = str(_written(tmp_path / "0.parquet", a=pa.array([1, 2])).parent)
    source = source_calls.source(path=lake, **options)
    schema = source_calls.source(path=lake).schema()
    for read in (source.schema, lambda: source_calls.read_table(source, schema)):
        with pytest.raises(ColumnNotFoundError) as raised:
            read()
        assert raised.value.column == name


@pytest.mark.parametrize(
    "where", ["A = 1", "user = 'x' or a = 1", "exists(array(1), x -> x = a)", "nosuch(a) = 1", '"a" = 1', "a = 1 -- b"]
)
def test_what_is_not_understood_is_no_error(tmp_path: Path, where: str) -> None:
    lake = str(_written(tmp_path / "0.parquet", a=pa.array([1, 2])).parent)
    assert 1 in source_calls.read_table(source_calls.source(path=lake, where=where)).column("a").to_pylist()


# -- settings -------------------------------------------------------------------------------------


def test_flags_are_read_as_they_were_written(spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path) -> None:
    restored_conf.set("spark.sql.caseSensitive", "TRUE")
    restored_conf.set("spark.sql.parquet.inferTimestampNTZ.enabled", "True")
    restored_conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "legacy")
    conf = ReadConf.of(spark)
    assert (conf.case_sensitive, conf.infer_timestamp_ntz, conf.datetime_rebase_mode) == (True, True, "LEGACY")
    lake = str(_written(tmp_path / "0.parquet", a=pa.array([1]), A=pa.array([2]), t=pa.array([_NOON])).parent)
    ours = scan(spark, lake, where="A = 2")
    assert ours.schema == spark.read.parquet(lake).schema
    assert [row["a"] for row in ours.collect()] == [1]


def _without_such_a_setting(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> ReadConf:
    setting = ReadConf.__dataclass_fields__["field_ids"]
    monkeypatch.setattr(setting, "metadata", {"key": "spark.sql.asyncpq.nosuch"})
    return ReadConf.of(spark)


def test_settings_that_a_session_lacks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _without_such_a_setting(spark, monkeypatch) == ReadConf.of(spark)

    class Failing:
        class conf:  # noqa: N801  # as SparkSession has it
            @staticmethod
            def get(key: str) -> str:
                raise PySparkException("the server is gone")

    of: Callable[[Any], ReadConf] = ReadConf.of
    with pytest.raises(PySparkException, match="gone"):
        of(Failing)


def test_settings_in_spark_connect(connect: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    connect.sql("SET spark.sql.caseSensitive=TRUE").collect()
    connect.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    conf = _without_such_a_setting(connect, monkeypatch)
    assert (conf.case_sensitive, conf.session_time_zone, conf.field_ids) == (True, "Asia/Tokyo", False)


@pytest.mark.parametrize("where", [None, "v > 1"])
def test_files_that_are_deleted_after_planning(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, where: str | None
) -> None:
    for number in range(3):
        pq.write_table(pa.table({"v": [number, 10]}), tmp_path / f"{number}.parquet")
    restored_conf.set("spark.sql.files.ignoreMissingFiles", "true")
    kept, native = scan(spark, str(tmp_path), where=where), spark.read.parquet(str(tmp_path))
    restored_conf.set("spark.sql.files.ignoreMissingFiles", "false")
    refused = scan(spark, str(tmp_path), where=where)
    (tmp_path / "1.parquet").unlink()
    with pytest.raises(PySparkException, match=r"1\.parquet"):
        refused.collect()
    restored_conf.set("spark.sql.files.ignoreMissingFiles", "true")
    expected = native if where is None else native.where(where)
    assert sorted(kept.collect()) == sorted(expected.collect()) != []
