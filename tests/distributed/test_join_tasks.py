"""Rows are matched as a join of two lists does, one key after another."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.distributed.join_tasks import LeftKeys

_FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, None])
_TEXTS = st.sampled_from(["", "a", "b", None])
_NUMBERS = st.sampled_from([0, 1, -(2**40), None])
_TYPES = [pa.float64(), pa.string(), pa.int64()]


def _key(row: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What is equal where Spark's joins take it for equal; None matches nothing."""
    if None in row:
        return None
    return tuple("nan" if value != value else value + 0.0 if isinstance(value, float) else value for value in row)


def _arrays(rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], type_) for at, type_ in enumerate(_TYPES)]


_ROWS = st.lists(st.tuples(_FLOATS, _TEXTS, _NUMBERS), max_size=20)


@given(left=_ROWS, lake=st.lists(_ROWS, max_size=3), most=st.integers(1, 30), at_once=st.integers(1, 20))
def test_pairs_of_keys_of_several_columns(
    left: list[tuple[Any, ...]], lake: list[list[tuple[Any, ...]]], most: int, at_once: int
) -> None:
    """Each once, where the lake's rows are given for some keys after the others."""
    keys = LeftKeys([[column] for column in _arrays(left)], len(left))
    assert len(keys) == len({_key(row) for row in left} - {None})
    met: set[int] = set()
    for rows in lake:
        found: list[tuple[int, int]] = []
        for begin in range(0, max(len(keys), 1), at_once):
            some = range(begin, min(begin + at_once, len(keys)))
            for pairs in keys.pairs(_arrays(rows), some, most):
                assert 0 < len(pairs.left) == len(pairs.lake) <= most
                found.extend(zip(pairs.left.to_pylist(), pairs.lake.to_pylist(), strict=True))
                asked = {_key(tuple(column[at].as_py() for column in keys.distinct)) for at in some}
                assert {_key(left[at]) for at in pairs.left.to_pylist()} <= asked
        expected = [
            (a, b) for a, x in enumerate(left) for b, y in enumerate(rows) if _key(x) is not None and _key(x) == _key(y)
        ]
        assert sorted(found) == expected
        met.update(a for a, _ in expected)
    assert keys.rows(met=True).to_pylist() == sorted(met)
    assert keys.rows(met=False).to_pylist() == [at for at in range(len(left)) if at not in met]
    assert keys.all_met is ({_key(left[at]) for at in met} == {_key(row) for row in left} - {None})


def test_a_key_that_may_be_one_of_two_values() -> None:
    keys = LeftKeys([[pa.array([1, 2, None]), pa.array([5, None, None], pa.int64())]], 3)
    ((left, lake),) = keys.pairs([pa.array([5, 1, 2, None])], range(len(keys)), 10)
    assert list(zip(left.to_pylist(), lake.to_pylist(), strict=True)) == [(0, 0), (0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (pa.bool_(), False, True),
        (pa.decimal128(9, 2), Decimal("0.10"), Decimal("0.11")),
        (pa.binary(), b"", b"\xff"),
        (pa.date32(), date(1, 1, 1), date(2, 1, 1)),
        (pa.timestamp("us", "UTC"), datetime(1, 1, 1), datetime(1, 1, 2)),
        (pa.float32(), 0.5, math.nan),
    ],
)
def test_keys_of_each_type(kind: pa.DataType, one: Any, other: Any) -> None:
    column = pa.array([one, other, other], kind)
    keys = LeftKeys([[column]], 3)
    assert len(keys) == 2
    ((left, _),) = keys.pairs([column.slice(2)], range(len(keys)), 10)
    assert left.to_pylist() == [1, 2]
