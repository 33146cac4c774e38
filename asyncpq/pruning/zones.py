"""Zones: the min/max bounds of one column in all files, row groups or pages, arranged for searching.

A zone is one file, row group or page. A search leaves out a zone only if its bounds and counts prove that no row of the
zone has the wanted result. The same search proves matches: rows where the predicate can be neither false nor null
certainly match. For row groups whose rows all match, scans skip the filter and its columns, and counts read nothing.

Bounds of pages prove no matches, because the OffsetIndex may be wrong about which rows a page holds. The deprecated
statistics prove no matches either. Both only rule rows out.

A predicate keeps its keys, converted and sorted once, for all files whose columns have the same :class:`ValueDomain`.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias

from asyncpq.expressions import Atom, Expression
from asyncpq.expressions.analysis import (
    EVERYTHING,
    Interval,
    Points,
    ResultValues,
    Truth,
    ValueDomain,
    follow,
    result_values,
    successor,
)
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import SortOrder
from asyncpq.pruning.literals import ValueKind, domain_of, kind_of_leaf
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass

Runs: TypeAlias = list[tuple[int, int]]

_EMPTY = RowRanges.empty()
_ZONE = operator.itemgetter(0)


@dataclass(frozen=True, slots=True)
class ZonedColumn:
    """The properties of a column that decide what its bounds prove."""

    kind: ValueKind
    is_nested: bool = False  # counts of nulls may differ from counts of rows
    is_repeated: bool = False  # a row may have several values; bounds are not used
    is_nullable: bool = True  # the column may hold nulls

    @classmethod
    def of_leaf(cls, leaf: Leaf, order: SortOrder) -> ZonedColumn:
        """Return these properties for a leaf column of a file. ``order``: the sort order of the column's statistics."""
        # Counts of a nested leaf include its ancestors' nulls; those of a repeated leaf count values, not rows.
        repeated = leaf.max_repetition_level > 0
        nested = repeated or len(leaf.path) > 1
        return cls(kind_of_leaf(leaf, order), nested, repeated, leaf.max_definition_level > 0)


class Searchable(Protocol):
    """What :func:`rows_where` searches: the bounds of one column in zones."""

    @property
    def domain(self) -> ValueDomain: ...

    @property
    def holding(self) -> Callable[[ResultValues], RowRanges]: ...


# Values wanted of comparisons, by the comparison's id, the result and the rules: as long as the comparison lives.
KnownValues: TypeAlias = dict[tuple[int, Truth, ValueDomain], ResultValues]


def known_values(atom: Atom, truth: Truth, domain: ValueDomain, known: KnownValues) -> ResultValues:
    """Return what :func:`result_values` returns for ``atom``; computed once and then kept in ``known``."""
    place = (id(atom), truth, domain)
    values = known.get(place)
    if values is None:
        values = known[place] = result_values(atom, truth, domain)
    return values


def rows_where(
    expr: Expression, truth: Truth, total: int, columns: Mapping[str, Searchable], values: KnownValues | None = None
) -> RowRanges:
    """Return all rows (or zones) in which ``expr`` has the result ``truth``, and perhaps others.

    Args:
        total: the number of rows (or zones).
        columns: bounds keyed by column name; a comparison of another column may have any result.
        values: a cache, shared by several searches, of the values for which each comparison has a result.
    """
    wanted: KnownValues = {} if values is None else values
    if isinstance(expr, Atom):  # most lookups have one key
        bounds = None if expr.column is None else columns.get(expr.column)
        if bounds is None:
            return RowRanges.all(total)
        return bounds.holding(known_values(expr, truth, bounds.domain, wanted))

    def atom_rows(atom: Atom, truth: Truth) -> RowRanges:
        return rows_where(atom, truth, total, columns, wanted)

    def all_of(parts: Iterable[RowRanges]) -> RowRanges:
        rows = RowRanges.all(total)
        for part in parts:
            rows &= part
            if not rows:
                break
        return rows

    def any_of(parts: Iterable[RowRanges]) -> RowRanges:
        rows = _EMPTY
        for part in parts:
            rows |= part
        return rows

    return follow(expr, truth, atom_rows, all_of, any_of)


class Zones:
    """The min/max bounds of one column in all zones (files, row groups or pages), arranged for searching. Immutable.

    Answers are ranges of zone numbers; they contain every matching zone and perhaps others.
    """

    column: ZonedColumn
    num_zones: int
    domain: ValueDomain  # how literals compare with the bounds
    is_sorted: bool  # whether bounds ascend or descend over the zones that have them
    present: RowRanges  # zones with bounds
    unknown: RowRanges  # zones without bounds, which may hold any value
    maybe_null: RowRanges  # zones that may hold nulls
    maybe_nan: RowRanges  # zones that may hold NaN

    def __init__(
        self,
        column: ZonedColumn,
        mins: Sequence[Any],
        maxs: Sequence[Any],
        *,
        all_null: Sequence[bool],
        null_counts: Sequence[int | None] | None,
        nan_counts: Sequence[int | None] | None = None,
        exact: Sequence[bool] | None = None,
    ) -> None:
        """Arrange bounds and counts; all sequences have one entry for each zone.

        ``mins``, ``maxs``: inclusive bounds of the values that are neither null nor NaN, in the domain of
        ``pruning.literals``; None where unknown. A max in byte order may be a truncated prefix of the true one, unless
        ``exact``. ``all_null``: all values of the zone are null. ``null_counts``, ``nan_counts``: None for unknown, as
        an entry or for all zones. ``exact``: in byte order, neither bound is truncated; None: unknown for all zones.
        """
        self.column = column
        self.domain = domain_of(column.kind)
        self.num_zones = num = len(mins)
        every = RowRanges.all(num)
        present: list[int] = []
        unknown: list[int] = []
        null: list[int] = []
        for i in range(num):
            if all_null[i]:
                null.append(i)
            elif mins[i] is None or maxs[i] is None:
                unknown.append(i)
            else:
                present.append(i)
        if column.is_repeated:
            present, unknown = [], list(range(num))
        self._arrange(mins, maxs, present, exact)
        self.present = _zones_of(present, every)
        self.unknown = _zones_of(unknown, every)
        if column.is_nested or null_counts is None:
            self.maybe_null = every if column.is_nested or column.is_nullable else _EMPTY
        else:
            self.maybe_null = _zones_of([i for i in range(num) if all_null[i] or null_counts[i] != 0], every)
        if not column.kind.has_nan:
            self.maybe_nan = _EMPTY
        elif column.is_repeated or nan_counts is None:
            self.maybe_nan = every if column.is_nested or not null else every - RowRanges.from_rows(null)
        else:
            self.maybe_nan = _zones_of([i for i in range(num) if nan_counts[i] != 0 and not all_null[i]], every)

    def bounds(self) -> list[tuple[int, Any, Any]]:
        """Return (zone, min, max) of the zones with bounds, in the order of the zones."""
        return sorted(zip(self._positions, self._mins, self._maxs, strict=True), key=_ZONE)

    def _arrange(
        self, mins: Sequence[Any], maxs: Sequence[Any], present: list[int], exact: Sequence[bool] | None
    ) -> None:
        """Keep the known bounds and their zone numbers, sorted ascending if the bounds ascend or descend from zone to
        zone.

        ``present``: the zones with bounds. Whether they ascend is computed; the writer's claim is not used.
        """
        positions, whole = present, len(present) == len(mins)
        self._mins = list(mins) if whole else [mins[i] for i in present]
        self._maxs = list(maxs) if whole else [maxs[i] for i in present]
        self.is_sorted = len(present) < 2 or (_ascends(self._mins) and _ascends(self._maxs))
        if not self.is_sorted and _ascends(self._mins[::-1]) and _ascends(self._maxs[::-1]):
            self.is_sorted = True
            positions = present[::-1]
            self._mins.reverse()
            self._maxs.reverse()
        self._positions = positions
        self._mapped = positions is not present or (not whole and positions != list(range(len(positions))))
        # Bounds of other orders may be wide, but where they are equal they are the value.
        if not self.column.kind.is_bytes:
            self._exact: Sequence[bool] = (True,) * len(positions)
        else:
            self._exact = [exact is not None and exact[i] for i in positions]
        self._open_max = not all(self._exact)
        self._max_lengths = sorted({len(high) for high in self._maxs if high}) if self._open_max else []

    # -- searching; indexes and runs are into the bounds kept --------------------------------------

    def holding(self, wanted: ResultValues) -> RowRanges:
        """Return the zones that may contain a value of the set ``wanted``."""
        values = wanted.values
        if wanted.of_elements:
            return RowRanges.all(self.num_zones)
        if isinstance(values, Points):
            keys = values.keys
            if values.inverted:
                rows = self._other_than(keys)
            elif len(keys) == 1 and (self._mapped or self._open_max or not self.is_sorted):
                rows = self._inside((Interval(keys[0], keys[0]),))
            elif len(keys) == 1:
                start, stop = bisect_left(self._maxs, keys[0]), bisect_right(self._mins, keys[0])
                rows = RowRanges.single(start, stop) if start < stop else _EMPTY
            else:
                rows = self._holding_any(keys) if keys else _EMPTY
            may_be_valid = values.inverted or len(keys) > 0
        else:
            rows = self.present if values == EVERYTHING else self._inside(values) if values else _EMPTY
            may_be_valid = len(values) > 0
        if may_be_valid and self.unknown.starts:
            rows |= self.unknown
        if wanted.nan and self.maybe_nan.starts:
            rows |= self.maybe_nan
        return rows | self.maybe_null if wanted.null else rows

    def _other_than(self, keys: Sequence[Any]) -> RowRanges:
        """Return the zones with bounds that may contain a value that is not one of ``keys``."""
        mins, maxs, exact = self._mins, self._maxs, self._exact
        start, stop = 0, len(mins) if keys else 0
        if len(keys) == 1 and self.is_sorted:
            start, stop = bisect_left(maxs, keys[0]), bisect_right(mins, keys[0])
        wanted = set(keys)
        only = [(i, i + 1) for i in range(start, stop) if exact[i] and mins[i] == maxs[i] and mins[i] in wanted]
        return self.present - self._zones(only) if only else self.present

    def _holding_any(self, keys: Sequence[Any]) -> RowRanges:
        """Return the zones with bounds that may contain one of the keys, which ascend."""
        mins, maxs = self._mins, self._maxs
        if self.is_sorted and len(keys) * 8 < len(mins):
            return self._inside([Interval(key, key) for key in keys])
        num = len(keys)
        runs: Runs = []
        for i, low in enumerate(mins):
            at = bisect_left(keys, low)
            # The next key decides: those that begin with the max come before all others above it.
            if at < num and (keys[at] <= maxs[i] or (self._open_max and _begins_with(keys[at], maxs[i]))):
                runs.append((i, i + 1))
        return self._zones(runs)

    def _inside(self, intervals: Sequence[Interval]) -> RowRanges:
        """Return the zones with bounds that may contain a value in one of the intervals."""
        find = self._sorted_runs if self.is_sorted else self._unsorted_runs
        if len(intervals) == 1:
            return self._zones(find(*intervals[0]))
        return self._zones(sorted([run for interval in intervals for run in find(*interval)]))

    def _sorted_runs(self, low: Any, high: Any, low_open: bool, high_open: bool) -> Runs:
        mins, maxs = self._mins, self._maxs
        runs: Runs = []
        start = 0
        if low is not None:
            start = bisect_right(maxs, low) if low_open and not self._open_max else bisect_left(maxs, low)
            if start and self._open_max:
                runs = self._bare_prefixes(low, start)
        stop = len(mins) if high is None else bisect_left(mins, high) if high_open else bisect_right(mins, high)
        runs.append((start, stop))
        return runs

    def _unsorted_runs(self, low: Any, high: Any, low_open: bool, high_open: bool) -> Runs:
        mins, maxs = self._mins, self._maxs
        numbers: Iterable[int] = range(len(mins))
        if low is not None:
            if self._open_max:
                numbers = [i for i in numbers if maxs[i] >= low or _begins_with(low, maxs[i])]
            else:
                numbers = [i for i in numbers if maxs[i] > low] if low_open else [i for i in numbers if maxs[i] >= low]
        if high is not None:
            numbers = [i for i in numbers if mins[i] < high] if high_open else [i for i in numbers if mins[i] <= high]
        return [(i, i + 1) for i in numbers]

    def _bare_prefixes(self, key: Any, stop: int) -> Runs:
        """Return runs of sorted zones before ``stop`` whose max is a prefix of ``key``, and shorter than it.

        Such a max may be truncated: the true max of the zone may be above ``key``.
        """
        maxs, size, start = self._maxs, len(key), 0
        runs = []
        for length in self._max_lengths:
            if length >= size:
                break
            prefix = key[:length]
            start = bisect_left(maxs, prefix, start, stop)
            runs.append((start, bisect_right(maxs, prefix, start, stop)))
        return runs

    def _zones(self, runs: Runs) -> RowRanges:
        if self._mapped:
            positions = self._positions
            return RowRanges.from_rows(sorted({positions[i] for start, stop in runs for i in range(start, stop)}))
        if len(runs) == 1:
            start, stop = runs[0]
            return RowRanges.single(start, stop) if start < stop else _EMPTY
        return RowRanges.from_sorted([run for run in runs if run[0] < run[1]])

    def within(self, keys: Sequence[Any]) -> tuple[int, int]:
        """Return start and stop of a slice of ``keys``, which ascend. It contains all keys that any zone may
        contain."""
        if self.unknown:
            return 0, len(keys)
        if not self._mins:
            return 0, 0
        start = bisect_left(keys, min(self._mins))
        if not self._open_max:
            return start, bisect_right(keys, max(self._maxs))
        above = [successor(high) for high in self._maxs]  # a bare prefix stands for all that begins with it
        ends = [end for end in above if end is not None]
        return start, bisect_left(keys, max(ends)) if len(ends) == len(above) else len(keys)


def _begins_with(key: Any, high: Any) -> bool:
    # An empty max was not cut short.
    return bool(high) and bool(key.startswith(high))


def _ascends(values: list[Any]) -> bool:
    return all(map(operator.le, values, islice(values, 1, None)))


def _zones_of(numbers: list[int], every: RowRanges) -> RowRanges:
    """Return zone numbers, ascending and distinct, as ranges. If they are all zones, the result is ``every``."""
    if not numbers:
        return _EMPTY
    return every if len(numbers) == every.num_rows else RowRanges.from_rows(numbers)
