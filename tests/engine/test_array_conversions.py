"""Conversions of nested arrays by those of their parts, and of dates of the old calendar."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncpq.engine.array_conversions import nested_conversion, rebased, variant_conversion, with_inner_types
from asyncpq.errors import UnsupportedFeatureError


def _wider(array: pa.Array) -> pa.Array:
    return pc.add(array.cast(pa.int64()), 1)


_INNER = pa.struct([("a", pa.int32()), ("b", pa.string())])
_CASES: list[tuple[pa.Array, pa.DataType, list[tuple[int | None, object]], list[object]]] = [
    (
        pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}], _INNER),
        pa.struct([("b", pa.string()), ("c", pa.int8()), ("a", pa.int64())]),
        [(1, None), (None, None), (0, _wider)],
        [{"b": "x", "c": None, "a": 2}, None, {"b": "y", "c": None, "a": None}],
    ),
    (pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())), pa.list_(pa.int64()), [(0, _wider)],
     [[2, 3], None, [], [4]]),
    (pa.array([[1, 2], None], pa.large_list(pa.int32())), pa.list_(pa.int32()), [(0, None)], [[1, 2], None]),
    (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), pa.list_(pa.int64()), [(0, _wider)],
     [[2, 3], None, [4, 5]]),
    (pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int64()),
     [(0, None), (1, _wider)], [[("k", 2)], None, []]),
]  # fmt: skip


@pytest.mark.parametrize(("array", "target", "parts", "expected"), _CASES, ids=lambda case: str(type(case).__name__))
def test_parts_are_converted(
    array: pa.Array, target: pa.DataType, parts: list[tuple[int | None, object]], expected: list[object]
) -> None:
    convert = nested_conversion(array.type, target, parts)  # type: ignore[arg-type]
    assert convert is not None
    for start, stop in ((0, len(array)), (1, len(array)), (len(array), len(array))):
        got = convert(array.slice(start, stop - start))
        got.validate(full=True)
        assert got.type == target
        assert got.to_pylist() == expected[start:stop]


def test_equal_types_change_nothing() -> None:
    for dtype, count in ((_INNER, 2), (pa.list_(pa.int8()), 1), (pa.map_(pa.string(), pa.int8()), 2)):
        assert nested_conversion(dtype, dtype, [(at, None) for at in range(count)]) is None
    assert nested_conversion(_INNER, _INNER, [(0, None), (None, None)]) is not None


def test_variants() -> None:
    target = pa.struct([pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary())])
    plain = pa.array([{"metadata": b"m", "value": b"v"}, None])
    got = variant_conversion(plain.type, target)(plain)
    got.validate(full=True)
    assert got.to_pylist() == [{"value": b"v", "metadata": b"m"}, None]
    shredded = pa.array(
        [
            {"metadata": b"\x01\0\0", "value": None, "typed_value": 1},
            None,
            {"metadata": b"\x01\0\0", "value": b"\x0c\x02"},
        ]
    )
    one, none, _ = variant_conversion(shredded.type, target)(shredded).to_pylist()
    assert (one, none) == ({"value": b"\x0c\x01", "metadata": b"\x01\0\0"}, None)
    turned = pa.struct(list(target)[::-1])  # the fields are found by their names
    assert variant_conversion(shredded.type, turned)(shredded)[0].as_py() == one


def test_inner_types() -> None:
    fixed = pa.list_(pa.field("x", pa.int8(), nullable=False), 3)
    assert with_inner_types(fixed, [pa.int64()]) == pa.list_(pa.field("x", pa.int64(), nullable=False), 3)
    assert with_inner_types(pa.large_list(pa.int8()), [pa.string()]) == pa.large_list(pa.string())
    changed = with_inner_types(pa.map_(pa.string(), pa.int8()), [pa.string(), pa.int64()])
    assert changed == pa.map_(pa.string(), pa.int64())


# -- dates of the old calendar; against Spark: tests/spark/types/test_calendars.py ---------------

_OLD = pa.array([dt.date(1500, 1, 10), None, dt.date(1970, 1, 1)])  # the first is 1500-01-01 in the Julian calendar


def test_values_of_both_calendars() -> None:
    assert rebased(_OLD).to_pylist() == [dt.date(1500, 1, 1), None, dt.date(1970, 1, 1)]
    new = pa.array([dt.datetime(1950, 1, 1), None])
    assert rebased(new, "no zone").equals(new)
    old = pa.array([-3_000_000_000_000_000], pa.timestamp("us", "UTC"))
    assert rebased(old, "UTC").equals(old)  # the Gregorian calendar was in use


def test_what_is_refused() -> None:
    refusal = UnsupportedFeatureError("old")
    with pytest.raises(UnsupportedFeatureError) as raised:
        rebased(_OLD, refusal=refusal)
    assert raised.value is refusal
    assert rebased(_OLD.slice(1), refusal=refusal).equals(_OLD.slice(1))
    with pytest.raises(UnsupportedFeatureError, match="does not name"):
        rebased(pa.array([-3_000_000_000_000_000], pa.timestamp("us")))
