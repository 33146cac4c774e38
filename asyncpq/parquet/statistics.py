"""What a file's statistics prove about its values (parquet.thrift, Statistics and ColumnIndex).

``order_of`` gives the sort order of a column. ``chunk_bounds`` and ``page_bounds`` turn raw statistics into bounds of
plain Python values that compare in that order: integers for integers, dates, times, timestamps (in the column's unit)
and decimals (unscaled), floats, bool, and bytes, which Python compares unsigned. Unreliable bounds are left out, with
the reason; counts of nulls stay.
"""

from __future__ import annotations

import enum
import operator
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from asyncpq.errors import CorruptIndexError
from asyncpq.parquet.column_chunk import ChunkStatistics, ColumnChunk
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.page_index import BoundaryOrder, ColumnIndex
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.writer_faults import Claim, WriterFaults
from asyncpq.records import dataclass

if TYPE_CHECKING:
    from asyncpq.parquet.calendars import LegacyCalendar

Comparable: TypeAlias = bool | int | float | bytes
_INTEGERS: Final = (PhysicalType.INT32, PhysicalType.INT64)
_BIT_WIDTHS: Final = (8, 16, 32, 64)
BYTE_ARRAYS: Final = (PhysicalType.BYTE_ARRAY, PhysicalType.FIXED_LEN_BYTE_ARRAY)
# The physical types that an annotation may have (LogicalTypes.md); on others it is meaningless.
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
_INT96: Final = struct.Struct("<QI")  # nanoseconds of the day, Julian day
_EPOCH_JULIAN_DAY: Final = 2_440_588  # 1970-01-01
_DAY_NANOS: Final = 86_400_000_000_000
_BOOLEANS: Final = {b"\0": False, b"\1": True}
_OF_PAGES: Final = (Claim.PAGE_BOUNDS, Claim.PAGE_NULL_COUNTS, Claim.EMPTY_PAGE_BOUNDS)


class SortOrder(enum.Enum):
    """The order in which the values of a column compare. It decides the Python type of the column's bounds."""

    BOOLEAN = "boolean"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    BYTES = "bytes"
    DECIMAL = "decimal"  # two's complement, big-endian, in byte arrays
    FLOAT16 = "float16"
    INT96 = "int96"  # timestamps in microseconds, rounded outwards: readers round them or do not
    UNDEFINED = "undefined"  # bounds mean nothing


_BY_PHYSICAL_TYPE: Final = {
    PhysicalType.BOOLEAN: SortOrder.BOOLEAN,
    PhysicalType.INT32: SortOrder.SIGNED,
    PhysicalType.INT64: SortOrder.SIGNED,
    PhysicalType.FLOAT: SortOrder.FLOAT,
    PhysicalType.DOUBLE: SortOrder.FLOAT,
    PhysicalType.BYTE_ARRAY: SortOrder.BYTES,
    PhysicalType.FIXED_LEN_BYTE_ARRAY: SortOrder.BYTES,
    PhysicalType.INT96: SortOrder.UNDEFINED,
}
_FORMATS: Final = {
    (PhysicalType.INT32, SortOrder.SIGNED): "i",
    (PhysicalType.INT32, SortOrder.UNSIGNED): "I",
    (PhysicalType.INT64, SortOrder.SIGNED): "q",
    (PhysicalType.INT64, SortOrder.UNSIGNED): "Q",
    (PhysicalType.FLOAT, SortOrder.FLOAT): "f",
    (PhysicalType.DOUBLE, SortOrder.FLOAT): "d",
    (PhysicalType.FIXED_LEN_BYTE_ARRAY, SortOrder.FLOAT16): "e",
}
# Orders that the deprecated min and max, made by signed comparison, agree with.
SIGNED_ORDERS: Final = (SortOrder.BOOLEAN, SortOrder.SIGNED, SortOrder.FLOAT)


def order_of(leaf: Leaf, column_order: ColumnOrder | None) -> SortOrder:
    """Return the order of a leaf column's bounds. ``column_order`` is the footer's entry for the column, None if it has
    none.

    Without column orders only the deprecated bounds of types that compare signed are meaningful. The result is
    UNDEFINED for INTERVAL, VARIANT, geospatial and unknown types, and for unknown orders. INT96 has an order only where
    the footer says that its bounds are chronological (INT96_TIMESTAMP_ORDER, since format 2.14).
    """
    order = _type_order(leaf)
    if column_order is ColumnOrder.INT96_TIMESTAMP_ORDER and leaf.physical_type is PhysicalType.INT96:
        return SortOrder.INT96
    if column_order is None:
        return order if order in SIGNED_ORDERS else SortOrder.UNDEFINED
    if column_order is ColumnOrder.TYPE_ORDER:
        return order
    # In the total order bounds are NaN only if all values are, and -0 is below +0. Reading them in the type's own order
    # is sound.
    if column_order is ColumnOrder.IEEE_754_TOTAL_ORDER and order in (SortOrder.FLOAT, SortOrder.FLOAT16):
        return order
    return SortOrder.UNDEFINED


def _type_order(leaf: Leaf) -> SortOrder:
    physical = leaf.physical_type
    logical = leaf.element.logical_type
    if logical is None:
        return _BY_PHYSICAL_TYPE[physical]
    logical_kind = logical.kind
    if logical_kind is LogicalKind.INTEGER:
        if physical not in _INTEGERS or logical.is_signed is None or logical.bit_width not in _BIT_WIDTHS:
            return SortOrder.UNDEFINED
        return SortOrder.SIGNED if logical.is_signed else SortOrder.UNSIGNED
    if logical_kind is LogicalKind.DECIMAL:
        if physical in _INTEGERS:
            return SortOrder.SIGNED
        return SortOrder.DECIMAL if physical in BYTE_ARRAYS else SortOrder.UNDEFINED
    if logical_kind is LogicalKind.FLOAT16:
        is_half = physical is PhysicalType.FIXED_LEN_BYTE_ARRAY and leaf.element.type_length == 2
        return SortOrder.FLOAT16 if is_half else SortOrder.UNDEFINED
    return _BY_PHYSICAL_TYPE[physical] if physical in _ALLOWED.get(logical_kind, ()) else SortOrder.UNDEFINED


def decode_values(raw: Sequence[bytes], leaf: Leaf, order: SortOrder) -> list[Any]:
    """Decode bounds (PLAIN-encoded, without lengths) to Python values that compare in ``order``.

    Raises CorruptIndexError if a bound has the wrong length for its type, or the order is UNDEFINED.
    """
    if order is SortOrder.BYTES:
        return list(raw)
    if order is SortOrder.DECIMAL:
        return _decimals(raw, leaf)
    if order is SortOrder.BOOLEAN:
        values = [_BOOLEANS.get(value) for value in raw]
        if None in values:
            raise CorruptIndexError("a boolean bound is not one byte, 0 or 1", column=leaf.dotted)
        return values
    if order is SortOrder.INT96:
        return [_int96_micros(value, leaf) for value in raw]
    code = _FORMATS.get((leaf.physical_type, order))
    if code is None:
        raise CorruptIndexError("the column's bounds have no defined order", column=leaf.dotted)
    size = struct.calcsize(f"<{code}")
    if not {size}.issuperset(map(len, raw)):
        raise CorruptIndexError(f"a bound's length is not the {size} bytes of its type", column=leaf.dotted)
    numbers: list[Any] = list(struct.unpack(f"<{len(raw)}{code}", b"".join(raw)))
    width = logical.bit_width if (logical := leaf.element.logical_type) is not None else None
    if width is not None and width < 8 * size and numbers:
        # A reader takes a value outside the type's range for another value.
        top = 1 << (width if order is SortOrder.UNSIGNED else width - 1)
        if max(numbers) >= top or min(numbers) < (0 if order is SortOrder.UNSIGNED else -top):
            raise CorruptIndexError(f"a bound is not an integer of {width} bits", column=leaf.dotted)
    return numbers


def _decimals(raw: Sequence[bytes], leaf: Leaf) -> list[int]:
    if not all(raw):
        raise CorruptIndexError("a decimal bound has no bytes", column=leaf.dotted)
    if leaf.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY:
        length = leaf.element.type_length
        if any(len(value) != length for value in raw):  # a shorter one is another number
            raise CorruptIndexError(f"a decimal bound does not have the type's {length} bytes", column=leaf.dotted)
    return [int.from_bytes(value, "big", signed=True) for value in raw]


def _int96_micros(raw: bytes, leaf: Leaf) -> int:
    """Return an INT96 timestamp in microseconds since 1970, rounded down.

    Raises CorruptIndexError if its time of day is out of range, or if it does not fit 64 bits of nanoseconds: readers
    convert such values to timestamps that sort differently.
    """
    if len(raw) != _INT96.size:
        raise CorruptIndexError("an INT96 bound does not have 12 bytes", column=leaf.dotted)
    nanos, day = _INT96.unpack(raw)
    since_epoch = (day - _EPOCH_JULIAN_DAY) * _DAY_NANOS + nanos
    if nanos >= _DAY_NANOS or not -(1 << 63) <= since_epoch < 1 << 63:
        raise CorruptIndexError("an INT96 bound does not fit a 64-bit timestamp in nanoseconds", column=leaf.dotted)
    return int(since_epoch // 1000)


def encode_value(value: Comparable, leaf: Leaf, order: SortOrder) -> bytes:
    """Encode one bound as in a file's statistics: the inverse of :func:`decode_values`."""
    if isinstance(value, bytes):
        return value
    if order is SortOrder.BOOLEAN:
        return bytes([bool(value)])
    if order is SortOrder.DECIMAL and isinstance(value, int):
        width = leaf.element.type_length if leaf.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY else None
        return value.to_bytes(width or value.bit_length() // 8 + 1, "big", signed=True)
    return struct.pack(f"<{_FORMATS[leaf.physical_type, order]}", value)


@dataclass(frozen=True, slots=True)
class ChunkBounds:
    """Proven facts about the values of one column chunk: bounds, and the number of nulls.

    Attributes:
        min: no value except NaN is below; both bounds None if unknown.
        max: no value except NaN is above.
        min_exact, max_exact: the bound occurs as a value (0.0 may stand for -0.0).
        null_count: None if unknown; of a nested leaf it counts leaf values, not rows.
        nan_count: as ``null_count``.
        num_values: leaf values with nulls; the rows of a leaf that is not repeated.
    """

    order: SortOrder
    min: Comparable | None
    max: Comparable | None
    min_exact: bool
    max_exact: bool
    null_count: int | None
    nan_count: int | None
    num_values: int

    @property
    def all_null(self) -> bool:
        """Whether it is proven that every value is null."""
        return self.null_count == self.num_values


def chunk_bounds(
    chunk: ColumnChunk,
    leaf: Leaf,
    order: SortOrder,
    faults: WriterFaults,
    has_column_orders: bool,
    num_rows: int,
    calendar: LegacyCalendar | None = None,
) -> tuple[ChunkBounds, str | None]:
    """Return the bounds that a chunk's statistics prove, and the reason why some statistics are ignored (None if none
    are).

    All bounds are unknown if the statistics are absent or contradict each other.

    Args:
        chunk: the chunk with its raw statistics.
        leaf: the chunk's column.
        order: the result of :func:`order_of` for the column.
        faults: the known faults of the file's writer; the statistics that they concern count as unknown.
        has_column_orders: the file has column orders. If so, the deprecated bounds are ignored, else only those count.
        num_rows: the row group's number of rows.
        calendar: the column's entry in :attr:`FileMetadata.calendars`; its bounds are rebased.
    """
    statistics = chunk.statistics
    num_values = chunk.num_values
    if statistics is None:
        return _unknown(order, num_values)
    nulls, nans = statistics.null_count, statistics.nan_count
    if order not in (SortOrder.FLOAT, SortOrder.FLOAT16):
        nans = None
    wrong_nulls = _fault(faults, Claim.NULL_COUNTS, leaf, chunk) if nulls is not None else None
    if wrong_nulls is not None:
        nulls = None
    if (nulls or 0) + (nans or 0) > num_values or (leaf.max_repetition_level == 0 and num_values != num_rows):
        return _unknown(order, num_values, "its counts of nulls and NaN do not fit its count of values")
    raw_min, raw_max = _raw_ends(statistics, has_column_orders)
    if raw_min is None or raw_max is None:
        reason = "it has deprecated bounds only" if has_column_orders and statistics.deprecated_min else wrong_nulls
        return _unknown(order, num_values, reason, nulls, nans)
    if nulls == num_values:
        return _unknown(order, num_values, "it has bounds, and nothing but nulls")
    if order is SortOrder.UNDEFINED or (not has_column_orders and order not in SIGNED_ORDERS):
        return _unknown(order, num_values, "the order of its bounds is undefined or unknown", nulls, nans)
    wrong_bounds = _fault(faults, Claim.BOUNDS, leaf, chunk)
    if wrong_bounds is not None:
        return _unknown(order, num_values, wrong_bounds, nulls, nans)
    try:
        low, high = _decode_ends(raw_min, raw_max, leaf, order)
    except CorruptIndexError as error:
        return _unknown(order, num_values, error.message, nulls, nans)
    if low > high:
        return _unknown(order, num_values, "its min is above its max")
    exact = _exact_ends(statistics, order)
    if calendar is not None:
        low, high, is_exact = calendar.bounds(low, high)
        exact = exact if is_exact else (False, False)
    return ChunkBounds(order, low, high, *exact, nulls, nans, num_values), wrong_nulls


def _exact_ends(statistics: ChunkStatistics, order: SortOrder) -> tuple[bool, bool]:
    """Return whether the min and the max are values of the chunk, not only bounds. If the file lacks the flags that say
    so (older writers), bounds of strings may be truncated, and all others count as exact, except INT96 bounds, which
    are rounded."""
    min_exact, max_exact = statistics.is_min_value_exact, statistics.is_max_value_exact
    if order is SortOrder.BYTES:
        return min_exact is True, max_exact is True
    if order is SortOrder.INT96:
        return False, False
    return min_exact is not False, max_exact is not False


def _raw_ends(statistics: ChunkStatistics, has_column_orders: bool) -> tuple[bytes | None, bytes | None]:
    if has_column_orders:
        return statistics.min_value, statistics.max_value
    return statistics.deprecated_min, statistics.deprecated_max


def _decode_ends(raw_min: bytes, raw_max: bytes, leaf: Leaf, order: SortOrder) -> tuple[Any, Any]:
    """Decode a chunk's min and max. A min of 0.0 becomes -0.0, and a max of -0.0 becomes 0.0, since writers confuse
    them. The max of INT96, which is rounded down, is raised by 1. Raises CorruptIndexError for malformed bounds."""
    low, high = decode_values((raw_min, raw_max), leaf, order)
    if low != low or high != high:
        raise CorruptIndexError("the column's min or max is NaN", column=leaf.dotted)
    if order in (SortOrder.FLOAT, SortOrder.FLOAT16):
        # A min of +0 may stand for -0, a max of -0 for +0.
        return -0.0 if low == 0 else low, 0.0 if high == 0 else high
    return low, high + 1 if order is SortOrder.INT96 else high


def _fault(faults: WriterFaults, claim: Claim, leaf: Leaf, chunk: ColumnChunk) -> str | None:
    """Return why a claim of a chunk's statistics cannot be relied on; None if it can."""
    if claim is Claim.NULL_COUNTS and leaf.max_definition_level == 0:
        return None  # the schema allows no nulls
    fault = faults.find(claim, leaf, chunk.encodings)
    return None if fault is None else fault.reason(claim)


def _unknown(
    order: SortOrder, num_values: int, reason: str | None = None, nulls: int | None = None, nans: int | None = None
) -> tuple[ChunkBounds, str | None]:
    return ChunkBounds(order, None, None, False, False, nulls, nans, num_values), reason


@dataclass(slots=True, eq=False)
class PageBounds:
    """Proven bounds of the values of each page of a chunk. Bounds are inclusive; byte strings may be truncated.

    Attributes:
        mins, maxs: bounds, NaN aside; both bounds None for a page without known bounds.
        null_pages: True where every value is null, as the null counts confirm.
        null_counts: None if unknown; of a nested leaf they count leaf values, not rows.
        nan_counts: as ``null_counts``.
        boundary_order: as the writer claims and the bounds confirm, else UNORDERED.
    """

    order: SortOrder
    mins: list[Any]
    maxs: list[Any]
    null_pages: list[bool]
    null_counts: list[int] | None
    nan_counts: list[int] | None
    boundary_order: BoundaryOrder

    @property
    def is_sorted(self) -> bool:
        """Whether mins and maxs both ascend, or both descend, over the pages that have bounds."""
        return self.boundary_order is not BoundaryOrder.UNORDERED

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory."""
        strings = 0
        if self.order is SortOrder.BYTES:
            strings = sum([sum(map(len, filter(None, values))) for values in (self.mins, self.maxs)])
        return 300 + 150 * len(self.mins) + strings


def page_bounds(
    index: ColumnIndex,
    leaf: Leaf,
    order: SortOrder,
    page_row_counts: Sequence[int],
    *,
    has_column_orders: bool = True,
    faults: WriterFaults | None = None,
    encodings: Sequence[int] = (),
    calendar: LegacyCalendar | None = None,
) -> PageBounds:
    """Return the bounds that a ColumnIndex proves.

    Raises CorruptIndexError if the ColumnIndex contradicts itself or the OffsetIndex.

    Args:
        index: the ColumnIndex of a chunk of ``leaf``.
        leaf: the column.
        order: the result of :func:`order_of` for the column; with UNDEFINED only nulls are known.
        page_row_counts: the number of rows of each page, from the OffsetIndex.
        has_column_orders: the file has column orders; without them a ColumnIndex's bounds are meaningless.
        faults: the known faults of the index's writer; the claims that they concern count as unknown. None for an
            index that asyncpq made.
        encodings: the chunk's encodings; if empty, any encoding is possible.
        calendar: as for :func:`chunk_bounds`.
    """
    num_pages = index.num_pages
    if len(page_row_counts) != num_pages:
        raise CorruptIndexError(
            f"the ColumnIndex has {num_pages} pages, but the OffsetIndex has {len(page_row_counts)}", column=leaf.dotted
        )
    if leaf.max_definition_level == 0 and True in index.null_pages:
        raise CorruptIndexError(
            "the ColumnIndex marks pages as all null, but the column is required", column=leaf.dotted
        )
    if leaf.max_repetition_level == 0:
        _check_null_counts(index, page_row_counts, leaf)
    wrong = [claim for claim in _OF_PAGES if faults is not None and faults.find(claim, leaf, encodings) is not None]
    is_float = order in (SortOrder.FLOAT, SortOrder.FLOAT16)
    if order is SortOrder.UNDEFINED or not has_column_orders or Claim.PAGE_BOUNDS in wrong:
        mins: list[Any] = [None] * num_pages
        maxs: list[Any] = [None] * num_pages
        claimed = BoundaryOrder.UNORDERED
    else:
        mins, maxs = (_page_values(raw, index.null_pages, leaf, order) for raw in (index.min_values, index.max_values))
        claimed = index.boundary_order
        if is_float:
            claimed = _without_nan(mins, maxs, claimed)
        elif order is SortOrder.INT96:
            maxs = [None if high is None else high + 1 for high in maxs]
        elif order is SortOrder.BYTES and Claim.EMPTY_PAGE_BOUNDS in wrong and b"" in maxs:
            mins, maxs = ([None if high == b"" else v for v, high in zip(vs, maxs, strict=True)] for vs in (mins, maxs))
    null_pages = index.null_pages
    null_counts = None if Claim.PAGE_NULL_COUNTS in wrong else index.null_counts
    if null_counts is None and True in null_pages:
        # parquet-mr marks all pages of a column without statistics as null pages.
        null_pages = [False] * num_pages
        claimed = BoundaryOrder.UNORDERED
    present = (mins, maxs) if None not in mins else _present(mins, maxs)
    if any(map(operator.gt, *present)):
        raise CorruptIndexError("the ColumnIndex has a page whose min is above its max", column=leaf.dotted)
    if calendar is not None:
        present = _rebase(mins, maxs, calendar)
    if not all(map(_is_ordered, present, (claimed, claimed))):
        claimed = BoundaryOrder.UNORDERED
    return PageBounds(order, mins, maxs, null_pages, null_counts, index.nan_counts if is_float else None, claimed)


def _check_null_counts(index: ColumnIndex, rows: Sequence[int], leaf: Leaf) -> None:
    if index.null_counts is None:
        return
    for is_null, nulls, num_rows in zip(index.null_pages, index.null_counts, rows, strict=True):
        if nulls > num_rows or is_null != (nulls == num_rows):
            raise CorruptIndexError(
                f"the ColumnIndex counts {nulls} nulls in a page of {num_rows} rows, but marks the page as "
                f"{'' if is_null else 'not '}all null",
                column=leaf.dotted,
            )


def _page_values(raw: list[bytes], null_pages: list[bool], leaf: Leaf, order: SortOrder) -> list[Any]:
    """Decode one bound of each page. Null pages, whose bounds in the file are placeholders, get None."""
    if True not in null_pages:
        return decode_values(raw, leaf, order)
    present = [value for value, is_null in zip(raw, null_pages, strict=True) if not is_null]
    decoded = iter(decode_values(present, leaf, order))
    return [None if is_null else next(decoded) for is_null in null_pages]


def _present(mins: list[Any], maxs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the bounds of those pages that have bounds."""
    return [low for low in mins if low is not None], [high for high in maxs if high is not None]


def _rebase(mins: list[Any], maxs: list[Any], calendar: LegacyCalendar) -> tuple[list[Any], list[Any]]:
    """Rebase the bounds of pages in place; return those that are known."""
    for page, (low, high) in enumerate(zip(mins, maxs, strict=True)):
        if low is not None:
            mins[page], maxs[page], _ = calendar.bounds(low, high)
    return _present(mins, maxs)


def _without_nan(mins: list[Any], maxs: list[Any], claimed: BoundaryOrder) -> BoundaryOrder:
    """Remove NaN bounds from both lists in place, and widen bounds of zero: mins to -0.0, maxs to 0.0. Return
    ``claimed``, or UNORDERED if a bound was removed."""
    for i, (low, high) in enumerate(zip(mins, maxs, strict=True)):
        if low is None:
            continue
        if low != low or high != high:
            mins[i] = maxs[i] = None
            claimed = BoundaryOrder.UNORDERED
        else:
            if low == 0:
                mins[i] = -0.0
            if high == 0:
                maxs[i] = 0.0
    return claimed


def _is_ordered(values: list[Any], order: BoundaryOrder) -> bool:
    if order is BoundaryOrder.UNORDERED:
        return False
    return all(map(operator.le if order is BoundaryOrder.ASCENDING else operator.ge, values, values[1:]))


def boundary_order(index: ColumnIndex, leaf: Leaf, order: SortOrder) -> BoundaryOrder:
    """Return in which order the bounds of an index's pages are sorted; UNORDERED if they are not, if a bound is NaN, or
    if ``order`` is UNDEFINED."""
    if order is SortOrder.UNDEFINED:
        return BoundaryOrder.UNORDERED
    present = [page for page, is_null in enumerate(index.null_pages) if not is_null]
    lows, highs = (
        decode_values([values[page] for page in present], leaf, order)
        for values in (index.min_values, index.max_values)
    )
    if all(a <= b for values in (lows, highs) for a, b in pairwise([*values, *values[-1:]])):
        return BoundaryOrder.ASCENDING
    if all(a >= b for values in (lows, highs) for a, b in pairwise([*values, *values[-1:]])):
        return BoundaryOrder.DESCENDING
    return BoundaryOrder.UNORDERED


class ColumnOrder(enum.Enum):
    """The order in which the writer compared a column's values for min and max (parquet.thrift, ColumnOrder)."""

    UNKNOWN = 0  # newer than this reader: the column's bounds mean nothing to it
    TYPE_ORDER = 1
    IEEE_754_TOTAL_ORDER = 2
    INT96_TIMESTAMP_ORDER = 3
