"""Make the rows of "pages": page indexes for files that were written without page indexes.

The chunks are read once. Page locations come from page headers, and for repeated leaves from decoded levels; a chunk
with a page that begins inside a row gets no index. Bounds come from the decoded values: these are exact, and the pages
are fetched for their headers anyway.

The indexes are stored in Parquet's own encoding, so a read uses them as if the file contained them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.caching.entry_format import ContentKey
from asyncpq.decoding.field_source import FieldSource
from asyncpq.decoding.leaf import DecodeLimits, leaf_decoder
from asyncpq.decoding.leaf_sources import StreamedSource
from asyncpq.decoding.nested import NestedLeaf
from asyncpq.errors import FormatError
from asyncpq.expressions.analysis import successor
from asyncpq.expressions.scalars import DAY_MILLISECONDS, NANOSECONDS
from asyncpq.indexing.entry_encoding import encode_made, payload_table
from asyncpq.indexing.index_model import file_key
from asyncpq.objects.object_read import FileRead
from asyncpq.objects.page_indexes import index_keys
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion, MadeIndex
from asyncpq.parquet.chunk_pages import PageWalker
from asyncpq.parquet.column_chunk import ColumnChunk
from asyncpq.parquet.logical_types import LogicalKind
from asyncpq.parquet.page_index import (
    BoundaryOrder,
    ColumnIndex,
    encode_column_index,
    encode_offset_index,
    validate_offset_index,
)
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import ColumnOrder, Comparable, SortOrder, boundary_order, encode_value, order_of
from asyncpq.parquet.writer_faults import Claim
from asyncpq.pruning.row_ranges import RowRanges

_TRUNCATED_BYTES: Final = 64  # longer strings are truncated; a maximum is rounded up
_types = pa.types


class PageValues(NamedTuple):
    """The decoded values of one data page of a leaf."""

    rows: pa.Array  # the page's rows of the leaf's field, without the field's other leaves
    num_values: int  # number of the leaf's values, including nulls and empty lists


class _PageBounds(NamedTuple):
    """Bounds and counts of a page. ``low`` and ``high`` are encoded bytes, empty if the page has no value; ``is_null``
    says that all values are null."""

    low: bytes
    high: bytes
    nulls: int
    nans: int
    is_null: bool


class _NoOrderError(Exception):
    """Raised if Parquet statistics cannot represent values of a column's type."""


def column_index(pages: Sequence[PageValues], leaf: Leaf, order: SortOrder) -> ColumnIndex | None:
    """Return the ColumnIndex of a chunk; None if statistics cannot represent values of the leaf's Arrow type.

    Args:
        pages: the values of all pages, in the order of the OffsetIndex.
        order: sort order of the leaf's type; with UNDEFINED the index has null counts, but no bounds.
    """
    try:
        bounds_of_pages = [_bounds(page, leaf, order) for page in pages]
    except _NoOrderError:
        return None
    index = ColumnIndex(
        [page.is_null for page in bounds_of_pages],
        [page.low for page in bounds_of_pages],
        [page.high for page in bounds_of_pages],
        BoundaryOrder.UNORDERED,
        [page.nulls for page in bounds_of_pages],
        [page.nans for page in bounds_of_pages] if order in (SortOrder.FLOAT, SortOrder.FLOAT16) else None,
    )
    index.boundary_order = boundary_order(index, leaf, order)
    return index


def _bounds(page: PageValues, leaf: Leaf, order: SortOrder) -> _PageBounds:
    values = leaf_values(page.rows)
    present = len(values) - values.null_count
    nulls = page.num_values - present
    nans = 0
    if not present or order is SortOrder.UNDEFINED:
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
    """Return the minimum and maximum of values without NaN. For durations, which pyarrow's min_max does not support,
    both are int64 scalars."""
    ends = pc.min_max(values.view(pa.int64()) if _types.is_duration(values.type) else values)
    return ends["min"], ends["max"]


def leaf_values(array: pa.Array) -> pa.Array:
    """Return the values of the only leaf in a nested array. Null and empty lists give no value."""
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


def _comparable(scalar: Any, leaf: Leaf, order: SortOrder) -> Comparable:
    """Convert a scalar to the Python value that :func:`asyncpq.parquet.statistics.decode_values` would return for
    it. Raises _NoOrderError if statistics cannot represent the value."""
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
        value = scalar.value // DAY_MILLISECONDS
    elif order is SortOrder.BYTES:
        value = scalar.as_buffer().to_pybytes()  # strings may be invalid UTF-8
    elif _types.is_integer(kind) or _types.is_floating(kind) or _types.is_boolean(kind):
        value = scalar.as_py()
    if not isinstance(value, _HELD[order]):
        raise _NoOrderError
    return value  # type: ignore[return-value]  # of the type that its order has


_HELD: Final[dict[SortOrder, type]] = {
    SortOrder.BOOLEAN: bool,
    SortOrder.SIGNED: int,
    SortOrder.UNSIGNED: int,
    SortOrder.DECIMAL: int,
    SortOrder.FLOAT: float,
    SortOrder.FLOAT16: float,
    SortOrder.BYTES: bytes,
}


def _unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent + scale < 0:
        raise _NoOrderError
    number = int("".join(map(str, digits)) or "0") * int(10 ** (exponent + scale))
    return -number if sign else number


_BATCH_BYTES: Final = 32 << 20  # of chunks fetched together; a larger chunk is fetched alone
_NO_EXTENSIONS: Final[frozenset[str]] = frozenset()


class _Chunk(NamedTuple):
    row_group: int
    leaf: int
    chunk: ColumnChunk
    key: ContentKey


async def pages_rows(read: FileRead, file: int) -> pa.Table:
    """Return one file's rows of the index table "pages", sorted: one for each leaf that has a column chunk without a
    usable page index. ``file`` is the file's id. Chunks that cannot be decoded, or whose pages cannot be located,
    get no index."""
    made: dict[int, dict[int, MadeIndex]] = {}
    source, version = read.source, read.version
    lacking = await source.runtime.in_thread(partial(_lacking, version))
    for batch in _batches(lacking):
        parts = await read.fetch([item.key for item in batch], "data", read.metrics.rounds + 1)
        made_indexes = await source.runtime.in_thread(partial(_make_all, source, version, batch, parts.data))
        for item, index in made_indexes:
            made.setdefault(item.leaf, {})[item.row_group] = index
    return payload_table(
        "pages", [(key := file_key(file, leaf), encode_made(key, some)) for leaf, some in sorted(made.items())]
    )


def _lacking(version: FileVersion) -> list[_Chunk]:
    """Return the chunks that need a page index, since they have no usable OffsetIndex or ColumnIndex, in file order."""
    metadata = version.metadata
    chunks: list[_Chunk] = []
    if version.decryption is not None:
        return chunks
    for group in metadata.row_groups:
        for leaf in metadata.schema.leaves if group.num_rows else ():
            with suppress(FormatError):  # a read of the column raises it
                parsed = group.parse_chunk(leaf.index)
                if parsed.num_values and _is_lacking(version, parsed, leaf):
                    chunk = version.chunk(group.ordinal, leaf.index)
                    key = version.key("part", chunk.start, chunk.stop)
                    chunks.append(_Chunk(group.ordinal, leaf.index, chunk, key))
    return chunks


def _is_lacking(version: FileVersion, chunk: ColumnChunk, leaf: Leaf) -> bool:
    if version.metadata.writer_faults.find(Claim.PAGE_INDEPENDENCE, leaf, chunk.encodings) is not None:
        return False
    offsets, bounds = index_keys(version, chunk, leaf.index)
    is_pruned = not leaf.max_repetition_level  # pages of repeated leaves are not
    return offsets is None or (bounds is None and is_pruned)


def _batches(chunks: Sequence[_Chunk]) -> Iterator[list[_Chunk]]:
    batch: list[_Chunk] = []
    size = 0
    seen: set[ContentKey] = set()
    for item in chunks:
        length = item.key.stop - item.key.start
        if batch and (size + length > _BATCH_BYTES or item.key in seen):
            yield batch
            batch, size = [], 0
            seen.clear()
        batch.append(item)
        seen.add(item.key)
        size += length
    if batch:
        yield batch


def _make_all(
    source: ObjectSource, version: FileVersion, batch: Sequence[_Chunk], data: dict[ContentKey, bytes]
) -> list[tuple[_Chunk, MadeIndex]]:
    options = source.runtime.options
    limits = DecodeLimits(options.read.verify_crc, options.limits.max_page_bytes, options.limits.max_decoded_bytes)
    made: list[tuple[_Chunk, MadeIndex]] = []
    for item in batch:
        with suppress(FormatError):
            index = _make(version, item, data[item.key], limits)
            if index is not None:
                made.append((item, index))
    return made


def _make(version: FileVersion, item: _Chunk, data: bytes, limits: DecodeLimits) -> MadeIndex | None:
    leaf, chunk, padded = version.metadata.schema.leaves[item.leaf], item.chunk, version.padded_chunks
    num_rows = version.metadata.row_groups[item.row_group].num_rows
    decoder = leaf_decoder(version, item.leaf, _NO_EXTENSIONS)
    select: Callable[[RowRanges], pa.Array]
    if decoder is not None:
        streamed = StreamedSource(decoder, chunk, num_rows, limits, padded=padded)
        streamed.feed(data)
        offsets, select = streamed.locations, partial(streamed.select, limits=limits)
    else:
        nested = NestedLeaf(leaf, chunk, num_rows, paged=False, padded=padded)
        nested.feed(data)
        field = version.metadata.schema.fields[leaf.field_index]
        rows_of = FieldSource(version, field, {item.leaf: nested}, num_rows, _NO_EXTENSIONS)
        whole = rows_of.select(RowRanges.all(num_rows), limits)
        offsets, select = nested.locations, lambda rows: whole.slice(rows.start, rows.num_rows)
    if offsets is None:
        return None
    validate_offset_index(offsets, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=num_rows)
    walker = PageWalker(chunk, max_page_bytes=limits.max_page_bytes, padded=padded)
    headers = [page.header for page in walker.feed(data) if page.header.is_data and page.header.num_values]
    spans = [RowRanges.from_sorted([offsets.rows_of_page(page, num_rows)]) for page in range(offsets.num_pages)]
    pages = [PageValues(select(rows), header.num_values) for rows, header in zip(spans, headers, strict=True)]
    index = column_index(pages, leaf, order_of(leaf, ColumnOrder.TYPE_ORDER))
    return MadeIndex(encode_offset_index(offsets), None if index is None else encode_column_index(index))
