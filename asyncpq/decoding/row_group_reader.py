"""Read one row group: fetched pages come in, the matching rows go out.

A *source* takes a column's fetched pages and returns its rows. ``RowGroupReader`` hands the pages to the sources,
evaluates the filter on the rows that are complete, and returns the output's columns for the rows that match. Late
columns are fetched after the filter, for matching rows only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import constant_bytes, counted, first_invalid, has_text, held_bytes, keep, take
from asyncpq.decoding.decoded_size import SizeEstimate, ValueSlot, refuse, value_slot
from asyncpq.decoding.filter import Filter
from asyncpq.decoding.leaf import DecodeLimits, LeafDecoder, leaf_decoder
from asyncpq.decoding.leaf_sources import PagedSource, StreamedSource
from asyncpq.decoding.page import ChunkPage, DataPage, Dictionary, LeafArray, PackedPage
from asyncpq.decoding.schema_adapter import AdaptedColumn, AdaptedColumns
from asyncpq.errors import AsyncpqError, CorruptFileError, Hint, ResourceLimitError
from asyncpq.objects.read_plan import MANY_ROWS, Item, RowGroupPlan
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.parquet.schema import Projection
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import NamedTuple

if TYPE_CHECKING:
    from asyncpq.decoding.field_source import FieldSource
    from asyncpq.decoding.nested import NestedLeaf

KeepDecoded: TypeAlias = Callable[[int, int, LeafArray | PackedPage], None]
KeepPart: TypeAlias = Callable[[int, int, ChunkPage], None]

_INDICES_NONZERO = pc.kernel("indices_nonzero")
_SPARSE = 512  # rows for each match: the runs of a mask then take three times as long as the positions of its matches
_MASKED_ROWS = 65_536  # with more matches than this, and not few of the rows seen, columns are filtered by a mask


class QueryShape(NamedTuple):
    """The treatment of the rows of each row group in a read: its filter, its output columns, its limits.

    If the file belongs to a dataset, ``view`` maps the dataset's columns to the file's; ``schema`` and ``filter`` are
    then the dataset's, and ``output`` lists the file's fields to read for them.

    Attributes:
        extensions: the allowed extension types.
        decoders: those of the version's leaves that were used, by leaf.
        dictionaries: ordinals of flat fields that are read as dictionary arrays.
    """

    schema: pa.Schema  # of the output
    output: tuple[Projection, ...]  # fields, or parts of fields, in the order of ``schema``
    filter: Filter | None
    limits: DecodeLimits
    extensions: frozenset[str]
    decoders: dict[int, LeafDecoder]
    dictionaries: frozenset[int] = frozenset()
    view: AdaptedColumns | None = None


class ColumnSources(NamedTuple):
    """The decoders of one row group's columns. A position is that of a column in the row group's plan."""

    leaves: list[PagedSource | StreamedSource | NestedLeaf]  # of each column of the plan, by position
    slots: list[ValueSlot]  # the size of one value of each, by position
    paged: dict[int, PagedSource | NestedLeaf]  # those whose bytes come page by page, by position
    streamed: dict[int, StreamedSource | NestedLeaf]  # those whose bytes come as whole column chunks, by position
    decoding: dict[int, PagedSource]  # those of ``paged`` that also accept decoded pages and dictionaries
    flat: dict[int, PagedSource | StreamedSource]  # of flat columns, by the field's ordinal
    fields: dict[int, FieldSource]  # of all other fields, by the field's ordinal


def open_sources(
    version: FileVersion, plan: RowGroupPlan, shape: QueryShape, keep: KeepDecoded | None, keep_part: KeepPart | None
) -> ColumnSources:
    """Make the decoders of all columns of ``plan``: objects that take a column's fetched pages or chunk, and return its
    rows as Arrow arrays. Fetches nothing. ``keep`` and ``keep_part`` are explained in :class:`RowGroupReader`."""
    sources = ColumnSources([], [], {}, {}, {}, {}, {})
    schema, group, num_rows, padded = version.metadata.schema, plan.ordinal, plan.num_rows, version.padded_chunks
    nested: dict[int, dict[int, NestedLeaf]] = {}
    alone: dict[int, dict[int, PagedSource | StreamedSource]] = {}
    for position, column in enumerate(plan.columns):
        leaf, paged = column.chunk.leaf, not column.streamed
        chunk = version.valid_chunks.get((group, leaf)) or version.chunk(group, leaf)
        decoder = shape.decoders.get(leaf)
        if decoder is None and version.decryption is None:
            as_dictionary = column.field in shape.dictionaries
            decoder = leaf_decoder(version, leaf, shape.extensions, as_dictionary)
            if decoder is not None:
                shape.decoders[leaf] = decoder
        source: PagedSource | StreamedSource
        if decoder is None:
            from asyncpq.decoding.nested import NestedLeaf

            drop = partial(version.drop, leaf)
            whole = NestedLeaf(schema.leaves[leaf], chunk, num_rows, paged=paged, padded=padded, drop=drop)
            if paged:
                sources.paged[position] = whole
            else:
                sources.streamed[position] = whole
            sources.leaves.append(whole)
            sources.slots.append(value_slot(version, leaf, shape.extensions))
            nested.setdefault(column.field, {})[leaf] = whole
            continue
        if paged:
            keep_page = None if keep is None else partial(keep, group, leaf)
            source = PagedSource(decoder, chunk, num_rows, keep=keep_page)
            sources.paged[position] = sources.decoding[position] = source
        else:
            keep_whole = None
            if keep_part is not None and column.offsets is None:  # else it is kept as the chunk that it came as
                keep_whole = partial(keep_part, group, leaf)
            source = StreamedSource(decoder, chunk, num_rows, shape.limits, padded=padded, keep=keep_whole)
            sources.streamed[position] = source
        sources.leaves.append(source)
        sources.slots.append(decoder.slot)
        if decoder.depth == 0:
            sources.flat[column.field] = source
        else:
            alone.setdefault(column.field, {})[leaf] = source
    for ordinal in {**alone, **nested}:
        from asyncpq.decoding.field_source import FieldSource

        field, leaves = schema.fields[ordinal], nested.get(ordinal, {})
        decrypt = None
        if version.decryption is not None:
            from asyncpq.decoding.encrypted import read_encrypted  # few files need it

            decrypt = partial(read_encrypted, version, field, leaves, group, shape.extensions)
        sources.fields[ordinal] = FieldSource(
            version, field, leaves, num_rows, shape.extensions, alone.get(ordinal), decrypt=decrypt
        )
    return sources


class Matched(NamedTuple):
    """The result of one call of :meth:`RowGroupReader.match`: which of the rows that it filtered match.

    Attributes:
        mask: over ``rows``: true where a row matches.
        arrays: columns of the filter, already cut to the matching rows.
        stop_row: the filter has seen the row group's rows before this one.
        num_rows: number of rows that match.
        seen: rows that the filter saw.
    """

    rows: RowRanges  # the matching rows if ``mask`` is None, else a superset of them
    mask: pa.BooleanArray | None
    arrays: Mapping[Projection, pa.Array]
    stop_row: int
    num_rows: int
    seen: int

    def matching_rows(self) -> RowRanges:
        """Return exactly the rows that match."""
        if self.mask is None:
            return self.rows
        return _absolute(self.rows, self.mask, self.num_rows)


class Allowance:
    """Counts the decoded bytes of one unit of a plan, over all columns; ``limits`` has the bytes that are left."""

    __slots__ = ("limits",)

    def __init__(self, limits: DecodeLimits) -> None:
        self.limits: DecodeLimits = limits.copy()

    def decode(self, select: Callable[[DecodeLimits], pa.Array]) -> pa.Array:
        """Call ``select(limits)``, which decodes a column; subtract the bytes of the array, and return it."""
        limits = self.limits
        array = select(limits)
        # a dictionary is counted in the cache that holds it
        limits.max_decoded_bytes = max(0, limits.max_decoded_bytes - held_bytes(array))
        return array

    def spend(self, num_bytes: int) -> None:
        """Subtract ``num_bytes`` decoded bytes from the allowance."""
        self.limits.max_decoded_bytes = max(0, self.limits.max_decoded_bytes - num_bytes)


class SharedAllowance(Allowance):
    """An allowance that up to ``threads`` threads share. Together they decode no more bytes than one thread may.

    Each column may take one thread's share. A column that needs more is decoded again, alone.
    """

    __slots__ = ("_alone", "_spending", "_threads", "_turns")

    def __init__(self, limits: DecodeLimits, threads: int) -> None:
        super().__init__(limits)
        self._threads = threads
        self._turns = threading.Semaphore(threads)
        self._alone = threading.Lock()
        self._spending = threading.Lock()

    def decode(self, select: Callable[[DecodeLimits], pa.Array]) -> pa.Array:
        """Call ``select(limits)``, which decodes a column; subtract the bytes of the array, and return it.

        Raises ResourceLimitError if the column takes too many bytes even if it is decoded alone.
        """
        try:
            with self._turns:
                share = self.limits.copy()
                share.max_decoded_bytes //= self._threads
                array = select(share)
                self.spend(held_bytes(array))
                return array
        except ResourceLimitError:
            with self._alone:
                for _ in range(self._threads):
                    self._turns.acquire()
            try:
                return super().decode(select)
            finally:
                self._turns.release(self._threads)

    def spend(self, num_bytes: int) -> None:
        """Subtract decoded bytes from the shared allowance."""
        with self._spending:
            super().spend(num_bytes)


class RowGroupReader:
    """Decodes the fetched pages of a row group and returns its matching rows, a range of rows at a time.

    Not safe for two threads at once. Pages are added in row order. To cache pages, ``keep`` is called with (row group,
    leaf, decoded page) for each page that is decoded by itself, and ``keep_part`` for the pages of whole chunks.
    """

    _allowance: Allowance  # of the unit that is decoded, from its :meth:`match` on

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
        metadata = version.metadata
        known = metadata.known_calendars  # as of most reads
        self._calendars = metadata.calendars if known is None else known
        self.sources: ColumnSources = open_sources(version, plan, shape, keep, keep_part)
        # bounds the bytes that fetched items decode to
        self.estimate: SizeEstimate = SizeEstimate(version, plan, self.sources.slots)
        self._next_row = 0
        self._expecting = False  # more pieces follow
        self._pages_counted = 0
        self.filtered: list[tuple[float, float]] | None = None  # takes when the filter began and ended

    def _select(self, projection: Projection, rows: RowRanges, *, encoded: bool = False) -> pa.Array:
        source = self.sources.flat.get(projection.field)
        if source is not None:
            select = partial(source.select, rows, encoded=encoded)
        else:
            select = partial(self.sources.fields[projection.field].select, rows, leaves=projection.leaves)
        if self._calendars:
            select = partial(self._rebased, select, projection)
        try:
            return self._allowance.decode(select)
        except AsyncpqError as error:  # the page is not known here; the chunks are
            chunks = [column.chunk for column in self.plan.columns if column.chunk.leaf in projection.leaves]
            span = (min(chunk.start for chunk in chunks), max(chunk.stop for chunk in chunks))
            raise error.locate(byte_range=span) from error.__cause__

    def _rebased(
        self, select: Callable[[DecodeLimits], pa.Array], projection: Projection, limits: DecodeLimits
    ) -> pa.Array:
        from asyncpq.decoding.calendars import rebase_column  # few files need it

        name = self._version.metadata.schema.fields[projection.field].name
        return rebase_column(select(limits), projection.leaves, self._calendars, name)

    # -- input ------------------------------------------------------------------------------------

    def expect(self, items: Sequence[Item]) -> None:
        """Announce pages that will arrive later. Rows from the first of them on are not available before."""
        for item in items:
            if item.kind == "page":
                self._expecting = True
                self.sources.paged[item.column].expect(item.first_row)

    def add(self, item: Item, data: bytes | memoryview) -> None:
        """Add the fetched bytes of ``item``, a page or a slice of a chunk. Items of a column are added in row order."""
        if item.kind == "page":
            header = self.estimate.headers.pop(item.start, None)
            self.sources.paged[item.column].add(DataPage(data, item.first_row, item.num_rows, header))
            return
        try:
            self.sources.streamed[item.column].feed(data)
        except AsyncpqError as error:
            raise error.locate(byte_range=(item.start, item.stop)) from error.__cause__

    def add_dictionary(self, item: Item, page: bytes) -> Dictionary | None:
        """Add a fetched dictionary page; return the dictionary, or None if it is decoded later, with the data pages."""
        try:
            return self.sources.paged[item.column].add_dictionary(page, self._shape.limits)
        except AsyncpqError as error:
            raise error.locate(url=self._version.url, byte_range=(item.start, item.stop)) from error.__cause__

    # -- output -----------------------------------------------------------------------------------

    def match(self, positions: range, allowance: Allowance) -> Matched:
        """Filter the rows that became available since the last call.

        Args:
            positions: positions in ``plan.columns`` of the columns that have been fetched.
            allowance: counts the decoded bytes; also those of these rows' other columns, which are decoded later.
        Raises:
            AsyncpqError: a page cannot be decoded, or the allowance is exceeded; the error names the place in the file.
        """
        plan, where, leaves = self.plan, self._shape.filter, self.sources.leaves
        self._allowance = allowance
        available = plan.num_rows
        if self._expecting or self.sources.streamed:
            for position in positions:
                available = min(available, leaves[position].rows_available)
        rows = plan.rows
        if self._next_row or available < plan.num_rows:
            rows = rows.clip(self._next_row, available) if available > self._next_row else RowRanges.empty()
        self._next_row = stop = max(self._next_row, available)
        if where is None or not plan.filtered or not rows.num_rows:
            return Matched(rows, None, {}, stop, rows.num_rows, rows.num_rows)
        try:
            return self._filtered(where, rows, stop)
        except AsyncpqError as error:
            raise error.locate(url=self._version.url) from error.__cause__

    def _timed(self, where: Filter) -> Callable[[Any, int], pa.BooleanArray]:
        def mask(columns: Any, num_rows: int) -> pa.BooleanArray:
            began = time.monotonic()
            found = where.mask(columns, num_rows)
            if self.filtered is not None:
                self.filtered.append((began, time.monotonic()))
            return found

        return mask

    def _filtered(self, where: Filter, asked: RowRanges, stop: int) -> Matched:
        rows = self._searched(asked) if asked.num_rows >= MANY_ROWS else asked
        if not rows.num_rows:
            return Matched(rows, None, {}, stop, 0, asked.num_rows)
        leaves: dict[int, list[int]] = {}  # that the filter needs of each field
        for column in self.plan.columns:
            if column.predicate:
                leaves.setdefault(column.field, []).append(column.chunk.leaf)
        arrays: dict[Projection, pa.Array] = {}
        # Of many rows, a dictionary is compared instead: 50 values and a million indices take a fifth of the time. A
        # dataset's columns are adapted first.
        encoded = rows.num_rows >= MANY_ROWS and self._shape.view is None
        for field, needed in leaves.items():
            projection = Projection(field, tuple(sorted(needed)))
            arrays[projection] = self._select(projection, rows, encoded=encoded)
        columns = self._filter_columns(arrays, rows.num_rows)
        mask = (where.mask if self.filtered is None else self._timed(where))(columns, rows.num_rows)
        count = mask.true_count
        if count == 0:
            return Matched(RowRanges.empty(), None, {}, stop, 0, asked.num_rows)
        if not self._shape.output:  # the rows are counted
            return Matched(rows, mask, {}, stop, count, asked.num_rows)
        for projection in tuple(arrays):
            if projection not in self._shape.output:
                del arrays[projection]
        if count == rows.num_rows:
            return Matched(rows, None, self._dense(arrays) if encoded else arrays, stop, count, asked.num_rows)
        if count > _MASKED_ROWS and count * 4 > rows.num_rows:
            kept = {projection: keep(array, mask) for projection, array in arrays.items()}
            return Matched(rows, mask, self._dense(kept) if encoded else kept, stop, count, asked.num_rows)
        positions = _INDICES_NONZERO([mask]) if arrays else None
        matching = {projection: take(array, positions) for projection, array in arrays.items()}
        if encoded:
            matching = self._dense(matching)
        matching_rows = _absolute(rows, mask, count, positions)
        return Matched(matching_rows, None, matching, stop, count, asked.num_rows)

    def _searched(self, rows: RowRanges) -> RowRanges:
        """Return ``rows`` without those on pages that lack a text which the filter needs."""
        for position, column in enumerate(self.plan.columns):
            source = self.sources.leaves[position] if column.texts else None
            if isinstance(source, (PagedSource, StreamedSource)) and rows:
                try:
                    rows = source.rows_with(rows, column.texts, self._allowance.limits)
                except AsyncpqError as error:
                    raise error.locate(byte_range=(column.chunk.start, column.chunk.stop)) from error.__cause__
        return rows

    def _dense(self, arrays: dict[Projection, pa.Array]) -> dict[Projection, pa.Array]:
        """Convert the filter's columns that are dictionary-encoded to the file's own types."""
        for projection, array in arrays.items():
            source = self.sources.flat.get(projection.field)
            if source is not None and isinstance(array, pa.DictionaryArray):
                arrays[projection] = self._allowance.decode(partial(source.dense, array))
        return arrays

    def _filter_columns(self, arrays: Mapping[Projection, pa.Array], num_rows: int) -> dict[str, pa.Array]:
        """Return the filter's columns by name: the dataset's if the file belongs to one, else the file's."""
        by_name: dict[str, pa.Array] = {}
        view = self._shape.view
        if view is None:
            fields = self._version.metadata.schema.fields
            for projection, array in arrays.items():
                by_name[fields[projection.field].name] = array
            return by_name
        by_field = {projection.field: array for projection, array in arrays.items()}
        for name, column in view.predicate.items():
            source = None if column.projection is None else by_field[column.projection.field]
            by_name[name] = self._adapted(column, source, num_rows)
        return by_name

    def late_items(self, matched: Matched, positions: range) -> list[Item]:
        """Return what must be fetched of the late columns (those after ``positions``) for the matched rows."""
        items: list[Item] = []
        if not matched.num_rows:
            return items
        plan = self.plan
        for position in range(positions.stop, len(plan.columns)):
            column = plan.columns[position]
            if column.offsets is not None and not column.streamed:
                source, first_rows = self.sources.paged[position], column.offsets.first_rows
                pages = [page for page in column.pages_of(matched.rows) if not source.has(first_rows[page])]
                items.extend(column.items(position, pages, dictionary=not source.has_dictionary))
            elif self.sources.streamed[position].rows_available < plan.num_rows:
                items.append(Item(position, column.chunk.leaf, "part", column.chunk.start, column.chunk.stop))
        return items

    def columns(self, matched: Matched, numbers: Iterable[int]) -> list[pa.Array]:
        """Decode the output's columns at the positions ``numbers``, for the matched rows."""
        shape = self._shape
        try:
            if shape.view is None and not shape.limits.validate_utf8:
                return list(map(self._output, map(shape.output.__getitem__, numbers), repeat(matched)))
            return [self._column(number, matched) for number in numbers]
        except AsyncpqError as error:
            raise error.locate(url=self._version.url) from error.__cause__

    def emit(self, matched: Matched, columns: Sequence[pa.Array] | None = None) -> pa.Table:
        """Return the matched rows as a table. ``columns`` are the output's columns if they are decoded already.
        Releases decoded pages that end before ``matched.stop_row``."""
        schema = self._shape.schema
        if columns is None:
            columns = self.columns(matched, range(len(schema)))
        if matched.stop_row < self.plan.num_rows:
            self.skip(matched)
        return pa.Table.from_arrays(columns, schema=schema) if columns else counted(matched.num_rows)

    def _column(self, number: int, matched: Matched) -> pa.Array:
        shape = self._shape
        if shape.view is None:
            values = self._output(shape.output[number], matched)
        else:
            column = shape.view.output[number]
            source = None if column.projection is None else self._output(column.projection, matched)
            values = self._adapted(column, source, matched.num_rows)
        if shape.limits.validate_utf8:
            self._check_utf8(shape.schema.field(number), values, matched)
        return values

    def _output(self, projection: Projection, matched: Matched) -> pa.Array:
        """Return the values of a field, or of a part of one, for the matched rows."""
        array = matched.arrays.get(projection)
        if array is None:
            array = self._select(projection, matched.rows)
            if matched.mask is not None:
                array = keep(array, matched.mask)
        return array

    def _check_utf8(self, field: pa.Field, values: pa.Array, matched: Matched) -> None:
        position = first_invalid(values) if has_text(field.type) else None
        if position is None:
            return
        rows = list(matched.rows.rows())
        if matched.mask is not None:
            position = pc.indices_nonzero(matched.mask)[position].as_py()
        row = self._version.metadata.row_groups[self.plan.ordinal].first_row + rows[position]
        raise CorruptFileError(
            f"the text in row {row} is not valid UTF-8",
            column=field.name,
            hint=Hint(
                "Read it with ReadOptions(validate_utf8=False), and cast the column to binary for its bytes.",
                "Leave the column out, with --columns.",
            ),
        )

    def _adapted(self, column: AdaptedColumn, source: pa.Array | None, num_rows: int) -> pa.Array:
        """Return a dataset's column, cast from ``source`` or constant; its bytes count against the allowance."""
        allowance = self._allowance
        if source is None:
            size, limits = num_rows * constant_bytes(column.constant), allowance.limits
            if size > limits.max_decoded_bytes:
                raise refuse("constant values", size, limits.max_decoded_bytes, column.field.name)
        array = column.array(source, num_rows)
        if array is not source:
            allowance.spend(held_bytes(array))
        return array

    def skip(self, matched: Matched) -> None:
        """Release decoded pages that end before ``matched.stop_row``."""
        if matched.stop_row >= self.plan.num_rows:
            return
        for source in (*self.sources.leaves, *self.sources.fields.values()):
            source.discard_before(matched.stop_row)

    def locations(self) -> Iterator[tuple[int, OffsetIndex]]:
        """Yield (leaf ordinal, page locations) for each column whose pages were located while its chunk was read."""
        for position, source in self.sources.streamed.items():
            if source.locations is not None:
                yield self.plan.columns[position].chunk.leaf, source.locations

    def take_pages_decoded(self) -> int:
        """Return the number of data pages decoded since the last call."""
        total = 0
        for source in (*self.sources.leaves, *self.sources.fields.values()):
            total += source.pages_decoded
        new, self._pages_counted = total - self._pages_counted, total
        return new

    def close(self) -> None:
        """Let go of the pages, in the thread that decoded them: of 20,000 columns, that takes some 30 ms."""
        del self.sources, self.estimate


def _first_true(mask: pa.BooleanArray) -> int:
    """Return the first position at which ``mask`` is true, as it is at one at least."""
    if mask.null_count or mask.offset:
        position: int = _INDICES_NONZERO([mask])[0].as_py()
        return position
    bits: bytes = mask.buffers()[1].to_pybytes()  # of thousands of rows: the kernel takes five times as long
    start = len(bits) - len(bits.lstrip(b"\0"))
    return 8 * start + (bits[start] & -bits[start]).bit_length() - 1


def _absolute(rows: RowRanges, mask: pa.BooleanArray, count: int, positions: pa.Array | None = None) -> RowRanges:
    """Return the row numbers of the set ``rows`` at whose positions in it ``mask`` is true: at ``count`` ``positions``,
    if these are known."""
    first = rows.starts[0]
    if len(rows.starts) == count == 1:  # a lookup's
        row = first + _first_true(mask)
        return RowRanges.single(row, row + 1)
    if count * _SPARSE <= len(mask):
        if positions is None:
            positions = _INDICES_NONZERO([mask])
        return RowRanges.from_rows(_rows_at(rows, positions.to_pylist()))
    runs = pc.run_end_encode(mask)
    ends, values = runs.run_ends.to_pylist(), runs.values.to_pylist()
    if len(rows.starts) == 1:
        return RowRanges.from_parallel(
            [first + end for end, matches in zip((0, *ends), values, strict=False) if matches],
            [first + end for end, matches in zip(ends, values, strict=True) if matches],
        )
    ranges = zip(rows.starts, rows.stops, strict=True)
    first, stop = next(ranges)
    begin = 0  # the position of row ``first``
    starts: list[int] = []
    stops: list[int] = []
    position = 0
    for end, matches in zip(ends, values, strict=True):
        while position < end:
            until = min(end, begin + stop - first)
            if matches and until > position:
                starts.append(first + position - begin)
                stops.append(first + until - begin)
            position = until
            if position < end:
                begin = position
                first, stop = next(ranges)
    return RowRanges.from_parallel(starts, stops)


def _rows_at(rows: RowRanges, positions: Iterable[int]) -> Iterator[int]:
    """Yield the row numbers at ascending ``positions`` of the set ``rows``."""
    ranges = iter(rows)
    start, stop = next(ranges)
    begin = 0  # the position of row ``start``
    for position in positions:
        while position - begin >= stop - start:
            begin += stop - start
            start, stop = next(ranges)
        yield start + position - begin
