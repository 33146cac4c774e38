"""One leaf of a nested field in one row group: what was fetched of its column chunk, and its pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.nested_merge import num_levels
from asyncpq.decoding.nested_splice import LeafContent
from asyncpq.decoding.page import Page, check_crc_alike, page_header
from asyncpq.decoding.page_queue import PageQueue
from asyncpq.decoding.splice import ENCODING_PLAIN
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.format.column_chunk import DICTIONARY_ENCODINGS
from asyncpq.format.metadata import ColumnChunk
from asyncpq.format.page_header import WRONG_NUM_ROWS, PageHeader, PageType, PageWalker, header_contradiction
from asyncpq.format.page_header import Page as WholePage
from asyncpq.format.page_index import OffsetIndex, PageLocationError
from asyncpq.format.schema import Leaf, PhysicalType
from asyncpq.pruning.row_ranges import RowRanges

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


class NestedLeaf(PageQueue[Page]):
    """Takes the pages of a leaf, or the parts of its whole chunk, as they come.

    Args:
        leaf, chunk: which.
        num_rows: of the row group.
        paged: pages come one by one; else the whole chunk in parts.
        padded, drop: see :class:`asyncpq.format.page_header.PageWalker`.
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

    def _check_rows(self, page: Page, header: PageHeader) -> None:
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
