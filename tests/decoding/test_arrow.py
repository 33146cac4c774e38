"""Rows of an array by ranges: the same whichever way is the cheaper one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.arrow import take_rows
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
