"""The files of a dataset that can match, by bounds that are known before the files are opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from asyncpq.expressions import Expression
from asyncpq.expressions.analysis import Incomparable, ToKey, Truth
from asyncpq.expressions.scalars import Scalar
from asyncpq.pruning.literals import Domain, ValueKind, domain_of
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zones import ZonedColumn, Zones, rows_where

# Below and above all keys of a domain. No string is above all others.
_LEAST: Final[Mapping[Domain, Any]] = {
    **dict.fromkeys(
        (Domain.INTEGER, Domain.FLOAT, Domain.FLOAT32, Domain.DECIMAL, Domain.DATE, Domain.TIME), float("-inf")
    ),
    Domain.TIMESTAMP: float("-inf"),
    Domain.BYTES: b"",
    Domain.FIXED: b"",
    Domain.BOOLEAN: False,
}
_GREATEST: Final[Mapping[Domain, Any]] = {
    **{domain: float("inf") for domain, least in _LEAST.items() if least == float("-inf")},
    Domain.BOOLEAN: True,
}


def file_zones(
    kind: ValueKind,
    mins: Sequence[Scalar],
    maxs: Sequence[Scalar],
    *,
    null_counts: Sequence[int | None],
    all_null: Sequence[bool],
    may_be_nan: Sequence[bool],
    is_nested: bool = False,
) -> Zones:
    """The files of a dataset as zones of one column. Immutable: make them once.

    All sequences have one entry for each file.

    ``mins``, ``maxs``: inclusive bounds of the values that are neither null nor NaN: correct, perhaps wide; None where
    unknown. NaN, and a value that is not compared exactly with the column, counts as unknown. ``all_null``: the file
    has only nulls in the column, or lacks the column. ``may_be_nan``: False where the file is known to hold no NaN.
    ``is_nested``: the column is inside a struct: null counts may leave out its parents' nulls.
    """
    convert = domain_of(kind).to_key
    least, greatest = _LEAST.get(kind.domain), _GREATEST.get(kind.domain)
    lows: list[Any] = []
    highs: list[Any] = []
    nulls: list[bool] = []
    for low, high, is_null in zip(mins, maxs, all_null, strict=True):
        low_key = least if low is None and high is not None else _bound(low, convert)
        high_key = greatest if high is None and low is not None else _bound(high, convert)
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
        null_counts=null_counts,
        nan_counts=[None if may else 0 for may in may_be_nan],
        exact=[True] * len(lows),
    )


def value_zones(kind: ValueKind, values: Sequence[Scalar]) -> Zones:
    """The files of a dataset as zones of a column with one value in each file, such as a partition's; None is null."""
    return file_zones(
        kind,
        values,
        values,
        null_counts=[0 if value is not None else None for value in values],
        all_null=[value is None for value in values],
        may_be_nan=[value != value for value in values],
    )


def prune_files(expr: Expression, zones: Mapping[str, Zones], num_files: int) -> RowRanges:
    """Find the files in which ``expr`` may be true: a superset of those in which it is.

    ``zones``: the files as zones, by column; an atom of another column prunes nothing. Returns numbers of files.
    """
    return rows_where(expr, Truth.TRUE, num_files, zones)


def _bound(value: Scalar, convert: ToKey) -> Any:
    """A bound as a key; None where it is unknown."""
    if value is None:
        return None
    literal = convert(value)
    return None if isinstance(literal, Incomparable) else literal.key
