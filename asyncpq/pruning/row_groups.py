"""Which row groups can match, from the statistics of their chunks in the footer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from asyncpq.errors import QueryError
from asyncpq.expressions import And, Atom, ColumnComparison, Constant, Expression, Not, Or, columns
from asyncpq.format.metadata import FileMetadata
from asyncpq.format.schema import Leaf
from asyncpq.format.statistics import Bounds, chunk_bounds, order_of
from asyncpq.pruning.bounds import Truth, rows_where, why_not, zones_where
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zones import Zones


@dataclass(frozen=True, slots=True)
class LeafBounds:
    """Bounds of one leaf in every row group. Made once for each file and leaf; cache it.

    Attributes:
        zones: the row groups as zones.
        unusable: why some row group's bounds cannot be used; None if all can.
        weight: approximate bytes held in memory.
    """

    zones: Zones
    unusable: str | None
    weight: int


def row_group_bounds(metadata: FileMetadata, leaf: Leaf) -> LeafBounds:
    """Collect the statistics of a leaf; parses its chunks' metadata, and no others.

    Raises:
        CorruptFileError: a chunk's metadata contradicts the schema.
    """
    orders = metadata.column_orders
    order = order_of(leaf, None if orders is None else orders[leaf.index])
    bounds: list[Bounds] = []
    unusable: str | None = None
    for group in metadata.row_groups:
        found, reason = chunk_bounds(
            group.chunk(leaf.index), leaf, order, metadata.created_by, orders is not None, group.num_rows
        )
        bounds.append(found)
        unusable = unusable or reason
    zones = Zones(
        leaf,
        order,
        [found.min for found in bounds],
        [found.max for found in bounds],
        all_null=[found.all_null for found in bounds],
        null_counts=[found.null_count for found in bounds],
        nan_counts=[found.nan_count for found in bounds],
        exact=[found.min_exact and found.max_exact for found in bounds],
    )
    return LeafBounds(zones, unusable, 600 + 200 * len(bounds))


BoundsOf: TypeAlias = Callable[[Leaf], LeafBounds]


class RowGroupPruning:
    """What :func:`prune_row_groups` found.

    Attributes:
        keep: ordinals of the row groups in which the predicate may be true, ascending.
        all_match: those of them in which it is true for every row, as proven by their statistics.
        num_row_groups: of the file.
    """

    __slots__ = ("_bounds", "_expr", "all_match", "keep", "num_row_groups")

    def __init__(
        self,
        expr: Expression,
        keep: tuple[int, ...],
        all_match: frozenset[int],
        num_row_groups: int,
        bounds: dict[str, LeafBounds],
    ) -> None:
        self.keep = keep
        self.all_match = all_match
        self.num_row_groups = num_row_groups
        self._expr = expr
        self._bounds = bounds

    @property
    def dropped_by(self) -> dict[str, int]:
        """For each condition that all rows must meet: how many row groups it alone excludes."""
        conditions = self._expr.args if isinstance(self._expr, And) else (self._expr,)
        dropped = {}
        for condition in conditions:
            kept = _zones(condition, Truth.TRUE, self.num_row_groups, self._bounds)
            dropped[str(condition)] = self.num_row_groups - kept.num_rows
        return dropped

    @property
    def unusable(self) -> dict[str, str]:
        """For each atom that statistics do not help with: why."""
        reasons = {}
        for atom in _atoms(self._expr):
            names = columns(atom)
            known = [self._bounds[name] for name in names if name in self._bounds]
            if len(known) < len(names):
                reasons[str(atom)] = "statistics are not trusted, or it is no leaf column"
            elif reason := why_not(atom, known[0].zones) or known[0].unusable:
                reasons[str(atom)] = reason
        return reasons


def prune_row_groups(
    expr: Expression, metadata: FileMetadata, *, trust_statistics: bool, bounds_of: BoundsOf | None = None
) -> RowGroupPruning:
    """Find the row groups in which ``expr`` may be true: a superset of those in which it is.

    Args:
        expr: the predicate. Columns that are not leaves of the file prune nothing; the filter refuses them.
        metadata: of the file.
        trust_statistics: False keeps every row group.
        bounds_of: a cache in front of :func:`row_group_bounds`.

    Raises:
        CorruptFileError: a chunk's metadata contradicts the schema.
    """
    bounds: dict[str, LeafBounds] = {}
    if trust_statistics:
        find = bounds_of or partial(row_group_bounds, metadata)
        for name in columns(expr):
            leaf = _leaf(metadata, name)
            if leaf is not None:
                bounds[name] = find(leaf)
    num = len(metadata.row_groups)
    keep = _zones(expr, Truth.TRUE, num, bounds)
    all_match: frozenset[int] = frozenset()
    if keep and bounds:
        surely = keep - _zones(expr, Truth.FALSE, num, bounds)
        if surely:
            all_match = frozenset((surely - _zones(expr, Truth.NULL, num, bounds)).rows())
    return RowGroupPruning(expr, tuple(keep.rows()), all_match, num, bounds)


def _leaf(metadata: FileMetadata, name: str) -> Leaf | None:
    try:
        return metadata.schema.leaf(name)
    except QueryError:  # a struct, a missing or an ambiguous name: whether that is an error, the filter says
        return None


def _zones(expr: Expression, truth: Truth, num: int, bounds: dict[str, LeafBounds]) -> RowRanges:
    def atom_zones(atom: Atom, truth: Truth) -> RowRanges:
        if isinstance(atom, ColumnComparison):
            return RowRanges.all(num)
        known = bounds.get(atom.column)
        return RowRanges.all(num) if known is None else zones_where(atom, truth, known.zones)

    return rows_where(expr, truth, num, atom_zones)


def _atoms(expr: Expression) -> Iterator[Atom]:
    if isinstance(expr, (And, Or)):
        for arg in expr.args:
            yield from _atoms(arg)
    elif isinstance(expr, Not):
        yield from _atoms(expr.arg)
    elif not isinstance(expr, Constant):
        yield expr  # type: ignore[misc]  # all other nodes are atoms
