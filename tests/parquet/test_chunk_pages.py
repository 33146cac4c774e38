"""Page headers against pages, checks against the metadata, and the page walker fed in pieces."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError, ResourceLimitError
from asyncpq.parquet.chunk_pages import (
    NeedMore,
    PageWalker,
    RawPage,
    check_page_header,
    decode_page_header,
    header_contradiction,
)
from asyncpq.parquet.column_chunk import ColumnChunk, Encoding, PageEncodingStats, PageType
from asyncpq.parquet.thrift import FALSE, TRUE, CompactWriter
from tests.parquet_samples import sample, sample_metadata


def chunk_of(name: str, column: str) -> tuple[ColumnChunk, bytes]:
    metadata = sample_metadata(name)
    chunk = metadata.row_groups[0].chunk(metadata.schema.projection(column).leaves[0])
    return chunk, sample(name)[chunk.start : chunk.stop]


def pages_of(name: str, column: str) -> list[RawPage]:
    chunk, data = chunk_of(name, column)
    return PageWalker(chunk, max_page_bytes=1 << 20).feed(data)


def test_a_v1_header() -> None:
    dictionary, first, *_ = pages_of("flat_v1_checksum", "nullable")
    assert dictionary.header.type is PageType.DICTIONARY_PAGE
    assert (dictionary.header.encoding, dictionary.header.is_data) == (Encoding.PLAIN, False)
    header = first.header
    assert (header.type, header.num_values, header.encoding) == (PageType.DATA_PAGE, 250, Encoding.RLE_DICTIONARY)
    assert (header.def_encoding, header.rep_encoding, header.is_compressed) == (Encoding.RLE, Encoding.RLE, True)
    assert (header.num_rows, header.num_nulls, header.def_levels_bytes, header.rep_levels_bytes) == (None,) * 4


def test_a_v2_header() -> None:
    [header, *_] = [page.header for page in pages_of("flat_v2", "nullable") if page.header.is_data]
    assert (header.type, header.num_values, header.num_rows) == (PageType.DATA_PAGE_V2, 250, 250)
    assert header.num_nulls == len(range(0, 250, 7))
    assert header.def_levels_bytes is not None
    assert (header.rep_levels_bytes, header.def_encoding, header.rep_encoding) == (0, None, None)


@pytest.mark.parametrize("name", ["flat_v1_checksum", "flat_v2"])
def test_checksums_are_those_of_the_pages(name: str) -> None:
    signs = set()
    for leaf in sample_metadata(name).schema.leaves:
        for page in pages_of(name, leaf.dotted):
            assert page.header.crc == zlib.crc32(page.data[page.header.header_size :])
            signs.add(page.header.crc >> 31)
    assert signs == {0, 1}  # both signs of the number in the file have been seen


@given(st.data())
def test_a_header_that_is_cut_off_asks_for_more(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["flat", "flat_v2", "flat_v1_checksum", "nested"]))
    column = data.draw(st.sampled_from([leaf.dotted for leaf in sample_metadata(name).schema.leaves]))
    page = data.draw(st.sampled_from(pages_of(name, column)))
    prefix = data.draw(st.binary(max_size=5))
    size = page.header.header_size
    assert decode_page_header(prefix + page.data, len(prefix)) == page.header
    cut = page.data[: data.draw(st.integers(0, size - 1))]
    assert decode_page_header(prefix + cut, len(prefix)) is NeedMore.NEED_MORE
    with pytest.raises(CorruptFileError, match="inside a page header"):
        decode_page_header(cut, complete=True)
    assert decode_page_header(page.data, max_bytes=size) == page.header
    for bytes_there in (page.data, cut):
        if len(bytes_there) >= size - 1:
            with pytest.raises(ResourceLimitError):
                decode_page_header(bytes_there, max_bytes=size - 1)


def header_bytes(
    page_type: int, union: int, numbers: dict[int, int], *, sizes: tuple[int, int] = (9, 9), flag: bool | None = None
) -> bytes:
    writer = CompactWriter()
    writer.field_i32(1, page_type)
    writer.field_i32(2, sizes[0])
    writer.field_i32(3, sizes[1])
    writer.begin_struct(union)
    for field_id, number in numbers.items():
        writer.field_i32(field_id, number)
    if flag is not None:
        writer.field_raw(7, TRUE if flag else FALSE, b"")
    writer.end_struct()
    return writer.getvalue()


V1 = {1: 5, 2: 0, 3: 3, 4: 3}
V2 = {1: 5, 2: 0, 3: 5, 4: 0, 5: 1, 6: 1}


@pytest.mark.parametrize("flag", [None, True, False])
def test_is_compressed_defaults_to_true(flag: bool | None) -> None:
    header = decode_page_header(header_bytes(3, 8, V2, flag=flag))
    assert not isinstance(header, NeedMore)
    assert header.is_compressed == (flag is not False)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header_bytes(-1, 5, V1), "type"),
        (header_bytes(0, 8, V2), "lacks the struct that this type requires"),
        (header_bytes(3, 5, V1), "lacks the struct that this type requires"),
        (header_bytes(0, 5, V1, sizes=(-1, 9)), "uncompressed size"),
        (header_bytes(0, 5, V1, sizes=(9, -1)), "compressed size"),
        (header_bytes(0, 5, V1, sizes=(9, 2**31)), "out of range"),
        (header_bytes(0, 5, V1 | {1: -1}), "number of values"),
        (header_bytes(0, 5, {1: 5}), "encoding"),
        (header_bytes(2, 7, {1: -1, 2: 0}), "number of values"),
        (header_bytes(3, 8, V2 | {5: 9}), "levels take 10 bytes"),
    ],
)
def test_what_is_no_page_header(data: bytes, words: str) -> None:
    with pytest.raises(CorruptFileError, match=words):
        decode_page_header(data)


def test_pages_of_an_unknown_type_are_passed_by() -> None:
    chunk, _ = chunk_of("flat", "text")
    unknown = header_bytes(7, 9, {1: 5}, sizes=(3, 3)) + b"abc"
    pages = [page.data for page in pages_of("flat", "text")]
    raw = b"".join([*pages[:2], unknown, *pages[2:]])
    walker = PageWalker(chunk._replace(total_compressed_size=len(raw)), max_page_bytes=1 << 20)
    found = walker.feed(raw)
    walker.finish()
    assert [page.data for page in found if page.header.type is not PageType.INDEX_PAGE] == pages


def test_headers_are_checked_against_the_metadata() -> None:
    chunk, _ = chunk_of("flat", "text")
    header = next(page.header for page in pages_of("flat", "text") if page.header.is_data)
    check_page_header(header, chunk=chunk, expected_size=header.page_size)
    with pytest.raises(CorruptFileError, match="OffsetIndex says"):
        check_page_header(header, chunk=chunk, expected_size=header.page_size + 1)
    for change, words in (
        ({"encoding": Encoding.DELTA_BYTE_ARRAY}, "footer does not list"),
        ({"compressed_size": chunk.total_compressed_size}, "more than its column chunk"),
        ({"num_values": chunk.num_values + 1}, "more than its column chunk, which has 3000"),
        ({"type": PageType.INDEX_PAGE}, "index page"),
    ):
        with pytest.raises(CorruptFileError, match=words):
            check_page_header(header._replace(**change), chunk=chunk)


def test_a_chunk_with_a_dictionary_has_dictionary_pages_whatever_it_lists() -> None:
    # fastparquet up to 0.6 lists RLE, BIT_PACKED and PLAIN for categories, and counts PLAIN pages
    chunk, _ = chunk_of("flat", "text")
    header = next(page.header for page in pages_of("flat", "text") if page.header.encoding == Encoding.RLE_DICTIONARY)
    counts = PageEncodingStats(PageType.DATA_PAGE, Encoding.PLAIN, 1)
    lying = chunk._replace(encodings=(Encoding.RLE, Encoding.BIT_PACKED, Encoding.PLAIN), encoding_stats=(counts,))
    check_page_header(header, chunk=lying)
    assert "encodings" in (header_contradiction(header, lying, repeated=False) or "")
    without = lying._replace(dictionary_page_offset=None)
    with pytest.raises(CorruptFileError, match="footer does not list"):
        check_page_header(header, chunk=without)
    counted = PageEncodingStats(PageType.DICTIONARY_PAGE, Encoding.PLAIN, 1)
    check_page_header(header, chunk=without._replace(encoding_stats=(counts, counted)))


def test_what_headers_and_chunks_say_in_vain() -> None:
    chunk, _ = chunk_of("flat_v2", "text")
    chunk = chunk._replace(encoding_stats=None)
    header = next(page.header for page in pages_of("flat_v2", "text") if page.header.is_data)

    def contradiction(chunk: ColumnChunk = chunk, *, repeated: bool = False, **changes: Any) -> str | None:
        changed = header._replace(**changes)
        check_page_header(changed, chunk=chunk)
        return header_contradiction(changed, chunk, repeated=repeated)

    assert contradiction() is None
    assert "encodings" in (contradiction(encoding=Encoding.DELTA_BYTE_ARRAY) or "")
    assert contradiction(chunk._replace(encodings=()), encoding=Encoding.DELTA_BYTE_ARRAY) is None  # of old writers
    assert "total_uncompressed_size" in (contradiction(uncompressed_size=chunk.total_uncompressed_size) or "")
    assert "rows" in (contradiction(num_rows=header.num_values - 1) or "")
    assert contradiction(num_rows=header.num_values - 1, repeated=True) is None
    assert "rows" in (contradiction(num_rows=header.num_values + 1, repeated=True) or "")
    assert contradiction(num_rows=None) is None


@given(st.data())
def test_the_walker_gives_the_same_pages_however_it_is_fed(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["flat", "flat_v2", "nested", "flat_row_groups"]))
    column = data.draw(st.sampled_from([leaf.dotted for leaf in sample_metadata(name).schema.leaves]))
    chunk, raw = chunk_of(name, column)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=30)))
    walker = PageWalker(chunk, max_page_bytes=1 << 20)
    pages: list[RawPage] = []
    for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        pages += walker.feed(raw[start:stop])
        # No more is held back than a page, or the start of one and as much again.
        held = stop - sum(len(page.data) for page in pages)
        assert 0 <= held < 2 * max(len(page.data) for page in pages_of(name, column))
    walker.finish()
    assert pages == pages_of(name, column)
    assert sum(page.header.num_values for page in pages if page.header.is_data) == chunk.num_values


@pytest.mark.parametrize("column", ["all_null", "flag"])
def test_the_walker_fed_in_two_pieces(column: str) -> None:
    chunk, raw = chunk_of("flat_v2", column)
    for cut in range(len(raw)):
        walker = PageWalker(chunk, max_page_bytes=1 << 20)
        assert walker.feed(raw[:cut]) + walker.feed(raw[cut:]) == pages_of("flat_v2", column)
        walker.finish()


def test_the_walker_byte_by_byte() -> None:
    chunk, raw = chunk_of("flat", "small")
    walker = PageWalker(chunk, max_page_bytes=1 << 20)
    pages = [page for i in range(len(raw)) for page in walker.feed(raw[i : i + 1])]
    walker.finish()
    assert pages == pages_of("flat", "small")


def walk(chunk: ColumnChunk, raw: bytes, max_page_bytes: int = 1 << 20) -> None:
    walker = PageWalker(chunk, max_page_bytes=max_page_bytes)
    walker.feed(raw)
    walker.finish()


def test_what_the_walker_refuses() -> None:
    chunk, raw = chunk_of("flat", "text")
    dictionary, *pages = pages_of("flat", "text")
    body = b"".join(page.data for page in pages)
    walk(chunk, raw)
    with pytest.raises(CorruptFileError, match="ends inside a page"):
        walk(chunk, raw[:-1])
    with pytest.raises(CorruptFileError, match="pages end at"):
        walk(chunk, raw[: -len(pages[-1].data)])
    with pytest.raises(CorruptFileError, match="after the end of its column chunk at"):
        walk(chunk, raw + pages[-1].data)
    with pytest.raises(CorruptFileError, match="metadata say"):
        walk(chunk._replace(num_values=chunk.num_values + 1), raw)
    with pytest.raises(CorruptFileError, match="or more values, but its metadata say"):
        walk(chunk._replace(num_values=chunk.num_values - 1), raw)
    with pytest.raises(CorruptFileError, match="not the first page"):
        walk(chunk._replace(total_compressed_size=10**6), bytes(dictionary.data) * 2 + body)
    with pytest.raises(ResourceLimitError, match="max_page_bytes"):
        walk(chunk, raw, max_page_bytes=100)


@pytest.mark.parametrize("size", [0, 1, 1 << 40])
def test_the_walker_notes_a_wrong_uncompressed_size(size: int) -> None:
    chunk, raw = chunk_of("flat", "text")
    found: list[str] = []
    for total, wanted in ((chunk.total_uncompressed_size, 0), (size, 1)):
        walker = PageWalker(chunk._replace(total_uncompressed_size=total), max_page_bytes=1 << 20, drop=found.append)
        walker.feed(raw)
        walker.finish()
        assert len(set(found)) == wanted


def test_the_walker_keeps_no_more_than_a_page() -> None:
    chunk, _ = chunk_of("flat", "text")
    huge = header_bytes(0, 5, V1, sizes=(10, 2**30))
    walker = PageWalker(chunk._replace(total_compressed_size=2**31 - 1), max_page_bytes=1 << 20)
    with pytest.raises(ResourceLimitError):
        walker.feed(huge)  # at the header already
    endless = PageWalker(chunk, max_page_bytes=1000)
    with pytest.raises(ResourceLimitError):
        drip(endless, b"\x25" * 2000)  # a header that never ends


def drip(walker: PageWalker, data: bytes) -> None:
    for i in range(len(data)):
        walker.feed(data[i : i + 1])
