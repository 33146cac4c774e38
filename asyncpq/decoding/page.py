"""Parts of a column: pages as fetched and their headers, dictionaries and rows once decoded.

The pages of one leaf of one row group: which have come, which will, and which hold some rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError
from asyncpq.parquet.metadata import ColumnChunk
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.page_walker import NeedMore, PageHeader, check_page_header, decode_page_header
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.row_ranges import RowRanges


class Page(NamedTuple):
    """A data page as fetched.

    Attributes:
        data: header and payload.
        first_row: its first row, counted in the row group.
        num_rows: how many rows it must hold: planned from the OffsetIndex, or from its own header.
        header: its header, where that was decoded already; not checked.
    """

    data: bytes
    first_row: int
    num_rows: int
    header: PageHeader | None = None

    @property
    def stop_row(self) -> int:
        return self.first_row + self.num_rows


class Dictionary(NamedTuple):
    """A column chunk's dictionary, decoded once.

    Attributes:
        values: Arrow array of the dictionary's values, in the leaf's Arrow type.
        identity_page: a dictionary page that stands for the file's own where indices are decoded.
        largest: bytes of its largest value, where they differ in size; else 0.
    """

    values: pa.Array
    identity_page: bytes
    largest: int

    @property
    def weight(self) -> int:
        return len(self.identity_page) + int(self.values.nbytes)


class LeafArray(NamedTuple):
    """Decoded rows of a leaf, still as dictionary indices where the pages were.

    Attributes:
        first_row: in the row group.
        values: the values, or int32 indices into ``dictionary``.
        dictionary: values of the dictionary, or None.
        lacks_dictionary: ``values`` are indices, but the dictionary is not here (:meth:`detached`).
    """

    first_row: int
    values: pa.Array
    dictionary: pa.Array | None
    lacks_dictionary: bool = False

    @property
    def stop_row(self) -> int:
        return self.first_row + len(self.values)

    @property
    def weight(self) -> int:
        """Bytes that ``values`` hold in memory, which is all that a :meth:`detached` array holds."""
        return int(self.values.nbytes)

    def detached(self) -> LeafArray:
        """The same for a cache: without the dictionary, which is kept, weighed and evicted by itself."""
        return self if self.dictionary is None else self._replace(dictionary=None, lacks_dictionary=True)

    def attached(self, dictionary: Dictionary | None, column: str) -> LeafArray:
        """Undo :meth:`detached` with the dictionary of the same column chunk.

        Raises:
            CorruptFileError: there is none.
        """
        if not self.lacks_dictionary:
            return self
        if dictionary is None:
            raise CorruptFileError("dictionary-encoded pages without a dictionary page", column=column)
        return self._replace(dictionary=dictionary.values, lacks_dictionary=False)


class ChunkPage(NamedTuple):
    """A page that came with its whole column chunk.

    Attributes:
        start: where it begins in the object.
        data: its bytes.
        stop_row: once the row group's rows before this one were decoded, the page is known to be good.
        dictionary: what is in it, if it is the dictionary page.
    """

    start: int
    data: bytes
    stop_row: int
    dictionary: Dictionary | None

    @property
    def stop(self) -> int:
        return self.start + len(self.data)


def page_header(
    page: bytes, chunk: ColumnChunk, leaf: Leaf, max_page_bytes: int, known: PageHeader | None = None
) -> PageHeader:
    """The header of one page of ``chunk``, held to what footer and OffsetIndex say of it.

    Args:
        page: header and payload, as long as the OffsetIndex says.
        known: the header, if it was decoded already.

    Raises:
        PageLocationError: it is none, or contradicts them.
        ResourceLimitError: the page claims more than ``max_page_bytes``.
    """
    try:
        header = decode_page_header(page, 0, max_bytes=max_page_bytes) if known is None else known
        if isinstance(header, NeedMore):
            raise PageLocationError("a page ends inside its header")
        check_page_header(header, expected_size=len(page), chunk=chunk, leaf=leaf)
    except CorruptFileError as error:
        if isinstance(error, PageLocationError):
            raise error.locate(column=leaf.dotted) from None
        raise PageLocationError(error.message, column=leaf.dotted) from error
    except AsyncpqError as error:
        raise error.locate(column=leaf.dotted) from error.__cause__
    if header.uncompressed_size > max_page_bytes:
        raise ResourceLimitError(
            f"a page claims {header.uncompressed_size} bytes, allowed are {max_page_bytes}",
            column=leaf.dotted,
            hint="Raise LimitOptions.max_page_bytes if the file is to be trusted.",
        )
    return header


def check_crc_alike(seen: dict[int, bool], header: PageHeader, chunk: ColumnChunk, leaf: Leaf) -> None:
    """Data pages of a chunk have a CRC all or none: a CRC that is missing would let a changed page pass.

    Args:
        seen: whether the pages looked at before have one, by ``chunk.start``; kept up to date.

    Raises:
        CorruptFileError: this page is not like them.
    """
    has_crc = header.crc is not None
    if seen.setdefault(chunk.start, has_crc) != has_crc:
        raise CorruptFileError("some data pages of a chunk have a CRC and some have none", column=leaf.dotted)


class RowSpan(Protocol):
    """A page in any state: rows of the row group."""

    @property
    def first_row(self) -> int: ...

    @property
    def stop_row(self) -> int: ...


P = TypeVar("P", bound=RowSpan)


class PageQueue(Generic[P]):
    """Pages in row order: they are told to come, come, and are let go of.

    Args:
        num_rows: of the row group.
    """

    __slots__ = ("_expected", "_first_rows", "_num_rows", "_pages")

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._pages: list[P] = []
        self._first_rows: list[int] = []
        self._expected: deque[int] = deque()  # first rows of pages that will come, ascending

    @property
    def rows_available(self) -> int:
        """Rows from the row group's start that no page is still to come for."""
        return self._expected[0] if self._expected else self._num_rows

    def expect(self, first_row: int) -> None:
        """The page that begins at ``first_row`` will come; told in row order, before it does."""
        self._expected.append(first_row)

    def add(self, page: P) -> None:
        """A page has come, in row order."""
        first_row = page.first_row
        self._pages.append(page)
        self._first_rows.append(first_row)
        if self._expected and self._expected[0] == first_row:
            self._expected.popleft()

    def has(self, first_row: int) -> bool:
        """Whether the page that begins at ``first_row`` has come."""
        at = bisect_left(self._first_rows, first_row)
        return at < len(self._first_rows) and self._first_rows[at] == first_row

    def holding(self, rows: RowRanges) -> list[P]:
        """The pages that hold any of ``rows``."""
        pages, first_rows = self._pages, self._first_rows
        if rows.num_ranges > len(pages):
            return [page for page in pages if rows.overlaps(page.first_row, page.stop_row)]
        found: list[P] = []
        following = 0
        for start, stop in rows:
            low = max(bisect_right(first_rows, start) - 1, following)
            following = max(bisect_left(first_rows, stop), low)
            found += [page for page in pages[low:following] if page.stop_row > start]
        return found

    def discard_before(self, row: int) -> None:
        """Rows before ``row`` will not be asked for again."""
        position = bisect_right(self._first_rows, row)
        while position and self._pages[position - 1].stop_row > row:
            position -= 1
        if position:
            del self._pages[:position], self._first_rows[:position]
