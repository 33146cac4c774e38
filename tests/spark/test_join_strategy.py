"""Each strategy of a join gives the rows of Spark's own join, and reads only files that may have the keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq.blocking
from asyncpq.distributed import join_planning
from asyncpq.distributed.join_planning import KeyedRead
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.spark.join_strategy import ChosenJoin, How, choose_join
from asyncpq.spark.joins import explain_lookup_join, open_join
from tests.spark import types_files
from tests.spark.joined import HOWS, same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STRATEGIES: Final = ("lookups", "spark", "auto")
FILES: Final = 12
ROWS: Final = 500
NAN: Final = float("nan")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """``id`` ascends over the files, ``r`` is in no order, ``x`` has nulls, NaN and both zeros, ``s`` few values."""
    folder = tmp_path_factory.mktemp("strategies") / "lake"
    folder.mkdir()
    floats = [None, NAN, 0.0, -0.0, 1.5]
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "r": pa.array([n * 7919 % (FILES * ROWS) for n in ids], pa.int32()),
                "x": pa.array([floats[n % 5] if n % 50 < 5 else float(n) for n in ids], pa.float64()),
                "s": pa.array([None if n % 7 == 0 else f"s{n % 11}" for n in ids]),
                "day": pa.array([n // 1000 for n in ids], pa.date32()),
            }
        )
        pq.write_table(table, folder / f"{number:02}.parquet", write_page_index=True, max_rows_per_page=100)
    with asyncpq.blocking.Session() as session:
        session.build_index(f"{folder}/", [Bounds("id"), Footers()], at=f"{folder}-bounds/")
        session.build_index(f"{folder}/", [Keys("r"), Keys("x"), Footers()], at=f"{folder}-keys/")
    return f"{folder}/"


@pytest.fixture(autouse=True)
def _no_pushdown(restored_conf: Any) -> None:
    restored_conf.set("spark.sql.parquet.filterPushdown", "false")  # it loses NaN rows


def _index(lake: str, kind: str) -> Any:
    return f"{lake.rstrip('/')}-{kind}/" if kind else False


def _chosen(df: DataFrame, lake: str, on: Any, strategy: Any, index: Any = False, how: How = "inner") -> ChosenJoin:
    return choose_join(df, open_join(df, lake, on, None, how, index=index), strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("index", ["", "bounds", "keys"])
def test_rows_are_those_of_sparks_join(spark: SparkSession, lake: str, strategy: Any, index: str) -> None:
    from asyncpq.spark.joins import lookup_join

    rows = [
        (5, 17, NAN, "s1"),
        (5, 17, -0.0, None),
        (None, None, None, None),
        (4321, 99_999, 1.5, "s3"),
        (-1, 0, 7.0, "s1"),
    ]
    left = spark.createDataFrame(rows, "id bigint, r int, x double, s string").repartition(2)
    native, mine, theirs = spark.read.parquet(lake), [], []
    for on in (["id"], ["r"], ["x"], ["s", "x"]):
        for how in HOWS:
            mine.append(lookup_join(left, lake, on, how=how, strategy=strategy, index=_index(lake, index)))
            theirs.append(left.join(native, on=on, how=how))
    same(mine, theirs)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_keys_of_other_types(spark: SparkSession, lake: str, strategy: Any) -> None:
    from asyncpq.spark.joins import lookup_join

    lefts = [
        spark.sql("SELECT * FROM VALUES ('5'), ('07'), (NULL) AS t(id)"),
        spark.sql("SELECT * FROM VALUES (17.0D), (17.5D), (double('nan')) AS t(r)"),
        spark.sql("SELECT * FROM VALUES (timestamp'1970-01-03'), (timestamp'1970-01-03 01:00:00') AS t(day)"),
    ]
    native = spark.read.parquet(lake)
    mine = [lookup_join(left, lake, left.columns, strategy=strategy) for left in lefts]
    same(mine, [left.join(native, on=left.columns) for left in lefts])


def test_only_files_that_may_have_the_keys_are_read(spark: SparkSession, lake: str) -> None:
    left = spark.createDataFrame([(5,), (ROWS * 3 + 1,)], "id bigint")
    for strategy in ("lookups", "spark"):
        found = _chosen(left, lake, "id", strategy, _index(lake, "bounds"))
        assert (found.strategy, found.files, found.files_total) == (strategy, 2, FILES)
        assert found.frame(["id"], "inner").count() == 2
    # without an index, Spark's reader gets the files that their own footers do not rule out
    found = _chosen(left, lake, "id", "spark")
    assert (found.files, found.files_total) == (2, FILES)


def test_keys_known_at_run_time_rule_out_files(spark: SparkSession, lake: str) -> None:
    """The left side runs once, and its rows are those that were looked up."""
    left = spark.range(3).selectExpr("int(rand() * 6000) AS r")
    found = _chosen(left, lake, "r", "auto", _index(lake, "keys"))
    assert found.num_keys == found.left.distinct().count()
    assert sorted(found.left.collect()) == sorted(found.left.collect())
    assert found.frame(["r"], "inner").count() == 3
    assert found.files <= 3


def test_the_driver_reads_few_rows(spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read many rows, and rows of a read that takes them less time."""
    left = spark.createDataFrame([(5, "a"), (5, "b"), (4000, "c"), (10**12, "d")], "id bigint, w string")
    native = spark.read.parquet(lake)

    def read() -> tuple[ChosenJoin, DataFrame]:
        found = _chosen(left, lake, "id", "auto", _index(lake, "bounds"))
        rows = found.rows()
        assert sorted(row.id for row in rows.collect()) == [5, 4000]
        same([found.frame(["id"], how) for how in HOWS], [left.join(native, "id", how) for how in HOWS])
        return found, rows

    found, rows = read()
    assert (found.reason, rows.isLocal()) == ("it is estimated at less time, on the driver", True)
    monkeypatch.setattr("asyncpq.spark.reads.task_rows.MOST_BYTES", 40)  # one row has more
    assert not read()[1].isLocal()
    monkeypatch.undo()
    monkeypatch.setattr("asyncpq.spark.join_strategy.DRIVER_START_S", 1.0)
    found, rows = read()
    assert (found.reason, rows.isLocal()) == ("it is estimated at less time", False)


def test_the_driver_reads_all_types_but_deep_ones(spark: SparkSession, tmp_path: Path, restored_conf: Any) -> None:
    restored_conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    columns = types_files.every_type()
    for folder, some in (("all", columns), ("most", {name: columns[name] for name in columns if name != "deep"})):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"id": pa.array([1, 2, 3]), **some}), tmp_path / folder / "0.parquet")
        url = f"{tmp_path / folder}/"
        left = spark.range(1, 5)
        found = _chosen(left, url, "id", "auto")
        assert found.rows().isLocal() == (folder == "most")
        same([found.frame(["id"], "left")], [left.join(spark.read.parquet(url), "id", "left")])


def test_an_explained_join_reads_no_rows(spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("reads")

    monkeypatch.setattr(KeyedRead, "__call__", read)
    said = explain_lookup_join(spark.createDataFrame([(5,)], "id bigint"), lake, "id")
    assert "on the driver" in str(said)


def test_each_core_gets_one_task_of_a_short_read_and_two_of_a_long_one(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncpq.spark import join_strategy

    left = spark.range(0, FILES * ROWS, ROWS)
    cores = spark.sparkContext.defaultParallelism
    assert _chosen(left, lake, "id", "lookups").rows().rdd.getNumPartitions() == min(cores, FILES)
    monkeypatch.setattr(join_strategy, "_LONG_S", 0.0)
    assert _chosen(left, lake, "id", "lookups").rows().rdd.getNumPartitions() == min(2 * cores, FILES)


def test_no_keys_and_keys_that_no_file_has(spark: SparkSession, lake: str) -> None:
    nulls = spark.createDataFrame([(None,), (None,)], "id bigint")
    none = _chosen(nulls, lake, "id", "auto")
    assert none.reason == "the left side has no keys"
    assert none.frame(["id"], "left").count() == 2
    beyond = spark.createDataFrame([(10**12,)], "id bigint")
    nowhere = _chosen(beyond, lake, "id", "auto", _index(lake, "bounds"))
    assert (nowhere.files, nowhere.reason) == (0, "no file may have the keys")
    assert nowhere.frame(["id"], "anti").count() == 1


def test_too_many_keys_rule_out_files_by_their_bounds(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncpq.spark import join_strategy

    monkeypatch.setattr(join_strategy, "MOST_KEYS", 50)
    left = spark.range(ROWS, ROWS + 200).toDF("id")
    found = _chosen(left, lake, "id", "auto", _index(lake, "bounds"))
    assert (found.strategy, found.num_keys, found.num_rows, found.files) == ("spark", None, 200, 1)
    same([found.frame(["id"], "inner")], [left.join(spark.read.parquet(lake), "id")])
    # 200 rows of few keys
    few = left.selectExpr("id % 3 AS id")
    assert _chosen(few, lake, "id", "lookups").num_keys == 3
    # bounds of several columns, one of which has NaN
    wide = left.selectExpr("id", "IF(id = 600, double('nan'), double(id)) AS x")
    found = _chosen(wide, lake, ["id", "x"], "auto", _index(lake, "bounds"))
    assert found.num_keys is None
    same([found.frame(["id", "x"], "left")], [wide.join(spark.read.parquet(lake), ["id", "x"], "left")])


@pytest.mark.parametrize(
    ("sizes", "few"), [([0], True), ([3], True), ([4], False), ([3, 0, 0], True), ([0, 3], True), ([1, 1, 1], False)]
)
def test_few_keys_are_collected_without_a_limit(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, sizes: list[int], few: bool
) -> None:
    from asyncpq.spark import join_strategy

    monkeypatch.setattr(join_strategy, "_FEW_PARTITIONS", 2)
    monkeypatch.setattr(join_strategy, "_FEW_ROWS", 3)
    rows = [(part, f"k{number}") for part, size in enumerate(sizes) for number in range(size)]
    left = spark.createDataFrame(rows, "part int, key string").repartitionById(len(sizes), "part")
    assert sorted(left.rdd.glom().map(len).collect()) == sorted(sizes)
    found = join_strategy._few(left)
    assert (found is not None) is few
    if found is not None:
        assert found.column_names == left.columns
        assert sorted(found.column("key").to_pylist()) == sorted(key for _, key in rows)


def test_a_large_left_side_is_not_broadcast(spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncpq.spark import join_strategy

    monkeypatch.setattr(join_strategy, "MOST_BROADCAST_ROWS", 2)
    left = spark.createDataFrame([(5, "a"), (5, "b"), (6, "c"), (10**12, "d")], "id bigint, w string")
    native = spark.read.parquet(lake)
    for strategy in ("lookups", "spark"):
        mine = [_chosen(left, lake, "id", strategy, how=how).frame(["id"], how) for how in HOWS]
        same(
            [frame.drop("r", "x", "s", "day") for frame in mine],
            [left.join(native, "id", how).drop("r", "x", "s", "day") for how in HOWS],
        )


def test_keys_that_cannot_be_looked_up_are_joined_by_spark(spark: SparkSession, lake: str, restored_conf: Any) -> None:
    restored_conf.set("spark.sql.ansi.enabled", "false")
    left = spark.range(3).selectExpr("int(id) AS s")
    found = _chosen(left, lake, "s", "auto")
    assert found.strategy == "spark"
    assert "makes different values equal" in found.reason
    same([found.frame(["s"], "anti")], [left.join(spark.read.parquet(lake), "s", "anti")])


def test_the_cheaper_strategy_is_taken(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = spark.createDataFrame([(5,)], "id bigint")
    caplog.set_level("INFO", "asyncpq")
    monkeypatch.setattr(join_planning, "_VISIT_S", 100.0)
    dear = _chosen(left, lake, "id", "auto")
    assert dear.strategy == "spark"
    assert "lookups are not estimated at less time" in str(dear)
    monkeypatch.setattr(join_planning, "_VISIT_S", 0.0)
    monkeypatch.setattr(join_planning, "_OPEN_S", 0.0)
    assert _chosen(left, lake, "id", "auto").strategy == "lookups"
    (said, *_) = [record.getMessage() for record in caplog.records if "join of" in record.getMessage()]
    assert said.startswith(f"join of {lake}: spark, since")


def test_an_index_that_would_take_longer_than_sparks_join_is_not_asked(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    left = spark.createDataFrame([(17,), (4000,), (10**6,)], "r int")
    native = left.join(spark.read.parquet(lake), "r", "left")
    asked = {strategy: _chosen(left, lake, "r", strategy, _index(lake, "keys"), "left") for strategy in STRATEGIES}
    assert [found.files for found in asked.values()] == [2, 2, 2]
    monkeypatch.setattr(join_planning, "_INDEX_KEY_S", 100.0)
    monkeypatch.setattr(join_planning, "_VISIT_S", 100.0)  # else the small files are looked up without the index
    slow = {strategy: _chosen(left, lake, "r", strategy, _index(lake, "keys"), "left") for strategy in STRATEGIES}
    assert [found.files for found in slow.values()] == [2, FILES, FILES]
    assert (slow["auto"].strategy, slow["auto"].reason) == ("spark", "asking the index would take longer")
    same([found.frame(["r"], "left") for found in [*asked.values(), *slow.values()]], [native] * 6)
    # bounds cost nothing for each key
    by_bounds = _chosen(spark.createDataFrame([(5,)], "id bigint"), lake, "id", "auto", _index(lake, "bounds"))
    assert by_bounds.files == 1


def test_files_that_spark_cannot_read_are_read_by_key(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncpq.spark.reads import reader_choice
    from asyncpq.spark.reads.spark_files import NotForSpark

    def refuse(*_: object, **__: object) -> None:
        raise NotForSpark("of a reason")

    monkeypatch.setattr(reader_choice, "spark_frame", refuse)
    monkeypatch.setattr(reader_choice, "_SPARK_START_S", 0.0)
    monkeypatch.setattr(reader_choice, "_PYTHON_START_S", 50.0)
    monkeypatch.setattr(reader_choice, "DRIVER_START_S", 100.0)
    found = _chosen(spark.createDataFrame([(5,)], "id bigint"), lake, "id", "spark")
    assert found.strategy == "lookups"
    assert "of a reason" in found.reason


@pytest.mark.parametrize("strategy", ["lookups", "spark"])
def test_a_replaced_file(spark: SparkSession, tmp_path: Path, strategy: Any) -> None:
    from pyspark.errors import PySparkException

    def write(first: int) -> None:
        pq.write_table(pa.table({"id": range(first, first + 100)}), tmp_path / "0.parquet")

    write(0)
    left = spark.createDataFrame([(5,)], "id bigint")
    frame: Callable[[], list[Any]] = _chosen(left, f"{tmp_path}/", "id", strategy).frame(["id"], "inner").collect
    if strategy == "spark":
        assert len(frame()) == 1
        return
    write(1)
    with pytest.raises(PySparkException, match=r"ObjectChangedError: .*Plan again"):
        frame()


def test_key_names_with_dots(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": range(10), "v": range(10)}), tmp_path / "0.parquet")
    left = spark.createDataFrame([(3,), (4,), (99,)], "`a.b` bigint")
    native = spark.read.parquet(str(tmp_path))
    for strategy in ("lookups", "spark"):
        mine = [_chosen(left, f"{tmp_path}/", ["a.b"], strategy, how=how).frame(["a.b"], how) for how in HOWS]
        same(mine, [left.join(native, ["a.b"], how) for how in HOWS])
