"""Bounds of one column over zones of rows (files, row groups or pages), arranged for searching."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from asyncpq.expressions.analysis import ToKey
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import Order
from asyncpq.pruning.literals import to_key
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.value_kinds import ValueKind, kind_of_leaf

Runs: TypeAlias = list[tuple[int, int]]

_EMPTY = RowRanges.empty()


@dataclass(frozen=True, slots=True)
class ZonedColumn:
    """The column that zones are of.

    Attributes:
        kind: what its values are.
        is_nested: counts of nulls are not known to be counts of rows.
        is_repeated: it has several values in a row; bounds are not used.
        is_nullable: nulls may be among its values.
    """

    kind: ValueKind
    is_nested: bool = False
    is_repeated: bool = False
    is_nullable: bool = True

    @classmethod
    def of_leaf(cls, leaf: Leaf, order: Order) -> ZonedColumn:
        """A leaf of a file whose statistics are in ``order``."""
        # Counts of a nested leaf speak of its ancestors' nulls too, those of a repeated one not even of rows.
        repeated = leaf.max_repetition_level > 0
        nested = repeated or len(leaf.path) > 1
        return cls(kind_of_leaf(leaf, order), nested, repeated, leaf.max_definition_level > 0)


class Zones:
    """Zones and what they may hold. Immutable once made; every answer is a superset, as RowRanges of zone numbers.

    Attributes:
        column: the column.
        num_zones: how many.
        to_key: brings literals into the domain of the bounds.
        is_sorted: whether bounds ascend or descend over the zones that have them.
        present: zones with bounds. unknown: zones without, that may hold any value.
        all_null: zones without any value but nulls, as far as that can be known.
        maybe_null, maybe_nan: zones that may hold nulls, NaN.
    """

    __slots__ = (
        "_exact",
        "_mapped",
        "_max_lengths",
        "_maxs",
        "_mins",
        "_open_max",
        "_positions",
        "all_null",
        "column",
        "is_sorted",
        "maybe_nan",
        "maybe_null",
        "num_zones",
        "present",
        "to_key",
        "unknown",
    )

    column: ZonedColumn
    num_zones: int
    to_key: ToKey
    is_sorted: bool
    present: RowRanges
    unknown: RowRanges
    all_null: RowRanges
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
        """All sequences have one entry for each zone.

        Args:
            column: the column.
            mins, maxs: inclusive bounds of the values that are neither null nor NaN, in the domain of
                ``pruning.literals``; None where unknown. A max in byte order may be a bare prefix of the
                true one, unless ``exact``.
            all_null: whether all of the zone's values are null.
            null_counts, nan_counts: None, as a whole or singly, where unknown.
            exact: in byte order, whether both are bounds as they stand, not cut short; None for never.
        """
        self.column = column
        self.to_key = to_key(column.kind)
        self.num_zones = num = len(mins)
        every = RowRanges.all(num)
        repeated = column.is_repeated
        bounded = [i for i in range(num) if not all_null[i] and mins[i] is not None and maxs[i] is not None]
        present = [] if repeated else bounded
        self._arrange(mins, maxs, present, exact)
        self.present = RowRanges.from_rows(present)
        null = RowRanges.from_rows([i for i in range(num) if all_null[i]])
        self.unknown = every if repeated else every - self.present - null
        self.all_null = _EMPTY if column.is_nested else null
        if column.is_nested or null_counts is None:
            self.maybe_null = every if column.is_nested or column.is_nullable else _EMPTY
        else:
            self.maybe_null = null | RowRanges.from_rows([i for i, count in enumerate(null_counts) if count != 0])
        if not column.kind.has_nan:
            self.maybe_nan = _EMPTY
        elif repeated or nan_counts is None:
            self.maybe_nan = every - self.all_null
        else:
            self.maybe_nan = RowRanges.from_rows([i for i, count in enumerate(nan_counts) if count != 0]) - null

    def _arrange(
        self,
        mins: Sequence[Any],
        maxs: Sequence[Any],
        present: list[int],
        exact: Sequence[bool] | None,
    ) -> None:
        """Keep the bounds that there are, ascending if they are sorted at all, and where each belongs.

        The order is looked at, not taken from the writer's claim.
        """
        positions = present
        self._mins = [mins[i] for i in present]
        self._maxs = [maxs[i] for i in present]
        self.is_sorted = _ascends(self._mins) and _ascends(self._maxs)
        if not self.is_sorted and _ascends(self._mins[::-1]) and _ascends(self._maxs[::-1]):
            self.is_sorted = True
            positions = present[::-1]
            self._mins.reverse()
            self._maxs.reverse()
        self._positions = positions
        self._mapped = positions != list(range(len(positions)))
        # Bounds of other orders may be wide, but where they are equal they are the value.
        cut = self.column.kind.is_bytes
        self._exact = [not cut or (exact is not None and exact[i]) for i in positions]
        self._open_max = not all(self._exact)
        self._max_lengths = sorted({len(high) for high in self._maxs if high}) if self._open_max else []

    # -- searching; indexes and runs are into the bounds kept --------------------------------------

    def matching(self, op: str, key: Any) -> RowRanges:
        """Zones with bounds that may hold a value v with ``v op key``; op is == < <= > or >=."""
        if self.is_sorted or self._mapped:
            return self._zones(self._runs(op, key))
        return RowRanges.from_rows(self._unsorted(op, key))

    def other_than(self, keys: list[Any]) -> RowRanges:
        """Zones with bounds that may hold another value than the keys, which are sorted."""
        mins, maxs, exact = self._mins, self._maxs, self._exact
        near: Runs = self._runs("==", keys[0]) if len(keys) == 1 else [(0, len(mins))] if keys else []
        wanted = set(keys)
        only = [
            (i, i + 1)
            for start, stop in near
            for i in range(start, stop)
            if exact[i] and mins[i] == maxs[i] and mins[i] in wanted
        ]
        return self.present - self._zones(only) if only else self.present

    def holding_any(self, keys: list[Any]) -> RowRanges:
        """Zones with bounds that may hold one of the keys, which are sorted."""
        mins, maxs = self._mins, self._maxs
        if self.is_sorted and len(keys) * 8 < len(mins):
            return self._zones(sorted(run for key in keys for run in self._runs("==", key)))
        num = len(keys)
        found: Runs = []
        for i, low in enumerate(mins):
            at = bisect_left(keys, low)
            # The next key decides: those that begin with the max come before all others above it.
            if at < num and (keys[at] <= maxs[i] or (self._open_max and _begins_with(keys[at], maxs[i]))):
                found.append((i, i + 1))
        return self._zones(found)

    def within(self, keys: Sequence[Any]) -> tuple[int, int]:
        """Which of the keys, which are sorted, some zone may hold: where those begin, and where they end."""
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

    def starting_with(self, prefix: bytes) -> RowRanges:
        """Zones with bounds, in byte order, that may hold a string that begins with ``prefix``."""
        zones = self.matching(">=", prefix)
        above = successor(prefix)
        return zones if above is None else zones & self.matching("<", above)

    def not_starting_with(self, prefix: bytes) -> RowRanges:
        """Zones with bounds, in byte order, that may hold a string that does not begin with ``prefix``."""
        maxs = self._maxs
        # Whatever a bare-prefix max stands for begins with that prefix too.
        return self._zones(
            [(i, i + 1) for i, low in enumerate(self._mins) if low < prefix or not maxs[i].startswith(prefix)]
        )

    def _zones(self, runs: Runs) -> RowRanges:
        if not self._mapped:
            return RowRanges.from_sorted(run for run in runs if run[0] < run[1])
        positions = self._positions
        return RowRanges.from_rows(sorted({positions[i] for start, stop in runs for i in range(start, stop)}))

    def _runs(self, op: str, key: Any) -> Runs:
        mins, maxs = self._mins, self._maxs
        if not self.is_sorted:
            return [(i, i + 1) for i in self._unsorted(op, key)]
        if op == "<":
            return [(0, bisect_left(mins, key))]
        if op == "<=":
            return [(0, bisect_right(mins, key))]
        start = bisect_right(maxs, key) if op == ">" and not self._open_max else bisect_left(maxs, key)
        runs = self._bare_prefixes(key, start) if self._open_max and start else []
        runs.append((start, bisect_right(mins, key) if op == "==" else len(maxs)))
        return runs

    def _unsorted(self, op: str, key: Any) -> list[int]:
        mins, maxs = self._mins, self._maxs
        if op == "<":
            return [i for i, low in enumerate(mins) if low < key]
        if op == "<=":
            return [i for i, low in enumerate(mins) if low <= key]
        if self._open_max:
            above = [i for i, high in enumerate(maxs) if high >= key or _begins_with(key, high)]
            return [i for i in above if mins[i] <= key] if op == "==" else above
        if op == "==":
            return [i for i, low in enumerate(mins) if low <= key <= maxs[i]]
        if op == ">":
            return [i for i, high in enumerate(maxs) if high > key]
        return [i for i, high in enumerate(maxs) if high >= key]

    def _bare_prefixes(self, key: Any, stop: int) -> Runs:
        """Sorted zones before ``stop`` whose max is a proper prefix of ``key``: their true max may be above it."""
        maxs, size, start = self._maxs, len(key), 0
        runs = []
        for length in self._max_lengths:
            if length >= size:
                break
            prefix = key[:length]
            start = bisect_left(maxs, prefix, start, stop)
            runs.append((start, bisect_right(maxs, prefix, start, stop)))
        return runs


def successor(prefix: bytes) -> bytes | None:
    """The least string above every string that begins with ``prefix``; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _begins_with(key: Any, high: Any) -> bool:
    # An empty max was not cut short.
    return bool(high) and bool(key.startswith(high))


def _ascends(values: list[Any]) -> bool:
    return all(first <= second for first, second in pairwise(values))
