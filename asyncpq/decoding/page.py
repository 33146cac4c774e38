"""Parts of a column: pages as fetched and their headers, dictionaries and rows once decoded."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError
from asyncpq.format.metadata import ColumnChunk
from asyncpq.format.page_header import NeedMore, PageHeader, check_page_header, decode_page_header
from asyncpq.format.page_index import PageLocationError
from asyncpq.format.schema import Leaf


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
