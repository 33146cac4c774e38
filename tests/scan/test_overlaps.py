"""Column chunks of one read that share bytes are refused, and no others."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError
from asyncpq.scan.fetch_planner import refuse_overlaps
from tests.parquet_samples import sample_metadata


class Chunk(NamedTuple):
    leaf: int
    start: int
    stop: int


class Column(NamedTuple):
    chunk: Chunk


class Group(NamedTuple):
    columns: tuple[Column, ...]


LEAVES = sample_metadata("flat").schema.leaves
spans = st.builds(lambda start, size: (start, start + size), st.integers(4, 40), st.integers(0, 6))


@example([[(4, 40), (5, 5), (10, 20)]])
@given(st.lists(st.lists(spans, max_size=4), max_size=4))
def test_overlaps(groups: list[list[tuple[int, int]]]) -> None:
    taken: set[int] = set()
    shared = False
    for start, stop in [span for group in groups for span in group]:
        shared = shared or not taken.isdisjoint(range(start, stop))
        taken |= set(range(start, stop))
    plans: Any = [Group(tuple(Column(Chunk(at, *span)) for at, span in enumerate(group))) for group in groups]
    if shared:
        with pytest.raises(CorruptFileError, match="claim the same bytes") as caught:
            refuse_overlaps(plans, LEAVES)
        low, high = caught.value.byte_range or (0, 0)
        assert low < high
        assert set(range(low, high)) <= taken
    else:
        refuse_overlaps(plans, LEAVES)
