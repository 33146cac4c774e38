"""The order of keys, and of what stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_NUMBER_BYTES: Final = 9  # a tag and 64 bits
_AT_ONCE: Final = 1 << 15  # keys that are made numbers of while the processor's cache has them
_DIGIT_BITS: Final = 12  # as far as pyarrow counts values, which is many times as fast as to compare them
_DIGIT: Final = pa.scalar((1 << _DIGIT_BITS) - 1, pa.uint64())
_FEW: Final = 1 << 12  # numbers that are compared sooner than counted
_LONG_RUN: Final = 1 << 10  # numbers in order; to merge such runs takes less than to count


def key_order(keys: pa.BinaryArray, *then: pa.Array) -> pa.UInt64Array:
    """Positions of keys in their order; of equal ones in that of ``then``, and at last in which they stand.

    Args:
        keys: in any order.
        then: of integers, as many as keys; none is null.
    """
    numbers = _as_numbers(keys)
    found = _compared(keys, None) if numbers is None else _counted(numbers, None)
    if not then or _ascends(then):
        return found
    # Mostly no key comes twice, or rows of one stand in their order.
    ordered = (keys if numbers is None else numbers).take(found)
    if _differ(ordered) or _ascends([ordered, *[column.take(found) for column in then]]):
        return found
    order: pa.UInt64Array | None = None
    for column in reversed(then):
        order = _counted(column.cast(pa.int64()), order)
    return _compared(keys, order) if numbers is None else _counted(numbers, order)


def _counted(numbers: pa.Array, order: pa.UInt64Array | None) -> pa.UInt64Array:
    """Positions of numbers of 64 bits in their order; of equal ones as in ``order``, or as they stand.

    Counted digit by digit, the least first, of as many of the highest as tell random numbers apart; what else there is
    to compare is nearly in order then.
    """
    count = len(numbers)
    ordered = numbers if order is None else numbers.take(order)
    if count < _FEW or _descents(ordered) * _LONG_RUN < count:
        return _compared(numbers, order)
    ends = pc.min_max(ordered)
    least = ends["min"]
    bits = (ends["max"].as_py() - least.as_py()).bit_length()
    above = pc.subtract(ordered, least).view(pa.uint64())
    num_digits = -(-2 * (count.bit_length() - 1) // _DIGIT_BITS)
    for shift in range(max(0, bits - num_digits * _DIGIT_BITS), bits, _DIGIT_BITS):
        digits = pc.bit_wise_and(pc.shift_right(above, pa.scalar(shift, pa.uint64())), _DIGIT).cast(pa.uint16())
        step = pc.array_sort_indices(digits)  # which is stable
        above, order = above.take(step), step if order is None else order.take(step)
    return _compared(numbers, order)


def _compared(values: pa.Array, order: pa.UInt64Array | None) -> pa.UInt64Array:
    """As :func:`_counted`, of anything."""
    if order is None:
        return pc.array_sort_indices(values)
    ordered = values.take(order)
    return order.take(pc.array_sort_indices(ordered)) if _descents(ordered) else order


def _ascends(columns: Sequence[pa.Array]) -> bool:
    """Whether rows stand in the order of the columns, of which there is one at least; there are no nulls."""
    *before, last = columns
    behind = pc.greater_equal(last.slice(1), _but_last(last))
    for column in reversed(before):
        here, after = _but_last(column), column.slice(1)
        behind = pc.or_(pc.greater(after, here), pc.and_(pc.equal(after, here), behind))
    return bool(behind.true_count == len(behind))


def _differ(ordered: pa.Array) -> bool:
    return not pc.equal(ordered.slice(1), _but_last(ordered)).true_count


def _descents(values: pa.Array) -> int:
    """How many are less than the one before."""
    return int(pc.less(values.slice(1), _but_last(values)).true_count)


def _but_last(column: pa.Array) -> pa.Array:
    return column.slice(0, max(0, len(column) - 1))


def _as_numbers(keys: pa.BinaryArray) -> pa.UInt64Array | None:
    """In the same order, where all have one tag and 64 bits: they are compared several times as fast."""
    count = len(keys)
    if not count or len(keys[0].as_buffer()) != _NUMBER_BYTES:
        return None
    try:
        fixed = keys.cast(pa.binary(_NUMBER_BYTES))
    except pa.ArrowInvalid:
        return None
    data = memoryview(fixed.buffers()[1])[fixed.offset * _NUMBER_BYTES :]
    tag = data[0]
    little_endian = bytearray(8 * count)
    for start in range(0, count, _AT_ONCE):
        stop = min(count, start + _AT_ONCE)
        some = bytes(data[start * _NUMBER_BYTES : stop * _NUMBER_BYTES])
        if some[::_NUMBER_BYTES].count(tag) != stop - start:
            return None
        for at in range(8):
            little_endian[8 * start + at : 8 * stop : 8] = some[8 - at :: _NUMBER_BYTES]
    return pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(little_endian)])
