"""The lazy metadata: what is parsed when, and contradictions that must be noticed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from asyncpq.errors import CorruptFileError, FormatError, ResourceLimitError
from asyncpq.parquet.metadata import decode_file_metadata, set_key_values
from asyncpq.parquet.statistics import ColumnOrder
from asyncpq.parquet.thrift import DEFAULT_MAX_ELEMENTS, STRUCT, CompactWriter
from tests.parquet.footers import footer, write_schema
from tests.parquet_samples import DATA, find_footer, metadata_of, requires_corpus, sample, sample_metadata

# -- footers written by hand -------------------------------------------------------------------------


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


def test_files_with_equal_key_values_share_them_unless_these_are_large() -> None:
    for text, shared in (("a", True), ("b", True), ("a" * 100_000, False)):
        data = set_key_values(footer(), {"key": text}, max_elements=DEFAULT_MAX_ELEMENTS)
        first, second = decode_file_metadata(data), decode_file_metadata(data)
        assert first.key_value_metadata == second.key_value_metadata == {"key": text}
        assert (first.key_value_metadata is second.key_value_metadata) == shared


def test_column_orders_of_the_future_are_unknown() -> None:
    metadata = decode_file_metadata(footer(columns=4, orders=4))
    assert metadata.column_orders == (
        ColumnOrder.TYPE_ORDER,
        ColumnOrder.IEEE_754_TOTAL_ORDER,
        ColumnOrder.INT96_TIMESTAMP_ORDER,
        ColumnOrder.UNKNOWN,
    )


@pytest.mark.parametrize("rows", [0, 6])
def test_row_counts_that_leave_out_later_row_groups_are_dropped(rows: int) -> None:
    metadata = decode_file_metadata(footer(rows=rows))
    assert metadata.num_rows == 7
    assert metadata.dropped == (f"the footer says {rows} rows, but its row groups have 7",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 8}, "says 8 rows, but its row groups have 7"),
        ({"rows": 1, "group_rows": (2**62, 2**62)}, "says 1 rows, but its row groups have 9223372036854775808"),
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
    ("orders", "found"), [(0, ColumnOrder.UNKNOWN), (1, ColumnOrder.TYPE_ORDER), (3, ColumnOrder.UNKNOWN)]
)
def test_more_or_fewer_column_orders_than_columns(orders: int, found: ColumnOrder) -> None:
    """Which is whose cannot be told, unless all are the same."""
    metadata = decode_file_metadata(footer(orders=orders))
    assert metadata.column_orders == (found, found)
    assert metadata.dropped == (f"the footer has {orders} column orders for 2 columns",)


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
