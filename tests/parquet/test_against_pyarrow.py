"""Every field of the metadata that pyarrow shows, compared with it: generated files and the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.errors import CorruptIndexError, UnsupportedFeatureError
from asyncpq.parquet.chunk_pages import PageWalker
from asyncpq.parquet.column_chunk import Codec, Encoding, PageType, validate_chunk
from asyncpq.parquet.logical_types import LogicalKind
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.page_index import decode_column_index, decode_offset_index, validate_offset_index
from asyncpq.parquet.statistics import order_of, page_bounds
from tests.parquet_samples import (
    DATA,
    MAX_PAGE_BYTES,
    SAMPLES,
    corpus_files,
    find_footer,
    metadata_of,
    requires_corpus,
    sample,
)

# pyarrow refuses the schema, so it is no oracle for this one.
_REFUSED_BY_PYARROW = {"incorrect_map_schema.parquet"}
# Pages that reach beyond the chunk's stated size (PARQUET-816).
_PAGES_BEYOND_CHUNK = {"nation.dict-malformed.parquet"}
# The only pages with more uncompressed bytes than MAX_PAGE_BYTES.
_HUGE_PAGES = {"large_string_map.brotli.parquet"}

corpus = pytest.mark.parametrize("path", corpus_files(), ids=lambda path: path.name)
samples = pytest.mark.parametrize("name", SAMPLES)

# How pyarrow names kinds whose names differ.
_KIND_NAMES = {"INTEGER": "INT", "UNRECOGNISED": "UNDEFINED"}

_CODEC_NAMES = {Codec.LZ4_RAW: "LZ4", Codec.LZ4: "UNKNOWN"}


@samples
def test_metadata_of_generated_files(name: str) -> None:
    data = sample(name)
    compare(metadata_of(data), pq.read_metadata(pa.BufferReader(data)))


@requires_corpus
@corpus
def test_metadata_of_the_corpus(path: Path) -> None:
    if path.name in _REFUSED_BY_PYARROW:
        pytest.skip("pyarrow refuses the schema")
    compare(metadata_of(path.read_bytes()), pq.read_metadata(path))


def compare(ours: FileMetadata, theirs: Any) -> None:
    # Where the footer says 0 rows, pyarrow shows that and reads those of the row groups.
    assert ours.num_rows == (theirs.num_rows or sum(theirs.row_group(i).num_rows for i in range(theirs.num_row_groups)))
    assert len(ours.row_groups) == theirs.num_row_groups
    assert len(ours.schema.leaves) == theirs.num_columns
    assert (ours.created_by or "") == theirs.created_by
    assert {"1.0": 1}.get(theirs.format_version, 2) == ours.version
    written = {
        key.decode(): value.decode("utf-8", "backslashreplace") for key, value in (theirs.metadata or {}).items()
    }
    assert {key: value or "" for key, value in ours.key_value_metadata.items()} == written
    for leaf in ours.schema.leaves:
        column = theirs.schema.column(leaf.index)
        assert leaf.dotted == column.path
        assert leaf.max_definition_level == column.max_definition_level
        assert leaf.max_repetition_level == column.max_repetition_level
        assert leaf.physical_type.name == column.physical_type
        if leaf.physical_type.name == "FIXED_LEN_BYTE_ARRAY":
            assert leaf.element.type_length == column.length
        logical = leaf.logical_type
        kind = logical.kind.value if logical is not None else "NONE"
        if column.converted_type != "INTERVAL":
            assert _KIND_NAMES.get(kind, kind) == column.logical_type.type
        if logical is not None and logical.kind is LogicalKind.DECIMAL:
            assert (logical.precision, logical.scale) == (column.precision, column.scale)
    first_row = 0
    for group in ours.row_groups:
        expected = theirs.row_group(group.ordinal)
        assert (group.num_rows, group.first_row) == (expected.num_rows, first_row)
        assert group.total_byte_size == expected.total_byte_size
        assert [(c.column_index, c.descending, c.nulls_first) for c in group.sorting_columns] == [
            (c.column_index, c.descending, c.nulls_first) for c in expected.sorting_columns
        ]
        first_row += group.num_rows
        for leaf in ours.schema.leaves:
            chunk = group.chunk(leaf.index)
            compare_chunk(chunk, expected.column(leaf.index))
            assert group.index_places(leaf.index) == (chunk.offset_index_range, chunk.column_index_range)


def compare_chunk(ours: Any, theirs: Any) -> None:
    assert ours.physical_type.name == theirs.physical_type
    assert ".".join(ours.path) == theirs.path_in_schema
    assert ours.num_values == theirs.num_values
    assert (ours.file_path or "") == theirs.file_path
    assert ours.file_offset == theirs.file_offset
    assert ours.total_compressed_size == theirs.total_compressed_size
    assert ours.total_uncompressed_size == theirs.total_uncompressed_size
    assert ours.data_page_offset == theirs.data_page_offset
    if theirs.has_dictionary_page:
        assert ours.dictionary_page_offset == theirs.dictionary_page_offset
    assert tuple(Encoding(code).name for code in ours.encodings) == theirs.encodings
    assert _CODEC_NAMES.get(Codec(ours.codec), Codec(ours.codec).name) == theirs.compression
    assert (ours.offset_index_range is not None) == theirs.has_offset_index
    assert (ours.column_index_range is not None) == theirs.has_column_index
    statistics = theirs.statistics if theirs.is_stats_set else None
    if statistics is not None and ours.statistics is not None:
        if statistics.has_null_count:
            assert ours.statistics.null_count == statistics.null_count
        if statistics.has_distinct_count:
            assert ours.statistics.distinct_count == statistics.distinct_count


@samples
def test_pages_and_indexes_of_generated_files(name: str) -> None:
    compare_pages(sample(name), must_have_indexes=bool(SAMPLES[name].get("write_page_index")))


@requires_corpus
@corpus
def test_pages_and_indexes_of_the_corpus(path: Path) -> None:
    if path.name in _PAGES_BEYOND_CHUNK | _HUGE_PAGES:
        pytest.skip("pages beyond the chunk's stated size, or larger than the test's limit")
    compare_pages(path.read_bytes(), must_have_indexes=False)


def compare_pages(data: bytes, *, must_have_indexes: bool) -> None:
    """Walk every chunk page by page, and compare the page indexes, which pyarrow cannot show, with that."""
    footer = find_footer(data)
    metadata = metadata_of(data)
    orders = metadata.column_orders
    for group in metadata.row_groups:
        for leaf in metadata.schema.leaves:
            chunk = group.chunk(leaf.index)
            validate_chunk(chunk, leaf, len(data), footer.start)
            if chunk.num_values == 0:
                continue
            walker = PageWalker(chunk, max_page_bytes=MAX_PAGE_BYTES)
            pages = walker.feed(data[chunk.start : chunk.stop])
            walker.finish()
            walked = [page for page in pages if page.header.is_data]
            dictionaries = [page for page in pages if page.header.type is PageType.DICTIONARY_PAGE]
            assert len(dictionaries) <= 1
            assert b"".join(page.data for page in pages) == data[chunk.start : chunk.stop]
            if chunk.encoding_stats is not None:
                counted = sum(
                    stats.count for stats in chunk.encoding_stats if stats.page_type in (PageType.DATA_PAGE, 3)
                )
                assert counted == len(walked)
            if chunk.offset_index_range is None:
                assert not must_have_indexes
                continue
            start, stop = chunk.offset_index_range
            index = decode_offset_index(data[start:stop])
            validate_offset_index(index, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=group.num_rows)
            assert index.offsets == tuple([page.offset for page in walked])
            assert index.sizes == tuple([page.header.page_size for page in walked])
            counts = index.row_counts(group.num_rows)
            assert sum(counts) == group.num_rows
            if leaf.max_repetition_level == 0:
                assert counts == [page.header.num_values for page in walked]
            for page, header in enumerate(page.header for page in walked):
                assert header.num_rows is None or header.num_rows == counts[page]
                rows = index.rows_of_page(page, group.num_rows)
                assert rows[1] - rows[0] == counts[page]
                assert index.page_of_row(rows[0]) == index.page_of_row(rows[1] - 1) == page
            if chunk.column_index_range is not None:
                start, stop = chunk.column_index_range
                raw = decode_column_index(data[start:stop])
                order = order_of(leaf, orders[leaf.index] if orders else None)
                if leaf.max_definition_level == 0 and any(raw.null_pages):
                    # parquet-mr's index of a column without statistics: every page is "null".
                    with pytest.raises(CorruptIndexError, match="required"):
                        page_bounds(raw, leaf, order, counts)
                else:
                    assert len(page_bounds(raw, leaf, order, counts).mins) == index.num_pages


@requires_corpus
@pytest.mark.parametrize("name", ["encrypt_columns_and_footer", "uniform_encryption"])
def test_encrypted_footers_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="encrypted"):
        find_footer((DATA / f"{name}.parquet.encrypted").read_bytes())


@requires_corpus
def test_encrypted_columns_under_a_plaintext_footer_are_refused() -> None:
    data = (DATA / "encrypt_columns_plaintext_footer.parquet.encrypted").read_bytes()
    metadata = metadata_of(data)
    assert metadata.has_encryption
    start = find_footer(data).start
    leaf = metadata.schema.leaves[metadata.schema.projection("double_field").leaves[0]]
    chunk = metadata.row_groups[0].chunk(leaf.index)
    assert chunk.has_crypto
    with pytest.raises(UnsupportedFeatureError, match="encrypted"):
        validate_chunk(chunk, leaf, len(data), start)
