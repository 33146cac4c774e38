"""Z-order: ranks of values of any type, their bits in turn, and what that is worth to range queries."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.distributed.row_order import ZOrder, rank_bounds, ranks_of
from tests.example_counts import examples

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "boolean": (pa.bool_(), st.booleans()),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "string": (pa.string(), st.text(max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=5)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes().map(lambda one: one.replace(tzinfo=dt.UTC))),
    "timestamp_ntz": (pa.timestamp("us"), st.datetimes()),
    "decimal": (pa.decimal128(10, 3), st.integers(-(10**10) + 1, 10**10 - 1).map(lambda one: Decimal(one).scaleb(-3))),
    "time": (pa.time64("us"), st.times()),
}


def _key(value: Any) -> Any:
    """How Spark sorts: nulls first, NaN last, the zeros equal, text by its bytes."""
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=examples(20, thorough=200), deadline=None)
@given(data=st.data())
def test_ranks_never_contradict_the_order_of_values(name: str, data: st.DataObject) -> None:
    kind, one = VALUES[name]
    sample = data.draw(st.lists(st.none() | one, max_size=40))
    values = data.draw(st.lists(st.none() | one, min_size=1, max_size=40)) + sample
    bounds = rank_bounds(pa.array(sample, kind), data.draw(st.integers(1, 20)))
    ranks = ranks_of(pa.array(values, kind), bounds).to_pylist()
    in_order = sorted(zip(values, ranks, strict=True), key=lambda pair: _key(pair[0]))
    assert [rank for _, rank in in_order] == sorted(ranks)
    assert all((rank == 0) == (value is None) for value, rank in in_order)
    assert max(ranks) <= len(bounds) + 1
    equal: dict[Any, int] = {}
    for value, rank in in_order:  # the zeros, too
        assert equal.setdefault(_key(value), rank) == rank


def test_ranks_are_of_equal_size_whatever_the_values_are() -> None:
    values = pa.array([2.0 ** (at / 50) for at in range(10_000)])
    ranks = ranks_of(values, rank_bounds(values, 15))
    sizes = [one["counts"] for one in pc.value_counts(ranks).to_pylist()]
    assert len(sizes) == 16
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=examples(50, thorough=500), deadline=None)
@given(st.integers(1, 8), st.integers(2, 6), st.data())
def test_a_place_has_the_bits_of_the_ranks_in_turn(columns: int, bits: int, data: st.DataObject) -> None:
    most = (1 << bits) - 1
    bounds = [pa.array(range(1, most), pa.int64()) for _ in range(columns)]
    values = [data.draw(st.lists(st.none() | st.integers(0, most - 1), min_size=5, max_size=5)) for _ in range(columns)]
    order = ZOrder.of(bounds, bits)
    places = order.places([pa.array(one, pa.int64()) for one in values]).to_pylist()
    for row, place in enumerate(places):
        ranks = [0 if value is None else value + 1 for value in (one[row] for one in values)]
        words = [f"{rank:0{bits}b}" for rank in ranks]
        assert place == int("".join(word[at] for at in range(bits) for word in words), 2)


def test_a_column_with_few_values_counts_as_much_as_one_with_many() -> None:
    few, many = pa.array([1], pa.int64()), pa.array(range(1, 4000), pa.int64())
    order = ZOrder.of([many, few], 12)
    place = order.places([pa.array([0, 0], pa.int64()), pa.array([0, 1], pa.int64())]).to_pylist()
    assert place[1] - place[0] >= 1 << 21  # of 24 bits
