"""Which intervals of a part meet ranges of keys: asked one by one, or of many at once."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.indexing.index_model import KeyRange
from asyncpq.indexing.query import file_selection as part_slices

_KEYS = st.lists(st.sampled_from([0, 1, 2]), max_size=2).map(bytes)
_POINT = _KEYS.map(KeyRange.point)
_RANGE = st.tuples(_KEYS, _KEYS).map(lambda pair: KeyRange(min(pair), max(pair) + b"\x00"))
_RANGES = st.lists(_POINT | _RANGE, min_size=1, max_size=3) | st.lists(
    st.tuples(_KEYS, st.none() | _KEYS).map(lambda pair: KeyRange(*pair)), min_size=1, max_size=20
)
_INTERVALS = st.lists(st.tuples(_KEYS, _KEYS).map(lambda pair: (min(pair), max(pair))), min_size=1, max_size=30)


@given(ranges=_RANGES, intervals=_INTERVALS)
def test_many_ranges_meet_what_each_of_them_meets(ranges: list[KeyRange], intervals: list[tuple[bytes, bytes]]) -> None:
    ranges = [one for one in ranges if one.high is None or one.low < one.high]  # as they come: none is empty
    table = pa.table(
        {
            "key": pa.array([low for low, _ in intervals], pa.binary()),
            "max": pa.array([high for _, high in intervals], pa.binary()),
            "at": list(range(len(intervals))),
        }
    )
    expected = [
        at
        for at, (low, high) in enumerate(intervals)
        if any(one.low <= high and (one.high is None or low < one.high) for one in ranges)
    ]
    many = part_slices._meet([low for low, _ in intervals], [high for _, high in intervals], ranges)
    assert [at for at, meets in enumerate(many) if meets] == expected
    assert part_slices._overlapping(table, ranges).column("at").to_pylist() == expected
    copies = part_slices._SMALL_TABLE + 1  # of the rows, which are then compared by kernels
    large = pa.concat_tables([table] * copies)
    assert part_slices._overlapping(large, ranges).column("at").to_pylist() == expected * copies
