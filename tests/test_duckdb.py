"""DuckDB's queries of asyncpq's datasets give the rows of its own reader, and read what asyncpq's own scans read."""

from __future__ import annotations

import datetime as dt
import gc
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
import asyncpq.duckdb as door
from asyncpq import blocking, col
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.testing import Fault, ObjectServer
from tests.door_tables import COLUMNS, lake_file, lake_server, tables
from tests.example_counts import examples
from tests.random_tables import writer_options

NAN = float("nan")
PUSHES_FLOATS = duckdb.__version__ < "2"  # and bounds from joins
TYPES = {
    "i8": "TINYINT",
    "i32": "INTEGER",
    "i64": "BIGINT",
    "u64": "UBIGINT",
    "f32": "FLOAT",
    "f64": "DOUBLE",
    "bool": "BOOLEAN",
    "text": "VARCHAR",
    "large": "VARCHAR",
    "category": "VARCHAR",
    "bytes": "BLOB",
    "fixed": "BLOB",
    "decimal": "DECIMAL(12, 3)",
    "date": "DATE",
    "ms": "TIMESTAMP",
    "us": "TIMESTAMPTZ",
    "ns": "TIMESTAMP_NS",
    "time": "TIME",
    "dotted.name": "INTEGER",
}


def literal(name: str, value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    return f"'{value}'::{TYPES[name]}"


@st.composite
def predicates(draw: st.DrawFn, names: list[str], depth: int = 2) -> str:
    """A condition in SQL over some columns."""
    if depth and draw(st.booleans()):
        left, right = draw(predicates(names, depth - 1)), draw(predicates(names, depth - 1))
        made: str = draw(st.sampled_from([f"({left} AND {right})", f"({left} OR {right})", f"(NOT {left})"]))
        return made
    name = draw(st.sampled_from(names))
    column = f'"{name}"'
    if name == "list":
        return draw(st.sampled_from([f"{column} IS NULL", f"len({column}) > 1", f"{column}[1] = 5"]))
    if name == "struct":
        forms = [
            "{}.x = 1",
            "{}.x IS NULL",
            "{}.y > 'a'",
            "{} IS NOT NULL",
            "({}.x > 0 AND {}.y = 'a')",
            "{}.x IN (1, 2)",
        ]
        return draw(st.sampled_from(forms)).replace("{}", column)
    values = st.sampled_from(COLUMNS[name][1])
    low, high = literal(name, draw(values)), literal(name, draw(values))
    several = ", ".join(literal(name, value) for value in draw(st.lists(values, min_size=1, max_size=3)))
    op = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]))
    forms = [
        f"{column} {op} {low}",
        f"{low} {op} {column}",
        f"{column} IS NULL",
        f"{column} IS NOT NULL",
        f"{column} BETWEEN {low} AND {high}",
        f"{column} IN ({several})",
        f"{column} NOT IN ({several})",
        f"({column} = {low} OR {column} = {high})",
    ]
    if TYPES[name] == "VARCHAR":
        forms += [f"{column} LIKE 'a%'", f"starts_with({column}, 'a')", f"upper({column}) = 'AB'"]
    if TYPES[name] in ("FLOAT", "DOUBLE"):
        forms += [f"isnan({column})", f"{column} > 0.25", f"{column} + 1 > 1"]
    if name == "bool":
        forms += [column, f"NOT {column}"]
    return draw(st.sampled_from(forms))


@st.composite
def queries(draw: st.DrawFn, names: list[str]) -> str:
    """A query of ``{}``, a table: of its rows, or with a group, join or window on top."""
    some = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    what = draw(st.sampled_from(["*", ", ".join(f'"{name}"' for name in some), "count(*)", f'count("{some[0]}")']))
    where = f" WHERE {draw(predicates(names))}" if draw(st.sampled_from([True] * 6 + [False])) else ""
    end = draw(
        st.sampled_from(["", "", " LIMIT 5", " LIMIT 3 OFFSET 2", " ORDER BY ALL", " ORDER BY ALL DESC LIMIT 4"])
    )
    # zeros of either sign are one key, whose sign is that of whichever row comes first
    keys = [name for name in some if TYPES.get(name) not in ("FLOAT", "DOUBLE")] or [names[-1]]
    key = f'"{keys[0]}"'
    forms = [
        f"SELECT {what} FROM {{}}{where}{'' if what.startswith('count') else end}",
        f"SELECT {what} FROM {{}}{where}{'' if what.startswith('count') else end}",
        f'SELECT {key}, count(*), count("{some[0]}") FROM {{}}{where} GROUP BY {key} ORDER BY ALL',
        f"SELECT count(*) FROM (FROM {{}}{where}) AS one JOIN {{}} AS other USING ({key})",
        f"SELECT count(*) FROM {{}} WHERE {key} IN (SELECT {key} FROM {{}}{where})",
        f"SELECT {key} FROM (FROM {{}}{where} LIMIT 20) ORDER BY ALL LIMIT 3",
        f"SELECT row_number() OVER (), {key} FROM {{}}{where}",
    ]
    return draw(st.sampled_from(forms))


@pytest.fixture(scope="module")
def session() -> Iterator[blocking.Session]:
    with blocking.Session() as opened:
        yield opened


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


def _refused(error: str, query: str) -> bool:
    """Whether the query has no filter that DuckDB or asyncpq could push down (docs/tools.md), or met a fault of DuckDB:
    now and then a window above a filter fails, in a scan of pyarrow's own dataset, too."""
    return (
        ("OVER ()" in query and "Vector::Reference used on vector of different type" in error)
        or ("DISTINCT" in query and "can't be an Arrow Scan Pushdown Filter" in error)
        or ("u64" in query and "Python int too large" in error)
        # a NaN in the query, or among the keys of a join, whose bounds DuckDB pushes down
        or (any(word in query for word in ("nan", "JOIN", "IN (SELECT")) and "as `true`" in error)
    )


@pytest.mark.heavy
@pytest.mark.timeout(600)
@settings(max_examples=examples(25, thorough=500))
@given(data=st.data(), table=tables(without=("duration",)), writer=writer_options)
def test_random_queries_give_what_duckdb_reads(
    session: blocking.Session, data: st.DataObject, table: pa.Table, writer: Any
) -> None:
    """Four to each table. The oracle is a table that DuckDB reads of the whole file, since its own
    reader rules out row groups with NaN by statistics that do not count NaN."""
    # A connection of its own: after a fault of DuckDB (see _refused) it takes no more queries.
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        path = Path(folder) / "0.parquet"
        path.write_bytes(writer.write(table))
        connection.execute(f"CREATE OR REPLACE TEMP TABLE whole AS FROM read_parquet('{path}')")
        opened = session.open_file(path) if data.draw(st.booleans()) else session.open_dataset([path])
        pushed = door.dataset(opened)
        assert isinstance(pushed, ds.Dataset)
        for query in [data.draw(queries(table.column_names)) for _ in range(4)]:
            expected = connection.execute(query.replace("{}", "whole")).fetchall()
            try:
                found = connection.execute(query.replace("{}", "pushed")).fetchall()
            except duckdb.Error as error:
                if not _refused(str(error), query):
                    raise
                if isinstance(error, duckdb.InternalException):
                    break
                continue
            assert repr(found) == repr(expected)  # with -0.0 and NaN


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_every_comparison_of_floats(
    session: blocking.Session, connection: duckdb.DuckDBPyConnection, tmp_path: Path, name: str
) -> None:
    type_, values = COLUMNS[name]
    pq.write_table(pa.table({"x": pa.array([*values, None], type_)}), tmp_path / "0.parquet", row_group_size=1)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE whole AS FROM read_parquet('{tmp_path}/0.parquet')")
    pushed = door.dataset(session.open_file(tmp_path / "0.parquet"))  # noqa: F841  # the query names it
    for op in ("=", "<>", "<", "<=", ">", ">=", "IN"):
        for value in values:
            right = f"({literal(name, value)}, 7)" if op == "IN" else literal(name, value)
            query = f"SELECT x FROM {{}} WHERE x {op} {right}"
            if op == "<=" and value != value and PUSHES_FLOATS:
                with pytest.raises(duckdb.Error, match="as `true`"):
                    connection.execute(query.format("pushed")).fetchall()
                continue
            found = connection.execute(query.format("pushed")).fetchall()
            assert repr(found) == repr(connection.execute(query.format("whole")).fetchall()), query


# -- what is pushed down --------------------------------------------------------------------------

NS = pa.timestamp("ns")
SCHEMA = pa.schema(
    {
        "i": pa.int32(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.binary(2),
        "t": pa.timestamp("us"),
        "n": NS,
        "d": pa.decimal128(10, 2),
        "st": pa.struct({"x": pa.int64(), "f": pa.float64()}),
    }
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (pc.field("i") == 5, "i == 5"),
        (pc.field("f") < 5.0, "f < 5.0"),
        (pc.field("f") >= 5.0, "(f >= 5.0) or (is_nan(f))"),
        (pc.field("st", "f") > 5.0, "(st.f > 5.0) or (is_nan(st.f))"),
        (pc.field("st", "x") > 5, "st.x > 5"),
        (pc.is_nan(pc.field("f")), "is_nan(f)"),
        (pc.field("f").isin([0.0, 1.0]), "f == any of [0.0, 1.0]"),
        (pc.field("f").isin([NAN, 1.0]), "(f == any of [1.0]) or (is_nan(f))"),
        ((pc.field("s") >= "a") & (pc.field("s") < "b"), "(s >= 'a') and (s < 'b')"),
        (pc.field("t") > pa.scalar(dt.datetime(2024, 2, 29)), "t > 2024-02-29T00:00:00"),
        (pc.field("d") > pa.scalar(Decimal("1.50")), "d > 1.50"),
        (pc.field("b") == b"ab", "b == b'ab'"),
        (pc.field("n") == pa.scalar(-1000, NS), "n == 1969-12-31T23:59:59.999999"),
        (
            pc.if_else(
                pc.field("i").is_valid(), pc.field("i").isin([1, 5]), pa.scalar(None, pa.bool_())
            ),  # of DuckDB 2
            "((not (i is null)) and (i in [1, 5])) or ((not (not (i is null))) and (null))",
        ),
        (pc.field("n") == pa.scalar(1, NS), "n == Timestamp(nanoseconds=1, timezone=None)"),
        (pc.ends_with(pc.field("s"), "a"), None),  # pyarrow filters the batches
    ],
)
def test_filters(condition: pc.Expression, expected: str | None) -> None:
    where = door.rows_of(condition, SCHEMA)
    assert (None if where is None else str(where)) == expected


@pytest.mark.parametrize(
    "condition",
    [
        pc.scalar(True) & (pc.field("i") == 1),
        pc.ends_with(pc.field("s"), "a") & (pc.field("f") > 1.0),  # pyarrow would lose NaN
    ],
)
def test_what_would_be_inexact_is_refused(condition: pc.Expression) -> None:
    with pytest.raises(asyncpq.UnsupportedFeatureError, match=r"duckdb\.from_arrow"):
        door.rows_of(condition, SCHEMA)


def test_columns_of_the_filter_alone(tmp_path: Path) -> None:
    """DuckDB 2 does not ask for the columns of a filter that it pushes down."""
    table = pa.table(
        {"id": [1, 2, 3, None], "f": [1.5, NAN, 0.0, 1.5], "n": pa.array([1, 2, 3, 1], NS), "s": ["a"] * 4}
    )
    pq.write_table(table, tmp_path / "0.parquet")
    among = pc.if_else(pc.field("f").is_valid(), pc.field("f").isin([1.5, NAN]), pa.scalar(None, pa.bool_()))
    with blocking.Session() as session:
        opened = door.dataset(session.open_file(tmp_path / "0.parquet"))
        for condition, rows in [(among, [1, 2, None]), (~among, [3]), (pc.field("n") == pa.scalar(1, NS), [1, None])]:
            assert opened.to_table(columns=["id"], filter=condition).to_pydict() == {"id": rows}
        text = pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pa.py_buffer(b"\xff")]
        )
        assert not opened.to_table(columns=["id"], filter=pc.field("s") == text[0]).num_rows  # it has no text form


# -- requests and bytes ---------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with lake_server() as running:
        yield running


@pytest.mark.io
@pytest.mark.parametrize(
    ("query", "own"),
    [
        ("SELECT price FROM lake WHERE id = 1234", {"columns": ["price"], "where": col("id") == 1234}),
        ("FROM lake WHERE id BETWEEN 900 AND 1100", {"where": col("id").between(900, 1100)}),
        ("SELECT user FROM lake", {"columns": ["user"]}),
        ("FROM lake WHERE id < 0", {"where": col("id") < 0}),
        ("FROM lake WHERE id > 3900 AND upper(user) = 'U1'", {"where": col("id") > 3900}),
        pytest.param(
            "SELECT price FROM lake JOIN (SELECT 7 AS id) AS keys USING (id)",
            {"columns": ["price"], "where": col("id") == 7},
            marks=pytest.mark.skipif(not PUSHES_FLOATS, reason="DuckDB 2 pushes no bounds from joins"),
        ),
    ],
)
def test_bytes_are_those_of_the_same_scan(server: ObjectServer, query: str, own: Any) -> None:
    requests = asyncpq.RequestOptions(tail_bytes=2000, gap_bytes=0, latency_s=0.03, bandwidth_bytes_s=200e6)
    sent = []
    limits = asyncpq.LimitOptions(in_flight_bytes=1, files_ahead=1)
    for reads_own in (False, True):
        with blocking.Session(server.storage_options, requests=requests, limits=limits) as session:
            dataset = session.open_dataset("s3://bucket/lake/")
            dataset.count()  # fetches the footers, in any order
            begin = server.bytes_sent, len(server.log)
            if reads_own:
                dataset.scan(**own).to_table()
            else:
                lake = door.dataset(dataset)  # noqa: F841  # the query names it
                duckdb.sql(query).fetchall()
            sent.append((server.bytes_sent - begin[0], len(server.log) - begin[1]))
    assert sent[0][0] <= sent[1][0]
    assert sent[0][1] <= sent[1][1]


# -- life and errors ------------------------------------------------------------------------------


def test_errors(server: ObjectServer) -> None:
    retry = asyncpq.RetryOptions(max_attempts=1)
    with blocking.Session(server.storage_options, retry=retry, memory_cache_bytes=0) as session:
        lake = door.dataset(session.open_dataset("s3://bucket/lake/"))
        server.faults = [Fault(status=403, code="AccessDenied", times=None)]
        with pytest.raises(duckdb.Error, match="AccessDenied"):
            duckdb.sql("SELECT sum(price) FROM lake").fetchall()
        server.faults = []
        assert duckdb.sql("SELECT count(*) FROM lake").fetchall() == [(4000,)]
    with pytest.raises(duckdb.Error, match="closed"):
        duckdb.sql("FROM lake").fetchall()
    assert lake.schema.names == ["id", "user", "price"]
    with pytest.raises(asyncpq.InvalidOptionError, match=r"open file or dataset of asyncpq\.blocking"):
        door.dataset("s3://bucket/lake/")  # type: ignore[arg-type]


def test_a_limit_leaves_no_scan(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(lake_file(0))
    with blocking.Session(limits=asyncpq.LimitOptions(unit_bytes=1)) as session:
        lake = door.dataset(session.open_dataset(tmp_path))  # noqa: F841
        assert len(duckdb.sql("FROM lake LIMIT 2").fetchall()) == 2
        assert duckdb.sql("SELECT count(*) FROM lake a JOIN lake b USING (id)").fetchall() == [(1000,)]
        gc.collect()
        runtime, until = session.asynchronous._runtime, time.monotonic() + 20
        while any(isinstance(getattr(one, "__self__", 0), RecordBatchStream) for one in runtime._closers.values()):
            assert time.monotonic() < until


def test_methods_of_pyarrows_datasets_read_rows_or_say_so(tmp_path: Path) -> None:
    """Those of the base class would see its empty table."""
    (tmp_path / "0.parquet").write_bytes(lake_file(0))
    with blocking.Session() as session:
        lake = door.dataset(session.open_file(tmp_path / "0.parquet"))
        assert lake.to_table().num_rows == lake.count_rows() == 1000
        assert lake.head(3).num_rows == 3
        assert lake.to_table(columns=["id"], filter=pc.field("id") > 997)["id"].to_pylist() == [998, 999]
        assert sum(batch.num_rows for batch in lake.to_batches(batch_size=100)) == 1000
        refused = {"filter", "get_fragments", "join", "join_asof", "replace_schema", "sort_by", "take"}
        for name in refused:
            with pytest.raises((asyncpq.UsageError, AttributeError)):
                getattr(lake, name)([0])
        known = {"to_table", "count_rows", "head", "to_batches", "scanner", "schema", "partition_expression"}
        assert {name for name in dir(lake) if not name.startswith("_")} == refused | known
        with pytest.raises(asyncpq.UsageError):
            lake.to_table(columns={"twice": pc.field("id") * 2})
