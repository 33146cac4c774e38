"""Key ranges and keys of tables by file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncpq.indexing.index_model import KeyRange, file_key

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
