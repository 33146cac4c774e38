"""The sizes of tails that a session learns."""

from __future__ import annotations

import pytest

from asyncpq.objects.tail_sizes import TailSizes


def test_tail_sizes_are_learnt_from_neighbours() -> None:
    sizes = TailSizes(640 * 1024)
    assert sizes.guess("s3://b/lake") == 640 * 1024
    sizes.learn("s3://b/lake", 20_000)
    assert 20_000 <= sizes.guess("s3://b/lake") <= 30_000
    assert sizes.guess("s3://b/other") == 640 * 1024
    sizes.learn("s3://b/lake", 100_000)  # a second request would take longer than these bytes
    assert 100_000 <= sizes.guess("s3://b/lake") <= 130_000


def test_alike_tails_are_not_weighed_for_each_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = TailSizes(640 * 1024)
    for needed in range(20_000, 20_016):
        sizes.learn("s3://b/lake", needed)
    monkeypatch.setattr(sizes, "_cost", None)
    assert sizes.guess("s3://b/lake") == 28_672  # a quarter more, in blocks of 4 KiB


def test_one_large_tail_does_not_make_its_neighbours_fetch_as_much() -> None:
    sizes = TailSizes(640 * 1024)
    sizes.learn("s3://b/lake", 5_000_000, "s3://b/lake/large")
    assert sizes.guess("s3://b/lake") == 640 * 1024  # of many files that are opened at once, before others are known
    assert sizes.guess("s3://b/lake", "s3://b/lake/large") >= 5_000_000  # opened again
    sizes.learn("s3://b/lake", 5_000_000)
    assert sizes.guess("s3://b/lake") >= 5_000_000
    sizes.learn("s3://b/lake", 500_000)
    sizes.learn("s3://b/lake", 500_000)
    assert 500_000 <= sizes.guess("s3://b/lake") <= 640_000
    for _ in range(16):
        sizes.learn("s3://b/lake", 5_000_000)
    assert sizes.guess("s3://b/lake") >= 5_000_000
