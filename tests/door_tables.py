"""Random tables of the types that other query engines read, with the values at which engines differ."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

UTC = dt.UTC
NAN, INF = float("nan"), float("inf")
DAYS = [dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(2024, 3, 1)]
TIMES = [dt.datetime(1969, 12, 31, 23, 59, 59, 999_000), dt.datetime(2024, 2, 29), dt.datetime(2024, 3, 1, 1, 2, 3)]

# Columns by name: type, and values that the columns and the literals of predicates have.
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, 0, 1, 127]),
    "i32": (pa.int32(), [-(2**31), -1, 0, 5, 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), -1, 0, 5, 2**53 + 1, 2**63 - 1]),
    "u64": (pa.uint64(), [0, 5, 2**63, 2**64 - 1]),
    "f32": (pa.float32(), [-INF, -0.0, 0.0, 0.5, 0.1, INF, NAN]),
    "f64": (pa.float64(), [-INF, -1.5, -0.0, 0.0, 0.1, 2.0**53, INF, NAN]),
    "bool": (pa.bool_(), [False, True]),
    "text": (pa.string(), ["", "a", "ab", "b", "ä", "\U0001f600", "a.c"]),
    "large": (pa.large_string(), ["", "a", "ab", "z" * 100]),
    "category": (pa.dictionary(pa.int32(), pa.string()), ["a", "ab", "b"]),
    "bytes": (pa.binary(), [b"", b"\0", b"ab", b"\xff"]),
    "fixed": (pa.binary(2), [b"ab", b"\0\xff"]),
    "decimal": (
        pa.decimal128(12, 3),
        [Decimal("-1.500"), Decimal("0.000"), Decimal("1.001"), Decimal("999999999.999")],
    ),
    "date": (pa.date32(), DAYS),
    "ms": (pa.timestamp("ms"), TIMES),
    "us": (pa.timestamp("us", "UTC"), [time.replace(tzinfo=UTC) for time in TIMES]),
    "ns": (pa.timestamp("ns"), TIMES),
    "time": (pa.time64("us"), [dt.time(0), dt.time(12, 30, 0, 1), dt.time(23, 59, 59)]),
    "duration": (pa.duration("us"), [dt.timedelta(-1), dt.timedelta(0), dt.timedelta(microseconds=5)]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": "a"}, {"x": None, "y": "b"}]),
    "list": (pa.list_(pa.int32()), [[], [1, None], [5, 1]]),
    "dotted.name": (pa.int32(), [1, 2, 3]),
}


@st.composite
def tables(draw: st.DrawFn, without: tuple[str, ...] = ()) -> pa.Table:
    """A table of some of the columns, but those ``without``; values stand in runs or are mixed."""
    known = [name for name in COLUMNS if name not in without]
    first = draw(st.sampled_from(["f64", "i32", "f32", "bool", "text", *known]))
    others = draw(st.lists(st.sampled_from(known), min_size=2, max_size=4, unique=True))
    names = dict.fromkeys([first, *others])
    num_rows = draw(st.sampled_from([60, 7, 150, 61, 60, 1, 0]))
    columns = {}
    for name in names:
        type_, values = COLUMNS[name]
        few = draw(st.lists(st.sampled_from([*values, None]), min_size=4, max_size=8))
        runs = draw(st.booleans())
        rows = [few[row * len(few) // num_rows if runs else row * 5 // 3 % len(few)] for row in range(num_rows)]
        array = pa.array(rows, type_.value_type if pa.types.is_dictionary(type_) else type_)
        columns[name] = array.dictionary_encode() if pa.types.is_dictionary(type_) else array
    return pa.table(columns)


def lake_file(number: int) -> bytes:
    """A file of 1000 rows; the ids ascend over the files of a lake."""
    ids = range(number * 1000, number * 1000 + 1000)
    table = pa.table({"id": ids, "user": [f"u{one % 7}" for one in ids], "price": [one / 4 for one in ids]})
    return parquet_bytes(table, row_group_size=250, data_page_size=256, write_page_index=True, use_dictionary=False)


@contextmanager
def lake_server() -> Iterator[ObjectServer]:
    """A server with four files in ``bucket/lake/``."""
    with ObjectServer.in_thread() as server:
        for number in range(4):
            server.put(f"bucket/lake/{number}.parquet", lake_file(number))
        yield server
