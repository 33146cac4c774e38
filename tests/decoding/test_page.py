"""A queue of pages: which it holds for some rows, and how many rows have come, as a list of all pages says."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.page import DataPage, PageQueue, decode_plain, decode_plain_run, plain_width, present_values
from asyncpq.errors import CorruptFileError
from asyncpq.parquet.chunk_pages import PageHeader, decode_page_header
from asyncpq.parquet.column_chunk import Codec, ColumnChunk
from asyncpq.parquet.metadata import FooterDecoder, FooterFound, decode_file_metadata
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.row_ranges import RowRanges


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    rows=st.lists(st.integers(0, 299), max_size=12),
    data=st.data(),
)
def test_pages_that_hold_rows(sizes: list[int], rows: list[int], data: st.DataObject) -> None:
    pages: list[DataPage] = []
    for size in sizes:
        pages.append(DataPage(b"", pages[-1].stop_row if pages else 0, size))
    num_rows = pages[-1].stop_row
    coming = [page for page in pages if data.draw(st.integers(0, 3))]
    arrived = data.draw(st.integers(0, len(coming)))
    queue: PageQueue[DataPage] = PageQueue(num_rows)
    for page in coming:
        queue.expect(page.first_row)
    for page in coming[:arrived]:
        queue.add(page)
    assert queue.rows_available == (coming[arrived].first_row if arrived < len(coming) else num_rows)
    held = coming[:arrived]
    start = data.draw(st.integers(0, num_rows))
    if data.draw(st.booleans()):
        queue.discard_before(start)
        held = [page for page in held if page.stop_row > start]
        rows = [row for row in rows if row >= start]
    wanted = RowRanges.from_rows(sorted({row % num_rows for row in rows if start <= row % num_rows}))
    assert queue.holding(wanted) == [page for page in held if wanted.clip(page.first_row, page.stop_row)]
    for page in pages:
        assert queue.has(page.first_row) == (page in held)


VALUES = list(range(1000))


def first_page(values: pa.Array, **options: Any) -> tuple[bytes, PageHeader, Leaf, ColumnChunk]:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": values}), sink, use_dictionary=False, **options)
    data = sink.getvalue()
    found = FooterDecoder(max_footer_bytes=1 << 20).next(data, 0, len(data))
    assert isinstance(found, FooterFound)
    metadata = decode_file_metadata(found.metadata_bytes)
    chunk = metadata.row_groups[0].chunk(0)
    header = decode_page_header(data, chunk.start, complete=True)
    assert isinstance(header, PageHeader)
    return data[chunk.start : chunk.start + header.page_size], header, metadata.schema.leaves[0], chunk


def decode(values: pa.Array, *, tamper: Any = None, **options: Any) -> pa.Array | None:
    page, header, leaf, chunk = first_page(values, **options)
    if tamper is not None:
        page, header = tamper(page, header)
    width = plain_width(leaf, values.type)
    return decode_plain(page, header, leaf, chunk.codec, values.type, width, verify_crc=True) if width else None


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.int32(),
        pa.uint32(),
        pa.int64(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.time32("ms"),
        pa.time64("us"),
        pa.timestamp("ms"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns"),
    ],
    ids=str,
)
@pytest.mark.parametrize("checksum", [False, True])
def test_taken_and_equal(kind: pa.DataType, codec: str, version: str, checksum: bool) -> None:
    values = (
        pa.array(VALUES, pa.int64()).cast(pa.int32()).cast(kind)
        if kind.bit_width == 32
        else (pa.array(VALUES, pa.int64()).cast(kind))
    )
    options = {"compression": codec, "data_page_version": version, "write_page_checksum": checksum}
    found = decode(values, **options)
    assert found is not None
    assert found.equals(values)
    found.validate(full=True)
    assert found.buffers()[1].address % (kind.bit_width // 8) == 0


@pytest.mark.parametrize("count", [1, 63, 64, 8191, 8192, 9001])
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=str)
def test_values_behind_levels_of_any_length_are_aligned(kind: pa.DataType, count: int) -> None:
    values = pa.array(range(count), kind)
    found = decode(values, compression="zstd")
    assert found is not None
    assert found.equals(values)
    width = kind.bit_width // 8
    assert found.buffers()[1].address % width == 0
    assert found.get_total_buffer_size() == count * width


@pytest.mark.parametrize(
    ("levels", "is_taken"),
    [
        (b"\x02\0\0\0\x06\x01", True),
        (b"\x03\0\0\0\x86\x00\x01", True),  # the same run, its length in two bytes
        (b"\x02\0\0\0\x10\x01", True),  # a longer run
        (b"\x02\0\0\0\x04\x01", False),
        (b"\x02\0\0\0\x06\x00", False),
        (b"\x04\0\0\0\x04\x01\x02\x00", False),
        (b"\x02\0\0\0\x03\xff", False),  # bit-packed
    ],
)
def test_pages_are_taken_if_their_levels_are_one_run(levels: bytes, is_taken: bool) -> None:
    _, known, leaf, _ = first_page(pa.array([1, 2, 3], pa.int32()), compression="none")
    content = levels + bytes(range(12))
    header = known._replace(uncompressed_size=len(content), compressed_size=len(content), crc=None)
    found = present_values(bytes(header.header_size) + content, header, leaf, Codec.UNCOMPRESSED, verify_crc=True)
    assert (found is not None) == is_taken
    assert found is None or found.data[found.start :] == bytes(range(12))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (pa.array([1, None, 3], pa.int64()), {}),
        (pa.array([1, None, 3], pa.int64()), {"data_page_version": "2.0"}),
        (pa.array([1, 2], pa.int8()), {}),
        (pa.array(["a"]), {}),
        (pa.array([True]), {}),
        (pa.array(VALUES, pa.int64()), {"compression": "gzip"}),
        (pa.array(VALUES, pa.int64()), {"compression": "lz4"}),
        (pa.array(VALUES, pa.int64()), {"column_encoding": "DELTA_BINARY_PACKED"}),
        (pa.array(VALUES, pa.float64()), {"column_encoding": "BYTE_STREAM_SPLIT"}),
        (pa.array(VALUES, pa.timestamp("s")), {}),
        (pa.array([], pa.int64()), {}),
    ],
)
def test_all_else_goes_the_usual_way(values: pa.Array, options: dict[str, Any]) -> None:
    try:
        assert decode(values, **options) is None
    except CorruptFileError:
        assert len(values) == 0  # a column without values has no page to look at


def test_flipped_bit_is_noticed_by_the_crc() -> None:
    def flip(page: bytes, header: PageHeader) -> tuple[bytes, PageHeader]:
        return page[:-5] + bytes([page[-5] ^ 1]) + page[-4:], header

    with pytest.raises(CorruptFileError, match="CRC"):
        decode(pa.array(VALUES, pa.int64()), tamper=flip, compression="none", write_page_checksum=True)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("delta", [-8, 8, 800])
def test_a_size_that_lies_is_never_believed(codec: str, delta: int) -> None:
    """Memory that the decompressor did not fill must not become values."""

    def lie(page: bytes, header: PageHeader) -> tuple[bytes, PageHeader]:
        return page, header._replace(
            uncompressed_size=header.uncompressed_size + delta, num_values=header.num_values + delta // 8
        )

    assert decode(pa.array(VALUES, pa.int64()), tamper=lie, compression=codec) is None


def test_required_columns_have_no_levels() -> None:
    table = pa.table([pa.array(VALUES, pa.int64())], schema=pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    sink = io.BytesIO()
    pq.write_table(table, sink, use_dictionary=False)
    data = sink.getvalue()
    found = FooterDecoder(max_footer_bytes=1 << 20).next(data, 0, len(data))
    assert isinstance(found, FooterFound)
    metadata = decode_file_metadata(found.metadata_bytes)
    chunk, leaf = metadata.row_groups[0].chunk(0), metadata.schema.leaves[0]
    header = decode_page_header(data, chunk.start, complete=True)
    assert isinstance(header, PageHeader)
    page = data[chunk.start : chunk.start + header.page_size]
    found_values = decode_plain(page, header, leaf, chunk.codec, pa.int64(), 8, verify_crc=True)
    assert found_values is not None
    assert found_values.to_pylist() == VALUES


# -- many pages at once -----------------------------------------------------------------------------


def pages_of(values: pa.Array, **options: Any) -> tuple[list[DataPage], list[PageHeader], Leaf, ColumnChunk]:
    nullable = options.pop("nullable", True)
    table = pa.table([values], schema=pa.schema([pa.field("x", values.type, nullable)]))
    sink = io.BytesIO()
    pq.write_table(table, sink, use_dictionary=False, **{"max_rows_per_page": 3000, **options})
    data = sink.getvalue()
    found = FooterDecoder(max_footer_bytes=1 << 20).next(data, 0, len(data))
    assert isinstance(found, FooterFound)
    metadata = decode_file_metadata(found.metadata_bytes)
    chunk = metadata.row_groups[0].chunk(0)
    pages: list[DataPage] = []
    headers: list[PageHeader] = []
    position, row = chunk.start, 0
    while position < chunk.stop:
        header = decode_page_header(data, position, complete=True)
        assert isinstance(header, PageHeader)
        pages.append(DataPage(data[position : position + header.page_size], row, header.num_values))
        headers.append(header)
        position += header.page_size
        row += header.num_values
    return pages, headers, metadata.schema.leaves[0], chunk


def decode_run(
    pages: list[DataPage], headers: list[PageHeader], leaf: Leaf, chunk: ColumnChunk, kind: pa.DataType
) -> pa.Array | None:
    return decode_plain_run(
        pages, headers, leaf, chunk.codec, kind, plain_width(leaf, kind), verify_crc=True, prefixes={}
    )


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.timestamp("us", "UTC")], ids=str)
def test_many_pages_become_one_array(kind: pa.DataType, codec: str, version: str, nullable: bool) -> None:
    values = pa.array(range(100_000), pa.int64()).cast(pa.int32() if kind == pa.int32() else kind)
    options = {"compression": codec, "data_page_version": version, "write_page_checksum": True, "nullable": nullable}
    pages, headers, leaf, chunk = pages_of(values, **options)
    assert len({header.num_values for header in headers}) == 2  # the last one is shorter
    for some in (slice(0, None), slice(0, 1), slice(7, 30)):
        found = decode_run(pages[some], headers[some], leaf, chunk, kind)
        assert found is not None
        found.validate(full=True)
        assert found.equals(values.slice(pages[some][0].first_row, len(found)))
        assert len(found) == sum(page.num_rows for page in pages[some])


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("null", [0, 50_000, 99_999])
def test_no_array_of_many_pages_with_one_null(version: str, null: int) -> None:
    values = pa.array([None if row == null else row for row in range(100_000)], pa.int64())
    assert decode_run(*pages_of(values, compression="zstd", data_page_version=version), pa.int64()) is None


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"column_encoding": "DELTA_BINARY_PACKED"}])
def test_no_array_of_many_pages_in_other_codecs_and_encodings(options: dict[str, Any]) -> None:
    assert decode_run(*pages_of(pa.array(range(9000), pa.int64()), **options), pa.int64()) is None


@pytest.mark.parametrize("damaged", [0, 20])
def test_a_flipped_bit_in_one_of_many_pages(damaged: int) -> None:
    values = pa.array(range(100_000), pa.int64())
    pages, headers, leaf, chunk = pages_of(values, compression="zstd", write_page_checksum=True)
    data = pages[damaged].data
    pages[damaged] = pages[damaged]._replace(data=bytes(data[:-5]) + bytes([data[-5] ^ 1]) + bytes(data[-4:]))
    with pytest.raises(CorruptFileError, match="CRC"):
        decode_run(pages, headers, leaf, chunk, pa.int64())


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_sizes_of_two_pages_that_lie_the_same_sum(codec: str, nullable: bool) -> None:
    """What one page lacks must not come from the next one."""
    pages, headers, leaf, chunk = pages_of(pa.array(range(9000), pa.int64()), compression=codec, nullable=nullable)
    for number, delta in ((0, 8), (1, -8)):
        header = headers[number]
        headers[number] = header._replace(
            uncompressed_size=header.uncompressed_size + delta, num_values=header.num_values + delta // 8
        )
    assert decode_run(pages, headers, leaf, chunk, pa.int64()) is None


def test_two_frames_in_one_page_are_no_values() -> None:
    pages, headers, leaf, chunk = pages_of(pa.array(range(9000), pa.int64()), compression="zstd", nullable=False)
    frame = pages[1].data[headers[1].header_size :]
    pages[0] = pages[0]._replace(data=bytes(pages[0].data) + bytes(frame))
    with pytest.raises(CorruptFileError, match="decompressed"):
        decode_run(pages, headers, leaf, chunk, pa.int64())


TEXTS = [f"u-{row * 7919:013d}" for row in range(40_000)]


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()], ids=str)
def test_texts_of_one_length_become_one_array(kind: pa.DataType, codec: str, version: str, nullable: bool) -> None:
    values = pa.array(TEXTS).cast(kind)
    options = {"compression": codec, "data_page_version": version, "write_page_checksum": True, "nullable": nullable}
    pages, headers, leaf, chunk = pages_of(values, **options)
    for some in (slice(0, None), slice(3, 4), slice(5, 9)):
        found = decode_run(pages[some], headers[some], leaf, chunk, kind)
        assert found is not None
        found.validate(full=True)
        assert found.type == kind
        assert found.equals(values.slice(pages[some][0].first_row, len(found)))
        assert len(found) == sum(page.num_rows for page in pages[some])


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["", *TEXTS[1:]]),
        pa.array([*TEXTS[:-1], "longer than the others"]),
        pa.array([*TEXTS[:20_000], *[text + "!" for text in TEXTS[20_000:]]]),
        pa.array([*TEXTS[:9], TEXTS[9][:-2], TEXTS[10] + "ab", *TEXTS[11:]]),  # as many bytes as the others
        pa.array([*TEXTS[:9], None, *TEXTS[10:]]),
        pa.array([""] * 9000),
        pa.array([], pa.string()),
    ],
    ids=["first", "last", "pages", "two", "null", "empty", "none"],
)
def test_no_array_of_texts_of_several_lengths(values: pa.Array) -> None:
    assert decode_run(*pages_of(values, compression="zstd"), pa.string()) is None


def test_texts_that_are_no_text_are_kept_as_they_are() -> None:
    values = pa.array([b"\xff%07d" % row for row in range(9000)])
    found = decode_run(*pages_of(values, compression="zstd"), pa.string())
    assert found is not None
    assert found.cast(pa.binary()).equals(values)
