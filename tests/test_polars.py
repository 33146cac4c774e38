"""LazyFrames of asyncpq give the rows of Polars' own readers, and read what asyncpq's own scans read."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import operator
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import blocking, col
from asyncpq import polars as door
from asyncpq.expressions import And, Comparison, Or
from asyncpq.polars import rows_of
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.testing import Fault, ObjectServer
from tests.door_tables import COLUMNS, lake_file, lake_server, tables
from tests.example_counts import examples
from tests.random_tables import writer_options

UTC = dt.UTC
NAN = float("nan")


def _series(name: str, values: list[Any]) -> pl.Series:
    type_ = COLUMNS[name][0]
    return pl.Series(pl.from_arrow(pa.array(values, type_.value_type if pa.types.is_dictionary(type_) else type_)))


def _literals(name: str) -> st.SearchStrategy[Any]:
    values = st.sampled_from(COLUMNS[name][1])
    return (
        values if name in ("category", "dotted.name") else values.map(lambda value: pl.lit(_series(name, [value])[0]))
    )


@st.composite
def predicates(draw: st.DrawFn, schema: pl.Schema, depth: int = 3) -> pl.Expr:
    """A predicate as users write it, over the columns of ``schema``."""
    if depth and draw(st.booleans()):
        left, right = draw(predicates(schema, depth - 1)), draw(predicates(schema, depth - 1))
        made: pl.Expr = draw(st.sampled_from([left & right, left | right, ~left, left ^ right]))
        return made
    name = draw(st.sampled_from(list(schema)))
    column, dtype = pl.col(name), schema[name]
    if name == "list":
        return draw(st.sampled_from([column.is_null(), column.list.contains(1), column.list.len() > 1]))
    if name == "struct":
        x, y = column.struct.field("x"), column.struct.field("y")
        return draw(st.sampled_from([x == 1, x.is_null(), y > "a", column.is_not_null(), y.str.starts_with("b")]))
    value = draw(_literals(name))
    other = draw(_literals(name))
    several = draw(st.lists(st.none() | st.sampled_from(COLUMNS[name][1]), max_size=3))
    forms: list[Callable[[], pl.Expr]] = [
        lambda: column == value,
        lambda: column != value,
        lambda: column.is_null(),
        lambda: column.is_not_null(),
        lambda: column.eq_missing(value),
        lambda: column.ne_missing(value),
        lambda: column.is_in(_series(name, several).implode()),
        lambda: column.is_in(_series(name, several).implode(), nulls_equal=True),
    ]
    if name not in ("category", "bool"):
        forms += [
            lambda: column < value,
            lambda: column <= value,
            lambda: column > value,
            lambda: value >= column if isinstance(value, pl.Expr) else column >= value,
            lambda: column.is_between(value, other, closed=draw(st.sampled_from(["both", "left", "right", "none"]))),
        ]
    if name == "bool":
        forms += [lambda: column, lambda: ~column]
    if dtype.is_float():
        forms += [lambda: column.is_nan(), lambda: column.is_not_nan(), lambda: column.is_finite()]
    if dtype.is_numeric() and name not in ("decimal", "u64"):
        forms += [lambda: column + 1 > 2, lambda: column > 0.5, lambda: column.cast(pl.Float64) == 5]
    if dtype == pl.String:
        text = draw(st.sampled_from(["", "a", "b", "a.c", "."]))
        forms += [
            lambda: column.str.starts_with(text),
            lambda: column.str.contains(text, literal=True),
            lambda: column.str.contains(text),
            lambda: column.str.ends_with(text),
            lambda: column.str.to_uppercase() == "AB",
        ]
    return draw(st.sampled_from(forms))()


_STEPS = [
    ["filter"],
    ["head", "filter"],
    ["filter", "filter"],
    ["filter", "head"],
    ["slice", "filter"],
    ["filter", "tail"],
    ["head"],
    ["filter", "slice"],
    ["head", "filter", "head"],
    [],
]


def _grouped(frame: pl.LazyFrame, keys: list[str]) -> pl.LazyFrame:
    others = pl.len().alias("n"), pl.all().null_count().name.prefix("nulls of ")
    return frame.group_by(keys, maintain_order=True).agg(*others)


_ON_TOP: dict[str, Callable[[pl.LazyFrame, list[str]], pl.LazyFrame]] = {
    "group": _grouped,
    "join": lambda frame, keys: frame.join(
        frame.select(keys[:1]).unique(), on=keys[0], how="inner", maintain_order="left"
    ),
    "sort": lambda frame, keys: frame.sort(keys, maintain_order=True, nulls_last=True),
    "unique": lambda frame, keys: frame.unique(keys, keep="first", maintain_order=True),
    "rows": lambda frame, keys: frame.with_row_index("row").filter(pl.col("row") % 3 == 1).select("row", *keys),
}


@st.composite
def queries(draw: st.DrawFn, schema: pl.Schema) -> Callable[[pl.LazyFrame], pl.LazyFrame]:
    """A query of filters, a projection and limits, in any order."""
    steps: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = []
    for step in draw(st.sampled_from(_STEPS)):
        if step == "filter":
            predicate = draw(predicates(schema))
            steps.append(lambda frame, predicate=predicate: frame.filter(predicate))  # type: ignore[misc]
        elif step == "slice":
            steps.append(lambda frame: frame.slice(2, 9))
        else:
            n = draw(st.sampled_from([20, 5, 100, 1, 0]))
            steps.append(lambda frame, step=step, n=n: getattr(frame, step)(n))  # type: ignore[misc]
    last = draw(st.sampled_from(["all", "some", "len", "computed", "group", "join", "sort", "unique", "rows"]))
    some = draw(st.lists(st.sampled_from(list(schema)), min_size=1, max_size=3, unique=True))
    if last == "some":
        steps.append(lambda frame: frame.select(some))
    elif last == "len":
        steps.append(lambda frame: frame.select(pl.len()))
    elif last == "computed":
        steps.append(lambda frame: frame.select(pl.col(some[0]).is_null().alias("null"), pl.lit(1).alias("one")))

    elif last in _ON_TOP:
        # zeros of either sign are one key, whose sign is that of whichever row comes first
        keys = [name for name in some if not schema[name].is_float()] or [list(schema)[-1]]
        steps.append(lambda frame: _ON_TOP[last](frame, keys))

    def query(frame: pl.LazyFrame) -> pl.LazyFrame:
        for step in steps:
            frame = step(frame)
        return frame

    return query


@pytest.fixture(scope="module")
def session() -> Iterator[blocking.Session]:
    with blocking.Session() as opened:
        yield opened


@pytest.mark.heavy
@pytest.mark.timeout(600)
@settings(max_examples=examples(25, thorough=500))
@given(data=st.data(), table=tables(), writer=writer_options)
def test_random_queries_give_what_polars_reads(
    session: blocking.Session, data: st.DataObject, table: pa.Table, writer: Any
) -> None:
    """Four to each table. The oracle reads the whole file, so that its own pruning cannot err."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.parquet"
        path.write_bytes(writer.write(table))
        whole = pl.read_parquet(path)
        opened = session.open_file(path) if data.draw(st.booleans()) else session.open_dataset([path])
        frame = door.scan(opened)
        assert frame.collect_schema() == whole.schema
        for _ in range(4):
            query = data.draw(queries(whole.schema))
            try:
                expected = query(whole.lazy()).collect()
            except pl.exceptions.PolarsError:
                continue  # types that do not compare
            engine: Any = data.draw(st.sampled_from(["in-memory", "streaming"]))
            found = query(frame).collect(engine=engine)
            assert found.schema == expected.schema
            assert repr(found.rows()) == repr(expected.rows())  # with -0.0 and NaN


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_every_comparison_of_floats(session: blocking.Session, tmp_path: Path, name: str) -> None:
    type_, values = COLUMNS[name]
    pq.write_table(pa.table({name: pa.array([*values, None], type_)}), tmp_path / "0.parquet", row_group_size=1)
    whole = pl.read_parquet(tmp_path / "0.parquet")
    frame, x = door.scan(session.open_file(tmp_path / "0.parquet")), pl.col(name)
    for value in values:
        alike = x.is_in(_series(name, [value]).implode())
        for one in (x == value, x != value, x < value, x <= value, x > value, x >= value, alike):
            for predicate in (one, ~one):
                found = frame.filter(predicate).collect()
                assert repr(found.rows()) == repr(whole.filter(predicate).rows()), str(predicate)


# -- what is pushed down --------------------------------------------------------------------------

C = pl.col
PUSHED: list[tuple[pl.Expr, str | None]] = [
    (C("i") == 5, "i == 5"),
    (pl.lit(5) < C("i"), "i > 5"),
    (C("i").is_in([1, 2]), "i == any of [1, 2]"),
    (C("i").is_between(1, 3, closed="left"), "(i >= 1) and (i < 3)"),
    (C("i").is_null() | (C("i") != 5), "(i is null) or (i != 5)"),
    (C("i").ne_missing(5), "(i != 5) or (i is null)"),
    (~(C("i") > 5), "i <= 5"),
    ((C("i") > 5) & (C("i") + 1 > 7), "i > 5"),
    ((C("i") > 5) | (C("i") + 1 > 7), None),
    (C("f") < 1.5, "f < 1.5"),
    (C("f") > 1.5, "(f > 1.5) or (is_nan(f))"),
    (C("f").is_nan(), "is_nan(f)"),
    (C("f") == NAN, None),
    (C("f").is_in([0.0, NAN]), "(f == any of [0.0]) or (is_nan(f))"),
    (C("s") == "x", "s == 'x'"),
    (C("s").str.starts_with("x"), "s starts with 'x'"),
    (C("s").str.contains("x.", literal=True), "s contains 'x.'"),
    (C("s").str.contains("x."), None),
    (C("b"), "b == True"),
    (~C("b"), "b == False"),
    (C("d") == Decimal("1.5"), "d == 1.5"),
    (C("t") >= dt.datetime(2024, 2, 29), "t >= 2024-02-29T00:00:00"),
    (C("z") == dt.datetime(2024, 2, 29, tzinfo=UTC), "z == 2024-02-29T00:00:00+00:00"),
    (C("day") == dt.date(2024, 2, 29), "day == 2024-02-29"),
    (C("st").struct.field("x") == 1, "st.x == 1"),
    (C("i") == C("j"), None),
]
SCHEMA = pl.Schema(
    {
        "i": pl.Int32(),
        "j": pl.Int32(),
        "f": pl.Float64(),
        "s": pl.String(),
        "b": pl.Boolean(),
        "d": pl.Decimal(10, 2),
        "t": pl.Datetime("us"),
        "z": pl.Datetime("ms", "UTC"),
        "day": pl.Date(),
        "st": pl.Struct({"x": pl.Int64()}),
    }
)


@pytest.mark.parametrize(("predicate", "expected"), PUSHED, ids=[str(at) for at in range(len(PUSHED))])
def test_predicates(monkeypatch: pytest.MonkeyPatch, predicate: pl.Expr, expected: str | None) -> None:
    """As Polars passes them on, with the types of the columns."""
    said: list[str | None] = []

    def source(_: object, passed: pl.Expr | None, *others: object) -> Iterator[pl.DataFrame]:
        assert passed is not None
        where = rows_of(passed, SCHEMA)
        said.append(None if where is None else str(where))
        return iter(())

    pl.io.plugins.register_io_source(source, schema=SCHEMA).filter(predicate).collect()
    assert said == [expected]


def test_an_unknown_form_is_left_to_polars() -> None:
    reading = door._Reading(SCHEMA)
    nodes: list[Any] = [
        {"New": 1},
        [],
        None,
        {"BinaryExpr": {"left": {"Column": "i"}, "op": "Eq", "right": {"New": 1}}},
    ]
    for node in nodes:
        assert reading.node(node) is None


# -- requests and bytes ---------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with lake_server() as running:
        yield running


@pytest.mark.io
@pytest.mark.parametrize(
    ("query", "own"),
    [
        (
            lambda frame: frame.filter(C("id") == 1234).select("price"),
            {"columns": ["price"], "where": col("id") == 1234},
        ),
        (lambda frame: frame.filter(C("id").is_between(900, 1100)), {"where": col("id").between(900, 1100)}),
        (lambda frame: frame.select("user"), {"columns": ["user"]}),
        (lambda frame: frame.head(3), {"limit": 3}),
        (lambda frame: frame.filter(C("id") < 0), {"where": col("id") < 0}),
        (lambda frame: frame.filter(C("id") > 3900, C("user").str.to_uppercase() == "U1"), {"where": col("id") > 3900}),
    ],
)
def test_bytes_are_those_of_the_same_scan(server: ObjectServer, query: Any, own: Any) -> None:
    limits = asyncpq.LimitOptions(in_flight_bytes=1, files_ahead=1)  # what is read ahead of a limit is a race
    requests = asyncpq.RequestOptions(tail_bytes=2000, gap_bytes=0, latency_s=0.03, bandwidth_bytes_s=200e6)
    sent = []
    reads: list[Callable[[Any], object]] = [
        lambda dataset: query(door.scan(dataset)).collect(),
        lambda dataset: dataset.scan(**own).to_table(),
    ]
    for read in reads:
        with blocking.Session(server.storage_options, requests=requests, limits=limits) as session:
            dataset = session.open_dataset("s3://bucket/lake/")
            dataset.count()  # the footers, whose sizes are learnt in the order of the answers
            begin = server.bytes_sent, len(server.log)
            read(dataset)
            sent.append((server.bytes_sent - begin[0], len(server.log) - begin[1]))
    assert sent[0][0] <= sent[1][0]
    assert sent[0][1] <= sent[1][1]


def test_a_url_is_opened_for_each_query(server: ObjectServer) -> None:
    frame = door.scan("s3://bucket/lake/", storage_options=server.storage_options)
    assert frame.filter(C("id") == 1234).collect().rows() == [(1234, "u2", 308.5)]
    footers = len(server.log)
    assert frame.filter(C("id") == 1234).collect().height == 1
    assert len(server.log) - footers == 1, "the files are listed; footers and pages stay in the memory of the session"
    before = threading.active_count()
    other = door.scan("s3://bucket/lake/", storage_options=server.storage_options)
    assert other.filter(C("id") == 2234).collect().height == 1
    assert threading.active_count() == before, "frames with equal options share a session"
    server.put("bucket/lake/4.parquet", lake_file(4))
    assert frame.select(pl.len()).collect().item() == 5000
    assert "s3://bucket/lake" in frame.explain()
    joined = frame.join(frame.select("id", other="price"), on="id")
    assert joined.filter(C("id") == 7).collect().height == 1


def test_a_dropped_frame_gives_its_session_back(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(lake_file(0))
    frame = door.scan(tmp_path)
    session = blocking.OneOffSession({})
    (shared,) = blocking._shared_sessions.values()
    session.close()
    assert len(shared.users) == 1
    assert frame.select(pl.len()).collect().item() == 1000
    del frame
    gc.collect()
    ended_by = time.monotonic() + 10
    while shared.users and time.monotonic() < ended_by:
        time.sleep(0.01)
    assert not shared.users


def test_an_index_is_used(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.parquet").write_bytes(lake_file(number))
    with blocking.Session() as session:
        session.build_index(tmp_path, [asyncpq.indexing.Keys("id")], at=str(tmp_path / "_index"))
        opened = session.open_dataset(tmp_path, index=str(tmp_path / "_index"))
        assert door.scan(opened).filter(C("id") == 2345).collect()["id"].to_list() == [2345]
    frame = door.scan(tmp_path, index=str(tmp_path / "_index"), memory_cache_bytes=1 << 20)
    assert frame.filter(C("id") == 2345).collect()["id"].to_list() == [2345]


def test_one_file_and_lists(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.parquet").write_bytes(lake_file(number))
    assert door.scan(tmp_path / "1.parquet").select(C("id").min()).collect().item() == 1000
    both = door.scan([tmp_path / "2.parquet", str(tmp_path / "0.parquet")])
    assert both.select("id").head(1).collect().item() == 2000


# -- life and errors ------------------------------------------------------------------------------


def test_errors(server: ObjectServer, tmp_path: Path) -> None:
    with pytest.raises(asyncpq.ObjectNotFoundError):
        door.scan(tmp_path / "nothing")
    with blocking.Session() as session:
        (tmp_path / "0.parquet").write_bytes(lake_file(0))
        file = session.open_file(tmp_path / "0.parquet")
        with pytest.raises(asyncpq.InvalidOptionError, match="takes no options"):
            door.scan(file, index="x")
        frame = door.scan(file)
    with pytest.raises(asyncpq.UsageError, match="closed"):
        frame.collect()
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        frame.select("nothing").collect()
    retry = asyncpq.RetryOptions(max_attempts=1)
    frame = door.scan("s3://bucket/lake/", storage_options=server.storage_options, retry=retry)
    server.faults = [Fault(status=403, code="AccessDenied", times=None)]
    engines: list[Any] = ["in-memory", "streaming"]
    for engine in engines:
        with pytest.raises(asyncpq.AccessDeniedError):
            frame.collect(engine=engine)


def test_a_file_whose_columns_changed_is_no_silent_frame(tmp_path: Path) -> None:
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    frame = door.scan(path)
    pq.write_table(pa.table({"id": ["a", "b"]}), path)
    with pytest.raises(pl.exceptions.PolarsError, match=r"(?i)schema|dtype"):
        frame.collect()


def test_a_query_that_fails_leaves_no_scan(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(lake_file(0))
    with blocking.Session(limits=asyncpq.LimitOptions(unit_bytes=1)) as session:
        frame = door.scan(session.open_dataset(tmp_path))
        with pytest.raises(pl.exceptions.PolarsError):
            frame.select(C("user").cast(pl.Int64)).collect()
        del frame
        gc.collect()
        runtime, until = session.asynchronous._runtime, time.monotonic() + 20
        while any(isinstance(getattr(one, "__self__", 0), RecordBatchStream) for one in runtime._closers.values()):
            assert time.monotonic() < until
            pl.select(1)  # Polars drops what its threads held with its next call


async def test_async_objects_are_read_in_their_loop(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(lake_file(0))
    async with asyncpq.Session() as session:
        for opened in (await session.open_file(tmp_path / "0.parquet"), await session.open_dataset(tmp_path)):
            frame = door.scan(opened)
            query = frame.filter(C("id") == 7).select("user")
            assert (await query.collect_async()).rows() == [("u0",)]
            assert (await asyncio.to_thread(query.collect)).rows() == [("u0",)]
            engines: list[Any] = ["in-memory", "streaming"]
            for engine in engines:
                with pytest.raises(asyncpq.UsageError, match="collect_async"):
                    query.collect(engine=engine)
        later = door.scan(await session.open_dataset(tmp_path))
    with pytest.raises(asyncpq.UsageError, match="closed"):
        await later.collect_async()


def test_async_objects_outside_of_their_loop(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(lake_file(0))

    async def make() -> tuple[asyncpq.File, pl.LazyFrame]:
        async with asyncpq.open_file(tmp_path / "0.parquet") as file:
            return file, door.scan(file)

    file, frame = asyncio.run(make())
    with pytest.raises(asyncpq.UsageError, match="outside of its event loop"):
        door.scan(file)
    with pytest.raises(asyncpq.UsageError, match="ended"):
        frame.collect()


def test_without_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.delitem(sys.modules, "asyncpq.polars")
    with pytest.raises(asyncpq.UsageError, match=r"Install Polars: pip install .*\[polars\]"):
        __import__("asyncpq.polars")


@pytest.mark.parametrize(("join", "node"), [(operator.or_, Or), (operator.and_, And)])
def test_chains_that_json_cannot_nest(join: Callable[[Any, Any], Any], node: type[And | Or]) -> None:
    chain = reduce(join, [pl.col("a") != pl.lit(number, pl.Int64) for number in range(500)])
    where = rows_of(chain, pl.Schema({"a": pl.Int64()}))
    assert where == node(tuple(Comparison("a", "!=", number) for number in range(500)))
