"""Which files may match, and which of their rows: what every part says, and how that is put together.

Indexes of one's own: whatever can say which files, and which of their rows, may match a predicate.

What the rows of a part say: files, row groups, and rows of files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.expressions import Expression
from asyncpq.indexing.model import IndexTable, KeyRange
from asyncpq.indexing.query.segment_reads import PartRows
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges

_ALL = AccessPlan.all()


@dataclass(frozen=True, slots=True)
class FileSelection:
    """A superset of the rows that match, of files by their version ids.

    Attributes:
        files: ids of the files that may match.
        plans: of some of them, which rows may; of the others all may. None of them allows no row.
    """

    files: RowRanges
    plans: Mapping[int, AccessPlan] = field(default_factory=dict)

    @classmethod
    def none(cls) -> FileSelection:
        """No row of any file."""
        return _NONE

    @classmethod
    def of_plans(cls, plans: Mapping[int, AccessPlan]) -> FileSelection:
        """These rows, and no others."""
        some = {file: plan for file, plan in sorted(plans.items()) if not plan.is_none}
        narrow = {file: plan for file, plan in some.items() if not plan.is_all}
        return cls(RowRanges.from_rows(some), narrow)

    def plan(self, file: int) -> AccessPlan:
        """Rows of ``file`` that may match."""
        if file not in self.files:
            return AccessPlan.none()
        return self.plans.get(file, _ALL)

    def only(self, files: RowRanges) -> FileSelection:
        """What of it is in ``files``."""
        left = self.files & files
        if left.num_rows == self.files.num_rows:
            return self
        return FileSelection(left, {file: plan for file, plan in self.plans.items() if file in left})

    def __and__(self, other: FileSelection) -> FileSelection:
        files = self.files & other.files
        plans: dict[int, AccessPlan] = {}
        dropped: list[int] = []
        for file in {**self.plans, **other.plans}:
            if file in files:
                plan = self.plans.get(file, _ALL) & other.plans.get(file, _ALL)
                if plan.is_none:
                    dropped.append(file)
                elif not plan.is_all:
                    plans[file] = plan
        if dropped:
            files -= RowRanges.from_rows(sorted(dropped))
        return FileSelection(files, plans)

    def __or__(self, other: FileSelection) -> FileSelection:
        plans: dict[int, AccessPlan] = {}
        for mine, its in ((self, other), (other, self)):
            for file, plan in mine.plans.items():
                if file in its.plans:
                    either = plan | its.plans[file]
                    if not either.is_all:
                        plans[file] = either
                elif file not in its.files:
                    plans[file] = plan
        return FileSelection(self.files | other.files, plans)


_NONE = FileSelection(RowRanges.empty())


@dataclass(frozen=True, slots=True)
class FileSlice:
    """What an index says of one file.

    Attributes:
        access: rows that may match; ``AccessPlan.none()``: none does.
        size, etag: of the version that it speaks of, the ETag verbatim; None where the index does not know. Of a file
            that is seen to have others, what it says is not used.
    """

    access: AccessPlan = field(default_factory=AccessPlan.all)
    size: int | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlices:
    """What an index says of the files of a dataset: a superset of the rows that match.

    Attributes:
        files: by url as :meth:`asyncpq.Dataset.files` gives it, or by path below the dataset's url.
        others: what holds of files that are not named: "none" of their rows matches, or "unknown".
        exact: all rows that it names match. It is told in ``explain()``; the filter runs all the same.
    """

    files: Mapping[str, FileSlice]
    others: Literal["none", "unknown"] = "unknown"
    exact: bool = False


@runtime_checkable
class FileIndex(Protocol):
    """One class with one method: to be passed to :meth:`asyncpq.Session.open_dataset` as ``index``."""

    async def prune(self, where: Expression) -> FileSlices:
        """The files, and rows of them, for which ``where`` may be true: more may be given, never fewer.

        Args:
            where: in the dataset's columns, relative times resolved. :func:`asyncpq.expressions.column_ranges` tells
                the values that each column may have where it is true.
        """


#: Kinds whose entries name rows of files.
BY_ROW = frozenset({"keys", "text"})
_FEW_RANGES: Final = 8  # are asked of all rows at once, one after the other


class Found(NamedTuple):
    """What one question found.

    Attributes:
        slices: files and rows that may match; of files of which the part knows nothing, all rows.
        rows: how many rows it names; None where some file's rows are not known.
    """

    selection: FileSelection
    rows: int | None


def found_rows(index_table: IndexTable, rows: PartRows, ranges: Sequence[KeyRange], *, every: bool) -> Found:
    """
    Args:
        rows: of the part, those with keys in ``ranges`` at least.
        every: only what occurs in each of the ranges counts.
    """
    if index_table.kind == "bounds":
        return Found(_zones(_overlapping(rows.table, ranges)) | FileSelection(rows.unknown), None)
    if not every:
        return _found(index_table, _within(rows.table, ranges), rows.unknown)
    met: Found | None = None
    for one in ranges:
        found = _found(index_table, _within(rows.table, [one]), rows.unknown)
        met = found if met is None else _both(met, found)
    return met or Found(FileSelection(rows.unknown), None)


def _both(left: Found, right: Found) -> Found:
    selection = left.selection & right.selection
    return Found(selection, None if left.rows is None or right.rows is None else min(left.rows, right.rows))


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


def _zones(table: pa.Table) -> FileSelection:
    """Row groups. All of them have their intervals, beside those of the file as a whole."""
    masks: dict[int, int] = {}
    for file, group in zip(table.column("file").to_pylist(), table.column("group").to_pylist(), strict=True):
        if group >= 0:
            masks[file] = masks.get(file, 0) | 1 << group
    plans = {mask: AccessPlan.row_groups(_bits(mask)) for mask in set(masks.values())}  # most files have the same
    return FileSelection.of_plans({file: plans[mask] for file, mask in masks.items()})


def _bits(mask: int) -> list[int]:
    return [at for at in range(mask.bit_length()) if mask >> at & 1]


def _found(index_table: IndexTable, table: pa.Table, unknown: RowRanges) -> Found:
    if index_table.kind not in BY_ROW:
        files = RowRanges.from_rows(sorted(pc.unique(table.column("file")).to_pylist()))
        return Found(FileSelection(files | unknown), None)
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
    return Found(FileSelection.of_plans(plans) | FileSelection(unknown), rows if not unknown else None)
