"""Sample files in memory, their metadata and their column chunks; the files of apache/parquet-testing.

The environment variable ``ASYNCPQ_CORPUS`` names the folder of apache/parquet-testing; the default is
``../shared/corpus`` from the project's root. Tests that need it skip where it is absent.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.decoding.field_source import FieldSource
from asyncpq.decoding.leaf import DecodeLimits, LeafDecoder, leaf_decoder
from asyncpq.decoding.leaf_sources import PagedSource, StreamedSource
from asyncpq.decoding.nested import NestedLeaf
from asyncpq.decoding.page import DataPage, Dictionary
from asyncpq.objects.version import FileVersion, ObjectVersion
from asyncpq.parquet.chunk_pages import PageHeader, PageWalker, decode_page_header
from asyncpq.parquet.column_chunk import ColumnChunk, PageType
from asyncpq.parquet.metadata import FileMetadata, FooterDecoder, FooterFound, decode_file_metadata
from asyncpq.parquet.schema import Field, Leaf
from asyncpq.storage.base import Validator
from tests.parquet_bytes import parquet_bytes

MAX_FOOTER_BYTES = 1 << 28
MAX_PAGE_BYTES = 1 << 30
ROWS = 3000


def _flat() -> pa.Table:
    rows = range(ROWS)
    nullable = [None if i % 7 == 0 else i for i in rows]
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "small": pa.array([i % 100 - 50 for i in rows], pa.int8()),
            "unsigned": pa.array([i * 1_000_000 % 2**32 for i in rows], pa.uint32()),
            "large": pa.array([2**64 - 1 - i for i in rows], pa.uint64()),
            "nullable": pa.array(nullable, pa.int32()),
            "all_null": pa.nulls(ROWS, pa.float64()),
            "flag": pa.array([i % 3 == 0 for i in rows]),
            "double": pa.array([i / 7 - 100 for i in rows]),
            "float": pa.array([-i / 8 for i in rows], pa.float32()),
            "with_nan": pa.array([float("nan") if i % 5 == 0 else i / 2 for i in rows]),
            "half": pa.array([float(i % 50) for i in rows], pa.float16()),
            "text": [f"user {i:06d}" for i in rows],
            "long_text": ["x" * (i % 200) + str(i) for i in rows],
            "binary": pa.array([i.to_bytes(3, "big") for i in rows], pa.binary()),
            "fixed": pa.array([i.to_bytes(5, "little") for i in rows], pa.binary(5)),
            "day": pa.array([dt.date(2020, 1, 1) + dt.timedelta(i) for i in rows]),
            "time": pa.array([i * 1000 for i in rows], pa.time32("ms")),
            "stamp": pa.array([i * 10**6 for i in rows], pa.timestamp("us", tz="UTC")),
            "stamp_ns": pa.array([i * 10**9 for i in rows], pa.timestamp("ns")),
            "dec_small": pa.array([decimal.Decimal(i) / 100 - 5 for i in rows], pa.decimal128(8, 2)),
            "dec_large": pa.array([decimal.Decimal(i) * 10**20 - 10**22 for i in rows], pa.decimal128(38, 0)),
            "category": pa.array([f"kind {i % 9}" for i in rows]).dictionary_encode(),
        }
    )


def _nested() -> pa.Table:
    rows = range(ROWS)
    return pa.table(
        {
            "list": [list(range(i % 4)) if i % 11 else None for i in rows],
            "struct": [{"a": i, "b": {"c": str(i)}} if i % 13 else None for i in rows],
            "map": pa.array([[(str(i), i)] * (i % 3) for i in rows], pa.map_(pa.string(), pa.int32())),
            "lists": [[[i, None], []] if i % 2 else [] for i in rows],
            "structs": [[{"x": i, "y": None}] * (i % 3) for i in rows],
        }
    )


_PAGES = {"max_rows_per_page": 250, "data_page_size": 4096}

SAMPLES: dict[str, dict[str, Any]] = {
    "flat": {"table": _flat, "write_page_index": True, **_PAGES},
    "flat_plain": {"table": _flat, "write_page_index": True, "use_dictionary": False, "compression": "none", **_PAGES},
    "flat_v2": {"table": _flat, "data_page_version": "2.0", "write_page_checksum": True, **_PAGES},
    "flat_v1_checksum": {"table": _flat, "write_page_checksum": True, "compression": "zstd", **_PAGES},
    "flat_row_groups": {"table": _flat, "write_page_index": True, "row_group_size": 700, **_PAGES},
    "flat_no_statistics": {"table": _flat, "write_statistics": False, "compression": "gzip"},
    "flat_no_schema": {"table": _flat, "store_schema": False, "version": "1.0"},
    "flat_decimal_integers": {"table": _flat, "store_decimal_as_integer": True},
    "flat_sorted": {"table": _flat, "sorting_columns": [pq.SortingColumn(0), pq.SortingColumn(3, True, True)]},
    "nested": {"table": _nested, "write_page_index": True, **_PAGES},
    "nested_v2": {"table": _nested, "data_page_version": "2.0", "row_group_size": 1000, **_PAGES},
    "empty": {"table": lambda: _flat().slice(0, 0), "write_page_index": True},
    "no_columns": {"table": lambda: pa.table({})},
    "int96": {"table": lambda: _flat().select(["stamp_ns", "id"]), "use_deprecated_int96_timestamps": True},
}


@functools.cache
def sample(name: str) -> bytes:
    """The bytes of one of :data:`SAMPLES`."""
    options = dict(SAMPLES[name])
    return parquet_bytes(options.pop("table")(), **options)


def find_footer(data: bytes) -> FooterFound:
    """The footer of a whole file."""
    found = FooterDecoder(max_footer_bytes=MAX_FOOTER_BYTES).next(data, 0, len(data))
    assert isinstance(found, FooterFound)
    return found


def metadata_of(data: bytes) -> FileMetadata:
    """The decoded metadata of a whole file."""
    return decode_file_metadata(find_footer(data).metadata_bytes)


@functools.cache
def sample_metadata(name: str) -> FileMetadata:
    """The decoded metadata of one of :data:`SAMPLES`."""
    return metadata_of(sample(name))


def flat_leaf(type_: pa.DataType, *, nullable: bool = True) -> Leaf:
    """The leaf that pyarrow writes for a column of a type."""
    schema = pa.schema([pa.field("x", type_, nullable=nullable)])
    return metadata_of(parquet_bytes(schema.empty_table())).schema.leaves[0]


MIB = 1 << 20
LIMITS = DecodeLimits(verify_crc=True, max_page_bytes=256 * MIB, max_decoded_bytes=2048 * MIB)


def limited(max_decoded_bytes: int) -> DecodeLimits:
    return dataclasses.replace(LIMITS, max_decoded_bytes=max_decoded_bytes)


class OpenFile:
    """A file's bytes, with sources of single columns of single row groups."""

    def __init__(self, data: bytes, *, extensions: frozenset[str] = frozenset()) -> None:
        found = FooterDecoder(max_footer_bytes=len(data)).next(data, 0, len(data))
        assert isinstance(found, FooterFound)
        self.data = data
        self.extensions = extensions
        self.metadata = decode_file_metadata(found.metadata_bytes)
        seen = ObjectVersion(
            url="memory://file", namespace="", identity="", validator=Validator(size=len(data)), observed_at=0.0
        )
        footer_start = len(data) - 8 - len(found.metadata_bytes)
        self.version = FileVersion(seen, footer_start=footer_start, metadata=self.metadata)

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
                dictionary = bytes(page.data)
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


_ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("ASYNCPQ_CORPUS") or _ROOT.parent / "shared" / "corpus")
DATA = CORPUS / "parquet-testing" / "data"
BAD_DATA = CORPUS / "parquet-testing" / "bad_data"

requires_corpus = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no parquet-testing files at {CORPUS}; set ASYNCPQ_CORPUS to a folder that has them"
)


def corpus_files(folder: Path = DATA) -> list[Path]:
    """All Parquet files below ``folder``, sorted; none where the corpus is absent."""
    return sorted(folder.rglob("*.parquet")) if folder.is_dir() else []
