"""What a column's values are, as far as comparing them goes: of a leaf of a file, or of a dataset's column."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import SortOrder


class Domain(enum.Enum):
    """Groups of types whose values compare alike; in parentheses how bounds and keys are held."""

    BOOLEAN = "boolean"  # (bool)
    INTEGER = "integer"  # (int)
    FLOAT = "float"  # of 64 bits (float)
    FLOAT32 = "float32"  # (float)
    FLOAT16 = "float16"  # never compared, but NaN may be among them
    DECIMAL = "decimal"  # (int or Fraction: the value times 10**scale)
    DATE = "date"  # (int or Fraction: days)
    TIME = "time"  # (int or Fraction: units)
    TIMESTAMP = "timestamp"  # (int or Fraction: units)
    BYTES = "bytes"  # strings too (bytes, in unsigned order)
    FIXED = "fixed"  # bytes of one length, UUIDs too (bytes)
    OTHER = "other"  # never compared


@dataclass(frozen=True, slots=True)
class ValueKind:
    """
    Attributes:
        domain: how values compare.
        scale: of decimals.
        unit: of times and timestamps: s, ms, us or ns.
        zoned: whether timestamps are instants; None where that is checked elsewhere.
        why_not: why values are never compared, of ``FLOAT16`` and ``OTHER``.
    """

    domain: Domain
    scale: int = 0
    unit: str = ""
    zoned: bool | None = None
    why_not: str = ""

    @property
    def has_nan(self) -> bool:
        """Whether NaN may be among the values."""
        return self.domain in (Domain.FLOAT, Domain.FLOAT32, Domain.FLOAT16)

    @property
    def is_bytes(self) -> bool:
        """Whether values compare byte by byte, so that bounds may be cut short."""
        return self.domain is Domain.BYTES or self.domain is Domain.FIXED


FLOAT16: Final = ValueKind(Domain.FLOAT16, why_not="pyarrow does not compare float16")
_FLOAT32: Final = ValueKind(Domain.FLOAT32)
_PLAIN: Final = {
    SortOrder.BOOLEAN: ValueKind(Domain.BOOLEAN),
    SortOrder.FLOAT: ValueKind(Domain.FLOAT),
    SortOrder.FLOAT16: FLOAT16,
}


def kind_of_leaf(leaf: Leaf, order: SortOrder) -> ValueKind:
    """The kind of a leaf's values.

    Args:
        leaf: a leaf of a file's schema.
        order: of its statistics.
    """
    logical = leaf.element.logical_type
    kind = None if logical is None else logical.kind
    if order is SortOrder.UNDEFINED:
        return _other(f"the order of its statistics is undefined ({_describe(leaf)})")
    if order is SortOrder.FLOAT and leaf.physical_type is PhysicalType.FLOAT:
        return _FLOAT32
    plain = _PLAIN.get(order)
    if plain is not None:
        return plain
    if kind is LogicalKind.DECIMAL and logical is not None:
        return ValueKind(Domain.DECIMAL, scale=logical.scale or 0)
    if kind is LogicalKind.DATE:
        return ValueKind(Domain.DATE)
    if kind in (LogicalKind.TIME, LogicalKind.TIMESTAMP) and logical is not None:
        if logical.unit is None:
            return _other("its unit of time is unknown")
        # Which of the two kinds of timestamps a literal must be is the filter's to check.
        return ValueKind(Domain.TIMESTAMP if kind is LogicalKind.TIMESTAMP else Domain.TIME, unit=logical.unit)
    if order in (SortOrder.SIGNED, SortOrder.UNSIGNED) and kind in (None, LogicalKind.INTEGER):
        return ValueKind(Domain.INTEGER)
    if order is SortOrder.BYTES:
        fixed = leaf.element.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY
        return ValueKind(Domain.FIXED if fixed else Domain.BYTES)
    return _other(f"literals are not compared with {_describe(leaf)}")


def _other(why_not: str) -> ValueKind:
    return ValueKind(Domain.OTHER, why_not=why_not)


def _describe(leaf: Leaf) -> str:
    logical, physical = leaf.element.logical_type, leaf.element.physical_type
    return logical.kind.name if logical is not None else physical.name if physical is not None else "a group"
