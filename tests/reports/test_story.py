"""Where the time of a read went: each moment counts once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.reports.story import Story, runs

spans = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 30)).map(lambda span: (float(span[0]), float(sum(span)))), max_size=8
)


@given(network=spans, waited=spans, decoded=spans)
def test_each_moment_counts_once(
    network: list[tuple[float, float]], waited: list[tuple[float, float]], decoded: list[tuple[float, float]]
) -> None:
    story = Story(scan=False)
    story.trace.waited += waited
    story.trace.decoded += decoded
    split = story.time_split(200.0, network)

    def moments(some: list[tuple[float, float]]) -> set[int]:
        return {moment for start, stop in some for moment in range(int(start), int(stop))}

    first, second = moments(network), moments(waited) - moments(network)
    third = moments(decoded) - first - second
    assert (split["network_s"], split["caches_s"], split["decode_s"]) == (len(first), len(second), len(third))
    assert split["other_s"] == pytest.approx(200 - len(first) - len(second) - len(third))


@given(st.sets(st.integers(0, 30)).map(sorted))
def test_runs_of_pages(pages: list[int]) -> None:
    found = list(runs(pages))
    assert [page for start, stop in found for page in range(start, stop)] == pages
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(found))
