"""Access plans: the row groups and rows of one file that a read may touch, whatever its predicate.

A plan is made without its file: it joins a set of rows of the file (:class:`RowSet`) and a set of row groups with their
own rows (:class:`GroupSet`). The rows that such a set does not name are either all in it, or all outside it. With the
file's row groups (:class:`RowGroupLayout`) a plan resolves to the rows of each (:class:`ResolvedAccess`).

``take``, deleted rows and users' plans are all read through such plans.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from asyncpq.errors import InvalidOptionError, RowIndexError
from asyncpq.pruning.row_ranges import EMPTY, RowRanges
from asyncpq.records import NamedTuple, dataclass

_COUNTED: Final = "Rows and row groups are counted from 0."


class RowGroupLayout:
    """How many rows each of a file's row groups has, and at which rows of the file it begins and ends."""

    __slots__ = ("counts", "filled", "first_rows", "last_resolved", "num_rows", "stop_rows", "weight", "wholes")

    def __init__(self, counts: Iterable[int]) -> None:
        self.counts: tuple[int, ...] = tuple(counts)  # rows of each row group
        ends = tuple(accumulate(self.counts, initial=0))
        # the first row of each, and the one after its last, as rows of the file
        self.first_rows: tuple[int, ...] = ends[:-1]
        self.stop_rows: tuple[int, ...] = ends[1:]
        self.num_rows: int = ends[-1]
        # ordinals of the row groups that have rows
        self.filled: RowRanges = RowRanges.from_rows([ordinal for ordinal, count in enumerate(self.counts) if count])
        self.wholes: dict[int, RowRanges] = {}  # results of :meth:`whole`
        # of few rows, the plan that was resolved last, and the result: the read of an index's rows asks twice
        self.last_resolved: tuple[AccessPlan, ResolvedAccess] | None = None
        self.weight: int = 300 + 300 * len(self.counts)  # approximate bytes held in memory

    def whole(self, ordinal: int) -> RowRanges:
        """Return the set of all rows of a row group, numbered from its first row. The set is kept in ``wholes`` for
        later calls."""
        rows = self.wholes[ordinal] = RowRanges.all(self.counts[ordinal])
        return rows


class ResolvedAccess(Mapping[int, RowRanges]):
    """The rows of each row group that may be read, keyed by ordinal; row groups without such rows are left out.

    Row groups that may be read as a whole are kept as ranges of ordinals, since a file may have thousands.

    Args:
        whole: ordinals of the row groups of which all rows may be read; empty row groups are dropped.
        parts: for other row groups the rows that may be read, counted from the row group's first row.
    """

    __slots__ = ("_num_rows", "layout", "scanned", "selected")

    def __init__(self, layout: RowGroupLayout, whole: RowRanges, parts: Mapping[int, RowRanges]) -> None:
        self.layout: RowGroupLayout = layout
        self._num_rows: int | None = None
        self.selected: dict[int, RowRanges] = {}  # readable rows of the others: at least one, and not all
        full: list[int] = []
        for ordinal, rows in parts.items():
            if rows.num_rows == layout.counts[ordinal]:
                full.append(ordinal)
            elif rows:
                self.selected[ordinal] = rows
        # ordinals of the row groups that are readable as a whole
        self.scanned: RowRanges = whole
        if full or whole:
            self.scanned = (whole | RowRanges.from_rows(sorted(full)) if full else whole) & layout.filled

    @classmethod
    def of_rows(cls, layout: RowGroupLayout, ranges: RowRanges) -> ResolvedAccess:
        """Return the access to the rows ``ranges``, numbered in the file. Raises RowIndexError if the file has fewer
        rows."""
        if ranges.stop > layout.num_rows:
            outside = ranges.clip(layout.num_rows, ranges.stop).start
            raise RowIndexError(f"row {outside:,} is not in a file of {layout.num_rows:,} rows", hint=_COUNTED)
        whole: list[tuple[int, int]] = []
        parts: dict[int, RowRanges] = {}
        position = 0  # of the range that ``row`` is in
        row = ranges.start
        while position < ranges.num_ranges:
            # Empty row groups begin at the same row as the next one, which bisect finds.
            ordinal = bisect_right(layout.first_rows, row) - 1
            first, stop = layout.first_rows[ordinal], layout.stop_rows[ordinal]
            if row == first and ranges.stops[position] >= stop:
                behind = bisect_right(layout.stop_rows, ranges.stops[position])
                whole.append((ordinal, behind))
                stop = layout.stop_rows[behind - 1]
            else:
                parts[ordinal] = ranges.clip(first, stop).shift(-first)
            position = bisect_right(ranges.stops, stop, position)
            if position < ranges.num_ranges:
                row = max(stop, ranges.starts[position])
        return cls(layout, RowRanges(whole) if whole else RowRanges.empty(), parts)

    # -- looking ----------------------------------------------------------------------------------

    @property
    def ordinals(self) -> RowRanges:
        """Ordinals of the row groups of which any rows may be read."""
        return self.scanned | RowRanges.from_rows(sorted(self.selected)) if self.selected else self.scanned

    @property
    def num_rows(self) -> int:
        """The number of rows that may be read, in all row groups."""
        if self._num_rows is None:
            layout = self.layout
            whole = [layout.stop_rows[stop - 1] - layout.first_rows[start] for start, stop in self.scanned]
            self._num_rows = sum([rows.num_rows for rows in self.selected.values()], sum(whole))
        return self._num_rows

    def __getitem__(self, ordinal: int) -> RowRanges:
        rows = self.selected.get(ordinal)
        if rows is None:
            if ordinal not in self.scanned:
                raise KeyError(ordinal)
            rows = RowRanges.all(self.layout.counts[ordinal])
        return rows

    def __iter__(self) -> Iterator[int]:
        return self.ordinals.rows()

    def __len__(self) -> int:
        return self.scanned.num_rows + len(self.selected)

    def __repr__(self) -> str:
        return f"ResolvedAccess({len(self)} of {len(self.layout.counts)} row groups, {self.num_rows} rows)"

    # -- the algebra ------------------------------------------------------------------------------

    def __invert__(self) -> ResolvedAccess:
        """Return the access to exactly those rows of the file that may not be read through this one."""
        layout = self.layout
        parts = {ordinal: rows.complement(layout.counts[ordinal]) for ordinal, rows in self.selected.items()}
        return ResolvedAccess(layout, layout.filled - self.ordinals, parts)

    def __and__(self, other: ResolvedAccess) -> ResolvedAccess:
        parts: dict[int, RowRanges] = {}
        for mine, its in ((self, other), (other, self)):
            for ordinal, rows in mine.selected.items():
                if ordinal in its.scanned:
                    parts[ordinal] = rows
                elif ordinal in its.selected:
                    parts[ordinal] = rows & its.selected[ordinal]
        return ResolvedAccess(self.layout, self.scanned & other.scanned, parts)

    def __or__(self, other: ResolvedAccess) -> ResolvedAccess:
        whole = self.scanned | other.scanned
        parts: dict[int, RowRanges] = {}
        for rows_of in (self.selected, other.selected):
            for ordinal, rows in rows_of.items():
                if ordinal not in whole:
                    parts[ordinal] = parts[ordinal] | rows if ordinal in parts else rows
        return ResolvedAccess(self.layout, whole, parts)


_SHOWN: Final = 8  # ranges, row groups and terms that a repr lists
_FEW_RANGES: Final = 64  # of a plan whose result is kept


class RowSet(NamedTuple):
    """A set of rows of a file or row group whose number of rows is not yet known.

    The set is ``ranges`` if ``rest`` is false, and all other rows if it is true.
    """

    ranges: RowRanges
    rest: bool

    def __invert__(self) -> RowSet:
        return RowSet(self.ranges, not self.rest)

    def __and__(self, other: RowSet) -> RowSet:
        if self.rest and other.rest:
            return RowSet(self.ranges | other.ranges, True)
        if self.rest:
            return RowSet(other.ranges - self.ranges, False)
        return RowSet(self.ranges - other.ranges if other.rest else self.ranges & other.ranges, False)

    def resolve(self, layout: RowGroupLayout) -> ResolvedAccess:
        """Return the rows of the set in a file with these row groups."""
        if not self.ranges:
            return ResolvedAccess(layout, layout.filled if self.rest else self.ranges, {})
        named = ResolvedAccess.of_rows(layout, self.ranges)
        return ~named if self.rest else named

    def __repr__(self) -> str:
        if not self.ranges:
            return "AccessPlan.all()" if self.rest else "AccessPlan.none()"
        return f"{'~' if self.rest else ''}AccessPlan.row_ranges({_shown(list(self.ranges))})"


ALL_ROWS: Final = RowSet(RowRanges.empty(), True)
NO_ROWS: Final = RowSet(RowRanges.empty(), False)


class GroupSet(NamedTuple):
    """A set of rows by row group: pairs of the row group's ordinal and its rows, ordinals ascending.

    If ``rest`` is true, the set also has all rows of the row groups that ``groups`` does not name.
    """

    groups: tuple[tuple[int, RowSet], ...]
    rest: bool

    @classmethod
    def of(cls, groups: Mapping[int, RowSet], rest: bool) -> GroupSet:
        """Return the set of the rows in ``groups``, by ordinal; ``rest``: with all other row groups."""
        usual = ALL_ROWS if rest else NO_ROWS
        return cls(tuple([item for item in sorted(groups.items()) if item[1] != usual]), rest)

    def __invert__(self) -> GroupSet:
        return GroupSet(tuple([(ordinal, ~rows) for ordinal, rows in self.groups]), not self.rest)

    def __and__(self, other: GroupSet) -> GroupSet:
        mine, its = dict(self.groups), dict(other.groups)
        usual, its_usual = (ALL_ROWS if side.rest else NO_ROWS for side in (self, other))
        both = {ordinal: mine.get(ordinal, usual) & its.get(ordinal, its_usual) for ordinal in {*mine, *its}}
        return GroupSet.of(both, self.rest and other.rest)

    def resolve(self, layout: RowGroupLayout) -> ResolvedAccess:
        """Return the rows of the set in a file with these row groups. Raises RowIndexError if the file lacks one."""
        parts: dict[int, RowRanges] = {}
        for ordinal, (ranges, rest) in self.groups:
            if ordinal >= len(layout.counts):
                raise RowIndexError(
                    f"row group {ordinal:,} is not in a file of {len(layout.counts):,} row groups", hint=_COUNTED
                )
            count = layout.counts[ordinal]
            if ranges.stop > count:
                outside = ranges.clip(count, ranges.stop).start
                raise RowIndexError(
                    f"row {outside:,} is not in row group {ordinal:,}, which has {count:,} rows", hint=_COUNTED
                )
            parts[ordinal] = ranges.complement(count) if rest else ranges
        whole = layout.filled - RowRanges.from_rows(parts) if self.rest else EMPTY
        return ResolvedAccess(layout, whole, parts)

    def __repr__(self) -> str:
        if self.rest:
            return f"~{~self!r}"
        if all(rows == ALL_ROWS for _, rows in self.groups):
            return f"AccessPlan.row_groups({_shown([ordinal for ordinal, _ in self.groups])})"
        texts = []
        for ordinal, rows in self.groups[:_SHOWN]:
            named = f"{'all but ' if rows.rest else ''}{_shown(list(rows.ranges))}"
            texts.append(f"{ordinal}: {'None' if rows == ALL_ROWS else named}")
        return f"AccessPlan.from_row_groups({{{', '.join(texts)}{', ...' if len(self.groups) > _SHOWN else ''}}})"


def _shown(items: Sequence[object]) -> str:
    more = f", ... ({len(items)} in all)" if len(items) > _SHOWN else ""
    return f"[{', '.join(map(repr, items[:_SHOWN]))}{more}]"


ALL_GROUPS: Final = GroupSet((), True)
NO_GROUPS: Final = GroupSet((), False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AccessPlan:
    """The row groups and rows of one file that a read may touch. Immutable, hashable, picklable.

    A plan scans a row group, skips it, or selects some of its rows. Plans are made of row groups or of row numbers of
    the file, and combined: ``&`` (in both), ``|`` (in either), ``-`` (without the rows of the other) and ``~`` (all
    others). A plan that names row groups or rows means one version of one file: its read does not start again on a
    changed object.

    Equal plans allow the same rows. Plans that mix row groups with rows of the file may be unequal and allow the same.
    """

    # The intersection of the parts or, with ``_either``, their union; only plans of two parts and more are unions.
    # A part that changes nothing is ALL_ROWS or ALL_GROUPS in an intersection, NO_ROWS or NO_GROUPS in a union.
    _rows: RowSet = ALL_ROWS
    _groups: GroupSet = ALL_GROUPS
    _nested: frozenset[AccessPlan] = frozenset()  # unions in an intersection, intersections in a union
    _either: bool = False

    # -- making -----------------------------------------------------------------------------------

    @classmethod
    def all(cls) -> AccessPlan:
        """Return the plan that allows every row."""
        return _ALL

    @classmethod
    def none(cls) -> AccessPlan:
        """Return the plan that allows no row."""
        return _NONE

    @classmethod
    def row_groups(cls, ordinals: Iterable[int]) -> AccessPlan:
        """Return a plan of all rows of the row groups with these ordinals.

        Raises:
            RowIndexError: an ordinal is negative.
            InvalidOptionError: an ordinal is not a whole number.
        """
        return cls._of_groups(dict.fromkeys(_numbers(ordinals, "row group"), ALL_ROWS))

    @classmethod
    def rows(cls, rows: Iterable[int]) -> AccessPlan:
        """Return a plan of the rows with these numbers in the file, in any order; duplicates are read once.

        Raises:
            RowIndexError: a number is negative.
            InvalidOptionError: a number is not a whole number.
        """
        return cls(_rows=RowSet(RowRanges.from_rows(sorted(_numbers(rows, "row"))), False))

    @classmethod
    def row_ranges(cls, ranges: RowRanges | Iterable[tuple[int, int]]) -> AccessPlan:
        """Return a plan of half-open ranges of row numbers of the file, in any order; ranges may overlap or be empty.

        Raises:
            RowIndexError: a range begins before row 0.
            InvalidOptionError: a range is not a pair of whole numbers, or ends before it begins.
        """
        return cls(_rows=RowSet(_ranges(ranges), False))

    @classmethod
    def from_row_groups(cls, groups: Mapping[int, RowRanges | Iterable[tuple[int, int]] | None]) -> AccessPlan:
        """Return a plan of some rows of some row groups; all other row groups are skipped.

        ``groups`` maps a row group's ordinal to half-open ranges of rows, counted from the row group's first row, or to
        None for all its rows.

        Raises:
            RowIndexError: an ordinal is negative, or a range begins before row 0.
            InvalidOptionError: a range is not a pair of whole numbers, or ends before it begins.
        """
        if not isinstance(groups, Mapping):
            raise InvalidOptionError("row groups must be a mapping of ordinals to row ranges, or to None for all rows")
        rows = [ALL_ROWS if ranges is None else RowSet(_ranges(ranges), False) for ranges in groups.values()]
        return cls._of_groups(dict(zip(_numbers(groups, "row group"), rows, strict=True)))

    @classmethod
    def _of_groups(cls, groups: Mapping[int, RowSet]) -> AccessPlan:
        named = GroupSet.of(groups, False)
        return cls(_groups=named) if named.groups else cls.none()

    # -- looking ----------------------------------------------------------------------------------

    @property
    def is_all(self) -> bool:
        """Whether the plan allows every row of any file."""
        return not self._either and not self._nested and self._rows == ALL_ROWS and self._groups == ALL_GROUPS

    @property
    def is_none(self) -> bool:
        """Whether the plan allows no row of any file."""
        return not self._either and not self._nested and self._rows == NO_ROWS and self._groups == ALL_GROUPS

    @property
    def num_ranges(self) -> int:
        """The number of ranges of rows that the plan names."""
        groups = sum([rows.ranges.num_ranges for _, rows in self._groups.groups])
        return self._rows.ranges.num_ranges + groups + sum([plan.num_ranges for plan in self._nested])

    @property
    def is_positional(self) -> bool:
        """Whether the plan names row groups or rows, and so is meant for one version of one file."""
        return not self.is_all and not self.is_none

    def resolve(self, row_group_rows: Sequence[int] | RowGroupLayout) -> ResolvedAccess:
        """Return the rows of each row group that may be read: a mapping from the ordinals of row groups with such rows
        to half-open ranges of rows, counted from the row group's first row.

        Args:
            row_group_rows: the number of rows of each row group of the file.

        Raises:
            RowIndexError: the plan names a row group or row, to read or to leave out, that the file does not have.
        """
        layout = row_group_rows if isinstance(row_group_rows, RowGroupLayout) else RowGroupLayout(row_group_rows)
        last = layout.last_resolved
        if last is not None and last[0] is self:
            return last[1]
        first, *rest = [part.resolve(layout) for part in self._parts()]
        for part in rest:
            first = first | part if self._either else first & part
        selected = list(first.selected.values())
        if not selected or (len(selected) == 1 and selected[0].num_ranges <= _FEW_RANGES):
            layout.last_resolved = self, first
        return first

    def _parts(self) -> list[RowSet | GroupSet | AccessPlan]:
        """Return the sets and plans whose intersection or union this plan is, without those that change nothing;
        ``_rows`` if none is left."""
        neutral = (NO_ROWS, NO_GROUPS) if self._either else (ALL_ROWS, ALL_GROUPS)
        named = [part for part in (self._rows, self._groups) if part not in neutral]
        return [*named, *sorted(self._nested, key=repr)] or [self._rows]

    def __repr__(self) -> str:
        parts = self._parts()
        texts = [f"({part!r})" if isinstance(part, AccessPlan) else repr(part) for part in parts[:_SHOWN]]
        return (" | " if self._either else " & ").join([*texts, *(["..."] if len(parts) > _SHOWN else [])])

    # -- the algebra ------------------------------------------------------------------------------

    def __invert__(self) -> AccessPlan:
        if not self._either and not self._nested:
            if self._groups == ALL_GROUPS:
                return AccessPlan(_rows=~self._rows)
            if self._rows == ALL_ROWS:
                return AccessPlan(_groups=~self._groups)
        nested = frozenset([~plan for plan in self._nested])
        return AccessPlan(_rows=~self._rows, _groups=~self._groups, _nested=nested, _either=not self._either)

    def __and__(self, other: AccessPlan) -> AccessPlan:
        if not isinstance(other, AccessPlan):
            return NotImplemented
        rows, groups = ALL_ROWS, ALL_GROUPS
        nested: frozenset[AccessPlan] = frozenset()
        for plan in (self, other):
            if plan._either:
                nested |= {plan}
            else:
                rows, groups, nested = rows & plan._rows, groups & plan._groups, nested | plan._nested
        if rows == NO_ROWS or groups == NO_GROUPS:
            return _NONE
        if len(nested) == 1 and rows == ALL_ROWS and groups == ALL_GROUPS:
            return next(iter(nested))
        return AccessPlan(_rows=rows, _groups=groups, _nested=nested)

    def __or__(self, other: AccessPlan) -> AccessPlan:
        if not isinstance(other, AccessPlan):
            return NotImplemented
        return ~(~self & ~other)

    def __sub__(self, other: AccessPlan) -> AccessPlan:
        if not isinstance(other, AccessPlan):
            return NotImplemented
        return self & ~other


_ALL: Final = AccessPlan()
_NONE: Final = AccessPlan(_rows=NO_ROWS)


def _numbers(values: Any, what: str) -> list[int]:
    """Convert row or row group numbers, in an iterable, an Arrow array or a numpy array, to a list of ints.

    ``what``: "row" or "row group", for messages. Raises RowIndexError if a number is negative, InvalidOptionError if
    one is not a whole number.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidOptionError(f"expected a list of {what} numbers, not {values!r}")
    listed = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
    items = list(values) if listed is None else listed()
    if any(isinstance(value, bool) for value in items):
        raise InvalidOptionError(f"{what} numbers must be whole numbers, not True or False")
    try:
        numbers = [operator.index(value) for value in items]
    except TypeError as error:
        raise InvalidOptionError(f"{what} numbers must be whole numbers: {error}") from error
    if numbers and min(numbers) < 0:
        raise RowIndexError(f"{what} {min(numbers)} is not in any file: {what}s are counted from 0")
    return numbers


def _ranges(ranges: Any) -> RowRanges:
    """Convert pairs (first row, stop) to a set of rows. Raises InvalidOptionError if one is not a pair or ends before
    it begins."""
    if isinstance(ranges, RowRanges):
        return ranges
    try:
        pairs = [(start, stop) for start, stop in ranges]
    except (TypeError, ValueError) as error:
        raise InvalidOptionError(f"row ranges must be pairs of first row and stop: {error}") from error
    starts, stops = (_numbers([pair[side] for pair in pairs], "row") for side in (0, 1))
    for start, stop in zip(starts, stops, strict=True):
        if start > stop:
            raise InvalidOptionError(
                f"row range ({start}, {stop}) ends before it begins: give its first row and its stop"
            )
    return RowRanges(zip(starts, stops, strict=True))
