"""Bounds of decoded values as statistics have them (parquet.thrift, ColumnIndex), for page indexes that are made."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.format.column_order import Comparable, Order, encode_value
from asyncpq.format.page_index import BoundaryOrder, ColumnIndex
from asyncpq.format.page_index_writer import boundary_order
from asyncpq.format.schema import Leaf, LogicalKind
from asyncpq.pruning.zones import successor
from asyncpq.scalars import NANOSECONDS

_TRUNCATED_BYTES: Final = 64  # longer strings are cut to this, a max rounded up
_DAY_MILLISECONDS: Final = 86_400_000
_types = pa.types


class PageValues(NamedTuple):
    """
    Attributes:
        rows: of one page, of the leaf's field cut to the leaf.
        num_values: of the leaf, nulls and empty lists included.
    """

    rows: pa.Array
    num_values: int


class _PageBounds(NamedTuple):
    """``low`` and ``high`` are encoded, empty of a page without values."""

    low: bytes
    high: bytes
    nulls: int
    nans: int
    is_null: bool


class _NoOrderError(Exception):
    """Values of this type cannot be told as statistics have them."""


def column_index(pages: Sequence[PageValues], leaf: Leaf, order: Order) -> ColumnIndex | None:
    """The ColumnIndex of a chunk.

    Args:
        pages: in the order of the OffsetIndex.
        order: of the leaf's type; with UNDEFINED only nulls are told.

    Returns:
        None where values of the leaf's Arrow type cannot be told as statistics have them.
    """
    try:
        found = [_bounds(page, leaf, order) for page in pages]
    except _NoOrderError:
        return None
    index = ColumnIndex(
        [page.is_null for page in found],
        [page.low for page in found],
        [page.high for page in found],
        BoundaryOrder.UNORDERED,
        [page.nulls for page in found],
        [page.nans for page in found] if order in (Order.FLOAT, Order.FLOAT16) else None,
    )
    index.boundary_order = boundary_order(index, leaf, order)
    return index


def _bounds(page: PageValues, leaf: Leaf, order: Order) -> _PageBounds:
    values = leaf_values(page.rows)
    present = len(values) - values.null_count
    nulls = page.num_values - present
    nans = 0
    if not present or order is Order.UNDEFINED:
        return _PageBounds(b"", b"", nulls, nans, not present)
    if _types.is_float16(values.type):
        values = values.cast(pa.float32())
    if _types.is_floating(values.type):
        is_nan = pc.is_nan(values)
        nans = is_nan.true_count
        if nans == present:
            nan = encode_value(float("nan"), leaf, order)
            return _PageBounds(nan, nan, nulls, nans, False)
        values = values.filter(pc.invert(is_nan)) if nans else values
    try:
        low, high = (_comparable(value, leaf, order) for value in least_and_greatest(values))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise _NoOrderError from error
    if isinstance(low, bytes):
        low = low[:_TRUNCATED_BYTES]
    if isinstance(high, bytes) and len(high) > _TRUNCATED_BYTES:
        high = successor(high[:_TRUNCATED_BYTES]) or high
    try:
        return _PageBounds(encode_value(low, leaf, order), encode_value(high, leaf, order), nulls, nans, False)
    except (struct.error, OverflowError) as error:
        raise _NoOrderError from error


def least_and_greatest(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar]:
    """Of values without NaN; durations as integers, of which alone pyarrow finds them."""
    found = pc.min_max(values.view(pa.int64()) if _types.is_duration(values.type) else values)
    return found["min"], found["max"]


def leaf_values(array: pa.Array) -> pa.Array:
    """The values of the only leaf of a nested array; those of null or empty lists are not among them."""
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif _types.is_struct(array.type):
            if array.type.num_fields != 1:
                raise _NoOrderError
            (array,) = array.flatten()
        elif _types.is_nested(array.type):
            array = array.flatten()
        elif _types.is_string_view(array.type) or _types.is_binary_view(array.type):
            array = array.cast(pa.large_binary())
        else:
            return array


def _comparable(scalar: Any, leaf: Leaf, order: Order) -> Comparable:
    """A value as :func:`asyncpq.format.column_order.decode_value` gives it."""
    kind, logical = scalar.type, leaf.element.logical_type
    value: Any = None
    if _types.is_decimal(kind):
        if logical is not None and logical.kind is LogicalKind.DECIMAL and (logical.scale or 0) == kind.scale:
            value = _unscaled(scalar.as_py(), kind.scale)
    elif _types.is_timestamp(kind) or _types.is_time(kind):
        if logical is not None and logical.unit is not None:
            value, rest = divmod(scalar.value * NANOSECONDS[kind.unit], NANOSECONDS[logical.unit])
            value = None if rest else value
    elif _types.is_date32(kind):
        value = scalar.value
    elif _types.is_date64(kind):
        value = scalar.value // _DAY_MILLISECONDS
    elif order is Order.BYTES:
        value = scalar.as_buffer().to_pybytes()  # strings may be no UTF-8
    elif _types.is_integer(kind) or _types.is_floating(kind) or _types.is_boolean(kind):
        value = scalar.as_py()
    if not isinstance(value, _HELD[order]):
        raise _NoOrderError
    return value  # type: ignore[return-value]  # of the type that its order has


_HELD: Final[dict[Order, type]] = {
    Order.BOOLEAN: bool,
    Order.SIGNED: int,
    Order.UNSIGNED: int,
    Order.DECIMAL: int,
    Order.FLOAT: float,
    Order.FLOAT16: float,
    Order.BYTES: bytes,
}


def _unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent + scale < 0:
        raise _NoOrderError
    number = int("".join(map(str, digits)) or "0") * int(10 ** (exponent + scale))
    return -number if sign else number
