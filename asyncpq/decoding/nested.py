"""The leaf columns of a nested field: the fetched pages of one, and the merge of several that were decoded separately.

``NestedLeaf`` collects the pages of a leaf in one row group. ``merge`` joins partial fields, which hold the same rows
of the same field. Each has the lists, structs and nulls above its leaves, as pyarrow gives them for these leaves alone;
two partial fields must agree about the lists and structs that they share.

Pages of a repeated leaf are used one by one only if each begins with a row. An OffsetIndex promises that, unless the
writer is known to break it (``Claim.PAGE_ROWS``); decoded levels show it. V1 pages do not state their rows, V2 pages
may state wrong ones: so the levels of the decoded rows are counted and compared with each header's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import child_leaves, flattened, plain_array, plain_scalar, stored_as
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.page import DataPage, PageQueue, check_crc_alike, page_header
from asyncpq.decoding.splice import LeafContent
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.parquet.chunk_pages import WRONG_NUM_ROWS, PageHeader, PageWalker, RawPage, header_contradiction
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, ColumnChunk, Encoding, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.page_index import OffsetIndex, PageLocationError
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.row_ranges import RowRanges


class PartialField(NamedTuple):
    """Some rows of a nested field, cut to some of its leaf columns."""

    leaves: tuple[int, ...]  # their ordinals in the file's schema, ascending
    array: pa.Array  # the rows, as pyarrow gives the field cut to these leaves


def merge(
    parts: Sequence[PartialField],
    whole: pa.DataType,
    first_leaf: int,
    target: pa.DataType,
    seen: pa.BooleanArray | None = None,
) -> pa.Array:
    """Merge partial fields to one array. Raises CorruptFileError if they disagree about lists or nulls that they share.

    Args:
        parts: the same rows of one field; no leaf is in two parts.
        whole: the type of the field with all its leaves.
        first_leaf: the ordinal of the field's first leaf.
        target: the type of the field cut to the leaves of all parts.
        seen: false where a group above the field is null, so that values are undefined; None if no group is null.
    """
    array = parts[0].array
    if len(parts) == 1 and array.type == target:
        return array
    whole = stored_as(whole)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, merge(parts, whole, first_leaf, target.storage_type, seen))
    if not pa.types.is_nested(whole):
        return array
    inner = _check_nulls(parts, seen)
    if pa.types.is_struct(whole):
        return _rebuilt(target, array, [], _merged_children(parts, whole, first_leaf, target, inner))
    if is_view(whole):
        parts = [PartialField(leaves, without_view(views)) for leaves, views in parts]
    buffers: list[pa.Buffer] = []
    if not pa.types.is_fixed_size_list(whole):
        inner = None  # null lists have no elements
        buffers = _list_buffers(parts, target)
    elif inner is not None:  # a null takes as much room as a list
        inner = inner.take(
            plain_array([index for index in range(len(inner)) for _ in range(whole.list_size)], pa.int64())
        )
    inside = [PartialField(leaves, elements(lists)) for leaves, lists in parts]
    child = merge(inside, _element_type(whole), first_leaf, _element_type(target), inner)
    if pa.types.is_map(target) and child.offset:  # pyarrow takes keys and values from the start of the structs' fields
        child = _rebuilt(child.type, child, [], [child.field(index) for index in range(child.type.num_fields)])
    return _rebuilt(target, parts[0].array, buffers, [child])


def _merged_children(
    parts: Sequence[PartialField],
    whole: pa.StructType,
    first_leaf: int,
    target: pa.StructType,
    seen: pa.BooleanArray | None,
) -> list[pa.Array]:
    """Merge the children of structs, and return one array for each child of ``target``. The arguments are those of
    :func:`merge`."""
    children: list[pa.Array] = []
    taken = [0] * len(parts)  # children of each part that were used
    for child, span in zip(whole, child_leaves(whole, first_leaf), strict=True):
        inside: list[PartialField] = []
        for number, (leaves, array) in enumerate(parts):
            selected = tuple([leaf for leaf in leaves if leaf in span])
            if selected:
                inside.append(PartialField(selected, array.field(taken[number])))
                taken[number] += 1
        if inside:
            children.append(merge(inside, child.type, span.start, target.field(len(children)).type, seen))
    return children


def _list_buffers(parts: Sequence[PartialField], target: pa.DataType) -> list[pa.Buffer]:
    """Return the offset buffer (and the size buffer, for views) of the lists or maps that all parts share. Raises
    CorruptFileError if they differ."""
    offsets = _offsets(parts[0].array)
    if any(not _offsets(array).equals(offsets) for _, array in parts[1:]):
        raise CorruptFileError("the leaves of a list column disagree about the lengths of the lists")
    buffers = [offsets.buffers()[1]]
    if is_view(target):
        buffers.append(pc.subtract(offsets.slice(1), offsets.slice(0, len(offsets) - 1)).buffers()[1])
    return buffers


def _rebuilt(
    target: pa.DataType, like: pa.Array, buffers: Sequence[pa.Buffer], children: Sequence[pa.Array]
) -> pa.Array:
    """Return an array of type ``target`` with these buffers and children, and with the nulls of ``like``."""
    validity = pc.is_valid(like).buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(target, len(like), [validity, *buffers], children=list(children))


def _check_nulls(parts: Sequence[PartialField], seen: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Return a mask that is true where neither the parts' group nor a group above is null; None if always true.

    Raises CorruptFileError if the parts disagree about where their group is null.
    """
    masks: list[pa.BooleanArray | None] = []
    for _, array in parts:
        if len(array) != len(parts[0].array):
            raise CorruptFileError(
                f"the leaves of a group have different numbers of values: {len(parts[0].array)}, {len(array)}"
            )
        valid = pc.is_valid(array) if array.null_count else None
        if valid is None or seen is None:
            valid = seen if valid is None else valid
        else:
            valid = pc.and_(valid, seen)
        masks.append(None if valid is None or valid.true_count == len(valid) else valid)
    first = masks[0]
    if any((valid is None) != (first is None) or not (valid is None or valid.equals(first)) for valid in masks):
        raise CorruptFileError("the leaves of a group disagree about the rows in which the group is null")
    return first


def _element_type(type_: pa.DataType) -> pa.DataType:
    return pa.struct([type_.key_field, type_.item_field]) if pa.types.is_map(type_) else type_.value_type


def _offsets(array: pa.Array) -> pa.Array:
    """Return the offset of each list of ``array`` among its :func:`elements`, and the end of the last list."""
    offsets = array.offsets
    return pc.subtract(offsets, offsets[0])


def elements(array: pa.Array) -> pa.Array:
    """Return the elements of an array of lists or maps, without elements outside the array's slice."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return array.values.slice(first, last - first)


def is_view(type_: pa.DataType) -> bool:
    """Return whether ``type_`` is a list view, in which each list has an offset and a size, in any order."""
    return bool(pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_))


def without_view(array: pa.Array) -> pa.Array:
    """Convert an array of list views to an array of lists."""
    type_ = array.type
    plain = pa.list_(type_.value_field) if pa.types.is_list_view(type_) else pa.large_list(type_.value_field)
    values, offsets = flattened(array, array.sizes.type)
    return _rebuilt(plain, array, [offsets.buffers()[1]], [values])


# -- levels -----------------------------------------------------------------------------------------


def num_levels(array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: int) -> pa.Array:
    """Return how many values, nulls and empty lists included, a leaf column has in each row (int64).

    ``array`` is the field cut to the leaf columns ``leaves``, of which ``leaf`` is one (ordinals). ``whole`` and
    ``first_leaf`` are explained in :func:`merge`.
    """
    counts = _num_levels(array, whole, first_leaf, leaves, leaf)
    return pa.repeat(plain_scalar(1, pa.int64()), len(array)) if counts is None else counts


def _num_levels(
    array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: int
) -> pa.Array | None:
    """Do what :func:`num_levels` does, but return None if the leaf has one value in every row."""
    whole = stored_as(whole)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_struct(whole):
        present = 0
        for child, span in zip(whole, child_leaves(whole, first_leaf), strict=True):
            if leaf in span:
                return _num_levels(array.field(present), child.type, span.start, leaves, leaf)
            present += any(each in span for each in leaves)
    if not pa.types.is_nested(whole):
        return None
    if is_view(whole):
        array = without_view(array)
    inside = _num_levels(elements(array), _element_type(whole), first_leaf, leaves, leaf)
    if pa.types.is_fixed_size_list(whole):
        size = whole.list_size
        ends = plain_array(range(0, (len(array) + 1) * size, size) if size else [0] * (len(array) + 1), pa.int64())
    else:
        ends = _offsets(array).cast(pa.int64())
    if inside is not None:
        sums = pa.concat_arrays([plain_array([0], pa.int64()), pc.cumulative_sum(inside)])
        ends = sums.take(ends)
    one = plain_scalar(1, pa.int64())
    counts = pc.max_element_wise(pc.subtract(ends.slice(1), ends.slice(0, len(array))), one)
    return pc.if_else(pc.is_valid(array), counts, one) if array.null_count else counts


_DICTIONARY_OR_PLAIN: Final = DICTIONARY_ENCODINGS | {Encoding.PLAIN}


def is_indexed(page: RawPage) -> bool:
    """Return whether ``page`` is a data page of indices into a dictionary."""
    return page.header.is_data and page.header.encoding in DICTIONARY_ENCODINGS


class LeafPages(NamedTuple):
    """Pages of one leaf column that are to be decoded together.

    ``stops`` has, for several pages of a repeated leaf, the number of rows up to each page's end. V1 pages do not state
    this number, and the numbers in V2 pages are checked against the decoded rows.
    """

    content: LeafContent  # for the spliced file
    pages: tuple[RawPage, ...]  # the same with headers, the dictionary page first if there is one
    rows: RowRanges  # rows of the row group that they hold
    stops: tuple[int, ...]

    @property
    def indexed(self) -> bool:
        """Whether any page has byte arrays as indices into a dictionary."""
        is_text = self.content.chunk.physical_type == PhysicalType.BYTE_ARRAY
        return is_text and any(is_indexed(page) for page in self.pages)

    @property
    def mixed(self) -> bool:
        """Whether any page has another encoding than dictionary indices or PLAIN."""
        return any(page.header.is_data and page.header.encoding not in _DICTIONARY_OR_PLAIN for page in self.pages)

    def readable(self, leaf: Leaf, *, verify_crc: bool) -> LeafContent:
        """Return the content for pyarrow, which does not read ALP: such pages become PLAIN. Raises CorruptFileError or
        UnsupportedFeatureError if one is malformed or of an unknown mode."""
        content, codec = self.content, self.content.chunk.codec
        data = [page for page in self.pages if page.header.is_data and page.header.num_values]
        if all(page.header.encoding != Encoding.ALP for page in data):
            return content
        from asyncpq.decoding import alp  # few files need it

        plain = [
            alp.as_plain(page.data, page.header, leaf, codec, verify_crc=verify_crc)
            if page.header.encoding == Encoding.ALP
            else page.data
            for page in data
        ]
        return content._replace(pages=plain)

    def only_indexed(self) -> LeafPages:
        """Return only the dictionary page and the pages of dictionary indices."""
        kept = [page for page in self.pages if not page.header.is_data or is_indexed(page)]
        data = [page for page in kept if page.header.is_data and page.header.num_values]
        values = sum([page.header.num_values for page in data])
        content = self.content._replace(pages=[page.data for page in data], num_values=values)
        return self._replace(content=content, pages=tuple(kept), stops=())

    def check_rows(
        self, array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: Leaf
    ) -> None:
        """Raise PageLocationError if a page has other rows than planned, or begins inside a row.

        ``array`` has all decoded rows of the pages. The other arguments are those of :func:`num_levels`.
        """
        if not self.stops:
            return
        counts = pc.cumulative_sum(num_levels(array, whole, first_leaf, leaves, leaf.index))
        decoded = counts.take(plain_array([stop - 1 for stop in self.stops], pa.int64())).to_pylist()
        claimed = 0
        for page, num_values in zip([page for page in self.pages if page.header.is_data], decoded, strict=True):
            claimed += page.header.num_values
            if claimed != num_values:
                raise PageLocationError(
                    "the rows of a page are not those that the OffsetIndex gives", column=leaf.dotted
                )

    def locations(
        self, array: pa.Array, whole: pa.DataType, first_leaf: int, leaves: Sequence[int], leaf: Leaf
    ) -> OffsetIndex | None:
        """Return the page locations of a whole chunk, computed from its decoded rows ``array``; None if a page begins
        inside a row. The other arguments are those of :func:`num_levels`."""
        start = self.content.chunk.start + len(self.content.dictionary)
        data = [page for page in self.pages if page.header.is_data and page.header.num_values]
        if not data or data[0].offset != start:
            return None  # bytes before the first data page would be taken for the dictionary
        ends = pc.cumulative_sum(num_levels(array, whole, first_leaf, leaves, leaf.index))
        stops = plain_array(list(accumulate([page.header.num_values for page in data])), pa.int64())
        # The sums ascend. The other way around, to look up the stops, takes a table of all rows: 256 MiB for a million.
        last_rows = pc.indices_nonzero(pc.is_in(ends, stops)).to_pylist()
        if len(last_rows) != len(stops):
            return None
        first_rows = [0, *(row + 1 for row in last_rows[:-1])]
        return OffsetIndex(
            tuple([page.offset for page in data]), tuple([len(page.data) for page in data]), tuple(first_rows)
        )


class NestedLeaf(PageQueue[DataPage]):
    """Collects what is fetched of a leaf column: its pages if ``paged``, else the bytes of its whole chunk.

    ``padded`` and ``drop`` are explained in :class:`asyncpq.parquet.chunk_pages.PageWalker`.
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
        self.parts: list[bytes | memoryview] = []
        self._missing = chunk.stop - chunk.start
        self._has_crc: dict[int, bool] = {}  # see check_crc_alike
        self.locations: OffsetIndex | None = None  # of a whole chunk, once they are known from decoded levels
        self.pages_decoded = 0  # they are counted where they are decoded, with those of other leaves

    @property
    def rows_available(self) -> int:
        """The number of the row group's first rows whose pages have all arrived."""
        if self.paged:
            return super().rows_available
        return 0 if self._missing else self._num_rows

    # -- input -----------------------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the whole chunk."""
        self.parts.append(data)
        self._missing -= len(data)

    def add_dictionary(self, page: bytes, limits: DecodeLimits) -> None:
        """Add the dictionary page; it is decoded with the pages that need it."""
        self._dictionary = page

    @property
    def has_dictionary(self) -> bool:
        return self._dictionary is not None

    # -- output ---------------------------------------------------------------------------

    def pages_of(self, rows: RowRanges, limits: DecodeLimits) -> LeafPages:
        """Return the pages that contain any of ``rows``; all pages if the leaf is read as a whole chunk.

        Raises CorruptFileError if a page contradicts header, index or footer, ResourceLimitError for too large pages.
        """
        try:
            return self._some_pages(rows, limits) if self.paged else self._all_pages(limits)
        except AsyncpqError as error:
            raise error.locate(column=self.leaf.dotted) from error.__cause__

    def _all_pages(self, limits: DecodeLimits) -> LeafPages:
        chunk = self.chunk
        if chunk.num_values < self._num_rows:
            raise CorruptFileError(f"a column chunk has {chunk.num_values} values, too few for {self._num_rows} rows")
        walker = PageWalker(
            chunk,
            leaf=self.leaf,
            max_page_bytes=limits.max_page_bytes,
            padded=self._padded,
            verify_crc=limits.verify_crc,
            drop=self._drop,
        )
        pages = [page for part in self.parts for page in walker.feed(part)]
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
        pages = [RawPage(header, 0, page.data) for header, page in zip(headers, chosen, strict=True)]
        if self._dictionary is not None and any(header.encoding in DICTIONARY_ENCODINGS for header in headers):
            header = page_header(self._dictionary, self.chunk, self.leaf, limit)
            if header.is_data:
                raise PageLocationError(f"the file has a {header.type.name} where a dictionary page is expected")
            pages.insert(0, RawPage(header, 0, self._dictionary))
        stops: list[int] = []
        if self.leaf.max_repetition_level and len(chosen) > 1:
            for page in chosen:
                stops.append(page.num_rows + (stops[-1] if stops else 0))
        held = RowRanges.from_sorted([(page.first_row, page.stop_row) for page in chosen])
        return self._leaf_pages(pages, held, stops)

    def _leaf_pages(self, pages: Sequence[RawPage], rows: RowRanges, stops: Sequence[int]) -> LeafPages:
        # pyarrow takes a page without values for the end of the rows. Its writer makes such pages of booleans.
        data = [page for page in pages if page.header.is_data and page.header.num_values]
        dictionary = b"".join([page.data for page in pages if page.header.type is PageType.DICTIONARY_PAGE])
        values = sum([page.header.num_values for page in data])
        content = LeafContent(self.chunk, dictionary, [page.data for page in data], values)
        return LeafPages(content, tuple(pages), rows, tuple(stops))

    def _check_rows(self, page: DataPage, header: PageHeader) -> None:
        """Compare the number of values in a page's header with its planned rows. The number of rows in a V2 header is
        not relied on.

        ``LeafPages.check_rows`` checks the decoded rows of a repeated leaf's pages.
        """
        if not header.is_data:
            raise PageLocationError(f"the file has a {header.type.name} where a data page is expected")
        repeated = self.leaf.max_repetition_level > 0
        if header.num_values < page.num_rows or (not repeated and header.num_values != page.num_rows):
            raise PageLocationError(
                f"a page of the rows {page.first_row} to {page.stop_row - 1} has {header.num_values} values"
            )
        what = header_contradiction(header, self.chunk, repeated=repeated)
        if what is None and header.num_rows not in (None, page.num_rows):
            what = WRONG_NUM_ROWS
        if what is not None and self._drop is not None:
            self._drop(what)
