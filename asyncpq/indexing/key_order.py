"""The order of keys, and of what stands beside them."""

from __future__ import annotations

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
    """Positions of keys in their order; of equal ones in that of ``then``, and at last in which they stand."""
    numbers = _as_numbers(keys)
    first = keys if numbers is None else numbers
    order = pc.array_sort_indices(keys) if numbers is None else _number_order(numbers)  # both are stable
    # Several columns are compared several times as slowly: mostly they stand in order, or no key comes twice.
    if not then or _ascends(then) or not _has_equal(first.take(order)):
        return order
    columns = [first, *then]
    names = [str(at) for at in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(columns, names)
    return pc.sort_indices(batch, sort_keys=[(name, "ascending") for name in names])


def _ascends(columns: tuple[pa.Array, ...]) -> bool:
    """Whether rows stand in the order of the columns, of which there is one at least; there are no nulls."""
    *before, last = columns
    behind = pc.greater_equal(last.slice(1), _but_last(last))
    for column in reversed(before):
        here, after = _but_last(column), column.slice(1)
        behind = pc.or_(pc.greater(after, here), pc.and_(pc.equal(after, here), behind))
    return bool(behind.true_count == len(behind))


def _has_equal(ordered: pa.Array) -> bool:
    return bool(pc.equal(ordered.slice(1), _but_last(ordered)).true_count)


def _but_last(column: pa.Array) -> pa.Array:
    return column.slice(0, max(0, len(column) - 1))


def _number_order(numbers: pa.UInt64Array) -> pa.UInt64Array:
    """Positions of numbers in their order, and of equal ones in that in which they stand.

    Counted digit by digit, the least first, of as many of the highest as tell random numbers apart; what else there is
    to compare is nearly in order then.
    """
    number = len(numbers)
    if number < _FEW or _descents(numbers) * _LONG_RUN < number:
        return pc.array_sort_indices(numbers)
    ends = pc.min_max(numbers)
    least = ends["min"].as_py()
    bits = (ends["max"].as_py() - least).bit_length()
    above = pc.subtract(numbers, pa.scalar(least, pa.uint64()))
    num_digits = -(-2 * (number.bit_length() - 1) // _DIGIT_BITS)
    order = pa.array([], pa.uint64())
    for shift in range(max(0, bits - num_digits * _DIGIT_BITS), bits, _DIGIT_BITS):
        digits = pc.bit_wise_and(pc.shift_right(above, pa.scalar(shift, pa.uint64())), _DIGIT).cast(pa.uint16())
        order = order.take(pc.array_sort_indices(digits.take(order))) if len(order) else pc.array_sort_indices(digits)
    ordered = numbers.take(order)
    return order.take(pc.array_sort_indices(ordered)) if _descents(ordered) else order


def _descents(numbers: pa.Array) -> int:
    """How many are less than the one before."""
    return int(pc.less(numbers.slice(1), _but_last(numbers)).true_count)


def _as_numbers(keys: pa.BinaryArray) -> pa.UInt64Array | None:
    """In the same order, where all have one tag and 64 bits: they are compared several times as fast."""
    number = len(keys)
    if not number or len(keys[0].as_buffer()) != _NUMBER_BYTES:
        return None
    try:
        fixed = keys.cast(pa.binary(_NUMBER_BYTES))
    except pa.ArrowInvalid:
        return None
    whole = memoryview(fixed.buffers()[1])[fixed.offset * _NUMBER_BYTES :]
    tag = whole[0]
    little_endian = bytearray(8 * number)
    for start in range(0, number, _AT_ONCE):
        stop = min(number, start + _AT_ONCE)
        data = bytes(whole[start * _NUMBER_BYTES : stop * _NUMBER_BYTES])
        if data[::_NUMBER_BYTES].count(tag) != stop - start:
            return None
        for at in range(8):
            little_endian[8 * start + at : 8 * stop : 8] = data[8 - at :: _NUMBER_BYTES]
    return pa.Array.from_buffers(pa.uint64(), number, [None, pa.py_buffer(little_endian)])
