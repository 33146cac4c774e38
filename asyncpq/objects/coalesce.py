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
import operator
from collections.abc import Iterable, Sequence

from asyncpq.records import NamedTuple


class ByteRange(NamedTuple):
    """Half-open range of bytes in an object."""

    start: int
    stop: int


def starts_and_stops(ranges: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the starts and the stops of ``ranges``."""
    starts, stops = [], []
    for start, stop in ranges:
        starts.append(start)
        stops.append(stop)
    return starts, stops


def coalesce(
    starts: Sequence[int],
    stops: Sequence[int],
    *,
    gap_bytes: int,
    wave: int,
    wave_bytes: int,
    part_bytes: int,
    max_requests: int | None,
) -> list[ByteRange]:
    """Return few range GETs that cover the given ranges, sorted and disjoint.

    Args:
        starts, stops: of the ranges, half-open, in any order; they may overlap or repeat. Empty ones are ignored.
            (As pairs, thousands of pages would be as many tuples, which Python's garbage collector visits.)
        gap_bytes: ranges at most this far apart are merged.
        wave: requests that run at once.
        wave_bytes: bytes received while a wave waits for connections and its first byte. If there are more ranges than
            one wave has, the smallest gaps are closed while that shortens the round.
        part_bytes: a merged range longer than this is cut into near-equal parts of at most this
            size. A cut may fall anywhere: the caller joins what it cut.
        max_requests: a hard bound on the number of merged ranges, or None; the smallest gaps are
            closed whatever their size.

    Returns:
        Ranges whose union contains every input byte.
    """
    if any(map(operator.ge, starts, stops)):
        starts, stops = starts_and_stops([item for item in zip(starts, stops, strict=True) if item[0] < item[1]])
    if not starts:
        return []
    # Sorted apart: if the stop at some position lies before the next start, all ranges that begin before that gap have
    # ended.
    starts, stops = sorted(starts), sorted(stops)
    gaps = list(map(operator.sub, starts[1:], stops))
    open_gaps = [position for position, gap in enumerate(gaps) if gap > gap_bytes]
    if len(open_gaps) >= wave or (max_requests is not None and len(open_gaps) >= max_requests):
        open_gaps.sort(key=gaps.__getitem__)
        sizes = [gaps[position] for position in open_gaps]
        fewest = _fewer(stops[-1] - starts[0] - sum(sizes), sizes, gap_bytes, wave, wave_bytes)
        fewest = max(1, fewest if max_requests is None else min(fewest, max_requests))
        open_gaps = sorted(open_gaps[len(open_gaps) + 1 - fewest :])
    if len(open_gaps) < len(gaps):
        starts = [starts[0], *[starts[position + 1] for position in open_gaps]]
        stops = [*[stops[position] for position in open_gaps], stops[-1]]
    merged = list(map(ByteRange, starts, stops))
    if sum(stops) - sum(starts) <= part_bytes:
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


def _fewer(num_bytes: int, gaps: Sequence[int], gap_bytes: int, wave: int, wave_bytes: int) -> int:
    """Return the number of ranges with which the round is shortest, if the smallest gaps are closed. Its cost, in bytes
    received: ``gap_bytes`` for each request, and the larger of all bytes and of the waits for connections together with
    the bytes of the last wave. ``num_bytes``: bytes of the ranges; ``gaps``: those between them, smallest first."""
    count = best = len(gaps) + 1
    share, least = wave_bytes / wave, math.inf
    for gap in (0, *gaps):
        num_bytes += gap
        waits = (count - wave) * share + num_bytes * wave / count
        cost = count * gap_bytes + (num_bytes if num_bytes >= waits else waits)
        if cost < least:
            least, best = cost, count
        if count <= wave:
            break
        count -= 1
    return best
