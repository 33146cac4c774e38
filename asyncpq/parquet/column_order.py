"""How a column's values compare, and bounds as values that do (parquet.thrift, ColumnOrder).

Bounds come as plain Python values that compare as the column's order does: integers for integers, dates,
times, timestamps (in the column's unit) and decimals (unscaled), floats, bool, and bytes, which Python
compares unsigned.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from asyncpq.errors import CorruptIndexError
from asyncpq.parquet.metadata import ColumnOrder
from asyncpq.parquet.schema import Leaf, LogicalKind, PhysicalType

Comparable: TypeAlias = bool | int | float | bytes


class Order(enum.Enum):
    """How a column's values are compared, and so what its bounds decode to."""

    BOOLEAN = "boolean"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    BYTES = "bytes"
    DECIMAL = "decimal"  # two's complement, big-endian, in byte arrays
    FLOAT16 = "float16"
    UNDEFINED = "undefined"  # bounds mean nothing


_INTEGERS: Final = (PhysicalType.INT32, PhysicalType.INT64)
_BIT_WIDTHS: Final = (8, 16, 32, 64)
BYTE_ARRAYS: Final = (PhysicalType.BYTE_ARRAY, PhysicalType.FIXED_LEN_BYTE_ARRAY)
_BY_PHYSICAL_TYPE: Final = {
    PhysicalType.BOOLEAN: Order.BOOLEAN,
    PhysicalType.INT32: Order.SIGNED,
    PhysicalType.INT64: Order.SIGNED,
    PhysicalType.FLOAT: Order.FLOAT,
    PhysicalType.DOUBLE: Order.FLOAT,
    PhysicalType.BYTE_ARRAY: Order.BYTES,
    PhysicalType.FIXED_LEN_BYTE_ARRAY: Order.BYTES,
    PhysicalType.INT96: Order.UNDEFINED,
}
# The physical types that an annotation may stand on (LogicalTypes.md); on others it means nothing.
_ALLOWED: Final = {
    LogicalKind.STRING: (PhysicalType.BYTE_ARRAY,),
    LogicalKind.ENUM: (PhysicalType.BYTE_ARRAY,),
    LogicalKind.JSON: (PhysicalType.BYTE_ARRAY,),
    LogicalKind.BSON: (PhysicalType.BYTE_ARRAY,),
    LogicalKind.UUID: (PhysicalType.FIXED_LEN_BYTE_ARRAY,),
    LogicalKind.DATE: (PhysicalType.INT32,),
    LogicalKind.TIME: _INTEGERS,
    LogicalKind.TIMESTAMP: (PhysicalType.INT64,),
}
_FORMATS: Final = {
    (PhysicalType.INT32, Order.SIGNED): "i",
    (PhysicalType.INT32, Order.UNSIGNED): "I",
    (PhysicalType.INT64, Order.SIGNED): "q",
    (PhysicalType.INT64, Order.UNSIGNED): "Q",
    (PhysicalType.FLOAT, Order.FLOAT): "f",
    (PhysicalType.DOUBLE, Order.FLOAT): "d",
    (PhysicalType.FIXED_LEN_BYTE_ARRAY, Order.FLOAT16): "e",
}
_BOOLEANS: Final = {b"\0": False, b"\1": True}
# Orders that the deprecated min and max, made by signed comparison, agree with.
SIGNED_ORDERS: Final = (Order.BOOLEAN, Order.SIGNED, Order.FLOAT)


def order_of(leaf: Leaf, column_order: ColumnOrder | None) -> Order:
    """The order of a leaf's bounds.

    Args:
        leaf: the column.
        column_order: the file's for this leaf. None if the file has no column orders at all: then only
            the deprecated bounds of types that compare signed mean anything.

    Returns:
        UNDEFINED for INT96, INTERVAL, VARIANT, geospatial and unknown types, and unknown orders.
    """
    order = _type_order(leaf)
    if column_order is None:
        return order if order in SIGNED_ORDERS else Order.UNDEFINED
    if column_order is ColumnOrder.TYPE_ORDER:
        return order
    # In the total order bounds are never NaN unless all values are; -0 is below +0. Reading them as in
    # the type's own order is sound.
    if column_order is ColumnOrder.IEEE_754_TOTAL_ORDER and order in (Order.FLOAT, Order.FLOAT16):
        return order
    return Order.UNDEFINED


def _type_order(leaf: Leaf) -> Order:
    physical = leaf.physical_type
    logical = leaf.element.logical_type
    if logical is None:
        return _BY_PHYSICAL_TYPE[physical]
    kind = logical.kind
    if kind is LogicalKind.INTEGER:
        if physical not in _INTEGERS or logical.is_signed is None or logical.bit_width not in _BIT_WIDTHS:
            return Order.UNDEFINED
        return Order.SIGNED if logical.is_signed else Order.UNSIGNED
    if kind is LogicalKind.DECIMAL:
        if physical in _INTEGERS:
            return Order.SIGNED
        return Order.DECIMAL if physical in BYTE_ARRAYS else Order.UNDEFINED
    if kind is LogicalKind.FLOAT16:
        is_half = physical is PhysicalType.FIXED_LEN_BYTE_ARRAY and leaf.element.type_length == 2
        return Order.FLOAT16 if is_half else Order.UNDEFINED
    return _BY_PHYSICAL_TYPE[physical] if physical in _ALLOWED.get(kind, ()) else Order.UNDEFINED


def decode_value(raw: bytes, leaf: Leaf, order: Order) -> Comparable:
    """A bound (plainly encoded, without a length) as a Python value that compares in ``order``.

    Raises:
        CorruptIndexError: it has the wrong length or size for the type, or the order is UNDEFINED.
    """
    value: Comparable = decode_values([raw], leaf, order)[0]
    return value


def decode_values(raw: Sequence[bytes], leaf: Leaf, order: Order) -> list[Any]:
    """Many bounds at once; see :func:`decode_value`."""
    if order is Order.BYTES:
        return list(raw)
    if order is Order.DECIMAL:
        if not all(raw):
            raise CorruptIndexError("a decimal bound has no bytes", column=leaf.dotted)
        if leaf.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY:
            length = leaf.element.type_length
            if any(len(value) != length for value in raw):  # cut short, it is another number
                raise CorruptIndexError(f"a decimal bound does not have {length} bytes", column=leaf.dotted)
        return [int.from_bytes(value, "big", signed=True) for value in raw]
    if order is Order.BOOLEAN:
        values = [_BOOLEANS.get(value) for value in raw]
        if None in values:
            raise CorruptIndexError("a boolean bound is not one byte, 0 or 1", column=leaf.dotted)
        return values
    code = _FORMATS.get((leaf.physical_type, order))
    if code is None:
        raise CorruptIndexError("the column's bounds have no defined order", column=leaf.dotted)
    size = struct.calcsize(f"<{code}")
    if any(len(value) != size for value in raw):
        raise CorruptIndexError(f"a bound does not have the {size} bytes of its type", column=leaf.dotted)
    found: list[Any] = list(struct.unpack(f"<{len(raw)}{code}", b"".join(raw)))
    width = logical.bit_width if (logical := leaf.element.logical_type) is not None else None
    if width is not None and width < 8 * size and found:
        # A value that its type does not hold is read as another one.
        top = 1 << (width if order is Order.UNSIGNED else width - 1)
        if max(found) >= top or min(found) < (0 if order is Order.UNSIGNED else -top):
            raise CorruptIndexError(f"a bound is no integer of {width} bits", column=leaf.dotted)
    return found


def encode_value(value: Comparable, leaf: Leaf, order: Order) -> bytes:
    """A bound as it stands in statistics: the inverse of :func:`decode_value`."""
    if isinstance(value, bytes):
        return value
    if order is Order.BOOLEAN:
        return bytes([bool(value)])
    if order is Order.DECIMAL and isinstance(value, int):
        width = leaf.element.type_length if leaf.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY else None
        return value.to_bytes(width or value.bit_length() // 8 + 1, "big", signed=True)
    return struct.pack(f"<{_FORMATS[leaf.physical_type, order]}", value)
