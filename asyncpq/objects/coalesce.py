"""Merge byte ranges into few range GETs. A pure function: every parameter is an argument.

A request costs its CPU, its price and a share of the connections; a gap costs its bytes. So two
ranges become one GET when the gap between them is small. If a round has more ranges than
connections, larger gaps are closed as long as that makes the round shorter.
:mod:`asyncpq.objects.prices` sets the parameters.

The caller passes only ranges that no cache has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from asyncpq.records import NamedTuple


class ByteRange(NamedTuple):
    """Half-open range of bytes in an object."""

    start: int
    stop: int


def coalesce(
    ranges: Iterable[tuple[int, int]],
    *,
    gap_bytes: int,
    wave: int,
    wave_bytes: int,
    part_bytes: int,
    max_requests: int | None,
) -> list[ByteRange]:
    """Return few range GETs that cover ``ranges``, sorted and disjoint.

    Args:
        ranges: half-open, any order, may overlap or repeat; empty ones are ignored.
        gap_bytes: ranges at most this far apart are merged.
        wave: requests that run at once.
        wave_bytes: bytes received while a wave waits for connections and its first byte. If there are
            more ranges than one wave has, the smallest gaps are closed as long as that makes the round
            shorter.
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
        merged = _close_gaps(merged, _fewer(merged, gap_bytes, wave, wave_bytes))
    if max_requests is not None and len(merged) > max_requests:
        merged = _close_gaps(merged, max_requests)
    if sum([stop - start for start, stop in merged]) <= part_bytes:
        return merged
    return [part for item in merged for part in cut(item, part_bytes)]


def cut(item: ByteRange, part_bytes: int) -> list[ByteRange]:
    """Cut ``item`` into near-equal parts of at most ``part_bytes``."""
    length = item.stop - item.start
    if length <= part_bytes:
        return [item]
    count = -(-length // part_bytes)
    edges = [item.start + length * number // count for number in range(count + 1)]
    return [ByteRange(low, high) for low, high in itertools.pairwise(edges)]


def _gaps(ranges: list[ByteRange]) -> list[tuple[int, int]]:
    """Return (bytes, number) of the gap after each range but the last, smallest first."""
    return sorted((right.start - left.stop, number) for number, (left, right) in enumerate(itertools.pairwise(ranges)))


def _fewer(ranges: list[ByteRange], gap_bytes: int, wave: int, wave_bytes: int) -> int:
    """Return the number of ranges with which the round is shortest, if the smallest gaps are closed. Its cost, in bytes
    received: ``gap_bytes`` for each request, and the larger of all bytes and of the waits for connections together with
    the bytes of the last wave."""
    count = best = len(ranges)
    num_bytes = sum([stop - start for start, stop in ranges])
    share, least = wave_bytes / wave, math.inf
    for gap in (0, *[gap for gap, _ in _gaps(ranges)]):
        num_bytes += gap
        cost = count * gap_bytes + max(num_bytes, (count - wave) * share + num_bytes * wave / count)
        if cost < least:
            least, best = cost, count
        if count <= wave:
            break
        count -= 1
    return best


def _close_gaps(ranges: list[ByteRange], target: int) -> list[ByteRange]:
    """Merge across the smallest gaps until ``target`` ranges remain."""
    closed = {number for _, number in _gaps(ranges)[: len(ranges) - max(1, target)]}
    result = [ranges[0]]
    for number, item in enumerate(ranges[1:]):
        if number in closed:
            result[-1] = ByteRange(result[-1].start, item.stop)
        else:
            result.append(item)
    return result
