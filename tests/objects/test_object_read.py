"""Rounds of requests teach what a server's requests and bytes cost; one that is broken off teaches nothing, and does
not stay with those after it."""

from __future__ import annotations

from typing import Any

from asyncpq.objects.object_read import MeasuredRound
from asyncpq.objects.prices import Burst, Measured, PriceBook
from asyncpq.options import MIB, LimitOptions, RequestOptions


class _Source:
    """The part of an object's source that a round uses."""

    def __init__(self) -> None:
        self.book = PriceBook(RequestOptions(), LimitOptions())
        self.learned: list[Measured] = []

    def burst(self) -> Burst:
        return self.book.burst("s3")

    def learn_prices(self, measured: Measured) -> None:
        self.learned.append(measured)


def _round(source: Any, sizes: list[int]) -> MeasuredRound:
    return MeasuredRound(source, [], sizes, 8 * MIB)


def test_small_rounds_count_alone_and_large_ones_together() -> None:
    source = _Source()
    small, *large = _round(source, [1000]), _round(source, [9 * MIB]), _round(source, [MIB] * 3)
    small.ended()
    assert [(one.requests, one.num_bytes) for one in source.learned] == [(1, 1000)]
    large[1].ended()
    assert len(source.learned) == 1  # most bytes are still under way
    large[0].ended()
    assert (source.learned[1].requests, source.learned[1].num_bytes) == (5, 12 * MIB)
    for one in (small, *large):
        one.close()
    assert len(source.learned) == 2


def test_a_round_that_is_broken_off_leaves_no_burst_behind() -> None:
    source = _Source()
    broken, other = _round(source, [9 * MIB]), _round(source, [9 * MIB])
    broken.close()
    other.ended()
    assert source.learned == []
    following = _round(source, [9 * MIB])
    following.ended()
    assert [one.num_bytes for one in source.learned] == [9 * MIB]
