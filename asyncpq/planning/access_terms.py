"""What access plans are made of: sets of rows of the file, sets of row groups with rows of theirs, and both joined.

None of them knows the file: what is not named is in the set or not, however much of it there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from asyncpq.errors import RowIndexError
from asyncpq.planning.resolved_access import ResolvedAccess, RowGroupLayout
from asyncpq.pruning.row_ranges import RowRanges

_SHOWN: Final = 8  # ranges, row groups and terms that a repr lists


class RowSet(NamedTuple):
    """Rows of a file or of a row group, however many it has: ``ranges``, or with ``rest`` all but those."""

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
        if not self.ranges:
            return ResolvedAccess(layout, layout.filled if self.rest else self.ranges, {})
        named = ResolvedAccess.of_rows(layout, self.ranges)
        return ~named if self.rest else named

    def __repr__(self) -> str:
        if not self.ranges:
            return "AccessPlan.all()" if self.rest else "AccessPlan.none()"
        return f"{'~' if self.rest else ''}AccessPlan.row_ranges({_shown(list(self.ranges))})"


ALL: Final = RowSet(RowRanges.empty(), True)
NONE: Final = RowSet(RowRanges.empty(), False)


class GroupSet(NamedTuple):
    """Row groups by ordinal, each with its rows: sorted, and none that is as ``rest`` says; with ``rest``, all
    other row groups, too."""

    groups: tuple[tuple[int, RowSet], ...]
    rest: bool

    @classmethod
    def of(cls, groups: Mapping[int, RowSet], rest: bool) -> GroupSet:
        usual = ALL if rest else NONE
        return cls(tuple([item for item in sorted(groups.items()) if item[1] != usual]), rest)

    def __invert__(self) -> GroupSet:
        return GroupSet(tuple([(ordinal, ~rows) for ordinal, rows in self.groups]), not self.rest)

    def __and__(self, other: GroupSet) -> GroupSet:
        mine, its = dict(self.groups), dict(other.groups)
        usual, its_usual = (ALL if some.rest else NONE for some in (self, other))
        both = {ordinal: mine.get(ordinal, usual) & its.get(ordinal, its_usual) for ordinal in {*mine, *its}}
        return GroupSet.of(both, self.rest and other.rest)

    def resolve(self, layout: RowGroupLayout) -> ResolvedAccess:
        parts: dict[int, RowRanges] = {}
        for ordinal, (ranges, rest) in self.groups:
            if ordinal >= len(layout.counts):
                raise RowIndexError(f"row group {ordinal} is not in a file of {len(layout.counts)} row groups")
            count = layout.counts[ordinal]
            if ranges.stop > count:
                outside = ranges.clip(count, ranges.stop).start
                raise RowIndexError(f"row {outside} is not in row group {ordinal}, which has {count} rows")
            parts[ordinal] = ranges.complement(count) if rest else ranges
        whole = layout.filled if self.rest else RowRanges.empty()
        return ResolvedAccess(layout, whole - RowRanges.from_rows(parts), parts)

    def __repr__(self) -> str:
        if self.rest:
            return f"~{~self!r}"
        if all(rows == ALL for _, rows in self.groups):
            return f"AccessPlan.row_groups({_shown([ordinal for ordinal, _ in self.groups])})"
        texts = [f"{ordinal}: {_rows_shown(rows)}" for ordinal, rows in self.groups[:_SHOWN]]
        return f"AccessPlan.from_row_groups({{{', '.join(texts)}{', ...' if len(self.groups) > _SHOWN else ''}}})"


class Joined(NamedTuple):
    """What is in all terms, or with ``either`` in any: at most one of each kind, and terms joined the other way."""

    either: bool
    rows: RowSet | None
    groups: GroupSet | None
    others: frozenset[Joined]

    @property
    def terms(self) -> list[Term]:
        known: list[Term] = [term for term in (self.rows, self.groups) if term is not None]
        return [*known, *sorted(self.others, key=repr)]

    def __invert__(self) -> Joined:
        rows = None if self.rows is None else ~self.rows
        groups = None if self.groups is None else ~self.groups
        return Joined(not self.either, rows, groups, frozenset([~other for other in self.others]))

    def resolve(self, layout: RowGroupLayout) -> ResolvedAccess:
        first, *rest = [term.resolve(layout) for term in self.terms]
        for term in rest:
            first = first | term if self.either else first & term
        return first

    def __repr__(self) -> str:
        terms = [f"({term!r})" if isinstance(term, Joined) else repr(term) for term in self.terms]
        return (" | " if self.either else " & ").join([*terms[:_SHOWN], *(["..."] if len(terms) > _SHOWN else [])])


Term = RowSet | GroupSet | Joined


def both(left: Term, right: Term) -> Term:
    """The intersection; sets of one kind become one set."""
    if isinstance(left, RowSet) and isinstance(right, RowSet):
        return left & right
    rows, groups = ALL, GroupSet((), True)
    others: set[Joined] = set()
    for side in (left, right):
        terms = side.terms if isinstance(side, Joined) and not side.either else [side]
        for term in terms:
            if isinstance(term, RowSet):
                rows &= term
            elif isinstance(term, GroupSet):
                groups &= term
            else:
                others.add(term)
    if rows == NONE or groups == ((), False):
        return NONE
    some = [term for term in (rows, groups) if term not in (ALL, ((), True))] + list(others)
    if len(some) <= 1:
        return some[0] if some else ALL
    return Joined(False, None if rows == ALL else rows, groups if groups.groups else None, frozenset(others))


def _shown(items: Sequence[object]) -> str:
    more = f", ... ({len(items)} in all)" if len(items) > _SHOWN else ""
    return f"[{', '.join(map(repr, items[:_SHOWN]))}{more}]"


def _rows_shown(rows: RowSet) -> str:
    if rows == ALL:
        return "None"
    return f"{'all but ' if rows.rest else ''}{_shown(list(rows.ranges))}"
