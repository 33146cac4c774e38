"""Damaged metadata give a typed error or a model, quickly; fast and plain ways of reading agree on them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptIndexError, FormatError, NotParquetError
from asyncpq.parquet import column_chunk, page_index, schema
from asyncpq.parquet import row_group as chunk_walk
from asyncpq.parquet import schema as schema_elements
from asyncpq.parquet.chunk_pages import PageHeader, PageWalker, _unusual_header, _usual_header, decode_page_header
from asyncpq.parquet.column_chunk import ColumnChunk, validate_chunk
from asyncpq.parquet.metadata import FooterDecoder, decode_file_metadata
from asyncpq.parquet.page_index import decode_column_index, decode_offset_index, validate_offset_index
from asyncpq.parquet.row_group import chunk_pattern
from asyncpq.parquet.statistics import ColumnOrder, chunk_bounds, order_of, page_bounds
from asyncpq.parquet.thrift import CompactReader, LatePattern
from tests.parquet_samples import find_footer, sample, sample_metadata

_T = TypeVar("_T")

NAMES = ("flat", "flat_v2", "flat_row_groups", "nested")


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """Some bytes replaced, cut out, doubled, or the end cut off."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        how = draw(st.sampled_from(["replace", "flip", "delete", "insert", "cut", "copy"]))
        if how == "replace":
            data[at] = draw(st.sampled_from([0, 1, 0x15, 0x16, 0x18, 0x19, 0x1C, 0x7F, 0x80, 0xFF]))
        elif how == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "delete":
            del data[at : at + draw(st.integers(1, 8))]
        elif how == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif how == "cut":
            del data[at:]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


def outcome(decode: Callable[[], _T]) -> _T | type[FormatError]:
    """What it returns, or the class of its typed error; any other error fails the test."""
    schema._RECENT.clear()  # each is to parse for itself
    try:
        return decode()
    except FormatError as error:
        return type(error)


@functools.cache
def chunks() -> list[bytes]:
    """ColumnChunk structs of all kinds."""
    found = []
    for name in (*NAMES, "flat_no_statistics", "int96"):
        metadata = sample_metadata(name)
        for leaf in metadata.schema.leaves:
            chunk = metadata.row_groups[0].chunk(leaf.index)
            found.append(metadata.data[chunk.raw_start : chunk.raw_stop])
    return found


def test_the_pattern_matches_all_chunks_that_pyarrow_writes() -> None:
    for chunk in chunks():
        found = chunk_pattern().match(chunk)
        if b"long_text" in chunk and b"x" * 128 in chunk:
            assert found is None  # bounds of more than 127 bytes are left to the plain way
            continue
        assert found is not None
        assert found.end() == len(chunk)


def test_most_chunks_that_pyarrow_writes_are_decoded_by_patterns() -> None:
    metadata = sample_metadata("flat")
    chunks = [metadata.row_groups[0].parse_chunk(leaf.index) for leaf in metadata.schema.leaves]
    by_pattern = [chunk for chunk in chunks if isinstance(chunk.raw_statistics, bytes)]
    assert len(by_pattern) * 2 > len(chunks)


@given(st.data())
def test_the_pattern_ends_where_the_plain_skipper_does(data: st.DataObject) -> None:
    chunk = data.draw(mutated(data.draw(st.sampled_from(chunks())))) + data.draw(st.sampled_from(chunks()))
    found = chunk_pattern().match(chunk)
    if found is not None:
        reader = CompactReader(chunk)
        reader.skip_struct()
        assert reader.pos == found.end()


def test_a_chunk_with_an_integer_for_crypto_metadata_says_that_it_is_encrypted() -> None:
    metadata = sample_metadata("flat_row_groups")
    stop = metadata.row_groups[0].chunk(0).raw_stop - 1
    assert None not in metadata.row_groups[0].index_places(0)
    changed = metadata.data[:stop] + b"\x15\x00" + metadata.data[stop:]  # behind the field 7
    assert decode_file_metadata(changed).row_groups[0].index_places(0) == (None, None)


def everything(data: bytes, size: int) -> list[Any]:
    """All that the footer's metadata say, all chunks parsed."""
    metadata = decode_file_metadata(data)
    said: list[Any] = [metadata.num_rows, metadata.created_by, dict(metadata.key_value_metadata)]
    orders = metadata.column_orders
    said.append(orders)
    for group in metadata.row_groups:
        for leaf in metadata.schema.leaves:
            chunk = outcome(functools.partial(group.chunk, leaf.index))
            said.append((leaf.path, leaf.element))
            if not isinstance(chunk, ColumnChunk):
                said.append(chunk)
            else:
                said += [chunk._replace(raw_statistics=None), chunk.statistics]
                said.append(outcome(functools.partial(group.index_places, leaf.index)))
                said.append(outcome(functools.partial(validate_chunk, chunk, leaf, size, size - 100)))
                order = order_of(leaf, orders[leaf.index] if orders else None)
                said.append(
                    chunk_bounds(chunk, leaf, order, metadata.writer_faults, orders is not None, group.num_rows)
                )
    return said


# as if many chunks were read before: patterns are compiled late
chunk_walk.usual_chunk(1 << 20)
chunk_walk._MANY_CHUNKS = 1  # type: ignore[misc]
column_chunk._num_decoded += 1 << 20
schema_elements._USUAL_ELEMENT.expect(1 << 20)


class _NoPattern:
    """A pattern that matches nothing, so that the plain way is taken."""

    def match(self, *_: object) -> None:
        return None

    fullmatch = match

    def findall(self, *_: object) -> list[Any]:
        return []


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_mutated_metadata_are_read_alike_with_and_without_patterns(name: str, data: st.DataObject) -> None:
    size = len(sample(name))
    changed = data.draw(mutated(sample_metadata(name).data))
    start = time.perf_counter()
    fast = outcome(lambda: everything(changed, size))
    assert time.perf_counter() - start < 60
    with (
        mock.patch.object(chunk_walk, "chunk_pattern", _NoPattern),
        mock.patch.object(chunk_walk, "_MANY_CHUNKS", 1 << 60),
        mock.patch.object(column_chunk, "_decode_usual_chunk", return_value=None),
        mock.patch.object(schema_elements, "_USUAL_ELEMENT", LatePattern(b"")),
    ):
        assert repr(fast) == repr(outcome(lambda: everything(changed, size)))  # as NaN differs from itself


def indexes(column: bool) -> Iterator[tuple[bytes, Any, ColumnChunk, int]]:
    for name in ("flat", "flat_row_groups", "nested"):
        metadata = sample_metadata(name)
        for group in metadata.row_groups[:2]:
            for leaf in metadata.schema.leaves:
                chunk = group.chunk(leaf.index)
                span = chunk.column_index_range if column else chunk.offset_index_range
                if span is not None:
                    yield sample(name)[slice(*span)], leaf, chunk, group.num_rows


_OFFSET_INDEXES = list(indexes(column=False))
_COLUMN_INDEXES = list(indexes(column=True))


@given(st.data())
def test_mutated_offset_indexes(data: st.DataObject) -> None:
    raw, _, chunk, num_rows = data.draw(st.sampled_from(_OFFSET_INDEXES))
    changed = data.draw(mutated(raw))

    def read() -> list[tuple[int, ...]]:
        index = decode_offset_index(changed)
        validate_offset_index(index, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=num_rows)
        counts = index.row_counts(num_rows)
        assert sum(counts) == num_rows
        assert min(counts) > 0
        assert [index.page_of_row(row) for row in index.first_rows] == list(range(index.num_pages))
        return [index.offsets, index.sizes, index.first_rows]

    fast = outcome(read)
    assert isinstance(fast, list) or fast is CorruptIndexError
    plain = _NoPattern()
    with mock.patch.object(page_index, "_LOCATIONS", plain), mock.patch.object(page_index, "_ONE_LOCATION", plain):
        assert outcome(read) == fast


@given(st.data())
def test_mutated_column_indexes(data: st.DataObject) -> None:
    raw, leaf, _, num_rows = data.draw(st.sampled_from(_COLUMN_INDEXES))
    changed = data.draw(mutated(raw))

    def read() -> bool:
        index = decode_column_index(changed)
        pages = index.num_pages
        counts = [num_rows // pages] * (pages - 1) + [num_rows - num_rows // pages * (pages - 1)] if pages else []
        for column_order in (None, *ColumnOrder):
            bounds = page_bounds(index, leaf, order_of(leaf, column_order), counts)
            known = [(low, high) for low, high in zip(bounds.mins, bounds.maxs, strict=True) if low is not None]
            assert all(low <= high for low, high in known)
            assert bounds.weight > 0
        return True

    assert outcome(read) in (True, CorruptIndexError)


@functools.cache
def headers() -> list[bytes]:
    found = []
    for name in ("flat", "flat_v2", "flat_v1_checksum", "nested", "nested_v2"):
        metadata = sample_metadata(name)
        for leaf in metadata.schema.leaves:
            chunk = metadata.row_groups[0].chunk(leaf.index)
            walker = PageWalker(chunk, max_page_bytes=1 << 28)
            pages = walker.feed(sample(name)[chunk.start : chunk.stop])
            found += [bytes(page.data[: page.header.header_size]) for page in pages[:3]]
    return found


def test_headers_of_pyarrow_are_usual_but_for_long_statistics() -> None:
    for header in headers():
        usual = _usual_header(header, 0)
        assert usual == (_unusual_header(header, 0, 1 << 20, True) if len(header) < 128 else None)


@given(st.data())
def test_mutated_page_headers_are_read_alike_in_both_ways(data: st.DataObject) -> None:
    changed = data.draw(mutated(data.draw(st.sampled_from(headers())))) + data.draw(st.binary(max_size=3))
    complete = data.draw(st.booleans())
    fast = outcome(lambda: decode_page_header(changed, complete=complete))
    assert fast == outcome(lambda: _unusual_header(changed, 0, 1 << 20, complete))
    if isinstance(fast, PageHeader):
        assert fast.header_size <= len(changed)
        assert min(fast.compressed_size, fast.uncompressed_size, fast.num_values) >= 0


@given(st.data())
def test_mutated_chunks_are_walked_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["flat_v2", "flat_v1_checksum", "nested"]))
    metadata = sample_metadata(name)
    leaf = data.draw(st.sampled_from(metadata.schema.leaves))
    chunk = metadata.row_groups[0].chunk(leaf.index)
    changed = data.draw(mutated(sample(name)[chunk.start : chunk.stop]))

    def walk() -> int:
        walker = PageWalker(chunk, max_page_bytes=1 << 28)
        pages = walker.feed(changed)
        walker.finish()
        assert sum(len(page.data) for page in pages) == len(changed)
        return sum(page.header.num_values for page in pages if page.header.is_data)

    assert outcome(walk) in (chunk.num_values, *FormatError.__subclasses__())


@given(st.data())
def test_mutated_tails(data: st.DataObject) -> None:
    whole = sample("flat_no_schema")
    changed = whole[:-12] + data.draw(mutated(whole[-12:]))
    outcome(lambda: FooterDecoder(max_footer_bytes=1 << 20).next(changed, 0, len(changed)))


def test_an_outcome_that_is_no_typed_error_fails() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        outcome(broken)
    assert outcome(lambda: FooterDecoder(max_footer_bytes=9).next(b"", 0, 0)) is NotParquetError


def test_every_sample_footer_is_found() -> None:
    for name in NAMES:
        assert find_footer(sample(name)).metadata_bytes == sample_metadata(name).data
