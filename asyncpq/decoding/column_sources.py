"""Sources of rows: what was fetched of a column of one row group comes in, Arrow arrays of wanted rows come out.

``PagedSource`` and ``StreamedSource`` serve one leaf that is not repeated, with and without known page locations.
``FieldSource`` serves a top-level field with lists or optional groups, leaf by leaf. A source decodes only the pages
that hold wanted rows. Pages of different leaves end at different rows, so sources speak of rows alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

import pyarrow as pa

from asyncpq.decoding.arrow import (
    FEW_ROWS,
    few_copied,
    held_bytes,
    join,
    leaf_types,
    read_leaves,
    take_rows,
    typed_error,
)
from asyncpq.decoding.decoded_size import leaf_bounds, nested_bytes, refuse
from asyncpq.decoding.field_types import field_template, field_types, projected_field
from asyncpq.decoding.leaf import DecodeLimits, LeafDecoder
from asyncpq.decoding.nested import LeafPages, NestedLeaf, PartialField, is_indexed, merge
from asyncpq.decoding.page import ChunkPage, DataPage, Dictionary, LeafArray, PackedPage, PageQueue
from asyncpq.decoding.splice import FieldTemplate
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.objects.page_indexes import own_offset_index
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.chunk_pages import PageWalker
from asyncpq.parquet.column_chunk import ColumnChunk, PageType
from asyncpq.parquet.logical_types import Repetition
from asyncpq.parquet.page_index import OffsetIndex, PageLocationError
from asyncpq.parquet.schema import Field, Projection
from asyncpq.pruning.row_ranges import RowRanges

_RUN_BYTES = 16 << 20  # compressed pages decoded in one splice

_Run: TypeAlias = "DataPage | list[DataPage] | LeafArray | PackedPage"


class PagedSource(PageQueue["DataPage | LeafArray | PackedPage"]):
    """The rows of a leaf that is not repeated and whose page locations are known.

    Args:
        decoder: of the leaf.
        chunk: the column chunk.
        num_rows: rows of the row group.
        keep: called with each decoded page, without its dictionary, for a cache; pages are then decoded one by one.
            A page that comes back by :meth:`add` is joined with :attr:`dictionary` again.
    """

    def __init__(
        self,
        decoder: LeafDecoder,
        chunk: ColumnChunk,
        num_rows: int,
        *,
        keep: Callable[[LeafArray | PackedPage], None] | None = None,
    ) -> None:
        super().__init__(num_rows)
        self._decoder = decoder
        self._chunk = chunk
        self._keep = keep
        self._last: LeafArray | None = None  # the run decoded last may reach into the next selection
        self.dictionary: Dictionary | None = None
        self.pages_decoded = 0

    @property
    def has_dictionary(self) -> bool:
        return self.dictionary is not None

    def add_dictionary(self, page: bytes, limits: DecodeLimits) -> Dictionary:
        """Decode the dictionary page that has come; return its values."""
        self.dictionary = dictionary = self._decoder.decode_dictionary(self._chunk, page, limits)
        return dictionary

    def select(self, rows: RowRanges, limits: DecodeLimits) -> pa.Array:
        """The values of exactly ``rows``, which have arrived.

        Raises:
            CorruptFileError: a page contradicts its header, the index or the footer.
            ResourceLimitError: the rows would decode to more bytes than allowed.
        """
        try:
            pieces = self._pieces(rows, limits)
            result = pieces[0] if len(pieces) == 1 else join(pieces, self._decoder.arrow_type)
        except (pa.ArrowException, OverflowError) as error:
            raise typed_error(error, "rows cannot be picked").locate(column=self._decoder.leaf.dotted) from error
        if len(result) != rows.num_rows:
            raise CorruptFileError(
                f"{len(result)} rows where {rows.num_rows} were planned", column=self._decoder.leaf.dotted
            )
        return result

    def _pieces(self, rows: RowRanges, limits: DecodeLimits) -> list[pa.Array]:
        pieces: list[pa.Array] = []
        size = 0
        needed = rows
        last = self._last
        if last is not None and rows.start >= last.first_row:
            here = rows.clip(last.first_row, last.stop_row)
            if here:
                pieces.append(self._cut(last, here, limits))
                needed = rows.clip(last.stop_row, rows.stop)
        few = needed.num_rows <= FEW_ROWS
        pages = self.holding(needed)
        runs: Sequence[_Run] = pages if few or len(pages) == 1 else _runs(pages)
        for run in runs:
            if few and not isinstance(run, (LeafArray, list)):
                picked = self._pick(run, needed, limits)
                if picked is not None:
                    pieces.append(picked)
                    continue
            arrays = self._decode(run, limits)
            for array in arrays:
                self._last = array
                here = needed if len(pages) == 1 else needed.clip(array.first_row, array.stop_row)
                if here.num_rows:
                    piece = self._cut(array, here, limits)
                    pieces.append(piece)
                    if len(runs) == len(arrays) == 1:
                        break  # its decoder has checked its size
                    # Without a dictionary the piece is a slice, which keeps the whole array alive.
                    size += array.weight if array.dictionary is None else held_bytes(piece)
                    if size > limits.max_decoded_bytes:
                        raise refuse("pages", size, limits.max_decoded_bytes, self._decoder.leaf.dotted)
        return pieces

    def _pick(self, page: DataPage | PackedPage, rows: RowRanges, limits: DecodeLimits) -> pa.Array | None:
        """The few of ``rows`` in one page; None if the page has to be decoded whole."""
        packed = page if isinstance(page, PackedPage) else self._decoder.open_page(self._chunk, page, limits)
        if packed is None:
            return None
        if self._keep is not None and packed is not page:
            self._keep(packed)
        first, stop = packed.page.first_row, packed.page.first_row + packed.page.num_rows
        positions: list[int] = []
        for low, high in zip(rows.starts, rows.stops, strict=True):
            positions += range(max(low, first) - first, min(high, stop) - first)
        picked = self._decoder.pick(packed, self.dictionary, positions)
        self.pages_decoded += picked is not None and packed is not page
        return picked

    def _decode(self, run: _Run, limits: DecodeLimits) -> list[LeafArray]:
        if isinstance(run, LeafArray):
            return [run.attached(self.dictionary, self._decoder.leaf.dotted) if run.lacks_dictionary else run]
        pages = run if isinstance(run, list) else [run.page if isinstance(run, PackedPage) else run]
        self.pages_decoded += len(pages)
        if self._keep is None:
            return self._decoder.decode_pages(self._chunk, self.dictionary, pages, limits)
        arrays: list[LeafArray] = []
        for page in pages:
            (array,) = self._decoder.decode_pages(self._chunk, self.dictionary, (page,), limits)
            self._keep(array.detached())
            arrays.append(array)
        return arrays

    def _cut(self, array: LeafArray, rows: RowRanges, limits: DecodeLimits) -> pa.Array:
        values = take_rows(array.values, rows, array.first_row)
        if array.dictionary is None:
            values = few_copied(values)
        return self._decoder.dense(values, array.dictionary, limits)

    def discard_before(self, row: int) -> None:
        super().discard_before(row)
        if self._last is not None and self._last.stop_row <= row:
            self._last = None


def _runs(pages: Sequence[DataPage | LeafArray | PackedPage]) -> list[_Run]:
    """Decoded pages, and runs of other pages whose rows follow one another."""
    runs: list[_Run] = []
    run: list[DataPage] = []
    size = 0
    for page in pages:
        if isinstance(page, PackedPage):
            page = page.page
        if isinstance(page, LeafArray):
            runs.append(page)
            run = []
        elif run and page.first_row == run[-1].stop_row and size + len(page.data) <= _RUN_BYTES:
            run.append(page)
            size += len(page.data)
        else:
            run = [page]
            runs.append(run)
            size = len(page.data)
    return runs


class StreamedSource:
    """The rows of a leaf that is not repeated and whose page locations are unknown.

    Page headers are decoded as the chunk's bytes come.

    Args:
        decoder: of the leaf.
        chunk: the column chunk.
        num_rows: rows of the row group.
        limits: of the read.
        padded: see :class:`asyncpq.parquet.chunk_pages.PageWalker`.
        keep: called with each page, for later reads that will know the locations.

    Attributes:
        locations: the pages' locations as an OffsetIndex, once the whole chunk has come.
    """

    def __init__(
        self,
        decoder: LeafDecoder,
        chunk: ColumnChunk,
        num_rows: int,
        limits: DecodeLimits,
        *,
        padded: bool = False,
        keep: Callable[[ChunkPage], None] | None = None,
    ) -> None:
        self._pages = PagedSource(decoder, chunk, num_rows)
        self._keep = keep
        self._walker = PageWalker(
            chunk,
            max_page_bytes=limits.max_page_bytes,
            padded=padded,
            verify_crc=limits.verify_crc,
            drop=decoder.drop,
        )
        self._decoder = decoder
        self._chunk = chunk
        self._num_rows = num_rows
        self._limits = limits
        self._next_row = 0
        self._fed = chunk.start
        self._first_page = chunk.start  # the first data page, if only a dictionary stands before it
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._first_rows: list[int] = []
        self.locations: OffsetIndex | None = None

    @property
    def rows_available(self) -> int:
        return self._num_rows if self._fed == self._chunk.stop else self._next_row

    @property
    def pages_decoded(self) -> int:
        return self._pages.pages_decoded

    def feed(self, data: bytes) -> None:
        """Add the chunk's next bytes.

        Raises:
            CorruptFileError: page headers contradict the footer.
        """
        try:
            self._feed(data)
        except AsyncpqError as error:
            raise error.locate(column=self._decoder.leaf.dotted) from error.__cause__

    def _feed(self, data: bytes) -> None:
        for page in self._walker.feed(data):
            if page.header.type == PageType.DICTIONARY_PAGE:
                dictionary = self._pages.add_dictionary(page.data, self._limits)
                self._first_page = page.offset + len(page.data)
                if self._keep is not None:
                    self._keep(ChunkPage(page.offset, page.data, 0, dictionary))
            elif page.header.type != PageType.INDEX_PAGE:
                rows = page.header.num_values
                if rows == 0:
                    continue
                if self._next_row + rows > self._num_rows:
                    raise CorruptFileError(
                        f"pages hold more than the row group's {self._num_rows} rows", column=self._decoder.leaf.dotted
                    )
                self._pages.add(DataPage(page.data, self._next_row, rows))
                if self._keep is not None:
                    self._keep(ChunkPage(page.offset, page.data, self._next_row + rows, None))
                self._offsets.append(page.offset)
                self._sizes.append(len(page.data))
                self._first_rows.append(self._next_row)
                self._next_row += rows
        self._fed += len(data)
        if self._fed == self._chunk.stop:
            self._walker.finish()
            if self._next_row != self._num_rows:
                raise CorruptFileError(
                    f"pages hold {self._next_row} rows, the row group {self._num_rows}",
                    column=self._decoder.leaf.dotted,
                )
            if self._offsets[:1] == [self._first_page]:
                self.locations = OffsetIndex(self._offsets, self._sizes, self._first_rows)

    def select(self, rows: RowRanges, limits: DecodeLimits) -> pa.Array:
        return self._pages.select(rows, limits)

    def discard_before(self, row: int) -> None:
        self._pages.discard_before(row)


class FieldSource:
    """The rows of a top-level field that is not one flat column.

    Leaves with only structs above them have sources of their own. The other leaves come page by page or as whole
    column chunks. Leaves in lists or optional groups are decoded one by one, and so are leaves whose pages hold
    different rows. The merge of all leaves checks them against each other.

    Args:
        version: the file.
        field: a top-level field.
        leaves: the fetched leaves, by ordinal in the schema.
        num_rows: rows of the row group.
        extensions: allowed extension types.
        alone: sources of the leaves that are not among ``leaves``.
        decrypt: of an encrypted file: decodes the whole chunks of some leaves, instead of this class.
    """

    def __init__(
        self,
        version: FileVersion,
        field: Field,
        leaves: Mapping[int, NestedLeaf],
        num_rows: int,
        extensions: frozenset[str],
        alone: Mapping[int, PagedSource | StreamedSource] | None = None,
        *,
        decrypt: Callable[[tuple[int, ...], DecodeLimits], pa.Array] | None = None,
    ) -> None:
        self._version = version
        self._field = field
        self._leaves = leaves
        self._alone = alone or {}
        self._decrypt = decrypt
        self._num_rows = num_rows
        self._extensions = extensions
        self._whole: dict[tuple[tuple[int, ...], bool], pa.Array] = {}  # leaves read as whole chunks, decoded
        self.pages_decoded = 0

    def select(self, rows: RowRanges, limits: DecodeLimits, leaves: Sequence[int] | None = None) -> pa.Array:
        """The values of exactly ``rows``, which have arrived, of the field cut to ``leaves`` (default: all).

        Raises:
            CorruptFileError: pages contradict header, index or footer, or leaves contradict each other.
            ResourceLimitError: the rows would decode to more bytes than allowed.
        """
        try:
            wanted = sorted({*self._leaves, *self._alone}) if leaves is None else leaves
            return self._select(rows, limits, tuple(wanted))
        except AsyncpqError as error:
            raise error.locate(column=self._field.name) from error.__cause__
        except (pa.ArrowException, OverflowError) as error:
            raise typed_error(error, "pages cannot be put together").locate(column=self._field.name) from error

    def _select(self, rows: RowRanges, limits: DecodeLimits, leaves: tuple[int, ...]) -> pa.Array:
        parts: list[PartialField] = []
        for leaf in leaves:
            if leaf in self._alone:
                array = self._alone[leaf].select(rows, limits)
                parts.append(PartialField((leaf,), array))
                limits = limits._replace(max_decoded_bytes=max(0, limits.max_decoded_bytes - held_bytes(array)))
        paged = [leaf for leaf in leaves if leaf in self._leaves and self._leaves[leaf].paged]
        whole = tuple([leaf for leaf in leaves if leaf in self._leaves and not self._leaves[leaf].paged])
        pages = {leaf: self._leaves[leaf].pages_of(rows, limits) for leaf in paged}
        groups = self._groups(pages)
        as_storage = bool(parts) or len(groups) + bool(whole) > 1
        if groups:
            arrays = self._decode(pages, groups, limits, as_storage=as_storage)
            for group, array in zip(groups, arrays, strict=True):
                positions = _positions(rows, pages[group[0]].rows)
                parts.append(PartialField(tuple(group), few_copied(take_rows(array, positions, 0))))
        if whole:
            parts.append(
                PartialField(whole, take_rows(self._whole_chunks(whole, limits, as_storage=as_storage), rows, 0))
            )
        return self._merged(parts, leaves) if as_storage else parts[0].array

    def _groups(self, pages: Mapping[int, LeafPages]) -> list[list[int]]:
        """Leaves that are decoded together: their pages hold the same rows, and :meth:`_alone_in` agrees."""
        groups: dict[tuple[RowRanges, int | None], list[int]] = {}
        for leaf, some in pages.items():
            groups.setdefault((some.rows, self._alone_in(leaf)), []).append(leaf)
        return list(groups.values())

    def _alone_in(self, leaf: int) -> int | None:
        """None if the leaf may be decoded together with others, else the leaf.

        Of leaves decoded together, pyarrow takes the lists and nulls above them from one leaf and does not check
        the others.
        """
        above = self._leaves[leaf].leaf
        optional = above.element.repetition is Repetition.OPTIONAL
        return leaf if above.max_repetition_level or above.max_definition_level > optional else None

    def _merged(self, parts: Sequence[PartialField], leaves: tuple[int, ...], *, as_storage: bool = False) -> pa.Array:
        (field_type,) = field_types(self._version, [self._field.index], self._extensions)
        extensions: frozenset[str] = frozenset() if as_storage else self._extensions
        target = projected_field(self._version, Projection(self._field.index, leaves), extensions)
        return merge(parts, field_type.arrow.type, self._field.first_leaf, target.type)

    def _whole_chunks(self, leaves: tuple[int, ...], limits: DecodeLimits, *, as_storage: bool) -> pa.Array:
        """All rows of leaves that came as whole chunks; decoded once, then kept."""
        array = self._whole.get((leaves, as_storage))
        if array is None:
            if self._decrypt is None:
                array = self._decode_chunks(leaves, limits, as_storage=as_storage)
            else:
                array = self._decrypt(leaves, limits)
                self.pages_decoded += 1
            self._whole[leaves, as_storage] = array
        return array

    def _decode_chunks(self, leaves: tuple[int, ...], limits: DecodeLimits, *, as_storage: bool) -> pa.Array:
        pages = {leaf: self._leaves[leaf].pages_of(RowRanges.all(self._num_rows), limits) for leaf in leaves}
        size = sum(page.header.uncompressed_size for some in pages.values() for page in some.pages)
        if size > limits.max_decoded_bytes:
            raise refuse("a nested column", size, limits.max_decoded_bytes, self._field.name)
        groups = self._groups(pages)
        as_storage = as_storage or len(groups) > 1
        arrays = self._decode(pages, groups, limits, as_storage=as_storage)
        if len(groups) == 1:
            return arrays[0]
        parts = [PartialField(tuple(group), array) for group, array in zip(groups, arrays, strict=True)]
        return self._merged(parts, leaves, as_storage=as_storage)

    def _decode(
        self, pages: Mapping[int, LeafPages], groups: Sequence[Sequence[int]], limits: DecodeLimits, *, as_storage: bool
    ) -> list[pa.Array]:
        """For each group of leaves, whose pages hold the same rows, the field cut to the group.

        ``as_storage`` leaves out extension types, which cannot be made from some of their leaves.
        """
        version, field = self._version, self._field
        (field_type,) = field_types(version, [field.index], self._extensions)
        self._check_size(pages, groups, field_type.arrow.type, limits)
        template = field_template(version, field, self._extensions, as_storage=as_storage)
        columns = self._read(template, pages, groups, limits)
        arrays: list[pa.Array] = []
        for group, column in zip(groups, columns, strict=True):
            rows = pages[group[0]].rows
            if len(column) != rows.num_rows:
                raise PageLocationError(f"pages planned to hold {rows.num_rows} rows hold {len(column)}")
            array = join(column.chunks, column.type)
            for number in group:
                leaf = self._leaves[number]
                pages[number].check_rows(array, field_type.arrow.type, field.first_leaf, group, leaf.leaf)
                if not leaf.paged and own_offset_index(version, leaf.chunk, number) is None:
                    leaf.locations = pages[number].locations(
                        array, field_type.arrow.type, field.first_leaf, group, leaf.leaf
                    )
            arrays.append(array)
        self.pages_decoded += sum([len(some.content.pages) for some in pages.values()])
        return arrays

    def _read(
        self,
        template: FieldTemplate,
        pages: Mapping[int, LeafPages],
        groups: Sequence[Sequence[int]],
        limits: DecodeLimits,
        *,
        as_dictionary: Sequence[str] = (),
    ) -> list[pa.ChunkedArray]:
        """Splice and decode. The footer claims one row more than any leaf holds, so that no leaf is cut short."""
        rows = max(some.rows.num_rows for some in pages.values())
        file = template.splice({leaf: some.content for leaf, some in pages.items()}, num_rows=rows + 1)
        first = self._field.first_leaf
        return read_leaves(
            file,
            [[leaf - first for leaf in group] for group in groups],
            verify_crc=limits.verify_crc,
            as_dictionary=as_dictionary,
            int96_unit=template.int96_unit,
        )

    # -- sizes ------------------------------------------------------------------------------------

    def _check_size(
        self,
        pages: Mapping[int, LeafPages],
        groups: Sequence[Sequence[int]],
        kind: pa.DataType,
        limits: DecodeLimits,
    ) -> None:
        """Check the size of pages before they are decoded."""
        limit = limits.max_decoded_bytes
        kinds = leaf_types(kind)
        first = self._field.first_leaf
        if len(kinds) != self._field.leaf_stop - first:
            raise UnsupportedFeatureError(
                f"pyarrow gives {len(kinds)} leaves to a field that has {self._field.leaf_stop - first}"
            )
        proven = possible = 0
        for number, some in pages.items():
            leaf = self._leaves[number].leaf
            content = some.content
            chunk = content.chunk._replace(num_values=content.num_values)
            try:
                bounds = leaf_bounds(leaf, chunk, some.pages, *kinds[number - first], limit)
            except AsyncpqError as error:
                raise error.locate(column=leaf.dotted) from error.__cause__
            proven += bounds[0]
            possible += bounds[1]
            if proven > limit:
                raise refuse("the pages of a nested column in one row group", proven, limit, leaf.dotted)
        if proven + possible > limit:
            self._check_exactly(pages, groups, limits)

    def _check_exactly(
        self, pages: Mapping[int, LeafPages], groups: Sequence[Sequence[int]], limits: DecodeLimits
    ) -> None:
        """Measure the decoded size: decode with dictionaries kept and lists as plain lists.

        pyarrow gives no dictionaries for pages of deltas, which writers use once a dictionary is full. A leaf with
        both is measured apart: its pages of indices are decoded, and its other pages bounded by their sizes.
        """
        indexed = [number for number, some in pages.items() if some.indexed]
        mixed = {number for number in indexed if pages[number].mixed}
        paths = [self._leaves[number].leaf.dotted for number in indexed]
        if len(set(paths)) != len(paths):
            raise UnsupportedFeatureError("a large nested column with two leaves of one name")
        template = field_template(self._version, self._field, self._extensions, bare=True)
        shown = {number: some.only_indexed() if number in mixed else some for number, some in pages.items()}
        apart = [[number for number in group if number not in mixed] for group in groups]
        asked = [group for group in apart if group] + [[number] for number in mixed]
        columns = self._read(template, shown, asked, limits, as_dictionary=paths)
        size = sum(self._largest_size_of_deltas(number, pages[number], limits) for number in mixed)
        for group, column in zip(asked, columns, strict=True):
            projection = Projection(self._field.index, tuple(group))
            kind = projected_field(self._version, projection, frozenset()).type
            size += sum(nested_bytes(array, kind) for array in column.chunks)
        if size > limits.max_decoded_bytes:
            what = "the pages of a nested column in one row group"
            raise refuse(what, size, limits.max_decoded_bytes, self._field.name)

    def _largest_size_of_deltas(self, number: int, some: LeafPages, limits: DecodeLimits) -> int:
        """An upper bound of the bytes that a leaf's data pages without dictionary indices decode to."""
        (field_type,) = field_types(self._version, [self._field.index], self._extensions)
        leaf = self._leaves[number].leaf
        rest = [page for page in some.pages if page.header.is_data and not is_indexed(page)]
        chunk = some.content.chunk._replace(num_values=sum(page.header.num_values for page in rest))
        of_leaf = leaf_types(field_type.arrow.type)[number - self._field.first_leaf]
        return sum(leaf_bounds(leaf, chunk, rest, *of_leaf, limits.max_decoded_bytes))

    def discard_before(self, row: int) -> None:
        """Release the rows before ``row``."""
        if row >= self._num_rows:
            self._whole.clear()


def _positions(rows: RowRanges, held: RowRanges) -> RowRanges:
    """The positions of ``rows`` among the rows of ``held``, a superset."""
    if held.num_ranges == 1:
        return rows.shift(-held.start)
    before = [0, *accumulate(map(int.__sub__, held.stops, held.starts))]
    positions: list[tuple[int, int]] = []
    for start, stop in rows:
        while start < stop:
            index = bisect_right(held.starts, start) - 1
            shift = before[index] - held.starts[index]
            end = min(stop, held.stops[index])
            positions.append((start + shift, end + shift))
            start = end
    return RowRanges.from_sorted(positions)
