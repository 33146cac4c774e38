"""Rows of an array by ranges: the same whichever way is the cheaper one."""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.arrow import plain_array, plain_scalar, take_rows
from asyncpq.pruning.row_ranges import RowRanges

TYPES = [
    pa.int32(),
    pa.bool_(),
    pa.string(),
    pa.string_view(),
    pa.list_(pa.string_view()),
    pa.struct([("x", pa.int8())]),
]

CHOSEN = st.lists(st.booleans(), max_size=20) | st.lists(st.sampled_from([True, True, False]), min_size=40, max_size=80)


def array(kind: pa.DataType, size: int) -> pa.Array:
    values = [None if at % 5 == 3 else at % 90 for at in range(size)]
    if pa.types.is_boolean(kind):
        return pa.array([None if value is None else value % 2 == 0 for value in values], kind)
    if pa.types.is_list(kind):
        return pa.array([None if value is None else [str(value)] for value in values], kind)
    if pa.types.is_struct(kind):
        return pa.array([None if value is None else {"x": value} for value in values], kind)
    return pa.array(values if kind == pa.int32() else [None if value is None else str(value) for value in values], kind)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(first_row=st.integers(0, 100), chosen=CHOSEN, every=st.integers(1, 6))
def test_rows_by_ranges(kind: pa.DataType, first_row: int, chosen: list[bool], every: int) -> None:
    positions = [at for at, some in enumerate(chosen) if some and at % every != 1]
    values = array(kind, len(chosen) + 3).slice(3)
    found = take_rows(values, RowRanges.from_rows([first_row + at for at in positions]), first_row)
    assert found.type == kind
    assert found.to_pylist() == [values[at].as_py() for at in positions]


PLAIN = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(1 << 7), (1 << 7) - 1)),
    (pa.uint16(), st.integers(0, (1 << 16) - 1)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text()),
    (pa.large_string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.large_binary(), st.binary()),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.time32("ms"), st.integers(0, 86_399_999)),
    (pa.timestamp("us", "UTC"), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.duration("ns"), st.integers(-(1 << 63), (1 << 63) - 1)),
]


@pytest.mark.parametrize(("kind", "values"), PLAIN, ids=lambda each: str(each) if isinstance(each, pa.DataType) else "")
@given(data=st.data())
def test_plain_values(kind: pa.DataType, values: st.SearchStrategy[object], data: st.DataObject) -> None:
    drawn = data.draw(st.lists(values, max_size=5))
    made = plain_array(drawn, kind)
    made.validate(full=True)
    assert made.equals(pa.array(drawn, kind))
    for value in drawn:
        assert plain_scalar(value, kind).equals(pa.scalar(value, kind))


@given(st.lists(st.integers(1 - 10**38, 10**38 - 1), max_size=5))
def test_plain_decimals_are_unscaled(unscaled: list[int]) -> None:
    for kind in (pa.decimal128(38, 3), pa.decimal256(38, 3)):
        decimals = [Decimal(value).scaleb(-3, Context(prec=80)) for value in unscaled]
        assert plain_array(unscaled, kind).equals(pa.array(decimals, kind))
