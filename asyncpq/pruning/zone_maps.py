"""Zone maps: min/max bounds (:class:`Zones`) of row groups, pages and files, made from their statistics.

Row groups have the statistics of their column chunks in the footer, pages have ColumnIndexes (PageIndex.md), the files
of a dataset have bounds that are known before they are opened. :func:`asyncpq.pruning.zones.rows_where` searches all
three.

``narrowed`` cuts a long list of keys to those that a file's row groups may contain: thousands of keys for a whole
dataset are a few for each file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from asyncpq.errors import CorruptIndexError
from asyncpq.expressions import And, Atom, Expression, In, IntersectsBox, KeyIn, atoms, replace_atoms
from asyncpq.expressions.analysis import Incomparable, ResultValues, ToKey, Truth, ValueDomain, keys_of
from asyncpq.expressions.scalars import Scalar
from asyncpq.parquet.column_chunk import Box
from asyncpq.parquet.logical_types import LogicalKind
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import PageBounds, SortOrder, chunk_bounds, order_of
from asyncpq.pruning.literals import Domain, ValueKind, domain_of, first_sure
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zones import KnownValues, ZonedColumn, Zones, known_values, rows_where

GEOMETRIES: Final = frozenset({LogicalKind.GEOMETRY, LogicalKind.GEOGRAPHY})

# -- row groups -------------------------------------------------------------------------------------


class RowGroupZones:
    """The bounds of one leaf column in all row groups of a file. Expensive to make: callers cache the object."""

    __slots__ = ("_is_sphere", "boxes", "domain", "holding", "proves", "reason", "weight", "zones")

    def __init__(self, metadata: FileMetadata, leaf: Leaf) -> None:
        """Decode the statistics of the leaf's column chunks in ``metadata``, and of no other column.

        Raises CorruptFileError if a chunk's metadata contradicts the schema.
        """
        orders = metadata.column_orders
        order = order_of(leaf, None if orders is None else orders[leaf.index])
        calendar = metadata.calendars.get(leaf.index)
        known = [
            chunk_bounds(
                group.chunk(leaf.index),
                leaf,
                order,
                metadata.writer_faults,
                orders is not None,
                group.num_rows,
                calendar,
            )
            for group in metadata.row_groups
        ]
        bounds = [chunk for chunk, _ in known]
        self.zones: Zones = Zones(
            ZonedColumn.of_leaf(leaf, order),
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
        self.proves: bool = orders is not None
        strings = sum([len(bound) for chunk in bounds for bound in (chunk.min, chunk.max) if isinstance(bound, bytes)])
        self.weight: int = 600 + 200 * len(bounds) + strings  # approximate bytes held in memory

    def _meeting(self, wanted: ResultValues) -> RowRanges:
        """Return the row groups that may have a value of the set ``wanted``; if it has a box, also by the boxes of
        their geometries."""
        rows = self.zones.holding(wanted)
        if wanted.box is None:
            return rows
        from asyncpq.pruning.geometries import may_meet_on_sphere  # few predicates need it

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
    """Return the predicate without the keys that one file cannot contain, so that reading the file does not compare
    them.

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
        if not all(start < stop for start, stop in zip(self._starts, self._stops, strict=True)):
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
    """What is known of the values of one column in the files of a dataset: each sequence has one entry for each file.

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
