"""Column chunks of files in memory, opened as far as the decoding layer needs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.decoding.column_sources import FieldSource, PagedSource, StreamedSource
from asyncpq.decoding.leaf import DecodeLimits, LeafDecoder, leaf_decoder
from asyncpq.decoding.nested import NestedLeaf
from asyncpq.decoding.page import DataPage, Dictionary
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.chunk_pages import PageHeader, PageWalker, decode_page_header
from asyncpq.parquet.column_chunk import ColumnChunk, PageType
from asyncpq.parquet.footer import FooterDecoder, FooterFound
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.parquet.schema import Field
from asyncpq.storage.base import Validator

MIB = 1 << 20
LIMITS = DecodeLimits(verify_crc=True, max_page_bytes=256 * MIB, max_decoded_bytes=2048 * MIB)


def limited(max_decoded_bytes: int) -> DecodeLimits:
    return LIMITS._replace(max_decoded_bytes=max_decoded_bytes)


def write(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


class OpenFile:
    """A file's bytes, with sources of single columns of single row groups."""

    def __init__(self, data: bytes, *, extensions: frozenset[str] = frozenset()) -> None:
        found = FooterDecoder(max_footer_bytes=len(data)).next(data, 0, len(data))
        assert isinstance(found, FooterFound)
        self.data = data
        self.extensions = extensions
        self.metadata = decode_file_metadata(found.metadata_bytes)
        self.version = FileVersion(
            url="memory://file",
            namespace="",
            identity="",
            validator=Validator(size=len(data)),
            footer_start=len(data) - 8 - len(found.metadata_bytes),
            metadata=self.metadata,
            observed_at=0.0,
        )

    def field(self, column: int) -> Field:
        return self.metadata.schema.fields[column]

    def chunks(self, column: int, group: int = 0) -> list[ColumnChunk]:
        field = self.field(column)
        return [self.version.chunk(group, leaf) for leaf in range(field.first_leaf, field.leaf_stop)]

    def bytes_of(self, chunk: ColumnChunk) -> bytes:
        return self.data[chunk.start : chunk.stop]

    def num_rows(self, group: int = 0) -> int:
        return self.metadata.row_groups[group].num_rows

    def decoder(self, column: int = 0) -> LeafDecoder:
        decoder = leaf_decoder(self.version, self.field(column).first_leaf, self.extensions)
        assert decoder is not None
        return decoder

    @staticmethod
    def page_bytes(page: bytes) -> int:
        """Bytes of a page with its header, its content uncompressed."""
        header = decode_page_header(page, complete=True)
        assert isinstance(header, PageHeader)
        return header.header_size + header.uncompressed_size

    def pages(self, column: int = 0, group: int = 0) -> tuple[bytes | None, list[DataPage]]:
        """The dictionary page, if there is one, and the data pages of a flat column."""
        (chunk,) = self.chunks(column, group)
        dictionary: bytes | None = None
        pages: list[DataPage] = []
        row = 0
        for page in PageWalker(chunk, max_page_bytes=LIMITS.max_page_bytes).feed(self.bytes_of(chunk)):
            if page.header.type is PageType.DICTIONARY_PAGE:
                dictionary = page.data
            elif page.header.num_values:
                pages.append(DataPage(page.data, row, page.header.num_values))
                row += page.header.num_values
        return dictionary, pages

    def dictionary(self, column: int = 0, group: int = 0) -> Dictionary | None:
        page, _ = self.pages(column, group)
        if page is None:
            return None
        (chunk,) = self.chunks(column, group)
        return self.decoder(column).decode_dictionary(chunk, page, LIMITS)

    def paged(self, column: int = 0, group: int = 0, **options: Any) -> PagedSource:
        """Without pages; its dictionary is set."""
        (chunk,) = self.chunks(column, group)
        source = PagedSource(self.decoder(column), chunk, self.num_rows(group), **options)
        source.dictionary = self.dictionary(column, group)
        return source

    def streamed(self, column: int = 0, group: int = 0, limits: DecodeLimits = LIMITS) -> StreamedSource:
        (chunk,) = self.chunks(column, group)
        return StreamedSource(self.decoder(column), chunk, self.num_rows(group), limits)

    def leaf_source(
        self, leaf: int, group: int = 0, *, paged: bool, num_rows: int | None = None
    ) -> PagedSource | StreamedSource | NestedLeaf:
        """Of any leaf, opened as a read does it; without pages."""
        chunk = self.version.chunk(group, leaf)
        num_rows = self.num_rows(group) if num_rows is None else num_rows
        decoder = leaf_decoder(self.version, leaf, self.extensions)
        if decoder is None:
            return NestedLeaf(self.metadata.schema.leaves[leaf], chunk, num_rows, paged=paged)
        return PagedSource(decoder, chunk, num_rows) if paged else StreamedSource(decoder, chunk, num_rows, LIMITS)

    def joined(
        self, column: int, sources: Mapping[int, PagedSource | StreamedSource | NestedLeaf], num_rows: int
    ) -> FieldSource:
        """The field cut to the leaves of ``sources``, by ordinal."""
        nested = {leaf: source for leaf, source in sources.items() if isinstance(source, NestedLeaf)}
        alone = {leaf: source for leaf, source in sources.items() if not isinstance(source, NestedLeaf)}
        return FieldSource(self.version, self.field(column), nested, num_rows, self.extensions, alone)

    def whole(self, column: int = 0, group: int = 0, num_rows: int | None = None) -> FieldSource:
        """With all bytes."""
        num_rows = self.num_rows(group) if num_rows is None else num_rows
        sources: dict[int, PagedSource | StreamedSource | NestedLeaf] = {}
        for leaf in range(self.field(column).first_leaf, self.field(column).leaf_stop):
            source = sources[leaf] = self.leaf_source(leaf, group, paged=False, num_rows=num_rows)
            assert not isinstance(source, PagedSource)
            source.feed(self.bytes_of(self.version.chunk(group, leaf)))
        return self.joined(column, sources, num_rows)
