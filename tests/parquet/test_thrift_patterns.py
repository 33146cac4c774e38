"""The patterns of Thrift structs against the reader: where they end, and in linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.parquet import thrift_patterns
from asyncpq.parquet.row_group import chunk_pattern
from asyncpq.parquet.thrift import CompactReader

_STRUCT_PATTERNS = {
    "statistics": thrift_patterns.STATISTICS,
    "integers": thrift_patterns.INTEGER_STRUCT,
    "annotation": thrift_patterns.annotation_struct(3),
}


# Bytes that are often headers, lengths and stops, so that random strings of them are often structs.
likely = st.lists(
    st.sampled_from(
        [b"\x15\x02", b"\x16\x80\x01", b"\x18\x02ab", b"\x11", b"\x22", b"\x1c", b"\x19\x25\x00\x01", b"\0"]
    )
    | st.binary(min_size=1, max_size=1),
    max_size=30,
).map(b"".join)


@pytest.mark.parametrize("pattern", _STRUCT_PATTERNS.values(), ids=_STRUCT_PATTERNS)
@given(data=likely)
def test_a_pattern_ends_where_the_reader_does(pattern: bytes, data: bytes) -> None:
    found = re.compile(pattern, re.DOTALL).match(data)
    if found is not None:
        for read in (CompactReader.struct, CompactReader.skip_struct):
            reader = CompactReader(data)
            read(reader)
            assert reader.pos == found.end()


@pytest.mark.parametrize(
    "unit", [b"\x15\x80", b"\x18\x05", b"\x1c", b"\x19\xe5", b"\x19\x1c\x15", b"\x80", b"\x15\x02"]
)
def test_patterns_take_linear_time(unit: bytes) -> None:
    def seconds(size: int) -> float:
        data = unit * (size // len(unit))
        patterns = [chunk_pattern(), *(re.compile(pattern, re.DOTALL) for pattern in _STRUCT_PATTERNS.values())]
        start = time.perf_counter()
        for pattern in patterns:
            pattern.match(data)
            pattern.match(b"\x1c" + data)
        return time.perf_counter() - start

    seconds(1000)
    # Quadratic time would take minutes for a megabyte, exponential time would not end for 100 bytes.
    assert seconds(1 << 20) < 30
