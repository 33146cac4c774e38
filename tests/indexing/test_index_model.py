"""Key ranges and keys of tables by file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.indexing.index_model import IndexTable, KeyRange, Segment, comes_whole, file_key

KEYS = st.binary(max_size=4)


@given(KEYS, KEYS)
def test_a_point_holds_one_key(key: bytes, other: bytes) -> None:
    assert (other in KeyRange.point(key)) is (other == key)


@given(st.sampled_from([b"", b"a", b"\xff", b"a\xff", b"\xff\xff", b"a\xfe"]), KEYS)
def test_a_prefix_holds_the_keys_that_begin_with_it(prefix: bytes, key: bytes) -> None:
    assert (key in KeyRange.prefix(prefix)) is key.startswith(prefix)


@given(st.lists(st.tuples(st.integers(0, 2**60), st.integers(-1, 2**20)), min_size=2, max_size=5))
def test_keys_of_files_sort_by_file_and_leaf(numbers: list[tuple[int, int]]) -> None:
    assert sorted(numbers) == sorted(numbers, key=lambda pair: file_key(*pair))


@pytest.mark.parametrize(
    ("size", "data_bytes", "expected"), [(100, 400, True), (101, 400, False), (100, 401, False), (100, 0, True)]
)
def test_segments_come_whole_while_they_are_small_once_decoded_too(size: int, data_bytes: int, expected: bool) -> None:
    segment = Segment(
        name="s",
        table=IndexTable("bounds", ("a",)),
        num_rows=1,
        size=size,
        low=b"",
        high=b"",
        files=(),
        data_bytes=data_bytes,
    )
    assert comes_whole(segment, most=100) is expected
