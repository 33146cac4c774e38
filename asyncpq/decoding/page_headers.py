"""Checks of page headers, for flat and nested leaf columns alike."""

from __future__ import annotations

from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError
from asyncpq.parquet.chunk_pages import NeedMore, PageHeader, check_page_header, decode_page_header
from asyncpq.parquet.column_chunk import ColumnChunk
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.schema import Leaf


def page_header(
    page: bytes | memoryview, chunk: ColumnChunk, leaf: Leaf, max_page_bytes: int, known: PageHeader | None = None
) -> PageHeader:
    """Decode the header of one page of ``chunk``, and check it against the footer and the OffsetIndex.

    ``known`` is the header if it is decoded already. Raises PageLocationError if the page has no valid header or the
    header contradicts footer or index; ResourceLimitError if the page is larger than ``max_page_bytes``.
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
            f"a page's header says that it has {header.uncompressed_size} bytes, the limit is {max_page_bytes}",
            column=leaf.dotted,
            hint="Raise LimitOptions.max_page_bytes if the file is trusted.",
        )
    return header


def check_crc_alike(seen: dict[int, bool], header: PageHeader, chunk: ColumnChunk, leaf: Leaf) -> None:
    """Raise CorruptFileError if only some data pages of a chunk have a CRC, since a changed page might then pass.

    ``seen``, which is updated, maps ``chunk.data_page_offset`` to whether the chunk's earlier pages have a CRC.
    """
    has_crc = header.crc is not None
    if seen.setdefault(chunk.data_page_offset, has_crc) != has_crc:
        raise CorruptFileError("some data pages of a column chunk have a CRC and others do not", column=leaf.dotted)
