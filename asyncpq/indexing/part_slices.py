"""What the rows of a part say: files, row groups, and rows of files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.indexing.model import KeyRange, Part
from asyncpq.indexing.part_reads import PartRows
from asyncpq.indexing.slices import Slices
from asyncpq.planning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges

#: Kinds whose entries name rows of files.
BY_ROW = frozenset({"keys", "text"})
_FEW_RANGES: Final = 8  # are asked of all rows at once, one after the other


class Found(NamedTuple):
    """What one question found.

    Attributes:
        slices: files and rows that may match; of files of which the part knows nothing, all rows.
        rows: how many rows it names; None where some file's rows are not known.
    """

    slices: Slices
    rows: int | None


def found_rows(part: Part, rows: PartRows, ranges: Sequence[KeyRange], *, every: bool) -> Found:
    """
    Args:
        rows: of the part, those with keys in ``ranges`` at least.
        every: only what occurs in each of the ranges counts.
    """
    if part.kind == "bounds":
        return Found(_zones(_overlapping(rows.table, ranges)) | Slices(rows.unknown), None)
    if not every:
        return _found(part, _within(rows.table, ranges), rows.unknown)
    met: Found | None = None
    for one in ranges:
        found = _found(part, _within(rows.table, [one]), rows.unknown)
        met = found if met is None else _both(met, found)
    return met or Found(Slices(rows.unknown), None)


def _both(left: Found, right: Found) -> Found:
    slices = left.slices & right.slices
    return Found(slices, None if left.rows is None or right.rows is None else min(left.rows, right.rows))


def _within(table: pa.Table, ranges: Sequence[KeyRange]) -> pa.Table:
    """Rows with keys in one of the ranges; they are not by key, where there were several segments."""
    keys = table.column("key")
    if not table.num_rows or (len(ranges) == 1 and _holds(ranges[0], keys)):
        return table
    points = [low for low, high in ranges if high == low + b"\x00"]
    mask = pc.is_in(keys, pa.array(points, pa.binary()))
    for low, high in ranges:
        if high != low + b"\x00":
            inside = pc.greater_equal(keys, pa.scalar(low, pa.binary()))
            if high is not None:
                inside = pc.and_(inside, pc.less(keys, pa.scalar(high, pa.binary())))
            mask = pc.or_(mask, inside)
    return table.filter(mask)


def _holds(range_: KeyRange, keys: pa.ChunkedArray) -> bool:
    """Whether all keys are in the range."""
    least, greatest = pc.min_max(keys).values()
    return least.as_py() in range_ and greatest.as_py() in range_


def _overlapping(table: pa.Table, ranges: Sequence[KeyRange]) -> pa.Table:
    """Zones' intervals, of which the last value is among them, that hold a value of one of the ranges."""
    if not table.num_rows:
        return table
    lows, highs = table.column("key"), table.column("max")
    if len(ranges) > _FEW_RANGES:
        return table.filter(pa.array(_meet(lows.to_pylist(), highs.to_pylist(), ranges), pa.bool_()))
    mask: pa.ChunkedArray | None = None
    for low, high in ranges:
        meets = pc.greater_equal(highs, pa.scalar(low, pa.binary()))
        if high is not None:
            meets = pc.and_(meets, pc.less(lows, pa.scalar(high, pa.binary())))
        mask = meets if mask is None else pc.or_(mask, meets)
    return table.slice(0, 0) if mask is None else table.filter(mask)


def _meet(lows: Sequence[bytes], highs: Sequence[bytes], ranges: Sequence[KeyRange]) -> list[bool]:
    """Which intervals, of which the last value is among them, hold a value of one of the ranges."""
    ordered = sorted(ranges, key=itemgetter(0))
    begins = [begin for begin, _ in ordered]
    ends: list[bytes | None] = []  # the farthest of the ranges so far; None is behind all
    for _, end in ordered:
        last = ends[-1] if ends else b""
        ends.append(None if last is None or end is None else max(last, end))
    meets: list[bool] = []
    for low, high in zip(lows, highs, strict=True):
        at = bisect_right(begins, high) - 1  # of those that begin early enough
        meets.append(at >= 0 and ((end := ends[at]) is None or end > low))
    return meets


def _zones(table: pa.Table) -> Slices:
    """Row groups. All of them have their intervals, beside those of the file as a whole."""
    masks: dict[int, int] = {}
    for file, group in zip(table.column("file").to_pylist(), table.column("group").to_pylist(), strict=True):
        if group >= 0:
            masks[file] = masks.get(file, 0) | 1 << group
    plans = {mask: AccessPlan.row_groups(_bits(mask)) for mask in set(masks.values())}  # most files have the same
    return Slices.of_plans({file: plans[mask] for file, mask in masks.items()})


def _bits(mask: int) -> list[int]:
    return [at for at in range(mask.bit_length()) if mask >> at & 1]


def _found(part: Part, table: pa.Table, unknown: RowRanges) -> Found:
    if part.kind not in BY_ROW:
        files = RowRanges.from_rows(sorted(pc.unique(table.column("file")).to_pylist()))
        return Found(Slices(files | unknown), None)
    table = table.select(["file", "row", "rows"]).sort_by([("file", "ascending"), ("row", "ascending")])
    files_, starts, counts = (column.to_pylist() for column in table.columns)
    plans: dict[int, AccessPlan] = {}
    rows = first = 0
    while first < len(files_):
        file = files_[first]
        stop = first
        while stop < len(files_) and files_[stop] == file:
            stop += 1
        spans = zip(starts[first:stop], counts[first:stop], strict=True)
        ranges = RowRanges.from_sorted((start, start + count) for start, count in spans)
        plans[file] = AccessPlan.row_ranges(ranges)
        rows += ranges.num_rows
        first = stop
    return Found(Slices.of_plans(plans) | Slices(unknown), rows if not unknown else None)
