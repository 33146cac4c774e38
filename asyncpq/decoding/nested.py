"""One leaf of a nested field in one row group: what was fetched of its column chunk, and its pages.

Parts of a nested column put together: the same rows of the same field, read leaf by leaf.

Every part has the lists, structs and nulls above its leaves, as pyarrow gives them for these leaves alone.
Where two parts share a list or a struct, both must say the same of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import join, leaf_types, stored_as
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.page import DataPage, PageQueue, check_crc_alike, page_header
from asyncpq.decoding.splice import ENCODING_PLAIN, LeafContent
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.parquet.chunk_pages import WRONG_NUM_ROWS, PageHeader, PageWalker, header_contradiction
from asyncpq.parquet.chunk_pages import RawPage as WholePage
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, ColumnChunk, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.page_index import OffsetIndex, PageLocationError
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.row_ranges import RowRanges


class PartialField(NamedTuple):
    """Some leaves of a field.

    Attributes:
        leaves: their ordinals in the file's schema, ascending.
        array: the rows, as pyarrow gives the field cut to these leaves.
    """

    leaves: tuple[int, ...]
    array: pa.Array


def merge(
    parts: Sequence[PartialField],
    whole: pa.DataType,
    first_leaf: int,
    target: pa.DataType,
    seen: pa.BooleanArray | None = None,
) -> pa.Array:
    """One array of all parts' leaves.

    Args:
        parts: the same rows of one field; no leaf is in two of them.
        whole: type of the field with all its leaves.
        first_leaf: ordinal of the first of them.
        target: type of the field cut to the leaves of all parts.
        seen: false where something above the field is null; None for nowhere. What is there means nothing,
            and pyarrow fills it in one way or another.

    Raises:
        CorruptFileError: the parts have other lists or other nulls where they share some.
    """
    array = parts[0].array
    if len(parts) == 1 and array.type == target:
        return array
    whole = stored_as(whole)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, merge(parts, whole, first_leaf, target.storage_type, seen))
    if pa.types.is_struct(whole):
        return _merge_structs(parts, whole, first_leaf, target, seen)
    if pa.types.is_fixed_size_list(whole):
        return _merge_fixed_size_lists(parts, whole, first_leaf, target, seen)
    if is_view(whole):
        return _merge_lists(
            [PartialField(leaves, without_view(array)) for leaves, array in parts], whole, first_leaf, target, seen
        )
    if pa.types.is_nested(whole):
        return _merge_lists(parts, whole, first_leaf, target, seen)
    return array


def _merge_structs(
    parts: Sequence[PartialField],
    whole: pa.DataType,
    first_leaf: int,
    target: pa.DataType,
    seen: pa.BooleanArray | None,
) -> pa.Array:
    inner = _check_nulls(parts, seen)
    children: list[pa.Array] = []
    taken = [0] * len(parts)  # children of each part that were used
    for at in range(whole.num_fields):
        kind = whole.field(at).type
        stop = first_leaf + len(leaf_types(kind))
        inside: list[PartialField] = []
        for number, (leaves, array) in enumerate(parts):
            some = tuple([leaf for leaf in leaves if first_leaf <= leaf < stop])
            if some:
                inside.append(PartialField(some, array.field(taken[number])))
                taken[number] += 1
        if inside:
            children.append(merge(inside, kind, first_leaf, target.field(len(children)).type, inner))
        first_leaf = stop
    return _rebuilt(target, parts[0].array, [], children)


def _merge_lists(
    parts: Sequence[PartialField],
    whole: pa.DataType,
    first_leaf: int,
    target: pa.DataType,
    seen: pa.BooleanArray | None,
) -> pa.Array:
    """Lists and maps; a map without its keys or values is a list."""
    _check_nulls(parts, seen)
    offsets = _offsets(parts[0].array)
    inside = [PartialField(leaves, elements(array)) for leaves, array in parts]
    for _, array in parts[1:]:
        if not _offsets(array).equals(offsets):
            raise CorruptFileError("leaves of one list have lists of other lengths")
    kind, wanted = (_element_type(each) for each in (whole, target))
    buffers = [offsets.buffers()[1]]
    if is_view(target):  # the same offsets, and sizes beside them
        buffers.append(pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1)).buffers()[1])
    return _rebuilt(target, parts[0].array, buffers, [merge(inside, kind, first_leaf, wanted)])


def _merge_fixed_size_lists(
    parts: Sequence[PartialField],
    whole: pa.DataType,
    first_leaf: int,
    target: pa.DataType,
    seen: pa.BooleanArray | None,
) -> pa.Array:
    inner = _check_nulls(parts, seen)
    if inner is not None:  # a null takes as much room as a list
        inner = inner.take(pa.array([at for at in range(len(inner)) for _ in range(whole.list_size)], pa.int64()))
    inside = [PartialField(leaves, elements(array)) for leaves, array in parts]
    child = merge(inside, whole.value_type, first_leaf, target.value_type, inner)
    return _rebuilt(target, parts[0].array, [], [child])


def _rebuilt(
    target: pa.DataType, like: pa.Array, buffers: Sequence[pa.Buffer], children: Sequence[pa.Array]
) -> pa.Array:
    """An array of ``target`` with the nulls of ``like``."""
    validity = pc.is_valid(like).buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(target, len(like), [validity, *buffers], children=list(children))


def _check_nulls(parts: Sequence[PartialField], seen: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Where neither the group that all parts share nor anything above it is null; None for everywhere."""
    found: list[pa.BooleanArray | None] = []
    for _, array in parts:
        if len(array) != len(parts[0].array):
            raise CorruptFileError(f"leaves of one group have {len(parts[0].array)} and {len(array)} values")
        valid = pc.is_valid(array) if array.null_count else None
        if valid is None or seen is None:
            valid = seen if valid is None else valid
        else:
            valid = pc.and_(valid, seen)
        found.append(None if valid is None or valid.true_count == len(valid) else valid)
    first = found[0]
    if any((valid is None) != (first is None) or not (valid is None or valid.equals(first)) for valid in found):
        raise CorruptFileError("leaves of one group disagree about where it is null")
    return first


def _element_type(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type


def _offsets(array: pa.Array) -> pa.Array:
    """Where each list of ``array`` begins among :func:`elements`, and where the last one ends."""
    offsets = array.offsets
    return pc.subtract(offsets, offsets[0])


def elements(array: pa.Array) -> pa.Array:
    """The elements of an array of lists or maps of any kind, those of its slots only."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return array.values.slice(first, last - first)


def is_view(kind: pa.DataType) -> bool:
    """Whether lists of ``kind`` say where they begin and how long they are, in any order."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def without_view(array: pa.Array) -> pa.Array:
    """An array of list views as one of lists."""
    kind = array.type
    plain = pa.list_(kind.value_field) if pa.types.is_list_view(kind) else pa.large_list(kind.value_field)
    none = pa.scalar(0, array.sizes.type)
    sizes = pc.if_else(pc.is_valid(array), array.sizes, none) if array.null_count else array.sizes
    ends = pc.cumulative_sum(sizes)
    offsets = pa.concat_arrays([pa.array([0], sizes.type), ends])
    first = array.offsets[0].as_py() if len(array) else 0
    total = ends[-1].as_py() if len(array) else 0
    starts = pc.add(offsets.slice(0, len(array)), pa.scalar(first, sizes.type))
    in_order = pc.or_(pc.equal(sizes, none), pc.equal(array.offsets, starts))
    if pc.all(in_order).as_py():
        values = array.values.slice(first, total)
    else:
        spans = zip(array.offsets.to_pylist(), sizes.to_pylist(), strict=True)
        values = join([array.values.slice(start, size) for start, size in spans], kind.value_type)
    return _rebuilt(plain, array, [offsets.buffers()[1]], [values])


# -- levels -----------------------------------------------------------------------------------------


def num_levels(array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: int) -> pa.Array:
    """How many values, nulls and empty lists included, a leaf has in each row (int64).

    Args:
        array: the field cut to ``leaves``, of which ``leaf`` is one.
        whole, first_leaf: as for :func:`merge`.
    """
    counts = _num_levels(array, whole, first_leaf, leaves, leaf)
    return pa.repeat(pa.scalar(1, pa.int64()), len(array)) if counts is None else counts


def _num_levels(
    array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: int
) -> pa.Array | None:
    """The same; None for one in every row."""
    whole = stored_as(whole)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_struct(whole):
        present = 0
        for at in range(whole.num_fields):
            kind = whole.field(at).type
            stop = first_leaf + len(leaf_types(kind))
            if leaf < stop:
                return _num_levels(array.field(present), kind, first_leaf, leaves, leaf)
            present += any(first_leaf <= each < stop for each in leaves)
            first_leaf = stop
    if not pa.types.is_nested(whole):
        return None
    if is_view(whole):
        array = without_view(array)
    inside = _num_levels(elements(array), _element_type(whole), first_leaf, leaves, leaf)
    if pa.types.is_fixed_size_list(whole):
        size = whole.list_size
        ends = pa.array(range(0, (len(array) + 1) * size, size) if size else [0] * (len(array) + 1), pa.int64())
    else:
        ends = _offsets(array).cast(pa.int64())
    if inside is not None:
        sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(inside)])
        ends = sums.take(ends)
    counts = pc.max_element_wise(pc.subtract(ends.slice(1), ends.slice(0, len(array))), 1)
    return pc.if_else(pc.is_valid(array), counts, 1) if array.null_count else counts


_DICTIONARY_OR_PLAIN: Final = DICTIONARY_ENCODINGS | {ENCODING_PLAIN}


def is_indexed(page: WholePage) -> bool:
    """Whether it is a data page of indices into a dictionary."""
    return page.header.is_data and page.header.encoding in DICTIONARY_ENCODINGS


class LeafPages(NamedTuple):
    """Pages of one leaf that are to be decoded together.

    Attributes:
        content: for the spliced file.
        pages: the same with headers, the dictionary page first where there is one.
        rows: rows of the row group that they hold.
        stops: of several pages of a repeated leaf: how many rows must have ended with each. V1 pages do not
            say it, and what V2 pages say is held to what is in them.
    """

    content: LeafContent
    pages: tuple[WholePage, ...]
    rows: RowRanges
    stops: tuple[int, ...]

    @property
    def indexed(self) -> bool:
        """Whether there are byte arrays that stand as indices into a dictionary."""
        is_text = self.content.chunk.physical_type == PhysicalType.BYTE_ARRAY
        return is_text and any(is_indexed(page) for page in self.pages)

    @property
    def mixed(self) -> bool:
        """Whether there are pages of neither dictionary indices nor PLAIN values."""
        return any(page.header.is_data and page.header.encoding not in _DICTIONARY_OR_PLAIN for page in self.pages)

    def only_indexed(self) -> LeafPages:
        """The same without pages of other encodings than indices into the dictionary; for their values alone."""
        kept = [page for page in self.pages if not page.header.is_data or is_indexed(page)]
        data = [page for page in kept if page.header.is_data and page.header.num_values]
        values = sum([page.header.num_values for page in data])
        content = self.content._replace(pages=[page.data for page in data], num_values=values)
        return self._replace(content=content, pages=tuple(kept), stops=())

    def check_rows(
        self, array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: Leaf
    ) -> None:
        """Hold the rows of each page to the planned ones.

        Args:
            array: all rows of the pages, decoded; the other arguments: see ``num_levels``.

        Raises:
            CorruptFileError: a page holds more or fewer rows, or begins inside one.
        """
        if not self.stops:
            return
        counts = pc.cumulative_sum(num_levels(array, whole, first_leaf, leaves, leaf.index))
        found = counts.take(pa.array([stop - 1 for stop in self.stops], pa.int64())).to_pylist()
        wanted = 0
        for page, at in zip([page for page in self.pages if page.header.is_data], found, strict=True):
            wanted += page.header.num_values
            if wanted != at:
                raise PageLocationError("a page holds other rows than the OffsetIndex says", column=leaf.dotted)

    def locations(
        self, array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: Leaf
    ) -> OffsetIndex | None:
        """Where the pages of a whole chunk are; None if one begins inside a row, by what was decoded.

        Args:
            array: all rows of the chunk, decoded; the other arguments: see ``num_levels``.
        """
        start = self.content.chunk.start + len(self.content.dictionary)
        data = [page for page in self.pages if page.header.is_data and page.header.num_values]
        if not data or data[0].offset != start:
            return None  # what stands before the first data page would be taken for the dictionary
        ends = pc.cumulative_sum(num_levels(array, whole, first_leaf, leaves, leaf.index))
        stops = pa.array(accumulate([page.header.num_values for page in data]), pa.int64())
        last_rows = pc.index_in(stops, ends).to_pylist()
        if None in last_rows:
            return None
        first_rows = [0, *(row + 1 for row in last_rows[:-1])]
        return OffsetIndex([page.offset for page in data], [len(page.data) for page in data], first_rows)


class NestedLeaf(PageQueue[DataPage]):
    """Takes the pages of a leaf, or the parts of its whole chunk, as they come.

    Args:
        leaf, chunk: which.
        num_rows: of the row group.
        paged: pages come one by one; else the whole chunk in parts.
        padded, drop: see :class:`asyncpq.parquet.chunk_pages.PageWalker`.
    """

    def __init__(
        self,
        leaf: Leaf,
        chunk: ColumnChunk,
        num_rows: int,
        *,
        paged: bool,
        padded: bool = False,
        drop: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(num_rows)
        self.leaf = leaf
        self.chunk = chunk
        self.paged = paged
        self._padded = padded
        self._drop = drop
        self._dictionary: bytes | None = None
        self.parts: list[bytes] = []
        self._missing = chunk.stop - chunk.start
        self._has_crc: dict[int, bool] = {}  # see check_crc_alike
        self.locations: OffsetIndex | None = None  # of a whole chunk, once they are known from decoded levels
        self.pages_decoded = 0  # they are counted where they are decoded, with those of other leaves

    @property
    def rows_available(self) -> int:
        """Rows from the row group's start that can be decoded with what has arrived."""
        if self.paged:
            return super().rows_available
        return 0 if self._missing else self._num_rows

    # -- what arrives -----------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """The next bytes of the whole chunk."""
        self.parts.append(data)
        self._missing -= len(data)

    def add_dictionary(self, page: bytes, limits: DecodeLimits) -> None:
        """The dictionary page has come; it is decoded with the pages that need it."""
        self._dictionary = page

    @property
    def has_dictionary(self) -> bool:
        return self._dictionary is not None

    # -- what comes out ---------------------------------------------------------------------------

    def pages_of(self, rows: RowRanges, limits: DecodeLimits) -> LeafPages:
        """The pages that hold any of ``rows``; all of a whole chunk.

        Raises:
            CorruptFileError: a page is not what header, index or footer say of it.
            ResourceLimitError: a page claims to be larger than allowed.
        """
        try:
            return self._some_pages(rows, limits) if self.paged else self._all_pages(limits)
        except AsyncpqError as error:
            raise error.locate(column=self.leaf.dotted) from error.__cause__

    def _all_pages(self, limits: DecodeLimits) -> LeafPages:
        chunk = self.chunk
        if chunk.num_values < self._num_rows:
            raise CorruptFileError(f"a column chunk of {chunk.num_values} values in {self._num_rows} rows")
        walker = PageWalker(
            chunk,
            leaf=self.leaf,
            max_page_bytes=limits.max_page_bytes,
            padded=self._padded,
            verify_crc=limits.verify_crc,
            drop=self._drop,
        )
        pages = walker.feed(b"".join(self.parts))
        walker.finish()
        return self._leaf_pages(pages, RowRanges.all(self._num_rows), ())

    def _some_pages(self, rows: RowRanges, limits: DecodeLimits) -> LeafPages:
        chosen = self.holding(rows)
        limit = limits.max_page_bytes
        headers = [page_header(page.data, self.chunk, self.leaf, limit, page.header) for page in chosen]
        for page, header in zip(chosen, headers, strict=True):
            self._check_rows(page, header)
            if limits.verify_crc:
                check_crc_alike(self._has_crc, header, self.chunk, self.leaf)
        pages = [WholePage(header, 0, page.data) for header, page in zip(headers, chosen, strict=True)]
        if self._dictionary is not None and any(header.encoding in DICTIONARY_ENCODINGS for header in headers):
            header = page_header(self._dictionary, self.chunk, self.leaf, limit)
            if header.is_data:
                raise PageLocationError(f"a {header.type.name} where the dictionary page belongs")
            pages.insert(0, WholePage(header, 0, self._dictionary))
        stops: list[int] = []
        if self.leaf.max_repetition_level and len(chosen) > 1:
            for page in chosen:
                stops.append(page.num_rows + (stops[-1] if stops else 0))
        held = RowRanges.from_sorted([(page.first_row, page.stop_row) for page in chosen])
        return self._leaf_pages(pages, held, stops)

    def _leaf_pages(self, pages: Sequence[WholePage], rows: RowRanges, stops: Sequence[int]) -> LeafPages:
        # pyarrow takes a page without values for the end of the rows; its writer makes such of booleans
        data = [page for page in pages if page.header.is_data and page.header.num_values]
        dictionary = b"".join([page.data for page in pages if page.header.type is PageType.DICTIONARY_PAGE])
        values = sum([page.header.num_values for page in data])
        content = LeafContent(self.chunk, dictionary, [page.data for page in data], values)
        return LeafPages(content, tuple(pages), rows, tuple(stops))

    def _check_rows(self, page: DataPage, header: PageHeader) -> None:
        """Hold a header to the planned rows, as far as it tells them; what a V2 header says of rows is not used.

        The rows of a repeated leaf's pages are those that were decoded: see ``LeafPages.check_rows``.
        """
        if not header.is_data:
            raise PageLocationError(f"a {header.type.name} where a data page belongs")
        repeated = self.leaf.max_repetition_level > 0
        if header.num_values < page.num_rows or (not repeated and header.num_values != page.num_rows):
            raise PageLocationError(
                f"the page of rows {page.first_row}-{page.stop_row - 1} holds {header.num_values} values"
            )
        what = header_contradiction(header, self.chunk, repeated=repeated)
        if what is None and header.num_rows not in (None, page.num_rows):
            what = WRONG_NUM_ROWS
        if what is not None and self._drop is not None:
            self._drop(what)
