"""What takes the fetched bytes of a row group's columns, and gives their rows.

One row group of one read: sources for its columns, the filter, and the rows that come out.

How much the items of a unit may decode to, told without decoding any.

An upper bound, coarse and cheap: by it is decided whether the event loop may decode a unit itself.
What may be decoded at all is held to exact sizes later (``decoded_size``, ``leaf_size``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import constant_bytes, counted, first_invalid, has_text, held_bytes, keep, take
from asyncpq.decoding.column_sources import FieldSource, PagedSource, StreamedSource
from asyncpq.decoding.decoded_size import ExpectedSize, refuse
from asyncpq.decoding.encrypted import EncryptedFieldSource
from asyncpq.decoding.filter import Filter
from asyncpq.decoding.leaf import DecodeLimits, leaf_decoder, reads_alone
from asyncpq.decoding.nested import NestedLeaf
from asyncpq.decoding.page import ChunkPage, DataPage, Dictionary, LeafArray, PackedPage
from asyncpq.decoding.schema_adapter import AdaptedColumn, AdaptedColumns
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.objects.read_plan import Item, RowGroupPlan
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.parquet.schema import Projection
from asyncpq.pruning.row_ranges import RowRanges

KeepDecoded: TypeAlias = Callable[[int, int, LeafArray | PackedPage], None]
KeepPart: TypeAlias = Callable[[int, int, ChunkPage], None]


class QueryShape(NamedTuple):
    """What the rows of a read look like; the same for all row groups.

    Attributes:
        schema: Arrow schema of the output.
        output: the output's fields, or the parts of them, in the order of ``schema``.
        filter: the compiled predicate, or None.
        limits: bounds and checks of decoding.
        extensions: allowed extension types.
        dictionaries: ordinals of flat fields whose values come as dictionary arrays.
        view: the columns of a dataset, if the rows come in those: then ``output`` are the file's fields that are
            read for them, ``schema`` and ``filter`` are the dataset's.
    """

    schema: pa.Schema
    output: tuple[Projection, ...]
    filter: Filter | None
    limits: DecodeLimits
    extensions: frozenset[str]
    dictionaries: frozenset[int] = frozenset()
    view: AdaptedColumns | None = None


class Sources(NamedTuple):
    """Those of one row group.

    Attributes:
        leaves: by position among the plan's columns.
        paged, streamed: the same, those whose bytes come page by page and as whole column chunks.
        decoding: of ``paged``, those that take decoded pages and dictionaries, too.
        flat, fields: what gives the rows of a field, by its ordinal: of flat columns and of all others.
    """

    leaves: list[PagedSource | StreamedSource | NestedLeaf]
    paged: dict[int, PagedSource | NestedLeaf]
    streamed: dict[int, StreamedSource | NestedLeaf]
    decoding: dict[int, PagedSource]
    flat: dict[int, PagedSource | StreamedSource]
    fields: dict[int, FieldSource]


def open_sources(
    version: FileVersion, plan: RowGroupPlan, shape: QueryShape, keep: KeepDecoded | None, keep_part: KeepPart | None
) -> Sources:
    """Sources for all columns of ``plan``; for ``keep`` and ``keep_part`` see ``RowGroupReader``."""
    sources = Sources([], {}, {}, {}, {}, {})
    schema, group, num_rows, padded = version.metadata.schema, plan.ordinal, plan.num_rows, version.padded_chunks
    nested: dict[int, dict[int, NestedLeaf]] = {}
    alone: dict[int, dict[int, PagedSource | StreamedSource]] = {}
    for position, column in enumerate(plan.columns):
        leaf, paged = column.chunk.leaf, column.offsets is not None
        chunk = version.chunk(group, leaf)
        source: PagedSource | StreamedSource
        if version.decryption is not None or not reads_alone(version, leaf, shape.extensions):
            drop = partial(version.drop, leaf)
            whole = NestedLeaf(schema.leaves[leaf], chunk, num_rows, paged=paged, padded=padded, drop=drop)
            if paged:
                sources.paged[position] = whole
            else:
                sources.streamed[position] = whole
            sources.leaves.append(whole)
            nested.setdefault(column.field, {})[leaf] = whole
            continue
        as_dictionary = column.field in shape.dictionaries
        decoder = leaf_decoder(version, leaf, shape.extensions, as_dictionary=as_dictionary)
        if paged:
            keep_page = None if keep is None else partial(keep, group, leaf)
            source = PagedSource(decoder, chunk, num_rows, keep=keep_page)
            sources.paged[position] = sources.decoding[position] = source
        else:
            keep_whole = None if keep_part is None else partial(keep_part, group, leaf)
            source = StreamedSource(decoder, chunk, num_rows, shape.limits, padded=padded, keep=keep_whole)
            sources.streamed[position] = source
        sources.leaves.append(source)
        if schema.leaves[leaf].is_flat:
            sources.flat[column.field] = source
        else:
            alone.setdefault(column.field, {})[leaf] = source
    for ordinal in {**alone, **nested}:
        field, some = schema.fields[ordinal], nested.get(ordinal, {})
        sources.fields[ordinal] = (
            FieldSource(version, field, some, num_rows, shape.extensions, alone.get(ordinal))
            if version.decryption is None
            else EncryptedFieldSource(version, field, some, num_rows, shape.extensions, group)
        )
    return sources


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
            self._sources.paged[item.column].add(DataPage(data, item.first_row, item.num_rows, header))
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

    def _viewed(self, column: AdaptedColumn, source: pa.Array | None, num_rows: int) -> pa.Array:
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
