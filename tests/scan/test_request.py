"""Keys, ``is_in`` and ``filters=`` take collections of every usual kind."""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import functools
import operator
import threading
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it has no stubs here
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import ExpressionError, PredicateTypeError, QueryError, col
from asyncpq.decoding import filter as filters
from asyncpq.expressions import Comparison, tree
from asyncpq.expressions.scalars import Duration, TimeOfDay, Timestamp, as_scalars
from asyncpq.scan.request import LookupKeys, column_names, predicate, where_steps
from tests.parquet_bytes import parquet_bytes
from tests.reads import ask

TABLE = pa.table(
    {
        "id": pa.array([1, 2, 3, None, 5], pa.int64()),
        "name": pa.array(["a", "b", None, "d", "e"]),
        "x": pa.array([0.5, 1.5, None, float("nan"), 2.5]),
        "t": pa.array([1, 2, 1_000, None, 5_000], pa.timestamp("ns")),
        "c": pa.array([1, 2, 1_000, None, 5_000], pa.time64("ns")),
        "d": pa.array([1, 2, 1_000, None, 5_000], pa.duration("ns")),
        "u": pa.array([uuid.UUID(int=n).bytes for n in range(5)], pa.uuid()),
        "dec": pa.array([Decimal("1.5")] * 5),
        "day": pa.array([1] * 5, pa.date32()),
        "ms": pa.array([1] * 5, pa.timestamp("ms", "UTC")),
        "row": pa.array(range(5)),
    }
)


@pytest.fixture(scope="module")
def data() -> bytes:
    return parquet_bytes(TABLE, row_group_size=2, write_page_index=True)


def generated(values: Any) -> Iterator[Any]:
    yield from values


# For each kind of collection the column and how its values are given.
COLLECTIONS: dict[str, tuple[str, Callable[[], Any]]] = {
    "list": ("id", lambda: [1, 3, 9]),
    "tuple": ("id", lambda: (1, 3, 9)),
    "set": ("id", lambda: {1, 3, 9}),
    "frozenset": ("id", lambda: frozenset([1, 3, 9])),
    "range": ("id", lambda: range(1, 10, 2)),
    "generator": ("id", lambda: generated([1, 3, 9])),
    "map": ("id", lambda: map(int, "139")),
    "dict keys": ("id", lambda: {1: "x", 3: "y"}.keys()),
    "dict values": ("id", lambda: {"x": 1, "y": 3}.values()),
    "numpy int8": ("id", lambda: np.array([1, 3, 9], np.int8)),
    "numpy objects": ("id", lambda: np.array([1, 3, None], object)),
    "numpy strings": ("name", lambda: np.array(["a", "e", "z"])),
    "numpy float32": ("x", lambda: np.array([0.5, np.nan], np.float32)),
    "numpy datetime64": ("t", lambda: np.array([1, 1_000, "NaT"], "datetime64[ns]")),
    "numpy timedelta64": ("d", lambda: np.array([1, 1_000, "NaT"], "timedelta64[ns]")),
    "list of numpy": ("id", lambda: [np.int64(1), np.uint8(3)]),
    "arrow": ("id", lambda: pa.array([1, 3, None])),
    "arrow chunks": ("id", lambda: pa.chunked_array([[1], [3, 9]])),
    "arrow dictionary": ("name", lambda: pa.array(["a", "a", "e", None]).dictionary_encode()),
    "arrow times": ("c", lambda: pa.array([1, 1_000, None], pa.time64("ns"))),
    "arrow dictionary of times": ("c", lambda: pa.array([1, 1_000], pa.time64("ns")).dictionary_encode()),
    "arrow timestamps": ("t", lambda: pa.array([1, 5_000], pa.timestamp("ns"))),
    "arrow view": ("name", lambda: pa.array(["a", "e"], pa.string_view())),
    "arrow uuid": ("u", lambda: TABLE["u"].slice(1, 2)),
    "list of arrow": ("t", lambda: list(pa.array([1, 5_000], pa.timestamp("ns")))),
    "pandas": ("id", lambda: pd.Series([1, 3, 9], index=[7, 8, 9])),
    "pandas nullable": ("id", lambda: pd.Series([1, 3, None], dtype="Int64")),
    "pandas strings": ("name", lambda: pd.Series(["a", "e", None])),
    "pandas floats": ("x", lambda: pd.Series([0.5, 2.5, None])),
    "pandas categories": ("name", lambda: pd.Series(["a", "e"], dtype="category")),
    "pandas timestamps": ("t", lambda: pd.Series([1, 1_000, None], dtype="datetime64[ns]")),
    "pandas durations": ("d", lambda: pd.Series([1, 1_000, None], dtype="timedelta64[ns]")),
    "pandas of arrow": (
        "c",
        lambda: pd.Series(pa.array([1, 1_000], pa.time64("ns")), dtype=pd.ArrowDtype(pa.time64("ns"))),
    ),
    "pandas index": ("id", lambda: pd.Index([1, 3, 9])),
    "pandas range index": ("id", lambda: pd.RangeIndex(1, 4, 2)),
    "pandas datetime index": ("t", lambda: pd.DatetimeIndex([1, 1_000])),
    "polars": ("id", lambda: pl.Series([1, 3, None])),
    "polars strings": ("name", lambda: pl.Series(["a", "e", None])),
    "polars categories": ("name", lambda: pl.Series(["a", "e"], dtype=pl.Categorical)),
    "polars timestamps": ("t", lambda: pl.Series([1, 1_000], dtype=pl.Int64).cast(pl.Datetime("ns"))),
    "polars times": ("c", lambda: pl.Series([1, 1_000], dtype=pl.Int64).cast(pl.Time)),
    "polars durations": ("d", lambda: pl.Series([1, 1_000], dtype=pl.Int64).cast(pl.Duration("ns"))),
}


def _values(values: Any) -> pa.Array:
    """As pyarrow has them."""
    if isinstance(values, pl.Series):
        return values.to_arrow()
    return (
        values
        if isinstance(values, (pa.Array, pa.ChunkedArray))
        else pa.array(values if hasattr(values, "dtype") else list(values))
    )


def _rows(name: str, values: pa.Array, *, null: bool) -> list[int]:
    """Rows by pyarrow: those that are in the values, perhaps with nulls (and NaN) among them."""
    column = TABLE[name]
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if name == "u":
        column, values = pa.chunked_array([column.chunk(0).storage]), values.combine_chunks().storage
    values = values.cast(column.type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    mask = pc.is_in(column, value_set=values)
    if not null:
        valid = pc.is_valid(column)
        mask = pc.and_(mask, pc.and_not(valid, pc.is_nan(column)) if name == "x" else valid)
    return list(pc.indices_nonzero(mask.combine_chunks()).to_pylist())


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_every_kind_of_collection(kind: str, data: bytes) -> None:
    name, make = COLLECTIONS[kind]

    async def question(file: asyncpq.File) -> None:
        members = _rows(name, _values(make()), null=True)
        assert (await file.read(["row"], col(name).is_in(make())))["row"].to_pylist() == members
        assert (await file.read(["row"], [(name, "in", make())]))["row"].to_pylist() == members
        assert await file.count([(name, "not in", make())]) == TABLE.num_rows - len(members)
        keys = _rows(name, _values(make()), null=False)
        assert (await file.lookup({name: make()}, columns=["row"]))["row"].to_pylist() == keys
        found = await file.lookup({name: make()}, columns=["row"], with_keys=True)
        assert set(found["row"].to_pylist()) == set(keys)
        size = len(_values(make()))
        both = await file.lookup({name: make(), "row": generated(range(size))}, columns=["row"])
        paired = (
            list(zip(_values(make()).to_pylist(), range(size), strict=True))
            if kind not in ("set", "frozenset")
            else None
        )
        if paired is not None and name == "id":
            wanted = [row for value, row in paired if value is not None and TABLE["id"][row].as_py() == value]
            assert both["row"].to_pylist() == wanted

    ask(data, question)


def test_no_precision_is_lost() -> None:
    assert as_scalars(pd.Series([1], dtype="datetime64[ns]")) == (Timestamp(1),)
    assert as_scalars(pl.Series([1]).cast(pl.Time)) == (TimeOfDay(1),)
    assert as_scalars(pl.Series([1]).cast(pl.Duration("ns"))) == (Duration(1),)
    assert as_scalars(pa.array([2**60], pa.duration("s"))) == (Duration(2**60 * 10**9),)


@pytest.mark.parametrize(
    "values",
    ["abc", b"abc", 5, None, pd.DataFrame({"a": [1]}), pl.DataFrame({"a": [1]}), TABLE, np.zeros((2, 2)), np.array(5)],
    ids=lambda values: type(values).__name__,
)
def test_what_is_no_collection(values: Any) -> None:
    with pytest.raises(ExpressionError) as caught:
        col("id").is_in(values)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "at least one key column"),
        (pd.DataFrame({"id": [1]}), "keys of a lookup must be a mapping, not DataFrame"),
        ([("id", 1)], "keys of a lookup must be a mapping, not list"),
        ({"id": {"a": 1}}, "not a mapping"),
        ({"id": pd.DataFrame({"a": [1]})}, "one column of values"),
        ({"id": [1, 2], "name": (name for name in "abc")}, "equal lengths"),
        ({"id": [[1]]}, "not a literal"),
        ({"id": object()}, "not a literal"),
    ],
)
def test_what_is_no_key(keys: Any, message: str, data: bytes) -> None:
    async def question(file: asyncpq.File) -> None:
        with pytest.raises(QueryError, match=message):
            await file.lookup(keys)

    ask(data, question)


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("u", "00000000-0000-0000-0000-000000000001", 'uuid.UUID("...")'),
        ("day", "1970-01-02", 'date.fromisoformat("...")'),
        ("t", "1970-01-01T00:00:00", 'datetime.fromisoformat("...")'),
        ("ms", "1970-01-01T00:00:00Z", """datetime.fromisoformat("..."), in SQL TIMESTAMP WITH TIME ZONE '...'"""),
        ("c", "00:00:00", 'time.fromisoformat("...")'),
        ("dec", "1.5", 'Decimal("...")'),
        ("d", "1s", "timedelta("),
        ("id", "1", 'int("...")'),
    ],
)
def test_text_for_other_columns_says_what_to_write(name: str, text: str, hint: str, data: bytes) -> None:
    async def question(file: asyncpq.File) -> None:
        reads = [
            file.lookup({name: text}),
            file.lookup({name: [text, text]}),
            file.lookup({name: [text], "row": [1]}),
            file.read(where=col(name) == text),
            file.read(where=col(name) >= text),
            file.count([(name, "=", text)]),
        ]
        for read in reads:
            with pytest.raises(PredicateTypeError) as caught:
                await read
            assert hint.replace("...", text) in str(caught.value.hint) or hint in str(caught.value.hint)
            assert ("is given as text" in caught.value.message) is (name not in ("dec", "d", "id"))
            assert caught.value.column == name

    ask(data, question)


def test_text_among_the_members_of_a_uuid_column(data: bytes) -> None:
    async def question(file: asyncpq.File) -> None:
        with pytest.raises(PredicateTypeError) as caught:
            await file.read(where=col("u").is_in([str(uuid.UUID(int=1))]))
        assert "uuid.UUID" in str(caught.value.hint)

    ask(data, question)


def test_blocking_files_and_datasets_take_the_same(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    with asyncpq.blocking.Session() as session:
        file = session.open_file(str(tmp_path / "a.parquet"))
        dataset = session.open_dataset(str(tmp_path))
        for opened in (file, dataset):
            for keys in (
                pd.Series([1, 5]),
                pl.Series([1, 5]),
                generated([1, 5]),
                np.array([1, 5]),
                {1: 0, 5: 0}.keys(),
            ):
                assert opened.lookup({"id": keys}, columns=["row"])["row"].to_pylist() == [0, 4]
            assert opened.count(col("t").is_in(pd.Series([1, 2], dtype="datetime64[ns]"))) == 2
            with pytest.raises(PredicateTypeError, match=r"date\.fromisoformat"):
                opened.lookup({"day": "1970-01-02"})
        assert dt.date(1970, 1, 2) == TABLE["day"][0].as_py()


class _OfAnArrowLibrary:
    """A column of a library that gives its values out by Arrow's PyCapsule protocol alone."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._values.__arrow_c_array__(requested_schema)


class _StreamOfAnArrowLibrary(_OfAnArrowLibrary):
    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return pa.chunked_array([self._values.slice(0, 1), self._values.slice(1)]).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", [_OfAnArrowLibrary, _StreamOfAnArrowLibrary])
def test_keys_by_the_pycapsule_protocol(kind: type[_OfAnArrowLibrary]) -> None:
    for values in (pa.array([1, 3, None]), pa.array([1, 1_000], pa.timestamp("ns"))):
        assert LookupKeys({"id": kind(values)}).where == LookupKeys({"id": values}).where


def test_bytes_of_a_buffer_are_one_key() -> None:
    assert LookupKeys({"id": memoryview(b"ab")}).where == Comparison("id", "==", b"ab")


def test_keys_are_no_columns() -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match="must be a list of names") as caught:
        column_names({"id": 3})
    assert "lookup" in (caught.value.hint or "")


@pytest.mark.heavy
async def test_long_predicates_are_converted_and_compiled_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop looks at a few of the comparisons, to know that there are many."""
    path, pairs = tmp_path / "pairs.parquet", 2000
    pq.write_table(pa.table({"a": range(pairs), "b": range(pairs)}), path)
    forms: dict[str, Any] = {
        "col": functools.reduce(operator.or_, [(col("a") == row) & (col("b") == row) for row in range(pairs)]),
        "SQL": " OR ".join([f"(a = {row} AND b = {row})" for row in range(pairs)]),
        "lists": [[("a", "=", row), ("b", "=", row)] for row in range(pairs)],
    }
    seen: collections.Counter[bool] = collections.Counter()
    thread, getattr_ = threading.get_ident(), tree.Atom.__getattribute__

    def counted(atom: tree.Atom, name: str) -> Any:
        seen[threading.get_ident() == thread] += 1
        return getattr_(atom, name)

    async with asyncpq.open_file(str(path)) as file:
        for form, where in forms.items():
            seen.clear()
            monkeypatch.setattr(tree.Atom, "__getattribute__", counted, raising=False)
            assert await file.count(where) == pairs
            tables = [await file.read(where=where), await file.scan(where=where).to_table()]
            monkeypatch.undo()
            assert [table.num_rows for table in tables] == [pairs, pairs]
            assert seen[True] < pairs, form  # of 2 x 4,000 comparisons, each looked at several times
            assert seen[False] > pairs


@pytest.mark.parametrize("nested", [False, True])
async def test_long_lists_of_values_are_converted_and_hashed_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    path, threads = tmp_path / "few.parquet", set[int]()
    pq.write_table(pa.table({"id": range(100)}), path)
    where: Any = [("id", "in", list(range(50, 50_000)))]
    is_in = filters._members

    def noted(values: Any, value_set: pa.Array) -> Any:
        threads.add(threading.get_ident())
        return is_in(values, value_set)

    monkeypatch.setattr(filters, "_members", noted)
    async with asyncpq.open_file(str(path)) as file:
        assert "unparsed" in predicate([where] if nested else where)
        assert await file.count([where] if nested else where) == 50
        assert threads
        assert threading.get_ident() not in threads
        assert await file.count([("id", "in", [5, 6])]) == 2
        assert threading.get_ident() in threads


@pytest.mark.parametrize("of", ["file", "dataset"])
async def test_errors_of_long_predicates_are_raised_when_a_scan_is_entered(tmp_path: Path, of: str) -> None:
    path = tmp_path / "few.parquet"
    pq.write_table(pa.table({"id": range(100)}), path)
    async with asyncpq.Session() as session:
        file, dataset = await session.open_file(str(path)), await session.open_dataset(str(path))
        target: Any = file if of == "file" else dataset
        for wrong, kind in [("is", asyncpq.ExpressionError), ("= 'a' OR nope = 1", asyncpq.QueryError)]:
            scan = target.scan(where=" OR ".join([f"id = {row}" for row in range(50)]) + f" OR id {wrong}")
            with pytest.raises(kind):
                await scan.__aenter__()


@pytest.mark.parametrize("of", ["file", "dataset"])
async def test_iterators_of_a_long_predicate_are_read_once(tmp_path: Path, of: str) -> None:
    """A scan may be read several times, through Arrow's C stream."""
    path = tmp_path / "few.parquet"
    pq.write_table(pa.table({"id": range(100), "x": range(100)}), path)
    async with asyncpq.Session() as session:
        file, dataset = await session.open_file(str(path)), await session.open_dataset(str(path))
        target: Any = file if of == "file" else dataset
        for repeats in (1, 1_000):
            where: list[Any] = [[("id", "in", iter(range(5))), ("id", "<", 50)], *[[("id", "==", 7)]] * repeats]
            scan = target.scan(iter(["id"]), where=where)
            tables = [await asyncio.to_thread(pa.table, scan) for _ in range(2)]
            assert [table.to_pydict() for table in tables] == [{"id": [0, 1, 2, 3, 4, 7]}] * 2


def test_values_without_a_length() -> None:
    assert where_steps([("id", "==", np.array(5))]) == where_steps([("id", "==", 5)])
    assert where_steps([("id", "==", pa.scalar(None, pa.list_(pa.int64())))]) == where_steps([("id", "==", 5)])
    parsed = predicate([("id", "==", np.array(5))])["where"]
    assert parsed == predicate([("id", "==", 5)])["where"]


def test_lists_in_lists_are_no_predicates() -> None:
    nested: list[Any] = []
    nested.append(nested)
    for _ in range(3_000):
        nested = [nested]
    for where in (nested, [("id", "==", nested)], [("id", "in", nested)], [("id", nested, 1)]):
        with pytest.raises(ExpressionError) as caught:
            predicate(where)
        assert len(str(caught.value)) < 300
