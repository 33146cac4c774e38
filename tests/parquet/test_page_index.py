"""Page indexes: lookups, and lies that must be noticed."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError, CorruptIndexError
from asyncpq.parquet.page_index import (
    BoundaryOrder,
    OffsetIndex,
    decode_column_index,
    decode_offset_index,
    encode_offset_index,
    validate_offset_index,
    zigzag_varints,
)
from asyncpq.parquet.thrift import BINARY, I64, STRUCT, TRUE, CompactWriter, zigzag_varint
from tests.parquet_samples import sample, sample_metadata

Location = tuple[int, int, int]


def offset_index_bytes(locations: list[Location], *, extra_fields: bool = False) -> bytes:
    writer = CompactWriter()
    writer.field_list(1, STRUCT, len(locations))
    for offset, size, first_row in locations:
        writer.begin_element()
        writer.field_i64(1, offset)
        writer.field_i32(2, size)
        writer.field_i64(3, first_row)
        if extra_fields:  # of a future version
            writer.field_binary(9, b"new")
        writer.end_struct()
    writer.field_list(2, I64, len(locations))
    for _ in locations:
        writer.element_i32(300)
    return writer.getvalue()


@given(
    st.lists(st.tuples(st.integers(0, 2**50), st.integers(1, 2**31 - 1), st.integers(0, 2**40)), max_size=50),
    st.booleans(),
)
def test_locations_are_read_as_written(locations: list[Location], extra_fields: bool) -> None:
    index = decode_offset_index(offset_index_bytes(locations, extra_fields=extra_fields))
    assert list(zip(index.offsets, index.sizes, index.first_rows, strict=True)) == locations
    assert index.num_pages == len(locations)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40))
def test_rows_and_pages(counts: list[int]) -> None:
    firsts = [sum(counts[:i]) for i in range(len(counts))]
    num_rows = sum(counts)
    index = OffsetIndex(tuple(range(4, 4 + len(counts))), (1,) * len(counts), tuple(firsts))
    validate_offset_index(index, chunk_start=4, chunk_stop=4 + len(counts), num_rows=num_rows)
    assert index.row_counts(num_rows) == counts
    for row in range(num_rows):
        page = index.page_of_row(row)
        assert page == bisect.bisect_right(firsts, row) - 1
        start, stop = index.rows_of_page(page, num_rows)
        assert start <= row < stop


GOOD = [(104, 10, 0), (114, 20, 5), (140, 20, 9)]  # a gap between pages is legal


def validate(locations: list[Location], num_rows: int = 12) -> None:
    index = decode_offset_index(offset_index_bytes(locations))
    validate_offset_index(index, chunk_start=100, chunk_stop=160, num_rows=num_rows)


def test_a_good_index_is_good() -> None:
    validate(GOOD)
    validate([], num_rows=0)


@pytest.mark.parametrize(
    ("locations", "words"),
    [
        ([], "no pages"),
        ([(104, 10, 1), *GOOD[1:]], "begins at row 1"),
        ([*GOOD[:2], (140, 20, 12)], "at row 12 of only 12"),
        ([GOOD[0], (114, 20, 0), GOOD[2]], "do not increase"),
        ([GOOD[0], (114, 20, 10), GOOD[2]], "do not increase"),
        ([(99, 10, 0), *GOOD[1:]], "outside their column chunk"),
        ([*GOOD[:2], (140, 21, 9)], "outside their column chunk"),
        ([(104, 11, 0), *GOOD[1:]], "overlap"),
        ([(114, 20, 0), (104, 10, 5), GOOD[2]], "overlap"),
        ([(104, 0, 0), *GOOD[1:]], "of 0 bytes"),
    ],
)
def test_lying_offset_indexes(locations: list[Location], words: str) -> None:
    with pytest.raises(CorruptIndexError, match=words):
        validate(locations)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_negative_numbers_are_refused(number: int) -> None:
    location = list(GOOD[1])
    location[number] = -1
    with pytest.raises(CorruptIndexError, match="negative"):
        validate([GOOD[0], (location[0], location[1], location[2])])


@pytest.mark.parametrize("decode", [decode_offset_index, decode_column_index])
@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\x19", b"\x19\xfc\xff\xff\xff\xff\x07", b"\x15\x02\0", b"\x19\x35\1\1\1\0"]
)
def test_what_is_no_index(decode: type, data: bytes) -> None:
    with pytest.raises(CorruptIndexError):
        decode(data)


def column_index_bytes(
    nulls: list[bool], mins: list[bytes], maxs: list[bytes], order: int | None = 0, counts: list[int] | None = None
) -> bytes:
    writer = CompactWriter()
    writer.field_list(1, TRUE, len(nulls))
    writer.raw(bytes(1 if null else 2 for null in nulls))
    for field_id, values in ((2, mins), (3, maxs)):
        writer.field_list(field_id, BINARY, len(values))
        for value in values:
            writer.element_binary(value)
    if order is not None:
        writer.field_i32(4, order)
    if counts is not None:
        writer.field_list(5, I64, len(counts))
        for count in counts:
            writer.element_i32(count)
    for histogram in (6, 7):
        writer.field_list(histogram, I64, 2 * len(nulls))
        for i in range(2 * len(nulls)):
            writer.element_i32(i * 100)
    return writer.getvalue()


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=150), st.binary(max_size=9), st.integers(0, 10**6))),
    st.sampled_from(BoundaryOrder),
    st.booleans(),
)
def test_column_indexes_are_read_as_written(
    pages: list[tuple[bool, bytes, bytes, int]], order: BoundaryOrder, counted: bool
) -> None:
    nulls, mins, maxs = [p[0] for p in pages], [p[1] for p in pages], [p[2] for p in pages]
    counts = [p[3] + 1 for p in pages]
    index = decode_column_index(column_index_bytes(nulls, mins, maxs, order, counts if counted else None))
    assert (index.null_pages, index.min_values, index.max_values) == (nulls, mins, maxs)
    assert (index.boundary_order, index.null_counts) == (order, counts if counted else None)
    assert index.nan_counts is None


@given(st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=40), st.data())
def test_bounds_of_one_length_are_read_as_written(values: list[bytes], data: st.DataObject) -> None:
    whole = column_index_bytes([False] * len(values), values, values)
    assert decode_column_index(whole).max_values == values
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptIndexError):
        decode_column_index(whole[:cut])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (column_index_bytes([False], [b"a", b"b"], [b"a"]), "lengths: 1, 2"),
        (column_index_bytes([False], [b"a"], []), "lengths: 1, 0"),
        (column_index_bytes([False], [b"a"], [b"a"], 0, [1, 2]), "lengths: 1, 2"),
        (column_index_bytes([False], [b"a"], [b"a"], 3), "boundary order 3"),
        (column_index_bytes([False], [b"a"], [b"a"], None), "boundary order None"),
        (column_index_bytes([True], [b""], [b""], 0, [0]), "all null, but counts 0 nulls"),
    ],
)
def test_lying_column_indexes(data: bytes, words: str) -> None:
    with pytest.raises(CorruptIndexError, match=words):
        decode_column_index(data)


def test_a_null_count_of_minus_1_means_unknown() -> None:
    index = decode_column_index(column_index_bytes([False, True], [b"a", b""], [b"a", b""], 0, [0, -1]))
    assert index.null_counts is None


def test_real_indexes_have_their_weight() -> None:
    metadata = sample_metadata("flat")
    chunk = metadata.row_groups[0].chunk(0)
    for span, decode in (
        (chunk.offset_index_range, decode_offset_index),
        (chunk.column_index_range, decode_column_index),
    ):
        assert span is not None
        index = decode(sample("flat")[slice(*span)])
        assert index.weight > 50 * index.num_pages > 0


@given(st.lists(st.integers(0, 2**62)))
def test_many_varints_at_once(numbers: list[int]) -> None:
    assert zigzag_varints([zigzag_varint(n) for n in numbers]) == tuple(numbers)


@pytest.mark.parametrize("largest", [1, 2**55 - 1, 2**55, 2**62])  # of 8 bytes at most, and of 9
def test_thousands_of_varints_at_once(largest: int) -> None:
    numbers = [largest * place // 999 for place in range(1000)]
    assert zigzag_varints([zigzag_varint(n) for n in numbers]) == tuple(numbers)


@pytest.mark.parametrize("numbers", [(1, -1), (2**62, -1), (*range(1000), -1)])
def test_many_varints_at_once_refuse_negatives(numbers: tuple[int, ...]) -> None:
    with pytest.raises(CorruptFileError, match="negative"):
        zigzag_varints([zigzag_varint(n) for n in numbers])


@pytest.mark.parametrize("negative", range(3))
def test_the_only_page_is_at_no_negative_place(negative: int) -> None:
    location = tuple([-1 if number == negative else 1 for number in range(3)])
    with pytest.raises(CorruptIndexError, match="negative"):
        decode_offset_index(encode_offset_index(OffsetIndex(*[(value,) for value in location])))
