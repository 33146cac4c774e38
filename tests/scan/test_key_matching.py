"""Rows are matched with keys as the filter compares them."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.scan.key_matching import matches
from asyncpq.scan.request import LookupKeys

pytestmark = pytest.mark.property

NAN = float("nan")
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int32(): [0, 1, -5, 2**31 - 1],
    pa.uint64(): [0, 1, 2**64 - 1],
    pa.float64(): [0.0, -0.0, 1.5, NAN],
    pa.float32(): [0.0, -0.0, 1.5, NAN],
    pa.string(): ["", "a", "é"],
    pa.string_view(): ["", "a", "é"],
    pa.large_binary(): [b"", b"a", b"\xff"],
    pa.binary(2): [b"ab", b"cd"],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b", ""],
    pa.bool_(): [True, False],
    pa.decimal128(5, 2): [Decimal("1.50"), Decimal("0.00")],
    pa.date32(): [dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
    pa.timestamp("us", "UTC"): [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
    pa.struct([("x", pa.int64())]): [{"x": 1}],
}
KEYS = [0, 1, -5, 2**31 - 1, 2**64 - 1, 2**70, 0.0, -0.0, 1.0, 1.5, NAN, "", "a", "é", b"", b"a", b"ab", True, None]
KEYS += [Decimal("1.5"), Decimal("1.501"), dt.date(2024, 2, 29), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]


@st.composite
def lookups(draw: st.DrawFn) -> tuple[pa.Table, dict[str, list[Any]]]:
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    num_rows, num_keys = draw(st.integers(0, 6)), draw(st.integers(1, 6))
    columns, keys = {}, {}
    for name in names:
        kind = draw(st.sampled_from([known for known in VALUES if not pa.types.is_struct(known)]))
        values = draw(st.lists(st.sampled_from([*VALUES[kind], None]), min_size=num_rows, max_size=num_rows))
        columns[name] = pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)])
        own = [value for value in KEYS if type(value) is type(VALUES[kind][0])] + [None]
        keys[name] = draw(st.lists(st.sampled_from(own + VALUES[kind]), min_size=num_keys, max_size=num_keys))
    return pa.table(columns), keys


@given(lookups())
def test_hash_tables_find_what_the_filter_finds(lookup: tuple[pa.Table, dict[str, list[Any]]]) -> None:
    table, keys = lookup
    wanted = LookupKeys(keys)
    expected = wanted._compared(table.columns, table.num_rows)
    found = matches(list(keys.values()), table.columns)
    if found is None:  # of literals that pyarrow's engine casts
        kinds = [VALUES[column.type] for column in table.columns]
        assert any(key not in [*known, None] for known, own in zip(kinds, keys.values(), strict=True) for key in own)
        return
    assert [array.to_pylist() for array in found] == [array.to_pylist() for array in expected]


def test_other_comparisons_are_the_filters() -> None:
    assert matches([[0.5]], [pa.chunked_array([pa.array([Decimal("0.5")])])]) is None
    assert matches([[1]], [pa.chunked_array([pa.array([None], pa.struct([("x", pa.int64())]))])]) is None


def test_a_million_keys_and_rows_become_no_objects() -> None:
    """Each pair is a number in an array: no step makes Python objects of all rows."""
    count = 200_000
    keys = LookupKeys({"id": list(range(count))})
    table = pa.table({"v": pa.array(range(count)), "id": pa.array(range(count))})
    keys.finish(table.slice(0, 10), True)
    tracemalloc.start()
    try:
        found = keys.finish(table, True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.column("key_position").to_pylist() == list(range(count))
    assert peak < 24 * count  # pairs alone took 64 bytes each
