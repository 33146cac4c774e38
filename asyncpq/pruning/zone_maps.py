"""Zone maps: the min/max bounds of one column in all files, row groups or pages, and their search.

A zone is one file, row group or page. A search leaves out a zone only if its bounds and counts prove that no row of the
zone has the wanted result. The same search (``rows_where``) proves matches: rows where the predicate can be neither
false nor null certainly match. For row groups whose rows all match, scans skip the filter and its columns, and counts
read nothing.

Row groups have the statistics of their column chunks in the footer, pages have ColumnIndexes (PageIndex.md), the files
of a dataset have bounds that are known before they are opened. Bounds of pages prove no matches, because the
OffsetIndex may be wrong about which rows a page holds. The deprecated statistics prove no matches either. Both only
rule rows out.

A predicate keeps its keys, converted and sorted once, for all files whose columns have the same :class:`ValueDomain`.
``narrowed`` cuts a long list of keys to those that a file's row groups may contain: thousands of keys for a whole
dataset are a few for each file.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from asyncpq.errors import CorruptIndexError
from asyncpq.expressions import And, Atom, Expression, In, IntersectsBox, KeyIn, atoms, replace_atoms
from asyncpq.expressions.analysis import (
    EVERYTHING,
    Incomparable,
    Interval,
    Points,
    ResultValues,
    ToKey,
    Truth,
    ValueDomain,
    follow,
    keys_of,
    result_values,
    successor,
)
from asyncpq.expressions.scalars import Scalar
from asyncpq.parquet.column_chunk import Box
from asyncpq.parquet.logical_types import LogicalKind
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import PageBounds, SortOrder
from asyncpq.pruning.literals import Domain, ValueKind, domain_of, first_sure, kind_of_leaf
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass

Runs: TypeAlias = list[tuple[int, int]]

_EMPTY = RowRanges.empty()
_ZONE = operator.itemgetter(0)


@dataclass(frozen=True, slots=True)
class ZonedColumn:
    """The properties of a column that decide what its bounds prove.

    Attributes:
        is_nested: counts of nulls may differ from counts of rows.
        is_repeated: a row may have several values; bounds are not used.
        is_nullable: the column may hold nulls.
    """

    kind: ValueKind
    is_nested: bool = False
    is_repeated: bool = False
    is_nullable: bool = True

    @classmethod
    def of_leaf(cls, leaf: Leaf, order: SortOrder) -> ZonedColumn:
        """Return these properties for a leaf column of a file. ``order``: the sort order of the column's statistics."""
        # Counts of a nested leaf include its ancestors' nulls; those of a repeated leaf count values, not rows.
        repeated = leaf.max_repetition_level > 0
        nested = repeated or len(leaf.path) > 1
        return cls(kind_of_leaf(leaf, order), nested, repeated, leaf.max_definition_level > 0)


class Searchable(Protocol):
    """The bounds of one column in zones, which :func:`rows_where` searches."""

    @property
    def domain(self) -> ValueDomain:
        """How literals compare with the bounds."""

    @property
    def holding(self) -> Callable[[ResultValues], RowRanges]:
        """A function that returns the zones that may hold a value of a set."""


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

    Attributes:
        domain: how literals compare with the bounds.
        is_sorted: whether bounds ascend or descend over the zones that have them.
        present: zones with bounds.
        unknown: zones without bounds, which may hold any value.
        maybe_null: zones that may hold nulls.
        maybe_nan: zones that may hold NaN.
    """

    column: ZonedColumn
    num_zones: int
    domain: ValueDomain
    is_sorted: bool
    present: RowRanges
    unknown: RowRanges
    maybe_null: RowRanges
    maybe_nan: RowRanges

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
        unknown: list[int] = []
        null: list[int] = []
        if True not in all_null and None not in mins and None not in maxs:
            present = list(range(num))
        else:
            present = []
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
        elif null or null_counts.count(0) < num:
            self.maybe_null = _zones_of([i for i in range(num) if all_null[i] or null_counts[i] != 0], every)
        else:
            self.maybe_null = _EMPTY
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
            self._exact = [exact[i] for i in positions] if exact is not None else (False,) * len(positions)
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


GEOMETRIES: Final = frozenset({LogicalKind.GEOMETRY, LogicalKind.GEOGRAPHY})

# -- row groups -------------------------------------------------------------------------------------


class RowGroupZones:
    """The bounds of one leaf column in all row groups of a file. Expensive to make: callers cache the object."""

    __slots__ = ("_is_sphere", "boxes", "domain", "holding", "proves", "reason", "weight", "zones")

    def __init__(self, metadata: FileMetadata, leaf: Leaf) -> None:
        """Decode the statistics of the leaf's column chunks in ``metadata``, and of no other column.

        Raises CorruptFileError if a chunk's metadata contradicts the schema.
        """
        bounds_of = metadata.bounds_of(leaf)
        known = [bounds_of(group.chunk(leaf.index), group.num_rows) for group in metadata.row_groups]
        bounds = [chunk for chunk, _ in known]
        self.zones: Zones = Zones(
            ZonedColumn.of_leaf(leaf, metadata.order_of(leaf)),
            [chunk.min for chunk in bounds],
            [chunk.max for chunk in bounds],
            all_null=[chunk.all_null for chunk in bounds],
            null_counts=[chunk.null_count for chunk in bounds],
            nan_counts=[chunk.nan_count for chunk in bounds],
            exact=[chunk.min_exact and chunk.max_exact for chunk in bounds],
        )
        self.domain: ValueDomain = self.zones.domain
        self.holding: Callable[[ResultValues], RowRanges] = self.zones.holding
        self._is_sphere: bool = False  # whether the boxes are those of GEOGRAPHY
        self.boxes: list[Box | None] = []  # of the geometries in each row group; empty for other columns
        logical = leaf.element.logical_type
        if logical is not None and logical.kind in GEOMETRIES:
            self.boxes = [group.chunk(leaf.index).box for group in metadata.row_groups]
            self._is_sphere = logical.kind is LogicalKind.GEOGRAPHY
            self.holding = self._meeting
        # why the bounds of a row group are not used although the file has them; None if all are used
        self.reason: str | None = next((reason for _, reason in known if reason is not None), None)
        # the bounds can prove that all rows match; the deprecated statistics only rule out
        self.proves: bool = metadata.column_orders is not None
        strings = sum([len(bound) for chunk in bounds for bound in (chunk.min, chunk.max) if isinstance(bound, bytes)])
        self.weight: int = 600 + 200 * len(bounds) + strings  # approximate bytes held in memory

    def _meeting(self, wanted: ResultValues) -> RowRanges:
        """Return the row groups that may have a value of the set ``wanted``; if it has a box, also by the boxes of
        their geometries."""
        rows = self.zones.holding(wanted)
        if wanted.box is None:
            return rows
        from asyncpq.pruning.derived_conditions import may_meet_on_sphere  # few predicates need it

        may_meet = may_meet_on_sphere if self._is_sphere else _may_meet
        return rows - RowRanges.from_rows([at for at, box in enumerate(self.boxes) if not may_meet(wanted.box, box)])


def _may_meet(asked: IntersectsBox, box: Box | None) -> bool:
    if box is None:
        return True
    if box.xmin > box.xmax:  # where the coordinates of one geometry lie on both sides of it, they span all x
        return asked.meets(-math.inf, box.ymin, math.inf, box.ymax)
    return asked.meets(*box)


class RowGroupPruning:
    """Which row groups may contain rows for which a predicate is true, according to statistics.

    ``zones``: the bounds in all row groups, keyed by column name; a comparison of another column excludes no row group.
    """

    __slots__ = ("_expr", "_zones", "kept", "num_row_groups", "values")

    def __init__(self, expr: Expression, zones: Mapping[str, RowGroupZones], num_row_groups: int) -> None:
        self.values: KnownValues = {}  # the values that the comparisons need, kept for the search of pages
        # ordinals of the row groups in which the predicate may be true
        self.kept: RowRanges = rows_where(expr, Truth.TRUE, num_row_groups, zones, self.values)
        self.num_row_groups: int = num_row_groups
        self._expr = expr
        self._zones = zones

    @property
    def all_match(self) -> RowRanges:
        """Ordinals of the row groups whose statistics prove that the predicate is true for every row."""
        if not all(zones.proves for zones in self._zones.values()):
            return RowRanges.empty()
        surely = self.kept
        for other in (Truth.FALSE, Truth.NULL):
            if surely:
                surely -= rows_where(self._expr, other, self.num_row_groups, self._zones)
        return surely

    @property
    def dropped_by(self) -> dict[str, int]:
        """The number of row groups that each condition rules out by itself, keyed by the condition's text."""
        conditions = self._expr.args if isinstance(self._expr, And) else (self._expr,)
        dropped = {}
        for condition in conditions:
            kept = rows_where(condition, Truth.TRUE, self.num_row_groups, self._zones)
            dropped[str(condition)] = self.num_row_groups - kept.num_rows
        return dropped

    @property
    def reasons(self) -> list[str]:
        """One sentence for each part of the predicate that statistics do not help with, saying why."""
        reasons: dict[str, None] = {}
        for atom in (self._expr,) if isinstance(self._expr, Atom) else atoms(self._expr):
            if atom.column is None:
                reasons[f"{atom}: two columns are compared, which prunes nothing"] = None
                continue
            known = self._zones.get(atom.column)
            if known is None:
                reasons[f"column {atom.column!r} has no statistics of its own"] = None
            elif known.zones.column.is_repeated:
                reasons[f"{atom.subject}: prunes nothing, the column is repeated"] = None
            elif (why := known_values(atom, Truth.TRUE, known.domain, self.values).reason) is not None:
                reasons[f"{atom.subject}: prunes nothing, {why}"] = None
            elif known.reason is not None:
                reasons[f"column {atom.column!r}: statistics not used, {known.reason}"] = None
        return list(reasons)


# -- many keys --------------------------------------------------------------------------------------

_FEW: Final = 16  # keys are not worth a search


def has_many_keys(expr: Expression) -> bool:
    """Return whether ``expr`` has a list of so many keys that :func:`narrowed` may leave some out."""
    if isinstance(expr, Atom):  # as of most lookups
        return isinstance(expr, (In, KeyIn)) and len(expr.values) > _FEW
    return any(isinstance(atom, (In, KeyIn)) and len(atom.values) > _FEW for atom in atoms(expr))


def narrowed(expr: Expression, zones: Mapping[str, Zones]) -> Expression:
    """Return the predicate without the keys that one file cannot contain, which reading it need not compare.

    The result is true for the same rows of the file; it is ``expr`` itself if no key is left out. ``expr`` is a
    predicate whose literals have been checked to fit their columns' types; ``zones`` are the bounds in the file's row
    groups, keyed by column name.
    """

    def narrow(atom: Atom) -> Expression:
        many = isinstance(atom, (In, KeyIn)) and len(atom.values) > _FEW and atom.column in zones
        return _narrowed(atom, zones[atom.column]) if many else atom  # type: ignore[arg-type, index]  # checked above

    return replace_atoms(expr, narrow)


def _narrowed(atom: In | KeyIn, zones: Zones) -> In | KeyIn:
    if len(atom.types) != 1 or not atom.types <= {int, str, bytes}:
        return atom
    literals = keys_of(atom, zones.domain)
    keys = literals.keys
    if not literals.same_type:
        return atom
    start, stop = zones.within(keys)
    if stop - start == len(keys):
        return atom
    kept = keys[start:stop] or keys[:1]  # with no key at all, null rows would not give null
    values: list[Scalar] = [key.decode() for key in kept] if str in atom.types else list(kept)
    return type(atom)(atom.column, tuple(values))


# -- pages ------------------------------------------------------------------------------------------


class PageZones:
    """The bounds and rows of the pages of one column chunk. Expensive to make: callers cache the object."""

    __slots__ = ("_starts", "_stops", "domain", "num_rows", "weight", "zones")

    def __init__(
        self, leaf: Leaf, order: SortOrder, bounds: PageBounds, offset_index: OffsetIndex, num_rows: int
    ) -> None:
        """Join a ColumnIndex (``bounds``) with the OffsetIndex. ``num_rows``: the rows of the row group.

        Raises CorruptIndexError if the two have different numbers of pages, or first rows do not ascend.
        """
        firsts = offset_index.first_rows
        if len(firsts) != len(bounds.mins):
            raise CorruptIndexError(
                f"the ColumnIndex has {len(bounds.mins)} pages, the OffsetIndex has {len(firsts)}", column=leaf.dotted
            )
        self._starts = firsts
        self._stops = [*firsts[1:], num_rows]
        if any(map(operator.ge, self._starts, self._stops)):
            raise CorruptIndexError("the first rows of the pages in the OffsetIndex do not ascend", column=leaf.dotted)
        self.num_rows: int = num_rows
        self.zones: Zones = Zones(
            ZonedColumn.of_leaf(leaf, order),
            bounds.mins,
            bounds.maxs,
            all_null=bounds.null_pages,
            null_counts=bounds.null_counts,
            nan_counts=bounds.nan_counts,
        )
        self.domain: ValueDomain = self.zones.domain
        self.weight: int = 600 + 100 * len(firsts) + bounds.weight  # approximate bytes held in memory

    def holding(self, wanted: ResultValues) -> RowRanges:
        """Return the rows of all pages that may contain a value of the set ``wanted``."""
        pages = self.zones.holding(wanted)
        starts, stops = self._starts, self._stops
        if len(pages.starts) == 1:
            return RowRanges.single(starts[pages.starts[0]], stops[pages.stops[0] - 1])
        return RowRanges.from_parallel(
            [starts[page] for page in pages.starts], [stops[page - 1] for page in pages.stops]
        )


# -- files ------------------------------------------------------------------------------------------

_NUMBERS: Final = (Domain.INTEGER, Domain.FLOAT, Domain.FLOAT32, Domain.DECIMAL)
_NUMERIC: Final = (*_NUMBERS, Domain.DATE, Domain.TIME, Domain.TIMESTAMP)
# Below and above all keys of a domain. No string is above all others.
_LEAST: Final[Mapping[Domain, Any]] = {
    **dict.fromkeys(_NUMERIC, -math.inf),
    Domain.BYTES: b"",
    Domain.FIXED: b"",
    Domain.BOOLEAN: False,
}
_GREATEST: Final[Mapping[Domain, Any]] = {**dict.fromkeys(_NUMERIC, math.inf), Domain.BOOLEAN: True}


class FileBounds(NamedTuple):
    """Known facts about the values of one column in a dataset's files: each sequence has one entry for each file.

    Attributes:
        mins, maxs: inclusive bounds of the values that are neither null nor NaN: correct, but perhaps wide; None where
            unknown. NaN, and a value that cannot be compared exactly with the column, counts as unknown.
        null_counts: how many values are null; None where unknown.
        all_null: the file has only nulls in the column, or lacks the column.
        may_be_nan: False if the file certainly contains no NaN.
    """

    mins: Sequence[Scalar]
    maxs: Sequence[Scalar]
    null_counts: Sequence[int | None]
    all_null: Sequence[bool]
    may_be_nan: Sequence[bool]


def file_zones(kind: ValueKind, bounds: FileBounds, *, is_nested: bool = False, any_calendar: bool = False) -> Zones:
    """Return the bounds of one column in the files of a dataset, arranged for searching. The result is immutable.

    Args:
        kind: how the column's values compare.
        is_nested: the column is inside a struct: null counts may leave out its parents' nulls.
        any_calendar: bounds may be in the calendar of old Spark versions (:func:`first_sure`), and are widened.
    """
    sure = first_sure(kind) if any_calendar else None
    convert = domain_of(kind).to_key
    least, greatest = _LEAST.get(kind.domain), _GREATEST.get(kind.domain)
    lows: list[Any] = []
    highs: list[Any] = []
    nulls: list[bool] = []
    for low, high, is_null in zip(bounds.mins, bounds.maxs, bounds.all_null, strict=True):
        low_key = least if low is None and high is not None else _bound(low, convert)
        high_key = greatest if high is None and low is not None else _bound(high, convert)
        if sure is not None and low_key is not None and high_key is not None and low_key < sure:
            low_key, high_key = least, max(high_key, sure)
        # Contradicting bounds prove nothing; NaN compares with nothing.
        nulls.append(is_null and low is None and high is None)
        known = low_key is not None and high_key is not None and low_key <= high_key and not is_null
        lows.append(low_key if known else None)
        highs.append(high_key if known else None)
    return Zones(
        ZonedColumn(kind, is_nested=is_nested),
        lows,
        highs,
        all_null=nulls,
        null_counts=bounds.null_counts,
        nan_counts=[None if may else 0 for may in bounds.may_be_nan],
        exact=[True] * len(lows),
    )


def value_zones(kind: ValueKind, values: Sequence[Scalar]) -> Zones:
    """Return the bounds, arranged for searching, of a column that has one value in each file, such as a partition
    column.

    ``values``: the value of each file; None is null.
    """
    bounds = FileBounds(
        values,
        values,
        null_counts=[0 if value is not None else None for value in values],
        all_null=[value is None for value in values],
        may_be_nan=[value != value for value in values],
    )
    return file_zones(kind, bounds)


def _bound(value: Scalar, convert: ToKey) -> Any:
    """Return a bound as a key that compares with others; None if the bound is unknown or not comparable with the
    column."""
    if value is None:
        return None
    literal = convert(value)
    return None if isinstance(literal, Incomparable) else literal.key
