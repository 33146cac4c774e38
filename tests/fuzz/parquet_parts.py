"""A Parquet file taken apart into trees and page bodies, and put together again.

The steps of putting it together are separate, so that one part can lie while all others agree with it::

    parts = ParquetParts(data)
    ...  # lies in page headers and bodies
    parts.place_pages()
    ...  # lies in page indexes
    parts.place_indexes()
    ...  # lies in the footer
    data = parts.file()
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncpq.parquet.column_chunk import PageType
from tests.fuzz.thrift_trees import Items, Struct, parse, write

MAGIC = b"PAR1"

# Field ids of parquet.thrift.
NUM_ROWS, ROW_GROUPS, KEY_VALUES = 3, 4, 5  # FileMetaData
COLUMNS = 1  # RowGroup
META, OFFSET_INDEX, COLUMN_INDEX = 3, 4, 6  # ColumnChunk: with the length in the field behind
UNCOMPRESSED_SIZE, COMPRESSED_SIZE, DATA_PAGE, DICTIONARY_PAGE, BLOOM = 6, 7, 9, 11, 14  # ColumnMetaData


@dataclass
class PagePart:
    """One page; ``offset`` is where it was placed last."""

    header: Struct
    body: bytes
    offset: int = 0

    @property
    def is_dictionary(self) -> bool:
        return self.header.get(1) == PageType.DICTIONARY_PAGE

    @property
    def size(self) -> int:
        return len(write(self.header)) + len(self.body)


@dataclass
class ChunkPart:
    """A column chunk: its struct in the footer, its pages, its indexes."""

    struct: Struct
    pages: list[PagePart]
    offset_index: Struct | None
    column_index: Struct | None
    bloom_filter: bytes | None

    @property
    def meta(self) -> Struct:
        return self.struct.struct(META)

    @property
    def data_pages(self) -> list[PagePart]:
        return [page for page in self.pages if not page.is_dictionary]


class ParquetParts:
    """See the module.

    Attributes:
        footer: FileMetaData.
        chunks: of all row groups, in file order.
    """

    def __init__(self, data: bytes) -> None:
        length = int.from_bytes(data[-8:-4], "little")
        self.footer, _ = parse(data, len(data) - 8 - length)
        self.chunks: list[ChunkPart] = []
        self._body = bytearray()
        for group in self.footer.items(ROW_GROUPS).values:
            assert isinstance(group, Struct)
            for struct in group.items(COLUMNS).values:
                assert isinstance(struct, Struct)
                self.chunks.append(_chunk(data, struct))

    def place_pages(self) -> None:
        """Lay the chunks out one after another; footer and OffsetIndexes follow."""
        self._body = bytearray(MAGIC)
        for chunk in self.chunks:
            start = len(self._body)
            meta = chunk.meta
            for page in chunk.pages:
                page.offset = len(self._body)
                self._body += write(page.header) + page.body
            meta.set(COMPRESSED_SIZE, len(self._body) - start)
            claimed = [page.header.get(2) for page in chunk.pages]
            if all(type(size) is int for size in claimed):
                headers = sum(len(write(page.header)) for page in chunk.pages)
                meta.set(UNCOMPRESSED_SIZE, headers + sum(size for size in claimed if isinstance(size, int)))
            data_pages = chunk.data_pages
            if data_pages:
                meta.set(DATA_PAGE, data_pages[0].offset)
            if chunk.pages and chunk.pages[0].is_dictionary and meta.get(DICTIONARY_PAGE):
                meta.set(DICTIONARY_PAGE, chunk.pages[0].offset)
            _place_offsets(chunk, data_pages)

    def place_indexes(self) -> None:
        """Write bloom filters and page indexes behind the pages; the footer's offsets follow."""
        for chunk in self.chunks:
            if chunk.bloom_filter is not None:
                chunk.meta.set(BLOOM, len(self._body))
                self._body += chunk.bloom_filter
        for field_id, name in ((COLUMN_INDEX, "column_index"), (OFFSET_INDEX, "offset_index")):
            for chunk in self.chunks:
                index: Struct | None = getattr(chunk, name)
                if index is None:
                    continue
                data = write(index)
                chunk.struct.set(field_id, len(self._body))
                chunk.struct.set(field_id + 1, len(data))
                self._body += data

    def file(self) -> bytes:
        """The whole file."""
        return bytes(self._body) + with_trailer(write(self.footer))

    def rebuilt(self) -> bytes:
        """The whole file, from the first step to the last."""
        self.place_pages()
        self.place_indexes()
        return self.file()


def without_key_values(data: bytes) -> bytes:
    """The file with a footer that has no pairs of metadata; all else may be damaged."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer, _ = parse(data, start)
    footer.drop(KEY_VALUES)
    return data[:start] + with_trailer(write(footer))


def with_trailer(footer: bytes) -> bytes:
    """The end of a file: metadata, length, magic."""
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def _place_offsets(chunk: ChunkPart, data_pages: list[PagePart]) -> None:
    if chunk.offset_index is None:
        return
    locations = chunk.offset_index.get(1)
    assert isinstance(locations, Items)
    if len(locations.values) == len(data_pages):
        for location, page in zip(locations.values, data_pages, strict=True):
            assert isinstance(location, Struct)
            location.set(1, page.offset)
            location.set(2, page.size)


def _chunk(data: bytes, struct: Struct) -> ChunkPart:
    meta = struct.struct(META)
    start, dictionary = meta.integer(DATA_PAGE), meta.get(DICTIONARY_PAGE)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    stop = start + meta.integer(COMPRESSED_SIZE)
    pages: list[PagePart] = []
    while start < stop:
        header, body = parse(data, start)
        start = body + header.integer(3)
        pages.append(PagePart(header, data[body:start]))
    bloom: bytes | None = None
    offset, length = meta.get(BLOOM), meta.get(BLOOM + 1)
    if isinstance(offset, int) and isinstance(length, int):
        bloom = data[offset : offset + length]
    return ChunkPart(struct, pages, _index(data, struct, OFFSET_INDEX), _index(data, struct, COLUMN_INDEX), bloom)


def _index(data: bytes, struct: Struct, field_id: int) -> Struct | None:
    offset = struct.get(field_id)
    return parse(data, offset)[0] if isinstance(offset, int) else None
