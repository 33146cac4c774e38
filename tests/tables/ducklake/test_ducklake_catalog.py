"""DuckLake tables that DuckDB wrote read as DuckDB reads them: types, evolution, deletes, time travel, added files."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy.dialects import registry

import asyncpq
from asyncpq import DuckLakeTable, col
from asyncpq.tables.ducklake import catalog
from asyncpq.tables.ducklake.catalog import DuckLakeSnapshot
from asyncpq.testing import check_catalog
from tests.ducklake_lakes import SCALARS, Lake, assert_same, read, rows
from tests.predicates import oracle


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Its rows and deletes are all in files."""
    with Lake(tmp_path) as lake:
        yield lake


@pytest.mark.heavy
async def test_types(lake: Lake) -> None:
    lake.sql(
        f"""CREATE TABLE types AS SELECT {SCALARS}, TIMETZ '12:34:56+01' AS ttz, {{'a': 1, 'b': [1, NULL]}} AS st,
            MAP {{'k': {{'z': 1.5}}}} AS mp, [[1], NULL, []] AS ll""",
        "INSERT INTO types (b) VALUES (NULL)",
    )
    await assert_same(lake, "types")
    async with asyncpq.Session() as session:
        await check_catalog(session, lake.table("types"))


async def test_types_that_files_hold_otherwise(lake: Lake) -> None:
    lake.sql("CREATE TABLE t AS SELECT 5::HUGEINT AS i128, 6::UHUGEINT AS u128, INTERVAL '3 months' AS span")
    async with asyncpq.Session() as session:
        table = await read(session, lake.table("t"))
    assert table.schema.types == [pa.decimal128(38, 0), pa.decimal128(38, 0), pa.binary(12)]
    assert table.to_pylist() == [{"i128": 5.0, "u128": 6.0, "span": b"\3" + bytes(11)}]


@pytest.mark.heavy
async def test_schemas_evolve(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE t (id INTEGER, name VARCHAR, s STRUCT(a INTEGER, b VARCHAR), f FLOAT, gone INTEGER)",
        "INSERT INTO t SELECT i, 'n' || i, {'a': i, 'b': 'b' || i}, i / 3, -i FROM range(50) r(i)",
        "ALTER TABLE t RENAME COLUMN name TO title",
        "ALTER TABLE t DROP COLUMN gone",
        "ALTER TABLE t ADD COLUMN gone VARCHAR",  # another column of the same name
        "ALTER TABLE t ADD COLUMN extra DECIMAL(10,2) DEFAULT 1.5",
        "ALTER TABLE t ADD COLUMN word VARCHAR DEFAULT 'NULL'",
        "ALTER TABLE t ADD COLUMN bytes BLOB DEFAULT '\\xAA\\x00b'",
        "ALTER TABLE t ALTER id TYPE BIGINT",
        "ALTER TABLE t ALTER f TYPE DOUBLE",
        "ALTER TABLE t ADD COLUMN s.c INTEGER",
        "ALTER TABLE t RENAME COLUMN s.b TO renamed",
        "ALTER TABLE t DROP COLUMN s.a",
        "INSERT INTO t (id, gone, s, extra) VALUES (1099511627776, 'here', {'renamed': 'x', 'c': 7}, NULL)",
    )
    await assert_same(lake, "t", snapshots=range(2, lake.newest))
    await assert_same(lake, "t", where=(col("gone") == "here") | (col("s.c") == 7))
    await assert_same(lake, "t", where=col("extra") == 1.5)


@pytest.mark.heavy
async def test_deletes_and_time_travel(lake: Lake) -> None:
    lake.sql("CREATE TABLE t (id INTEGER, v VARCHAR)")
    for begin in (0, 100, 200):
        lake.sql(f"INSERT INTO t SELECT i, 'v' || i FROM range({begin}, {begin + 100}) r(i)")
    lake.sql(
        "DELETE FROM t WHERE id % 7 = 0",
        "DELETE FROM t WHERE id BETWEEN 90 AND 110",
        "UPDATE t SET v = 'updated' WHERE id % 10 = 3",
        "DELETE FROM t WHERE id >= 200",
    )
    await assert_same(lake, "t", snapshots=range(2, lake.newest))
    lake.sql("CALL ducklake_merge_adjacent_files('lake')")
    await assert_same(lake, "t", snapshots=range(2, lake.newest))
    lake.sql("CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)")
    await assert_same(lake, "t", snapshots=range(2, lake.newest))
    await assert_same(lake, "t", where=col("v") == "updated")


@pytest.mark.heavy
async def test_merged_files_hold_rows_of_later_snapshots(lake: Lake) -> None:
    lake.sql("CREATE TABLE t (id INTEGER)")
    for begin in range(0, 50, 10):
        lake.sql(f"INSERT INTO t SELECT i FROM range({begin}, {begin + 10}) r(i)")
    first = lake.newest - 4
    lake.sql("CALL ducklake_merge_adjacent_files('lake')")
    assert lake.value("SELECT count(*) FROM ducklake_list_files('lake', 't')") == 1
    await assert_same(lake, "t", snapshots=range(first, lake.newest + 1))
    await assert_same(lake, "t", snapshots=range(first, lake.newest + 1), where=col("id") > 25)


@pytest.mark.heavy
async def test_deletion_vectors(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE t (id INTEGER)",
        "INSERT INTO t SELECT i FROM range(100000) r(i)",
        "ALTER TABLE t SET (write_deletion_vectors = true)"
        if False
        else "CALL lake.set_option('write_deletion_vectors', true)",
        "DELETE FROM t WHERE id % 3 = 0 OR id BETWEEN 66000 AND 70000",
    )
    assert list(lake.folder.rglob("*.puffin"))
    await assert_same(lake, "t", snapshots=[lake.newest - 1])


async def test_partitions(lake: Lake) -> None:
    lake.sql(
        "CREATE TABLE t (id INTEGER, part VARCHAR, ts TIMESTAMP)",
        "ALTER TABLE t SET PARTITIONED BY (part, year(ts))",
        """INSERT INTO t SELECT i, CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN 'a/b c%' ELSE 'x' END,
           TIMESTAMP '2020-01-01' + INTERVAL (i * 100) DAY FROM range(20) r(i)""",
    )
    await assert_same(lake, "t")
    await assert_same(lake, "t", where=col("part") == "a/b c%")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(lake.table("t"))
        await dataset.read(where=(col("part") == "x") & (col("ts") < dt.datetime(2021, 1, 1)))
        assert dataset.metrics.files_total > 10
        assert dataset.metrics.files_opened == 1
        await check_catalog(session, lake.table("t"))


@pytest.mark.heavy
async def test_added_files_are_mapped_by_name(lake: Lake, tmp_path: Path) -> None:
    struct = pa.struct([("p", pa.int32()), ("q", pa.int32())])
    ids = [
        pa.field(name, kind, metadata={"PARQUET:field_id": str(9 - at)})
        for at, (name, kind) in enumerate([("a", pa.int32()), ("nm", pa.string()), ("st", struct)])
    ]  # field ids that are another table's
    plain = pa.table({"a": [1, 2], "nm": ["x", "y"], "st": pa.array([{"p": 1, "q": 2}] * 2, struct)}, pa.schema(ids))
    plain = plain.append_column("later", [["another", "column"]])  # not the one that the table gets later
    pq.write_table(plain, tmp_path / "plain.parquet")
    hive = tmp_path / "hive" / "part=p%20q" / "y=2020"
    hive.mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([4], pa.int32()), "b": ["b"], "nm": ["ignored"]}), hive / "f.parquet")
    lake.sql(
        "CREATE TABLE t (a BIGINT, nm VARCHAR, st STRUCT(p INTEGER, q INTEGER))",
        f"CALL ducklake_add_data_files('lake', 't', '{tmp_path}/plain.parquet', ignore_extra_columns => true)",
        "ALTER TABLE t ADD COLUMN later VARCHAR",
        "ALTER TABLE t RENAME COLUMN nm TO b",
        "ALTER TABLE t ADD COLUMN part VARCHAR DEFAULT 'none'",
        "ALTER TABLE t ADD COLUMN y INTEGER",
        "ALTER TABLE t ADD COLUMN st.r INTEGER",
        f"""CALL ducklake_add_data_files('lake', 't', '{hive}/f.parquet',
            hive_partitioning => true, ignore_extra_columns => true, allow_missing => true)""",
        "INSERT INTO t (a, b, y) VALUES (7, 'own', 2021)",
    )
    await assert_same(lake, "t", snapshots=range(2, lake.newest))
    await assert_same(lake, "t", where=col("y") == 2020)
    await assert_same(lake, "t", where=col("b") == "x")
    async with asyncpq.Session() as session:
        await check_catalog(session, lake.table("t"))


# -- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMPTZ"])
@pytest.mark.sampled(4)
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
async def test_times_of_added_files_have_the_lake_s_precision(
    lake: Lake, tmp_path: Path, kind: str, unit: Literal["ms", "us", "ns"]
) -> None:
    """Finer ones are rounded as DuckDB does, before predicates are asked."""
    second = {"ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    ticks = [1577934245 * second + second * part // 1000 for part in (0, 123, 499, 500, 501, 999)]
    ticks += [0, -1, 1, 499, 500, 501, -499, -500, -501, -1500, -1501, 1_500, 999_500, -second // 2, -second * 3 // 2]
    type_ = pa.timestamp(unit, "UTC" if kind == "TIMESTAMPTZ" else None)
    lake.sql(f"CREATE TABLE t (id INTEGER, x {kind}, s STRUCT(y {kind}))")
    times = pa.array(ticks, pa.int64()).cast(type_)
    path = tmp_path / "added.parquet"
    columns = {
        "id": pa.array(range(len(ticks)), pa.int32()),
        "x": times,
        "s": pa.StructArray.from_arrays([times], ["y"]),
    }
    pq.write_table(pa.table(columns), path, row_group_size=1)
    add = f"CALL ducklake_add_data_files('lake', 't', '{path}')"
    if unit == "ns" and kind in ("TIMESTAMP_S", "TIMESTAMP_MS"):
        with pytest.raises(duckdb.Error, match="Failed to map"):
            lake.sql(add)
        return
    lake.sql(add)
    lake.sql("INSERT INTO t VALUES (99, '2020-01-02 03:04:05', NULL)")
    await assert_same(lake, "t")
    wanted = lake.query("SELECT * FROM t")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(lake.table("t"))
        for at in {*wanted["x"].cast(pa.timestamp("us", type_.tz), safe=False).to_pylist(), dt.datetime(2020, 1, 1)}:
            at = at if type_.tz is None else at.replace(tzinfo=dt.UTC)
            for where in (col("x") == at, col("s.y") <= at, col("x") > at):
                found = await dataset.read(["id"], where=where)
                assert sorted(found["id"].to_pylist()) == sorted(wanted.filter(oracle(where))["id"].to_pylist())


@pytest.mark.heavy
async def test_added_files_and_renamed_columns(lake: Lake, tmp_path: Path) -> None:
    nested = pa.struct([("x", pa.int32()), ("y", pa.string())])
    file = pa.table(
        {
            "ID": pa.array([1, 2], pa.int32()),
            "a": ["p", "q"],
            "s": pa.array([{"x": 1, "y": "k"}, None], nested),
            "l": pa.array([[{"x": 1, "y": "k"}], []], pa.list_(nested)),
            "m": pa.array([[("k", {"x": 1, "y": "k"})], None], pa.map_(pa.string(), nested)),
        }
    )
    folder = tmp_path / "day=7"
    folder.mkdir()
    pq.write_table(file, folder / "a.parquet")
    lake.sql(
        "CREATE TABLE t (id INTEGER, a VARCHAR, s STRUCT(x INTEGER, y VARCHAR), l STRUCT(x INTEGER, y VARCHAR)[],"
        " m MAP(VARCHAR, STRUCT(x INTEGER, y VARCHAR)), day INTEGER)",
        f"CALL ducklake_add_data_files('lake', 't', '{folder}/a.parquet', hive_partitioning => true)",
        "ALTER TABLE t RENAME COLUMN a TO b",
        "ALTER TABLE t ADD COLUMN a INTEGER",
        "ALTER TABLE t RENAME COLUMN s.x TO z",
        "ALTER TABLE t ADD COLUMN s.x VARCHAR",
        "ALTER TABLE t RENAME COLUMN l TO k",
        "ALTER TABLE t ADD COLUMN k.element.added INTEGER",
        "ALTER TABLE t RENAME COLUMN m.value.y TO w",
        "ALTER TABLE t ALTER id TYPE BIGINT",
        "ALTER TABLE t RENAME COLUMN day TO d",
        "ALTER TABLE t ADD COLUMN day INTEGER DEFAULT 9",
        "ALTER TABLE t RENAME COLUMN id TO a_id",
    )
    await assert_same(lake, "t", snapshots=range(2, lake.newest))
    await assert_same(lake, "t", where=(col("b") == "p") & (col("d") == 7) & (col("s.z") == 1))
    await assert_same(lake, "t", where=(col("day") == 9) & (col("a_id") == 2))
    lake.sql("ALTER TABLE t DROP COLUMN d", "ALTER TABLE t DROP COLUMN s.y")
    await assert_same(lake, "t", where=col("day") == 9)


async def test_geometry_is_its_bytes(lake: Lake) -> None:
    lake.sql("CREATE TABLE t (id INTEGER, g GEOMETRY)", "INSERT INTO t VALUES (1, 'POINT (1 2)'::GEOMETRY), (2, NULL)")
    await assert_same(lake, "t")


async def test_a_float_bound_from_before_a_promotion(lake: Lake) -> None:
    lake.sql("CREATE TABLE t AS SELECT 0.1::FLOAT AS f FROM range(3)", "ALTER TABLE t ALTER f TYPE DOUBLE")
    async with asyncpq.Session() as session:  # DuckDB 1.5 prunes these rows: its text "0.1" is less as a double
        assert (await read(session, lake.table("t"), col("f") > 0.1)).num_rows == 3


async def test_bounds_are_given_to_files_off_the_loop(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.sql("CREATE TABLE t AS SELECT 1 AS id")
    threads = set[threading.Thread]()
    bounded = catalog._bounded

    def noted(*arguments: Any) -> Any:
        threads.add(threading.current_thread())
        return bounded(*arguments)

    monkeypatch.setattr(catalog, "_bounded", noted)
    async with asyncpq.Session() as session:
        assert (await read(session, lake.table("t"), col("id") == 1)).num_rows == 1
    assert threads
    assert threading.main_thread() not in threads


async def test_a_read_that_is_cancelled_while_bounds_are_given_to_files(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next read has them."""
    lake.sql("CREATE TABLE t (id INTEGER)")
    for number in range(5):
        lake.sql(f"INSERT INTO t SELECT {100 * number} + range FROM range(100)")
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    all_bounded = DuckLakeSnapshot._all_bounded

    def slow(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(10)
        return all_bounded(*arguments)

    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(lake.table("t"))
        with monkeypatch.context() as patch:
            patch.setattr(DuckLakeSnapshot, "_all_bounded", slow)
            reading = asyncio.ensure_future(dataset.read(where=col("id") == 250))
            await begun.wait()
            reading.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await reading
        plan = await dataset.plan(where=col("id") == 250)
        assert (plan.files_total, plan.files_ruled_out) == (5, 4)


async def test_files_are_ruled_out_and_the_catalog_is_asked_once(lake: Lake) -> None:
    lake.sql("CREATE TABLE t (id INTEGER, v VARCHAR)")
    for begin in range(0, 80, 10):
        lake.sql(f"INSERT INTO t SELECT i, 'v' || i FROM range({begin}, {begin + 10}) r(i)")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(lake.table("t"))
        assert (await dataset.lookup({"id": 33}))["v"].to_pylist() == ["v33"]
        assert dataset.metrics.files_opened == 1
        hidden = lake.path.rename(lake.folder / "hidden")
        try:
            assert (await dataset.lookup({"id": 34}))["v"].to_pylist() == ["v34"]
            assert await dataset.count() == 80
            with pytest.raises(asyncpq.StoreError):
                await dataset.lookup({"v": "v33"})  # of this column no bounds are known yet
        finally:
            hidden.rename(lake.path)


# -- naming a table -------------------------------------------------------------------------------


async def test_names_and_times(lake: Lake) -> None:
    lake.sql("CREATE SCHEMA other", 'CREATE TABLE other."A b" AS SELECT 1 AS x', "CREATE TABLE main.t AS SELECT 2 AS x")
    lake.sql("CREATE TABLE main.empty (s VARCHAR)")
    created = lake.value("SELECT snapshot_time FROM lake.snapshots() WHERE snapshot_id = 2")
    lake.sql('INSERT INTO other."A b" VALUES (3)')
    async with asyncpq.Session() as session:
        assert rows(await read(session, lake.table("other.A b"))) == ["(1,)", "(3,)"]
        assert rows(await read(session, lake.table("other.A b", as_of=created))) == ["(1,)"]
        assert rows(await read(session, lake.table("t"))) == ["(2,)"]
        assert (await read(session, lake.table("empty"))).schema == pa.schema([("s", pa.string())])
        dataset = await session.open_dataset(lake.table("other.A b", snapshot=2))
        assert dataset.view == "table"
        assert "other.A b" in dataset.description
        assert "snapshot 2" in dataset.description


async def test_a_moved_lake(lake: Lake, tmp_path: Path) -> None:
    lake.sql("CREATE TABLE t AS SELECT 1 AS x")
    (tmp_path / "data").rename(tmp_path / "moved")
    async with asyncpq.Session() as session:
        assert (await read(session, lake.table("t", data_path=f"file://{tmp_path}/moved"))).num_rows == 1
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await read(session, lake.table("t"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "nowhere.t"}, "no schema 'nowhere'"),
        ({"table": "u"}, "no table 'u'"),
        ({"snapshot": 99}, "no snapshot 99"),
        ({"as_of": dt.datetime(2000, 1, 1, tzinfo=dt.UTC)}, "no snapshot at or before 2000"),
    ],
)
async def test_what_is_not_there(lake: Lake, options: dict[str, Any], message: str) -> None:
    lake.sql("CREATE TABLE t (x INTEGER)")
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.ObjectNotFoundError, match=message):
            await session.open_dataset(lake.table(options.pop("table", "t"), **options))


def test_arguments() -> None:
    when = dt.datetime(2020, 1, 1)
    with pytest.raises(asyncpq.InvalidOptionError, match="time zone"):
        DuckLakeTable("sqlite://", "t", as_of=when)
    with pytest.raises(asyncpq.InvalidOptionError, match="two ways"):
        DuckLakeTable("sqlite://", "t", as_of=when.replace(tzinfo=dt.UTC), snapshot=1)
    with pytest.raises(asyncpq.InvalidOptionError, match="names no table"):
        DuckLakeTable("sqlite://", "main.")
    with pytest.raises(asyncpq.UsageError, match="SQLAlchemy"):
        DuckLakeTable("nonsense://x", "t")
    registry.register("nodriver", "no_such_driver", "Dialect")
    with pytest.raises(asyncpq.UsageError, match="driver of the catalog's database is not installed: no_such_driver"):
        DuckLakeTable("nodriver://u:secret@h/d", "t")


@pytest.mark.parametrize(
    "where",
    [
        ~(col("f") <= 1.5),
        col("f") == 0.0,
        col("f").is_in([-0.0]),
        col("f") < -1e300,
        col("f").is_null(),
        col("ttz").is_null(),
        col("v") > "zz",
        col("v") >= "\U0010ffff" * 300,
        col("v").is_null(),
        col("tz") >= dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
    ],
    ids=str,
)
async def test_statistics(statistics: Lake, where: asyncpq.Expression) -> None:
    await assert_same(statistics, "t", where=where)


@pytest.fixture(scope="module")
def statistics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One row in each file."""
    with Lake(tmp_path_factory.mktemp("statistics")) as lake:
        lake.sql(
            "CREATE TABLE t (id INTEGER, f DOUBLE, ttz TIMETZ, v VARCHAR, tz TIMESTAMPTZ)",
            "INSERT INTO t VALUES (1, 1.5, NULL, repeat('z', 300) || 'a', '2020-01-01 00:00:00+00')",
            "INSERT INTO t VALUES (2, 'nan', NULL, repeat(chr(1114111), 300), '2019-12-31 22:00:00-03')",
            "INSERT INTO t VALUES (3, '-0.0'::DOUBLE, '12:00:00+01', '', NULL)",
            "INSERT INTO t VALUES (4, '-inf', NULL, NULL, NULL)",
            "INSERT INTO t VALUES (5, NULL, NULL, 'z', '2019-12-31 23:59:59+00')",
        )
        yield lake


async def test_what_the_catalog_says_holds(statistics: Lake) -> None:
    async with asyncpq.Session() as session:
        await check_catalog(session, statistics.table("t"))
