"""One row group of one read: sources for its columns, the filter, and the rows that come out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.assemble import PagedSource, StreamedSource
from asyncpq.decoding.decoded_size import held_bytes
from asyncpq.decoding.encrypted import EncryptedFieldSource
from asyncpq.decoding.field_source import FieldSource
from asyncpq.decoding.filter import Filter
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.nested_leaf import NestedLeaf
from asyncpq.decoding.page import Dictionary, LeafArray, Page
from asyncpq.decoding.row_access import PackedPage
from asyncpq.decoding.selection import counted, keep, take
from asyncpq.decoding.types import leaf_decoder
from asyncpq.errors import AsyncpqError
from asyncpq.fetching.version import FileVersion
from asyncpq.format.page_index import OffsetIndex
from asyncpq.format.schema import Projection
from asyncpq.planning.read_plan import ColumnPlan, Item, RowGroupPlan
from asyncpq.pruning.row_ranges import RowRanges

_EXACT_ROWS = 65_536  # with more matching rows, and not few of those seen, columns are filtered by mask


KeepDecoded: TypeAlias = Callable[[int, int, LeafArray | PackedPage], None]
KeepPart: TypeAlias = Callable[[int, int, bytes | Dictionary], None]


class QueryShape(NamedTuple):
    """What the rows of a read look like; the same for all row groups.

    Attributes:
        schema: Arrow schema of the output.
        output: the output's fields, or the parts of them, in the order of ``schema``.
        filter: the compiled predicate, or None.
        limits: bounds and checks of decoding.
        extensions: allowed extension types.
        dictionaries: ordinals of flat fields whose values come as dictionary arrays.
    """

    schema: pa.Schema
    output: tuple[Projection, ...]
    filter: Filter | None
    limits: DecodeLimits
    extensions: frozenset[str]
    dictionaries: frozenset[int] = frozenset()


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
    with (start, stop, page or decoded dictionary) for those of chunks that come whole.
    ``allowance`` is set anew for each unit.

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
        self._keep = keep
        self._keep_part = keep_part
        self._shape = shape
        self._version = version
        self._sources = [self._source(column) for column in plan.columns]
        self._positions = {column.chunk.leaf: position for position, column in enumerate(plan.columns)}
        self._fields = self._field_sources()
        self._emitted = 0
        self._pages_counted = 0
        self.allowance = Allowance(shape.limits.max_decoded_bytes)

    def _source(self, column: ColumnPlan) -> PagedSource | StreamedSource | NestedLeaf:
        """Takes what is fetched for one leaf."""
        plan, version, leaf = self.plan, self._version, column.chunk.leaf
        field = version.metadata.schema.fields[column.field]
        chunk = version.chunk(plan.ordinal, leaf)
        paged, padded = column.offsets is not None, version.padded_chunks
        if column.nested or version.decryption is not None:
            return NestedLeaf(version.metadata.schema.leaves[leaf], chunk, plan.num_rows, paged=paged, padded=padded)
        as_dictionary = field.index in self._shape.dictionaries
        decoder = leaf_decoder(version, field, self._shape.extensions, as_dictionary=as_dictionary)
        if paged:
            keep = None if self._keep is None else partial(self._keep, plan.ordinal, leaf)
            return PagedSource(decoder, chunk, plan.num_rows, keep=keep)
        return StreamedSource(decoder, chunk, plan.num_rows, self._shape.limits, padded=padded, keep=self._keep_part)

    def _field_sources(self) -> dict[int, FieldSource]:
        """Those of the fields that are not decoded leaf by leaf, by ordinal."""
        leaves: dict[int, dict[int, NestedLeaf]] = {}
        for column, source in zip(self.plan.columns, self._sources, strict=True):
            if isinstance(source, NestedLeaf):
                leaves.setdefault(column.field, {})[column.chunk.leaf] = source
        version, plan, extensions = self._version, self.plan, self._shape.extensions
        fields = version.metadata.schema.fields
        if version.decryption is not None:
            return {
                field: EncryptedFieldSource(version, fields[field], some, plan.num_rows, extensions, plan.ordinal)
                for field, some in leaves.items()
            }
        return {
            field: FieldSource(version, fields[field], some, plan.num_rows, extensions)
            for field, some in leaves.items()
        }

    def _select(self, projection: Projection, rows: RowRanges) -> pa.Array:
        try:
            return self._select_of(projection, rows)
        except AsyncpqError as error:  # which page it was is not known any more; of which chunks is
            chunks = [column.chunk for column in self.plan.columns if column.chunk.leaf in projection.leaves]
            span = (min(chunk.start for chunk in chunks), max(chunk.stop for chunk in chunks))
            raise error.locate(byte_range=span) from error.__cause__

    def _select_of(self, projection: Projection, rows: RowRanges) -> pa.Array:
        field = self._fields.get(projection.field)
        limits = self._shape.limits._replace(max_decoded_bytes=self.allowance.left)
        if field is not None:
            array = field.select(rows, limits, projection.leaves)
        else:
            source = self._sources[self._positions[projection.leaves[0]]]
            assert not isinstance(source, NestedLeaf)  # of which all fields have a source of their own
            array = source.select(rows, limits)
        self.allowance.spend(array)
        return array

    # -- what arrives -----------------------------------------------------------------------------

    def expect(self, items: Sequence[Item]) -> None:
        """Pages that will arrive later: rows from the first of them on are not available yet."""
        for item in items:
            source = self._sources[item.column]
            if not isinstance(source, StreamedSource) and item.kind == "page" and item.num_rows:
                source.expect(item.first_row)

    def add(self, item: Item, data: bytes) -> None:
        """One fetched piece; in row order within each column."""
        source = self._sources[item.column]
        if item.kind == "page" and not isinstance(source, StreamedSource):
            source.add(Page(data, item.first_row, item.num_rows))
        elif not isinstance(source, PagedSource):
            try:
                source.feed(data)
            except AsyncpqError as error:
                raise error.locate(byte_range=(item.start, item.stop)) from error.__cause__

    def add_decoded(self, item: Item, array: LeafArray | PackedPage) -> None:
        """A page that was decoded before; in row order within each column."""
        source = self._sources[item.column]
        if isinstance(source, PagedSource):
            source.add(array)

    def set_dictionary(self, item: Item, dictionary: Dictionary) -> None:
        source = self._sources[item.column]
        if isinstance(source, PagedSource):
            source.dictionary = dictionary

    def decode_dictionary(self, item: Item, page: bytes) -> Dictionary:
        """Decode a dictionary page for the column of ``item``."""
        field = self._version.metadata.schema.fields[self.plan.columns[item.column].field]
        decoder = leaf_decoder(self._version, field, self._shape.extensions)
        try:
            return decoder.decode_dictionary(
                self._version.chunk(self.plan.ordinal, item.leaf), page, self._shape.limits
            )
        except AsyncpqError as error:
            raise error.locate(url=self._version.url, byte_range=(item.start, item.stop)) from error.__cause__

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
        available = min((self._sources[position].rows_available for position in positions), default=plan.num_rows)
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
            column, source = plan.columns[position], self._sources[position]
            if column.offsets is None:
                if source.rows_available < plan.num_rows:
                    items.append(Item(position, column.chunk.leaf, "part", column.chunk.start, column.chunk.stop))
                continue
            if not isinstance(source, StreamedSource):
                first_rows = column.offsets.first_rows
                pages = [page for page in column.pages_of(matched.rows) if not source.has(first_rows[page])]
                items.extend(column.items(position, pages, dictionary=not source.has_dictionary))
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
        for projection, kind in zip(shape.output, shape.schema, strict=True):
            array = matched.arrays.get(projection)
            if array is None:
                if not matched.num_rows:
                    array = pa.nulls(0, kind.type)
                else:
                    array = self._select(projection, matched.rows)
                    if matched.mask is not None:
                        array = keep(array, matched.mask)
            columns.append(array)
        self.skip(matched)
        if not columns:
            return counted(matched.num_rows)
        return pa.Table.from_arrays(columns, schema=shape.schema)

    def skip(self, matched: Matched) -> None:
        """Let go of what was decoded and passed."""
        for source in (*self._sources, *self._fields.values()):
            source.discard_before(matched.stop_row)

    def locations(self) -> Iterator[tuple[int, OffsetIndex]]:
        """Leaves whose page locations were not known before their chunks came, and are now."""
        for column, source in zip(self.plan.columns, self._sources, strict=True):
            if not isinstance(source, PagedSource) and source.locations is not None:
                yield column.chunk.leaf, source.locations

    def take_pages_decoded(self) -> int:
        """Data pages decoded since the last call."""
        total = sum([source.pages_decoded for source in (*self._sources, *self._fields.values())])
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
