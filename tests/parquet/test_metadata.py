"""The lazy metadata: what is parsed when, and contradictions that must be noticed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from asyncpq.errors import (
    CorruptFileError,
    FormatError,
    ResourceLimitError,
    UnsupportedFeatureError,
)
from asyncpq.parquet.column_chunk import validate_chunk
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.parquet.statistics import ColumnOrder
from asyncpq.parquet.thrift import BINARY, I32, STRUCT, CompactWriter
from tests.costs import python_calls
from tests.parquet_samples import DATA, find_footer, metadata_of, requires_corpus, sample, sample_metadata

# -- footers written by hand -------------------------------------------------------------------------


def write_schema(writer: CompactWriter, columns: int) -> None:
    writer.field_list(2, STRUCT, columns + 1)
    writer.begin_element()
    writer.field_binary(4, b"schema")
    writer.field_i32(5, columns)
    writer.end_struct()
    for column in range(columns):
        writer.begin_element()
        writer.field_i32(1, 2)
        writer.field_i32(3, 1)
        writer.field_binary(4, b"c%d" % column)
        writer.end_struct()


def write_chunk(writer: CompactWriter, column: int, rows: int, **changes: Any) -> None:
    numbers: dict[str, Any] = {
        "type": (1, 2),
        "codec": (4, 0),
        "num_values": (5, rows),
        "total_uncompressed_size": (6, 100),
        "total_compressed_size": (7, 100),
        "data_page_offset": (9, 4),
        "dictionary_page_offset": (11, None),
    }
    for name, value in changes.items():
        if name in numbers:
            numbers[name] = (numbers[name][0], value)
    writer.begin_element()
    if "file_path" in changes:
        writer.field_binary(1, changes["file_path"])
    writer.field_i64(2, 0)
    if changes.get("has_metadata", True):
        writer.begin_struct(3)
        for field_id, value in sorted(numbers.values()):
            if field_id == 4:
                writer.field_list(2, I32, 1)
                writer.element_i32(0)
                path = changes.get("path", b"c%d" % column)
                writer.field_list(3, BINARY, 1)
                writer.element_binary(path)
            if value is not None:
                writer.field_i64(field_id, value)
        writer.end_struct()
    if changes.get("has_crypto"):
        writer.begin_struct(8)
        writer.end_struct()
    writer.end_struct()


def footer(
    *,
    rows: int = 7,
    group_rows: tuple[int, ...] = (3, 4),
    columns: int = 2,
    chunks: int | None = None,
    orders: int | None = None,
    **changes: Any,
) -> bytes:
    writer = CompactWriter()
    writer.field_i32(1, 1)
    write_schema(writer, columns)
    writer.field_i64(3, rows)
    writer.field_list(4, STRUCT, len(group_rows))
    for num_rows in group_rows:
        writer.begin_element()
        writer.field_list(1, STRUCT, columns if chunks is None else chunks)
        for column in range(columns if chunks is None else chunks):
            write_chunk(writer, column, num_rows, **changes)
        writer.field_i64(2, 1000)
        writer.field_i64(3, num_rows)
        writer.end_struct()
    if orders is not None:
        writer.field_list(7, STRUCT, orders)
        for i in range(orders):
            writer.begin_element()
            writer.begin_struct(i % 4 + 1)
            writer.end_struct()
            writer.end_struct()
    return writer.getvalue()


def test_a_footer_written_by_hand() -> None:
    metadata = decode_file_metadata(footer(orders=2) + b"a signature")
    assert metadata.num_rows == 7
    assert [(group.first_row, group.num_rows, group.num_columns) for group in metadata.row_groups] == [
        (0, 3, 2),
        (3, 4, 2),
    ]
    chunk = metadata.row_groups[1].chunk(1)
    assert (chunk.path, chunk.num_values, chunk.start, chunk.stop) == (("c1",), 4, 4, 104)
    assert metadata.column_orders == (ColumnOrder.TYPE_ORDER, ColumnOrder.IEEE_754_TOTAL_ORDER)
    assert not metadata.has_encryption
    assert metadata.created_by is None
    assert dict(metadata.key_value_metadata) == {}


def test_column_orders_of_the_future_are_unknown() -> None:
    metadata = decode_file_metadata(footer(columns=4, orders=4))
    assert metadata.column_orders == (
        ColumnOrder.TYPE_ORDER,
        ColumnOrder.IEEE_754_TOTAL_ORDER,
        ColumnOrder.INT96_TIMESTAMP_ORDER,
        ColumnOrder.UNKNOWN,
    )


def test_chunks_are_parsed_once_when_asked_for() -> None:
    metadata = metadata_of(sample("flat_row_groups"))
    before = metadata.weight
    assert before > len(metadata.data)
    chunk = metadata.row_groups[2].chunk(3)
    after = metadata.weight
    assert after > before
    assert metadata.row_groups[2].chunk(3) is chunk
    assert metadata.weight == after
    for ordinal in (-1, len(metadata.schema.leaves)):
        with pytest.raises(IndexError):
            metadata.row_groups[0].chunk(ordinal)


@pytest.mark.parametrize("rows", [0, 6])
def test_row_counts_that_leave_out_later_row_groups_are_dropped(rows: int) -> None:
    metadata = decode_file_metadata(footer(rows=rows))
    assert metadata.num_rows == 7
    assert metadata.dropped == (f"the footer says {rows} rows, its row groups have 7",)


def test_row_groups_whose_chunks_deny_their_rows_do_not_correct_the_footer() -> None:
    with pytest.raises(CorruptFileError, match="says 6 rows, its row groups have 7"):
        decode_file_metadata(footer(rows=6, num_values=2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 8}, "says 8 rows, its row groups have 7"),
        ({"rows": 1, "group_rows": (2**62, 2**62)}, "says 1 rows, its row groups have 9223372036854775808"),
        ({"rows": -1}, "negative"),
        ({"group_rows": (-3, 10)}, "negative"),
        ({"chunks": 1}, "1 column chunks"),
        ({"chunks": 3}, "3 column chunks"),
    ],
)
def test_contradictions_in_the_footer(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptFileError, match=words):
        decode_file_metadata(footer(**changes))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"type": 1}, CorruptFileError, "physical type 1"),
        ({"type": 99}, CorruptFileError, "physical type 99"),
        ({"type": None}, CorruptFileError, "type is missing"),
        ({"num_values": -1}, CorruptFileError, "num_values"),
        ({"total_compressed_size": -1}, CorruptFileError, "total_compressed_size"),
        ({"data_page_offset": -4}, CorruptFileError, "data_page_offset"),
        ({"data_page_offset": None}, CorruptFileError, "data_page_offset is missing"),
        ({"has_metadata": False}, CorruptFileError, "no metadata"),
        ({"has_metadata": False, "has_crypto": True}, UnsupportedFeatureError, "encrypted"),
    ],
)
def test_contradictions_in_a_chunk(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    metadata = decode_file_metadata(footer(**changes))  # which does not look
    with pytest.raises(error, match=words) as caught:
        metadata.row_groups[0].chunk(0)
    assert isinstance(caught.value, FormatError)
    assert caught.value.column == "c0"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": b"other"}, "names the column 'other'"),
        ({"path": b"\xff"}, "names the column"),
        ({"num_values": 8}, "8 values in a row group of 3 rows"),
    ],
)
def test_what_a_chunk_says_in_vain(changes: dict[str, Any], words: str) -> None:
    """Its place says which column it is, and the row group how many values a leaf that is not repeated has."""
    chunk = decode_file_metadata(footer(**changes)).row_groups[0].chunk(0)
    (what,) = chunk.dropped
    assert words in what
    assert chunk.num_values == 3
    assert decode_file_metadata(footer()).row_groups[0].chunk(0).dropped == ()


@pytest.mark.parametrize("size", [None, -1, 0])
def test_an_uncompressed_size_that_cannot_be(size: int | None) -> None:
    chunk = decode_file_metadata(footer(total_uncompressed_size=size)).row_groups[0].chunk(0)
    assert chunk.total_uncompressed_size == 0


@pytest.mark.parametrize(
    ("orders", "found"),
    [(0, ColumnOrder.UNKNOWN), (1, ColumnOrder.TYPE_ORDER), (3, ColumnOrder.UNKNOWN)],
)
def test_more_or_fewer_column_orders_than_columns(orders: int, found: ColumnOrder) -> None:
    """Which is whose cannot be told, unless all are the same."""
    metadata = decode_file_metadata(footer(orders=orders))
    assert metadata.column_orders == (found, found)
    assert metadata.dropped == (f"the footer has {orders} column orders for 2 columns",)


@pytest.mark.parametrize(
    ("dictionary", "data", "start"),
    [(None, 50, 50), (0, 50, 50), (4, 50, 4), (50, 50, 50), (60, 50, 50), (-1, 50, 50)],
)
def test_where_a_chunk_starts(dictionary: int | None, data: int, start: int) -> None:
    metadata = decode_file_metadata(footer(dictionary_page_offset=dictionary, data_page_offset=data))
    chunk = metadata.row_groups[0].chunk(0)
    assert (chunk.start, chunk.stop) == (start, start + 100)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"data_page_offset": 3}, CorruptFileError),
        ({"data_page_offset": 2**62}, CorruptFileError),
        ({"total_compressed_size": 197}, CorruptFileError),
        ({"total_compressed_size": 2**62}, CorruptFileError),
        ({"total_compressed_size": 0}, CorruptFileError),
        ({"dictionary_page_offset": 4, "data_page_offset": 104}, CorruptFileError),
        ({"file_path": b"http://elsewhere/x"}, UnsupportedFeatureError),
        ({"has_crypto": True}, UnsupportedFeatureError),
    ],
)
def test_chunks_outside_the_file(changes: dict[str, Any], error: type[Exception]) -> None:
    metadata = decode_file_metadata(footer(**changes))
    with pytest.raises(error) as caught:
        validate_chunk(metadata.row_groups[0].chunk(0), metadata.schema.leaves[0], 1000, 200)
    assert "elsewhere" not in str(caught.value)


@pytest.mark.parametrize("changes", [{}, {"data_page_offset": 100}, {"total_compressed_size": 196}])
def test_chunks_inside_the_file(changes: dict[str, Any]) -> None:
    metadata = decode_file_metadata(footer(**changes))
    validate_chunk(metadata.row_groups[0].chunk(0), metadata.schema.leaves[0], 1000, 200)


def test_chunks_without_values_may_be_anywhere() -> None:
    metadata = decode_file_metadata(footer(rows=0, group_rows=(0,), data_page_offset=0, total_compressed_size=14))
    validate_chunk(metadata.row_groups[0].chunk(0), metadata.schema.leaves[0], 1000, 200)


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_footer_that_is_cut_off(cut: int) -> None:
    with pytest.raises(CorruptFileError):
        decode_file_metadata(sample_metadata("flat").data[:-cut])


@pytest.mark.parametrize("data", [b"", b"\0", b"\x15\x02\0", b"PAR1" * 10])
def test_what_is_no_footer(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_file_metadata(data)


@requires_corpus
def test_rows_of_a_file_whose_footer_says_0() -> None:
    metadata = metadata_of((DATA / "repeated_no_annotation.parquet").read_bytes())
    assert metadata.num_rows == 6


def test_elements_are_limited() -> None:
    data = footer(columns=40, group_rows=(3, 4))
    assert decode_file_metadata(data, max_elements=1000).num_rows == 7
    with pytest.raises(ResourceLimitError):
        decode_file_metadata(data, max_elements=100)


@pytest.mark.parametrize("element", [b"\0", b"\x15\0\0"])
def test_a_bomb_of_small_elements_takes_little_memory(element: bytes) -> None:
    count = 1 << 20
    writer = CompactWriter()
    writer.field_i32(1, 1)
    write_schema(writer, 1)
    writer.field_i64(3, 0)
    writer.field_list(4, STRUCT, 0)
    writer.field_list(7, STRUCT, count)
    writer.raw(element * count)
    data = writer.getvalue()
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decode_file_metadata(data, max_elements=1 << 16)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_ten_thousand_columns_are_found_with_little_work() -> None:
    data = footer(columns=10_000, group_rows=(7,))
    decode_file_metadata(footer())  # the pattern is compiled

    def last_of_many() -> None:
        metadata = decode_file_metadata(data)
        assert len(metadata.schema.leaves) == 10_000
        assert metadata.row_groups[0].chunk(9_999).path == ("c9999",)

    # 22 a column, for the schema; parsing a chunk takes 420, and walking over it without the pattern many.
    assert python_calls(last_of_many) < 300_000


def test_the_footer_start_is_where_the_metadata_lie() -> None:
    data = sample("flat")
    found = find_footer(data)
    assert data[found.start : found.start + len(found.metadata_bytes)] == found.metadata_bytes


# -- schemas of neighbours ---------------------------------------------------------------------------


def test_files_of_the_same_schema_share_it() -> None:
    one = decode_file_metadata(footer(columns=3))
    other = decode_file_metadata(footer(columns=3, rows=9, group_rows=(4, 5)))
    assert other.schema is one.schema
    assert (one.num_rows, other.num_rows) == (7, 9)
    assert decode_file_metadata(footer(columns=4)).schema is not one.schema
    with pytest.raises(ResourceLimitError):
        decode_file_metadata(footer(columns=3), max_schema_elements=3)
    with pytest.raises(ResourceLimitError):
        decode_file_metadata(footer(columns=3), max_elements=4)
