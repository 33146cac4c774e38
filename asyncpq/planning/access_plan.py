"""Which row groups and rows of one file may be read, whatever the predicate says."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asyncpq.errors import InvalidOptionError, RowIndexError
from asyncpq.planning.access_terms import ALL, NONE, GroupSet, RowSet, Term, both
from asyncpq.planning.resolved_access import ResolvedAccess, RowGroupLayout
from asyncpq.pruning.row_ranges import RowRanges


class AccessPlan:
    """Which row groups and rows of one file may be read. Immutable, hashable, to be pickled.

    A file's row groups are scanned, skipped, or read at a selection of their rows. Plans are made of row groups
    or of row numbers of the file, and combined: ``&`` (in both), ``|`` (in either), ``-`` (without the rows of the
    other) and ``~`` (all others). They mean one version of one file: a read with one that names row groups or rows
    does not start again on a changed object.

    Plans that are equal allow the same rows; those that mix row groups with rows of the file may do so without being
    equal.
    """

    __slots__ = ("_term",)

    _term: Term

    def __init__(self) -> None:
        """As :meth:`all`."""
        self._term = ALL

    @classmethod
    def _of(cls, term: Term) -> AccessPlan:
        plan = cls.__new__(cls)
        plan._term = term
        return plan

    # -- making -----------------------------------------------------------------------------------

    @classmethod
    def all(cls) -> AccessPlan:
        """Every row."""
        return cls._of(ALL)

    @classmethod
    def none(cls) -> AccessPlan:
        """No row."""
        return cls._of(NONE)

    @classmethod
    def row_groups(cls, ordinals: Iterable[int]) -> AccessPlan:
        """All rows of some row groups.

        Raises:
            RowIndexError: an ordinal is negative.
            InvalidOptionError: not whole numbers.
        """
        return cls._groups(dict.fromkeys(_numbers(ordinals, "row group"), ALL))

    @classmethod
    def rows(cls, rows: Iterable[int]) -> AccessPlan:
        """Rows by their numbers in the file, in any order; one that is named twice is read once.

        Raises:
            RowIndexError: a number is negative.
            InvalidOptionError: not whole numbers.
        """
        return cls._of(RowSet(RowRanges.from_rows(sorted(_numbers(rows, "row"))), False))

    @classmethod
    def row_ranges(cls, ranges: RowRanges | Iterable[tuple[int, int]]) -> AccessPlan:
        """Half-open ranges of row numbers of the file, in any order; they may overlap or be empty.

        Raises:
            RowIndexError: a range begins before row 0.
            InvalidOptionError: not pairs of whole numbers, or one that ends before it begins.
        """
        return cls._of(RowSet(_ranges(ranges), False))

    @classmethod
    def from_row_groups(cls, groups: Mapping[int, RowRanges | Iterable[tuple[int, int]] | None]) -> AccessPlan:
        """By ordinal, half-open ranges of a row group's own rows, or None for all of them. Others are skipped.

        Raises:
            RowIndexError: an ordinal is negative, or a range begins before row 0.
            InvalidOptionError: not pairs of whole numbers, or one that ends before it begins.
        """
        if not isinstance(groups, Mapping):
            raise InvalidOptionError("row groups must be a mapping of ordinals to row ranges, or to None for all rows")
        some = [ALL if ranges is None else RowSet(_ranges(ranges), False) for ranges in groups.values()]
        return cls._groups(dict(zip(_numbers(groups, "row group"), some, strict=True)))

    @classmethod
    def _groups(cls, groups: Mapping[int, RowSet]) -> AccessPlan:
        some = GroupSet.of(groups, False)
        return cls._of(some if some.groups else NONE)

    # -- looking ----------------------------------------------------------------------------------

    @property
    def is_all(self) -> bool:
        """It allows every row of any file."""
        return self._term == ALL

    @property
    def is_none(self) -> bool:
        """It allows no row of any file."""
        return self._term == NONE

    @property
    def is_positional(self) -> bool:
        """It names row groups or rows, which mean something in one version of a file only."""
        return not self.is_all and not self.is_none

    def resolve(self, row_group_rows: Sequence[int] | RowGroupLayout) -> ResolvedAccess:
        """The rows that may be read of each row group, as rows of the row group; those without are not there.

        Args:
            row_group_rows: how many rows each row group of the file has.

        Raises:
            RowIndexError: the file has no such row group or row, whether it was to be read or left out.
        """
        layout = row_group_rows if isinstance(row_group_rows, RowGroupLayout) else RowGroupLayout(row_group_rows)
        return self._term.resolve(layout)

    def __eq__(self, other: object) -> bool:
        return self._term == other._term if isinstance(other, AccessPlan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._term)

    def __repr__(self) -> str:
        return repr(self._term)

    # -- the algebra ------------------------------------------------------------------------------

    def __invert__(self) -> AccessPlan:
        return self._of(~self._term)

    def __and__(self, other: AccessPlan) -> AccessPlan:
        if not isinstance(other, AccessPlan):
            return NotImplemented
        return self._of(both(self._term, other._term))

    def __or__(self, other: AccessPlan) -> AccessPlan:
        if not isinstance(other, AccessPlan):
            return NotImplemented
        return ~(~self & ~other)

    def __sub__(self, other: AccessPlan) -> AccessPlan:
        if not isinstance(other, AccessPlan):
            return NotImplemented
        return self & ~other


def _numbers(values: Any, what: str) -> list[int]:
    """Whole numbers, none of them negative; Arrow and numpy arrays are taken as lists."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidOptionError(f"{values!r}: must be a list of {what} numbers")
    listed = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
    some = list(values) if listed is None else listed()
    if any(isinstance(value, bool) for value in some):
        raise InvalidOptionError(f"{what} numbers must be whole numbers, not True or False")
    try:
        numbers = [operator.index(value) for value in some]
    except TypeError as error:
        raise InvalidOptionError(f"{what} numbers must be whole numbers: {error}") from error
    if numbers and min(numbers) < 0:
        raise RowIndexError(f"{what} {min(numbers)} is not in any file: {what}s are counted from 0")
    return numbers


def _ranges(ranges: Any) -> RowRanges:
    """Half-open ranges, checked."""
    if isinstance(ranges, RowRanges):
        return ranges
    try:
        pairs = [(start, stop) for start, stop in ranges]
    except (TypeError, ValueError) as error:
        raise InvalidOptionError(f"row ranges must be pairs of first row and stop: {error}") from error
    starts, stops = (_numbers([pair[side] for pair in pairs], "row") for side in (0, 1))
    for start, stop in zip(starts, stops, strict=True):
        if start > stop:
            raise InvalidOptionError(f"row range ({start}, {stop}) ends before it begins")
    return RowRanges(zip(starts, stops, strict=True))
