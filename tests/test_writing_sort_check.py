"""Rows that a file says are sorted: held to Python's own sorting."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import InvalidOptionError
from asyncpq.writing import SortCheck, SortedBy

_SCHEMA = pa.schema([("a", pa.struct([("x", pa.float64())])), ("b", pa.string())])
_COLUMNS = {
    "a.x": st.sampled_from([None, -math.inf, -0.0, 0.0, 1.5, math.nan]),
    "b": st.sampled_from([None, "", "ab", "é"]),
}


def _rank(value: Any, column: SortedBy) -> tuple[int, Any]:
    """Sorts ascending as the column does."""
    if value is None:
        return (0 if column.nulls_first else 2, 0)
    if isinstance(value, str):
        found: Any = tuple(byte if not column.descending else -byte for byte in value.encode())
        return (1, (found, 0) if not column.descending else ((*found, 1), 0))
    found = (1, 0.0) if math.isnan(value) else (0, value)
    return (1, found if not column.descending else (-found[0], -found[1]))


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[SortedBy], list[tuple[Any, Any]], list[int]]:
    names = draw(st.sampled_from([["a.x"], ["b"], ["a.x", "b"], ["b", "a.x"]]))
    columns = [SortedBy(column=name, descending=draw(st.booleans()), nulls_first=draw(st.booleans())) for name in names]
    rows = draw(st.lists(st.tuples(_COLUMNS["a.x"], _COLUMNS["b"]), min_size=1, max_size=12))
    if draw(st.booleans()):
        rows.sort(key=lambda row: [_rank(row[0 if one.column == "a.x" else 1], one) for one in columns])
    cuts = sorted(draw(st.sets(st.integers(1, len(rows)), max_size=3)) | {len(rows)})
    return columns, rows, cuts


def _is_refused(order: SortCheck, rows: pa.Table) -> bool:
    try:
        order.check(rows)
    except InvalidOptionError:
        return True
    return False


@given(_cases())
def test_rows_are_sorted_or_refused(case: tuple[list[SortedBy], list[tuple[Any, Any]], list[int]]) -> None:
    columns, rows, cuts = case
    ranks = [[_rank(row[0 if one.column == "a.x" else 1], one) for one in columns] for row in rows]
    order, start, refused = SortCheck("s3://bucket/file", _SCHEMA, columns), 0, False
    for stop in cuts:
        some = rows[start:stop]
        parts = [
            pa.Table.from_pylist([{"a": None if x is None else {"x": x}, "b": b} for x, b in part], _SCHEMA)
            for part in (some[:2], some[2:])
        ]
        start = stop
        refused = refused or _is_refused(order, pa.concat_tables(parts))
    assert refused is (ranks != sorted(ranks))


def test_nothing_is_asked_where_nothing_is_said() -> None:
    order = SortCheck("s3://bucket/file", _SCHEMA, [])
    order.check(pa.Table.from_pylist([{"b": "b"}, {"b": "a"}], _SCHEMA))
    with pytest.raises(
        InvalidOptionError, match=r"not in this order; column 'b'; s3://bucket/file.*sortWithinPartitions"
    ):
        SortCheck("s3://bucket/file", _SCHEMA, [SortedBy(column="b")]).check(
            pa.Table.from_pylist([{"b": "b"}, {"b": "a"}], _SCHEMA)
        )
