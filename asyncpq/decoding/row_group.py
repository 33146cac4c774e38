"""One row group of one read: sources for its columns, the filter, and the rows that come out.

How much the items of a unit may decode to, told without decoding any.

An upper bound, coarse and cheap: by it is decided whether the event loop may decode a unit itself.
What may be decoded at all is held to exact sizes later (``decoded_size``, ``leaf_size``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.conform import constant_bytes
from asyncpq.decoding.decoded_size import (
    ENCODING_DELTA_BYTE_ARRAY,
    LEVEL_BITS,
    OFFSET_BITS,
    has_lengths,
    held_bytes,
    leaf_types,
    refuse,
    value_bits,
)
from asyncpq.decoding.file_view import ColumnView
from asyncpq.decoding.filter import Filter
from asyncpq.decoding.page import Dictionary, LeafArray, Page
from asyncpq.decoding.plain import PackedPage
from asyncpq.decoding.selection import counted, keep, take
from asyncpq.decoding.sources import KeepDecoded, KeepPart, QueryShape, open_sources
from asyncpq.decoding.text import first_invalid, has_text
from asyncpq.decoding.types import field_types
from asyncpq.errors import AsyncpqError, CorruptFileError, FormatError
from asyncpq.objects.read_plan import Item, RowGroupPlan
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.parquet.page_walker import NeedMore, PageHeader, decode_page_header
from asyncpq.parquet.schema import Projection
from asyncpq.pruning.row_ranges import RowRanges

UNKNOWN = 1 << 62


class _Slot(NamedTuple):
    """What one value of a leaf takes.

    Attributes:
        bits: with its levels, and all slots that a null above it may take.
        has_lengths: values differ in size; ``bits`` are without their bytes.
        repeated: a row may have several.
    """

    bits: int
    has_lengths: bool
    repeated: bool


class _Content(NamedTuple):
    """What stands in a page or chunk.

    Attributes:
        num_values: nulls included.
        size: bytes, uncompressed.
        indexed: values may be indices into a dictionary.
        delta: they may be DELTA_BYTE_ARRAY.
    """

    num_values: int
    size: int
    indexed: bool
    delta: bool


class ExpectedSize:
    """Bounds for the items of one row group.

    Attributes:
        headers: of the pages that were looked at; each is taken out where the page is used.
    """

    def __init__(self, version: FileVersion, plan: RowGroupPlan, allowed_extensions: frozenset[str]) -> None:
        self.headers: dict[Item, PageHeader] = {}
        self._version = version
        self._plan = plan
        self._extensions = allowed_extensions
        self._largest: dict[int, int] = {}  # bytes of the largest value in a column's dictionary, by position

    def of(self, items: Sequence[Item], values: Iterator[object]) -> int:
        """At most what ``items`` decode to, in bytes.

        Args:
            items: in row order within each column, dictionaries first.
            values: their content, as fetched, or decoded before; others' may follow.
        """
        total = 0
        wanted = self._plan.rows.num_rows
        for item, value in zip(items, values, strict=False):
            if isinstance(value, Dictionary):
                self._largest[item.column] = value.largest
                total += value.values.nbytes  # comes out itself, where values come as dictionary arrays
                continue
            content = self._content(item, value)
            if content is None:
                total = UNKNOWN
                continue
            total += content.size
            if item.kind == "dictionary":
                self._largest[item.column] = content.size
                continue
            slot = self._slot(item.leaf)
            total += content.num_values * slot.bits // 8
            if content.indexed and slot.has_lengths:
                largest = content.size if item.kind == "part" else self._largest.get(item.column, UNKNOWN)
                total += largest * (content.num_values if slot.repeated else min(content.num_values, wanted))
            if content.delta:
                total += content.size * content.num_values
        return total

    def _content(self, item: Item, value: object) -> _Content | None:
        """None if it cannot be told."""
        if isinstance(value, LeafArray):
            held: int = value.values.get_total_buffer_size()  # may be copied
            return _Content(len(value.values), held, value.lacks_dictionary, False)
        if isinstance(value, PackedPage):
            return _Content(item.num_rows, len(value.content), value.is_indices, False)
        if not isinstance(value, bytes):
            return None
        if item.kind == "part":
            chunk = self._version.chunk(self._plan.ordinal, item.leaf)
            return _chunk_content(value) if len(value) == chunk.stop - chunk.start else None
        try:
            header = decode_page_header(value, complete=True)
        except FormatError:  # is raised again where the page is decoded
            return None
        if isinstance(header, NeedMore):
            return None
        if item.kind == "page":
            self.headers[item] = header
        encoding = header.encoding
        return _Content(
            header.num_values,
            header.uncompressed_size,
            encoding in DICTIONARY_ENCODINGS,
            encoding == ENCODING_DELTA_BYTE_ARRAY,
        )

    def _slot(self, leaf: int) -> _Slot:
        return self._version.derived(("slot", leaf, self._extensions), lambda: self._make_slot(leaf), 200)

    def _make_slot(self, ordinal: int) -> _Slot:
        schema = self._version.metadata.schema
        leaf = schema.leaves[ordinal]
        field = schema.fields[leaf.field_index]
        (kind,) = field_types(self._version, [field.index], self._extensions)
        kinds = leaf_types(kind.arrow.type)
        if len(kinds) != field.leaf_stop - field.first_leaf:
            return _Slot(UNKNOWN, True, True)  # refused where it is decoded
        value, slots = kinds[ordinal - field.first_leaf]
        bits = value_bits(value) + len(leaf.path) + LEVEL_BITS + (LEVEL_BITS + OFFSET_BITS) * leaf.max_repetition_level
        return _Slot(bits * slots, has_lengths(value), leaf.max_repetition_level > 0)


def _chunk_content(chunk: bytes) -> _Content | None:
    """What stands in a whole chunk, by its page headers: footers may claim other sizes. None if it cannot be told."""
    num_values = size = at = 0
    indexed = delta = False
    while at < len(chunk):
        try:
            header = decode_page_header(chunk, at, complete=True)
        except FormatError:  # is raised again where the chunk is decoded
            return None
        if isinstance(header, NeedMore):
            return None
        at += header.page_size
        size += header.uncompressed_size
        if header.is_data:
            num_values += header.num_values
            indexed |= header.encoding in DICTIONARY_ENCODINGS
            delta |= header.encoding == ENCODING_DELTA_BYTE_ARRAY
    return _Content(num_values, size, indexed, delta)


_EXACT_ROWS = 65_536  # with more matching rows, and not few of those seen, columns are filtered by mask


class Matched(NamedTuple):
    """Rows that the filter let through.

    Attributes:
        rows: superset to select columns by; exactly the matching rows when ``mask`` is None.
        mask: over ``rows``, which of them match.
        arrays: the filter's columns, already cut to the matching rows.
        stop_row: rows of the row group before this one have been looked at.
        num_rows: how many rows match.
        seen: how many rows the filter saw.
    """

    rows: RowRanges
    mask: pa.BooleanArray | None
    arrays: Mapping[Projection, pa.Array]
    stop_row: int
    num_rows: int
    seen: int


class Allowance:
    """Decoded bytes that may still be held: of one unit, over all of its columns.

    Attributes:
        left: bytes.
    """

    __slots__ = ("left",)

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes

    def spend(self, array: pa.Array) -> None:
        """Count what was decoded; a dictionary is counted where it is cached."""
        self.left = max(0, self.left - held_bytes(array))


class RowGroupReader:
    """Takes what was fetched of a row group and gives its matching rows, piece by piece.

    ``keep`` is called with (row group, leaf, decoded page) for every page that is decoded alone, ``keep_part``
    with (row group, leaf, page) for those of chunks that come whole. ``allowance`` is set anew for each unit.

    Synchronous, and not safe for two threads at once; pieces of a row group follow one another.
    """

    def __init__(
        self,
        version: FileVersion,
        plan: RowGroupPlan,
        shape: QueryShape,
        *,
        keep: KeepDecoded | None = None,
        keep_part: KeepPart | None = None,
    ) -> None:
        self.plan = plan
        self._shape = shape
        self._version = version
        self._sources = open_sources(version, plan, shape, keep, keep_part)
        self._expected_size = ExpectedSize(version, plan, shape.extensions)
        self._emitted = 0
        self._pages_counted = 0
        self.allowance = Allowance(shape.limits.max_decoded_bytes)

    def _select(self, projection: Projection, rows: RowRanges) -> pa.Array:
        try:
            return self._select_of(projection, rows)
        except AsyncpqError as error:  # which page it was is not known any more; of which chunks is
            chunks = [column.chunk for column in self.plan.columns if column.chunk.leaf in projection.leaves]
            span = (min(chunk.start for chunk in chunks), max(chunk.stop for chunk in chunks))
            raise error.locate(byte_range=span) from error.__cause__

    def _select_of(self, projection: Projection, rows: RowRanges) -> pa.Array:
        field = self._sources.fields.get(projection.field)
        limits = self._shape.limits._replace(max_decoded_bytes=self.allowance.left)
        if field is not None:
            array = field.select(rows, limits, projection.leaves)
        else:
            array = self._sources.flat[projection.field].select(rows, limits)
        self.allowance.spend(array)
        return array

    # -- what arrives -----------------------------------------------------------------------------

    def expect(self, items: Sequence[Item]) -> None:
        """Pages that will arrive later: rows from the first of them on are not available yet."""
        for item in items:
            if item.kind == "page":
                self._sources.paged[item.column].expect(item.first_row)

    def expected_bytes(self, items: Sequence[Item], values: Iterator[object]) -> int:
        """How much ``items``, whose next ``values`` are theirs and will be added, decode to: a coarse upper bound."""
        return self._expected_size.of(items, values)

    def add(self, item: Item, data: bytes) -> None:
        """A fetched page, or part of a chunk; in row order within each column."""
        if item.kind == "page":
            header = self._expected_size.headers.pop(item, None)
            self._sources.paged[item.column].add(Page(data, item.first_row, item.num_rows, header))
            return
        try:
            self._sources.streamed[item.column].feed(data)
        except AsyncpqError as error:
            raise error.locate(byte_range=(item.start, item.stop)) from error.__cause__

    def add_decoded(self, item: Item, page: LeafArray | PackedPage) -> None:
        """A page that was decoded before; in row order within each column."""
        self._sources.decoding[item.column].add(page)

    def add_dictionary(self, item: Item, page: bytes) -> Dictionary | None:
        """A fetched dictionary page; returns what is in it, where it is decoded by itself."""
        try:
            return self._sources.paged[item.column].add_dictionary(page, self._shape.limits)
        except AsyncpqError as error:
            raise error.locate(url=self._version.url, byte_range=(item.start, item.stop)) from error.__cause__

    def set_dictionary(self, item: Item, dictionary: Dictionary) -> None:
        """A dictionary that was decoded before."""
        self._sources.decoding[item.column].dictionary = dictionary

    # -- what comes out ---------------------------------------------------------------------------

    def match(self, positions: range) -> Matched:
        """Filter the rows that have become available since the last call.

        Args:
            positions: columns that have been fetched so far.
        """
        try:
            return self._match(positions)
        except AsyncpqError as error:
            raise error.locate(url=self._version.url) from error.__cause__

    def _match(self, positions: range) -> Matched:
        plan, shape = self.plan, self._shape
        available = min(
            (self._sources.leaves[position].rows_available for position in positions), default=plan.num_rows
        )
        rows = plan.rows.clip(self._emitted, available)
        if available <= self._emitted:
            rows = RowRanges.empty()
        self._emitted = stop = max(self._emitted, available)
        if not rows or shape.filter is None or not plan.filtered:
            return Matched(rows, None, {}, stop, rows.num_rows, rows.num_rows)
        arrays = {projection: self._select(projection, rows) for projection in self._predicate()}
        mask = self._mask(shape.filter, arrays, rows)
        count = mask.true_count
        if count == rows.num_rows:
            return Matched(rows, None, arrays, stop, count, count)
        if count == 0:
            return Matched(RowRanges.empty(), None, {}, stop, 0, rows.num_rows)
        if count > _EXACT_ROWS and count * 4 > rows.num_rows:
            kept = {projection: keep(array, mask) for projection, array in arrays.items()}
            return Matched(rows, mask, kept, stop, count, rows.num_rows)
        positions_found = pc.indices_nonzero(mask)
        kept = {
            projection: take(array, positions_found)
            for projection, array in arrays.items()
            if projection in shape.output
        }
        return Matched(_absolute(rows, positions_found.to_pylist()), None, kept, stop, count, rows.num_rows)

    def _mask(self, where: Filter, arrays: Mapping[Projection, pa.Array], rows: RowRanges) -> pa.BooleanArray:
        """Which of ``rows`` the filter lets through."""
        view = self._shape.view
        if view is not None:
            read = {projection.field: array for projection, array in arrays.items()}
            names = {
                name: self._viewed(column, column.projection and read[column.projection.field], rows.num_rows)
                for name, column in view.predicate.items()
            }
            return where.mask(names, rows.num_rows)
        fields = self._version.metadata.schema.fields
        names = {fields[projection.field].name: array for projection, array in arrays.items()}
        return where.mask(names, rows.num_rows)

    def _predicate(self) -> list[Projection]:
        """What the filter needs of each field."""
        leaves: dict[int, list[int]] = {}
        for column in self.plan.columns:
            if column.predicate:
                leaves.setdefault(column.field, []).append(column.chunk.leaf)
        return [Projection(field, tuple(sorted(some))) for field, some in leaves.items()]

    def late_items(self, matched: Matched, positions: range) -> list[Item]:
        """What must still be fetched of the columns not in ``positions`` for the matched rows."""
        items: list[Item] = []
        if not matched.num_rows:
            return items
        plan = self.plan
        for position in range(positions.stop, len(plan.columns)):
            column = plan.columns[position]
            if column.offsets is not None:
                source, first_rows = self._sources.paged[position], column.offsets.first_rows
                pages = [page for page in column.pages_of(matched.rows) if not source.has(first_rows[page])]
                items.extend(column.items(position, pages, dictionary=not source.has_dictionary))
            elif self._sources.streamed[position].rows_available < plan.num_rows:
                items.append(Item(position, column.chunk.leaf, "part", column.chunk.start, column.chunk.stop))
        return items

    def emit(self, matched: Matched) -> pa.Table:
        """The output's columns for the matched rows; what was decoded and passed is let go."""
        try:
            return self._emit(matched)
        except AsyncpqError as error:
            raise error.locate(url=self._version.url) from error.__cause__

    def _emit(self, matched: Matched) -> pa.Table:
        shape = self._shape
        columns: list[pa.Array] = []
        if not matched.num_rows:
            columns = [pa.nulls(0, field.type) for field in shape.schema]
        elif shape.view is None:
            columns = [self._output(projection, matched) for projection in shape.output]
        else:
            for column in shape.view.output:
                source = None if column.projection is None else self._output(column.projection, matched)
                columns.append(self._viewed(column, source, matched.num_rows))
        if shape.limits.validate_utf8:
            for field, values in zip(shape.schema, columns, strict=True):
                self._check_utf8(field, values, matched)
        self.skip(matched)
        if not columns:
            return counted(matched.num_rows)
        return pa.Table.from_arrays(columns, schema=shape.schema)

    def _output(self, projection: Projection, matched: Matched) -> pa.Array:
        """A field, or a part of one, for the matched rows."""
        array = matched.arrays.get(projection)
        if array is None:
            array = self._select(projection, matched.rows)
            if matched.mask is not None:
                array = keep(array, matched.mask)
        return array

    def _check_utf8(self, field: pa.Field, values: pa.Array, matched: Matched) -> None:
        at = first_invalid(values) if has_text(field.type) else None
        if at is None:
            return
        rows = list(matched.rows.rows())
        if matched.mask is not None:
            at = pc.indices_nonzero(matched.mask)[at].as_py()
        row = sum(group.num_rows for group in self._version.metadata.row_groups[: self.plan.ordinal]) + rows[at]
        raise CorruptFileError(
            f"the text in row {row} is not valid UTF-8",
            column=field.name,
            hint="Read it with ReadOptions(validate_utf8=False), and cast the column to binary for its bytes.",
        )

    def _viewed(self, column: ColumnView, source: pa.Array | None, num_rows: int) -> pa.Array:
        """A column of the dataset; constants are counted as if they had been decoded."""
        if source is None:
            size = num_rows * constant_bytes(column.constant)
            if size > self.allowance.left:
                raise refuse("constant values", size, self.allowance.left, column.field.name)
        array = column.array(source, num_rows)
        if array is not source:
            self.allowance.spend(array)
        return array

    def skip(self, matched: Matched) -> None:
        """Let go of what was decoded and passed; after the last rows, the reader itself is let go of."""
        if matched.stop_row >= self.plan.num_rows:
            return
        for source in (*self._sources.leaves, *self._sources.fields.values()):
            source.discard_before(matched.stop_row)

    def locations(self) -> Iterator[tuple[int, OffsetIndex]]:
        """Leaves whose page locations were not known before their chunks came, and are now."""
        for position, source in self._sources.streamed.items():
            if source.locations is not None:
                yield self.plan.columns[position].chunk.leaf, source.locations

    def take_pages_decoded(self) -> int:
        """Data pages decoded since the last call."""
        total = sum([source.pages_decoded for source in (*self._sources.leaves, *self._sources.fields.values())])
        new, self._pages_counted = total - self._pages_counted, total
        return new


def _absolute(rows: RowRanges, positions: Sequence[int]) -> RowRanges:
    """Rows at ascending ``positions`` within ``rows``."""
    if rows.num_ranges == 1:
        start = rows.start
        return RowRanges.from_rows([start + position for position in positions])
    ends = list(accumulate(stop - start for start, stop in rows))
    stops = rows.stops
    found: list[int] = []
    at = 0
    for position in positions:
        if position >= ends[at]:
            at = bisect_right(ends, position)
        found.append(stops[at] - (ends[at] - position))
    return RowRanges.from_rows(found)
