"""Where the time of a read went: each moment counts once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.metrics import Purpose, RequestRecord
from asyncpq.objects.prices import Prices
from asyncpq.options import LimitOptions, RequestOptions
from asyncpq.reports.story import ColumnRead, Facts, ReadModel, Story, Without, paged, pieces_of, runs

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


PRICES = Prices.initial(RequestOptions(latency_s=0.1, bandwidth_bytes_s=1e6), LimitOptions())


def record(round_: int, size: int, purpose: Purpose = "data") -> RequestRecord:
    return RequestRecord("GET", purpose, 0, size, 206, size, 1, round_, 0.0)


def column(name: str, **facts: Any) -> ColumnRead:
    """A chunk of 4 pages of 10 rows and 1,000 bytes."""
    plain: dict[str, Any] = {
        "url": "a", "row_group": 0, "leaf": 0, "name": name, "predicate": False, "num_rows": 40, "bytes": 4_500,
        "dictionary": 500, "sizes": [1_000] * 4, "first_rows": [0, 10, 20, 30], "fetched": [0, 1, 2, 3], "wanted": [1],
        "matches": 1, "whole": True, "has_index": False, "has_bounds": False, "is_estimated": False,
    }  # fmt: skip
    return ColumnRead(**{**plain, **facts})


def facts(*log: RequestRecord, **others: Any) -> Facts:
    plain: dict[str, Any] = {"columns": [], "filters": [], "matches": 1, "footers": [], "sizes": []}
    return Facts(log=log, prices=PRICES, **{**plain, **others})


def test_rounds_wait_for_one_another() -> None:
    model = ReadModel(facts(record(1, 1_000, "tail"), record(2, 50_000), record(2, 50_000)))
    one = PRICES.round_s([(0, 1_000)])
    assert model.now_s == pytest.approx(one + PRICES.round_s([(0, 50_000), (0, 50_000)]))


def test_a_cause_saves_what_is_left_out() -> None:
    model = ReadModel(facts(record(1, 1_000, "tail"), record(2, 50_000), record(2, 60_000)))
    (cause,) = model.cause("id", "title", "detail", "cure", Without(data=[[10_000]]))
    assert (cause["saves_requests"], cause["saves_bytes"]) == (1, 100_000)
    assert cause["saves_seconds"] == pytest.approx(0.1 + PRICES.request_s, abs=1e-6)
    assert cause["severity"] == "medium"
    assert list(model.cause("id", "title", "detail", "cure", Without(data=[[200_000]]))) == []  # it would cost more
    (nothing,) = model.cause("id", "title", "detail", "cure", Without(data=[]))
    assert nothing["saves_bytes"] == 110_000


def test_pages_of_a_run_are_one_request_and_a_whole_chunk_is_one() -> None:
    chunk = column("x")
    assert pieces_of([chunk], lambda column: [0, 1, 3]) == [500, 2_000, 1_000]
    assert pieces_of([chunk], lambda column: [0, 1, 2, 3]) == [4_500]
    assert pieces_of([chunk], lambda column: [0, 1], dictionaries=False) == [2_000]
    assert pieces_of([chunk], lambda column: []) == []


def test_the_cheaper_way_to_read_pages_is_taken() -> None:
    key = column("key", predicate=True)
    small, large = column("other"), column("other", sizes=[1_000_000] * 4, bytes=4_000_500)
    model = ReadModel(facts(record(1, 1)))
    assert paged([key, small], model, lambda column: [1, 2]) == [[500, 2_000, 500, 2_000]]  # one round
    # a second round of one page costs less than a needless page
    assert paged([key, large], model, lambda column: [1, 2]) == [[500, 2_000], [500, 1_000_000]]
