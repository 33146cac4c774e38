"""Definition levels against an encoder of every form that the specification allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError
from asyncpq.parquet.levels import ABSENT, PRESENT, present_flags
from asyncpq.parquet.thrift import varint

# Runs of levels, relative to the largest level: repeated ones, or groups of eight that are packed.
runs = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 7), st.integers(1, 300)),
        st.lists(st.lists(st.integers(0, 7), min_size=8, max_size=8), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=6,
)


def encode(runs: list[tuple[int, int] | list[list[int]]], level: int) -> tuple[bytes, list[int]]:
    """Return the encoded levels, and the levels; each is at most ``level``."""
    width = level.bit_length()
    encoded, levels = b"", list[int]()
    for run in runs:
        if isinstance(run, tuple):
            value, count = min(run[0], level), run[1]
            encoded += varint(count << 1) + value.to_bytes((width + 7) // 8, "little")
            levels += [value] * count
        else:
            packed = [min(value, level) for group in run for value in group]
            bits = sum(value << number * width for number, value in enumerate(packed))
            encoded += varint(len(run) << 1 | 1) + bits.to_bytes(len(run) * width, "little")
            levels += packed
    return encoded, levels


@pytest.mark.property
@given(runs, st.integers(1, 7), st.integers(0, 7))
def test_flags_say_which_levels_are_the_largest(
    runs: list[tuple[int, int] | list[list[int]]], level: int, padding: int
) -> None:
    encoded, levels = encode(runs, level)
    count = max(1, len(levels) - padding)  # the last group of eight may hold fewer values
    expected = b"".join([PRESENT if value == level else ABSENT for value in levels[:count]])
    assert present_flags(encoded, count, level) == expected


def test_a_required_column_has_no_levels() -> None:
    assert present_flags(b"", 3, 0) == PRESENT * 3


@pytest.mark.property
@given(runs, st.integers(1, 7))
def test_levels_that_are_cut_off_are_an_error(runs: list[tuple[int, int] | list[list[int]]], level: int) -> None:
    encoded, levels = encode(runs, level)
    with pytest.raises(CorruptFileError):
        present_flags(encoded, len(levels) + 1, level)
    with pytest.raises(CorruptFileError):
        present_flags(encoded[:-1], len(levels), level)
