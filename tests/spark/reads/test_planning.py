"""Plans as Spark takes them, and files that differ from what a plan expects: cases in which one misled the other."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import asyncpq
import asyncpq.spark
from asyncpq import col
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, ObjectNotFoundError, QueryError
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.indexing.kinds import IndexKind
from asyncpq.spark.reads import task_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.conf import RuntimeConfig

#: Through the tasks of asyncpq, however small the lakes are.
scan = partial(asyncpq.spark.scan, reader="asyncpq")


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession, restored_conf: RuntimeConfig) -> None:
    asyncpq.spark.register(spark)
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")


def rows(frame: DataFrame) -> list[Any]:
    return sorted(map(tuple, frame.collect()), key=repr)


def put(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, write_page_index=True)


# -- how large Spark takes a scan to be ------------------------------------------------------------


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("sent", ["numbers", "rows"])
def test_a_lake_is_not_broadcast(
    spark: SparkSession, restored_conf: RuntimeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    if sent == "rows":
        monkeypatch.setattr(task_rows, "MOST_CLOSURE_BYTES", 0)
    chance = random.Random(1)
    for number in range(3):
        ids = range(number * 1000, number * 1000 + 1000)
        put(tmp_path / f"{number}.parquet", id=ids, v=[chance.random() for _ in ids])
    small, lake = spark.range(2), str(tmp_path)
    for threshold, is_broadcast in (("20000", False), ("10MB", True), ("-1", False)):
        restored_conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)
        found = scan(spark, lake)
        for small in (spark.range(2), spark.range(30_000)):
            for one in (found, found.select("id"), found.groupBy("id").count()):
                plan = plan_of(small.join(one, "id", "left"))
                assert ("BroadcastHashJoin" in plan) is is_broadcast, (threshold, one)
        assert spark.range(2).join(found, "id", "left").count() == 2
        assert found.count() == 3000
    restored_conf.set("spark.sql.autoBroadcastJoinThreshold", "20000")
    few = scan(spark, lake, where="id < 5", columns=["id"])  # of which little is read
    assert "BroadcastHashJoin" in plan_of(spark.range(2).join(few, "id", "left"))
    assert few.count() == 5


def size_of(frame: DataFrame) -> int:
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


@pytest.mark.parametrize("sent", ["numbers", "rows"])
@pytest.mark.parametrize("cost_based", ["false", "true"])
def test_a_scan_is_as_large_as_it_is_to_spark(
    spark: SparkSession,
    restored_conf: RuntimeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent: str,
    cost_based: str,
) -> None:
    """As files that Spark reads itself, also where a part of the columns is selected later."""
    if sent == "rows":
        monkeypatch.setattr(task_rows, "MOST_CLOSURE_BYTES", 0)
    restored_conf.set("spark.sql.cbo.enabled", cost_based)
    chance = random.Random(3)
    for number in range(2):
        put(tmp_path / f"{number}.parquet", **{name: [chance.random() for _ in range(40_000)] for name in "abcde"})
    native, found = spark.read.parquet(str(tmp_path)), scan(spark, str(tmp_path))
    selections: list[Callable[[DataFrame], DataFrame]] = [
        lambda frame: frame,
        lambda frame: frame.select("a"),
        lambda frame: frame.groupBy("b").count(),
    ]
    for selected in selections:
        share = size_of(selected(found)) / size_of(selected(native))
        assert share >= 0.9
        if cost_based == "false":
            assert share <= 1.2
    assert found.count() == 80_000


# -- files that spell columns in other cases -------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "late"),
    [
        ([Bounds("id"), Keys("id")], False),
        ([Bounds(), Footers()], True),
        ([Keys("id"), Keys("s.a")], False),
        pytest.param([Bounds("id"), Keys("id")], True, marks=pytest.mark.slow),
        pytest.param([Bounds(), Footers()], False, marks=pytest.mark.slow),
        pytest.param([Keys("id"), Keys("s.a")], True, marks=pytest.mark.slow),
    ],
)
def test_an_index_does_not_hide_columns_in_another_case(
    spark: SparkSession, tmp_path: Path, kinds: list[IndexKind], late: bool
) -> None:
    lake = str(tmp_path)
    put(tmp_path / "a.parquet", id=[1, 2], s=[{"a": 1}, {"a": 2}], v=["a", "b"])
    if not late:
        put(tmp_path / "b.parquet", ID=[3, 4], s=[{"a": 3}, {"a": 4}], v=["x", "y"])
        put(tmp_path / "c.parquet", id=[5, 6], s=[{"A": 5}, {"A": 6}], v=["p", "q"])
    built = asyncpq.spark.build_index(spark, lake, kinds)
    if late:
        put(tmp_path / "b.parquet", ID=[3, 4], s=[{"a": 3}, {"a": 4}], v=["x", "y"])
        put(tmp_path / "c.parquet", id=[5, 6], s=[{"A": 5}, {"A": 6}], v=["p", "q"])
        built = asyncpq.spark.refresh_index(spark, built.at)
    assert [(one.path, one.error) for one in built.problems] == [
        ("b.parquet", "AmbiguousColumnError"),
        ("c.parquet", "AmbiguousColumnError"),
    ]
    native = spark.read.parquet(lake)
    for where in ("id = 3", "id >= 2", "s.a = 5", "s.a in (2, 6) or id = 4"):
        assert rows(scan(spark, lake, where=where)) == rows(native.where(where)) != []
        source = spark.read.format("asyncpq").option("where", where).load(lake)
        assert rows(source.where(where)) == rows(native.where(where))
    keys = spark.createDataFrame([(3,), (5,), (9,)], "id bigint")
    for how in ("inner", "left", "semi", "anti"):
        found = asyncpq.spark.lookup_join(keys, lake, on="id", how=how)
        assert rows(found) == rows(keys.join(native, "id", how))
    assert asyncpq.spark.verify_index(spark, built.at, sample=9).problems == []


async def test_other_cases_are_other_columns_to_asyncpq(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", id=[1, 2])
    put(tmp_path / "b.parquet", ID=[3, 4])
    async with asyncpq.Session() as session:
        index = await session.build_index(str(tmp_path), [Bounds("id"), Keys("id")])
        assert (index.manifest.num_files, index.manifest.num_rows) == (2, 2)
        dataset = await session.open_dataset(str(tmp_path), view="snapshot")
        assert await dataset.count() == 4
        assert await dataset.count(col("id").is_null()) == 2


def test_unsigned_integers_that_spark_reads_as_signed_ones(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", k=[1.0, 2.0])
    put(tmp_path / "b.parquet", k=pa.array([1, 4_000_000_000], pa.uint32()))
    native = spark.read.parquet(str(tmp_path)).where("k < 0")
    assert rows(scan(spark, str(tmp_path), where="k < 0")) == rows(native) == [(-294967296.0,)]


# -- lookups ---------------------------------------------------------------------------------------


def test_files_without_keys_say_nothing_of_lookups(spark: SparkSession, tmp_path: Path) -> None:
    """Of many files some are looked into: where none has a key, it is not taken to cost nothing."""
    chance = random.Random(2)
    none: Any = pa.array([None] * 10, pa.int64())
    for number in range(100):
        put(tmp_path / f"{number:02}.parquet", id=none)
    ids = chance.sample(range(2**60), 700_000)
    put(tmp_path / "13-many.parquet", id=ids)
    keys = spark.range(3)
    with pytest.raises(QueryError, match="no keys"):
        asyncpq.spark.lookup_join(keys, str(tmp_path), on="id", strategy="lookups")
    plan = asyncpq.spark.explain_lookup_join(keys, str(tmp_path), on="id")
    assert plan.refused is not None
    for number in range(0, 100, 2):  # some of them have keys now
        put(tmp_path / f"{number:02}.parquet", id=[number])
    plan = asyncpq.spark.explain_lookup_join(keys, str(tmp_path), on="id")
    assert plan.num_bytes > 0


def test_files_in_several_splits_are_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(4)
    ids = chance.sample(range(2**60), 900_000)
    pq.write_table(pa.table({"id": ids}), tmp_path / "a.parquet", row_group_size=30_000)
    found = [
        asyncpq.spark.explain_lookup_join(spark.range(3), str(tmp_path), on="id", split_bytes=size)
        for size in (64 << 20, 1 << 20)
    ]
    assert found[0].refused is not None
    # each split has requests of its own, and so more waiting
    assert found[0].requests <= found[1].requests
    whole, split = (dataclasses.replace(estimate, requests=0, lookup_s=0.0) for estimate in found)
    assert whole == split


def test_estimates_do_not_count_pages_twice(spark: SparkSession, tmp_path: Path) -> None:
    wide = ["x" * 100 + str(number) for number in range(2000)]
    put(tmp_path / "a.parquet", id=range(2000), wide=wide)
    size = (tmp_path / "a.parquet").stat().st_size
    keys = spark.range(1500)
    whole = asyncpq.spark.explain_lookup_join(keys, str(tmp_path), on="id")
    narrow = asyncpq.spark.explain_lookup_join(keys, str(tmp_path), on="id", columns=[])
    assert 0 < narrow.num_bytes < whole.num_bytes <= size
    assert narrow.scan_s is not None
    assert whole.scan_s is not None
    assert narrow.scan_s < whole.scan_s
    refused = asyncpq.spark.explain_lookup_join(spark.range(2).selectExpr("id AS wide"), str(tmp_path), on="wide")
    assert (refused.scan_s, refused.scan_is_cheaper) == (None, False)
    with pytest.raises(QueryError, match="Cast the keys"):
        asyncpq.spark.lookup_join(spark.range(2).selectExpr("id AS wide"), str(tmp_path), on="wide", strategy="lookups")


def test_other_names_of_joins(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", id=range(5), v=range(5))
    keys, native = spark.range(3, 8), spark.read.parquet(str(tmp_path))
    for how in ("left_semi", "leftsemi", "left_anti", "leftanti", "left_outer", "leftouter"):
        found = asyncpq.spark.lookup_join(keys, str(tmp_path), on="id", how=how)  # type: ignore[arg-type]
        assert rows(found) == rows(keys.join(native, "id", how))
    with pytest.raises(InvalidOptionError, match="how"):
        asyncpq.spark.lookup_join(keys, str(tmp_path), on="id", how="outer")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="DataFrame"):
        asyncpq.spark.lookup_join([1, 2], str(tmp_path), on="id")  # type: ignore[arg-type]


# -- indexes and layouts ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Keys("id"), pytest.param(Bounds("id"), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("deleted", [False, True])
def test_what_helps_where_a_file_of_the_index_was_replaced(
    spark: SparkSession, tmp_path: Path, kind: IndexKind, deleted: bool
) -> None:
    lake = str(tmp_path)
    put(tmp_path / "a.parquet", id=[1, 2])
    built = asyncpq.spark.build_index(spark, lake, [kind])
    if deleted:
        (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    else:
        put(tmp_path / "a.parquet", id=[1, 2, 3])
    reads: list[Callable[[], Any]] = [
        lambda: scan(spark, lake, view="snapshot").collect(),
        lambda: asyncpq.spark.lookup_join(spark.range(3), lake, on="id", view="snapshot").collect(),
    ]
    if deleted:  # a file that was replaced is planned as it is now
        reads.append(lambda: scan(spark, lake, where="id = 1", view="snapshot").collect())
    for read in reads:
        with pytest.raises(Exception, match=r"object|no such file") as caught:
            read()
        told = f"{caught.value} {getattr(caught.value, 'hint', '')}"
        assert "a.parquet" in told
        assert "Refresh the index" in told
    now = [(1,), (2,)] if deleted else [(1,), (2,), (3,)]
    assert rows(scan(spark, lake)) == rows(scan(spark, lake, view="listed")) == now
    joined = asyncpq.spark.lookup_join(spark.range(4), lake, on="id")
    assert rows(joined) == now
    asyncpq.spark.refresh_index(spark, built.at)
    assert rows(scan(spark, lake)) == rows(scan(spark, lake, view="snapshot")) == now


def test_a_file_that_was_never_there(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody is told that it was replaced."""
    for where in (None, "id = 1"):
        with pytest.raises(ObjectNotFoundError, match=r"nothing\.parquet") as caught:
            scan(spark, [str(tmp_path / "nothing.parquet")], where=where)
        assert caught.value.hint is None


def test_an_index_is_not_among_the_files(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    put(lake / "a.parquet", id=[1, 2])
    (tmp_path / "link").symlink_to(lake)
    others = [f"file://{lake}/index", f"local://{lake}/index", f"{tmp_path}/link/index"]
    for at in (str(lake), f"{lake}/", f"{lake}/index", f"{lake}/index.json", *others):
        with pytest.raises(InvalidOptionError, match="is inside the dataset"):
            asyncpq.spark.build_index(spark, str(lake), [Bounds()], at=at)
    for at in (f"{lake}/_mine", f"{tmp_path}/beside"):
        asyncpq.spark.build_index(spark, str(lake), [Bounds()], at=at)
    with pytest.raises(ObjectNotFoundError, match="there is no index") as caught:
        asyncpq.spark.verify_index(spark, str(lake))
    assert "The index of this folder is in _asyncpq/" not in str(caught.value.hint)
    asyncpq.spark.build_index(spark, str(lake), [Bounds()])
    for work in (asyncpq.spark.verify_index, asyncpq.spark.refresh_index, asyncpq.spark.vacuum):
        with pytest.raises(ObjectNotFoundError, match="there is no index") as caught:
            work(spark, str(lake))
        assert "The index of this folder is in _asyncpq/" in str(caught.value.hint)
    assert sorted(path.name for path in lake.iterdir()) == ["_asyncpq", "_mine", "a.parquet"]


def test_columns_of_paths_are_rewritten(spark: SparkSession, tmp_path: Path) -> None:
    for day in (1, 2):
        put(tmp_path / "lake" / f"day={day}" / "a.parquet", id=[day])
    files = [str(path) for path in sorted((tmp_path / "lake").rglob("*.parquet"))]
    for number, source in enumerate([str(tmp_path / "lake"), str(tmp_path / "lake" / "*" / "*.parquet"), files]):
        target = str(tmp_path / str(number))
        assert asyncpq.spark.optimize(spark, source, target, sort_by="id").rows == 2
        assert rows(scan(spark, target)) == [(1, 1), (2, 2)]
    with pytest.raises(ColumnNotFoundError, match="the written columns do not include it"):
        asyncpq.spark.optimize(spark, files, str(tmp_path / "more"), sort_by="id", columns=["day"])


def test_fields_whose_names_have_dots(spark: SparkSession, tmp_path: Path) -> None:
    """A path cannot name them, so that the usual index leaves them out."""
    frame = spark.range(30).selectExpr("named_struct('x.y', id, 'z', id) AS s", "id AS `s.z`", "id")
    written, source, target = (str(tmp_path / name) for name in ("written", "source", "target"))
    frame.write.format("asyncpq").mode("append").save(written)
    frame.write.parquet(source)
    asyncpq.spark.optimize(spark, source, target, sort_by="id")
    asyncpq.spark.build_index(spark, source, [Bounds(), Footers()])
    for url in (written, source, target):
        for where in ("s.`x.y` = 3", "s.z = 4", "`s.z` = 5"):
            assert rows(scan(spark, url, where=where)) == rows(frame.where(where)) != []


def test_an_append_takes_the_index_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    writer = spark.range(3).write.format("asyncpq").mode("append")
    writer.option("indexKinds", '["footers"]').save(str(tmp_path))
    writer.option("indexKinds", '["footers"]').save(str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Exception, match="Append without indexKinds"):
        writer.option("indexKinds", '["bounds"]').save(str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    spark.range(4).write.format("asyncpq").mode("overwrite").option("indexKinds", '["bounds"]').save(str(tmp_path))
    assert scan(spark, str(tmp_path)).count() == 4


def test_a_plan_says_how_many_files_there_are(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / f"{number}.parquet", id=[number])
    for where, read in ((None, 3), ("id = 1", 1)):
        plan = asyncpq.spark.explain_scan(spark, str(tmp_path), where=where)
        assert f"files: 3, ruled out unopened 0, to read {read}" in str(plan)


def test_columns_that_are_selected_by_path(spark: SparkSession, tmp_path: Path) -> None:
    """Names may be in backquotes, and have these, dots and spaces."""
    inner = pa.struct({"y": pa.int64(), "k x": pa.int64(), "q.r": pa.int64()})
    struct = pa.array([{"y": 1, "k x": 2, "q.r": 3}], inner)
    put(tmp_path / "a.parquet", **{"id": [1], "s.t": struct, "a`b": [4], "u": struct, "s": struct})
    native = spark.read.parquet(str(tmp_path))
    for path in ("`s.t`.y", "`s.t`.`k x`", "`a``b`", "`u`.`q.r`", "u.`q.r`", "`s.t`", "s.y", "`s`.y"):
        found, expected = scan(spark, str(tmp_path), columns=[path]), native.select(path)
        assert (found.schema, rows(found)) == (expected.schema, rows(expected)), path


def test_rows_are_not_sorted_by_what_has_no_order(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).selectExpr("id", "map(id, id) AS m", "struct(array(map(1, id)) AS l) AS s").write.parquet(
        str(tmp_path / "lake")
    )
    for name in ("m", "s", "s.l"):
        with pytest.raises(InvalidOptionError, match="Spark cannot sort values of type") as caught:
            asyncpq.spark.optimize(spark, str(tmp_path / "lake"), str(tmp_path / "sorted"), sort_by=name)
        assert caught.value.column == name
