"""Merge byte ranges into few range GETs. A pure function: every parameter is an argument.

A request costs its CPU, its price and a share of the connections; a gap costs its bytes. So two
ranges become one GET when the gap between them is small, and larger gaps are closed only while a
round has more ranges than run at once. :mod:`asyncpq.objects.prices` sets the parameters.

The caller passes only ranges that no cache has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple


class ByteRange(NamedTuple):
    """Half-open range of bytes in an object."""

    start: int
    stop: int


def coalesce(
    ranges: Iterable[tuple[int, int]],
    *,
    gap_bytes: int,
    wave: int,
    wave_gap_bytes: int,
    part_bytes: int,
    max_requests: int | None,
) -> list[ByteRange]:
    """Return few range GETs that cover ``ranges``, sorted and disjoint.

    Args:
        ranges: half-open, any order, may overlap or repeat; empty ones are ignored.
        gap_bytes: ranges at most this far apart are merged.
        wave: requests that run at once. While there are more ranges, the smallest gaps of at most
            ``wave_gap_bytes`` are closed.
        part_bytes: a merged range longer than this is cut into near-equal parts of at most this
            size. A cut may fall anywhere: the caller joins what it cut.
        max_requests: a hard bound on the number of merged ranges, or None; the smallest gaps are
            closed whatever their size.

    Returns:
        Ranges whose union contains every input byte.
    """
    merged: list[ByteRange] = []
    start = stop = -1
    for low, high in sorted(ranges):
        if high <= low:
            continue
        if stop >= 0 and low - stop <= gap_bytes:
            stop = max(stop, high)
        else:
            if stop >= 0:
                merged.append(ByteRange(start, stop))
            start, stop = low, high
    if stop >= 0:
        merged.append(ByteRange(start, stop))
    if len(merged) > wave:
        merged = _close_gaps(merged, wave, limit_bytes=wave_gap_bytes)
    if max_requests is not None and len(merged) > max_requests:
        merged = _close_gaps(merged, max_requests, limit_bytes=None)
    return [part for item in merged for part in cut(item, part_bytes)]


def cut(item: ByteRange, part_bytes: int) -> list[ByteRange]:
    """Cut ``item`` into near-equal parts of at most ``part_bytes``."""
    length = item.stop - item.start
    if length <= part_bytes:
        return [item]
    count = -(-length // part_bytes)
    edges = [item.start + length * number // count for number in range(count + 1)]
    return [ByteRange(low, high) for low, high in itertools.pairwise(edges)]


def _close_gaps(ranges: list[ByteRange], target: int, *, limit_bytes: int | None) -> list[ByteRange]:
    """Merge across the smallest gaps, of at most ``limit_bytes``, until ``target`` ranges remain."""
    gaps = sorted((right.start - left.stop, number) for number, (left, right) in enumerate(itertools.pairwise(ranges)))
    chosen = gaps[: len(ranges) - max(1, target)]
    closed = {number for gap, number in chosen if limit_bytes is None or gap <= limit_bytes}
    result = [ranges[0]]
    for number, item in enumerate(ranges[1:]):
        if number in closed:
            result[-1] = ByteRange(result[-1].start, item.stop)
        else:
            result.append(item)
    return result
