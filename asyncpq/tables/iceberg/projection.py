"""Project predicates on columns onto partition values, whose arithmetic wraps at the ends of the integers.

pyiceberg projects as if partition values were in the order of the column (table spec, "Partition Transforms"). They are
not where the integers of writers overflow. ``truncate[10]`` of the smallest int, -2147483648, is -2147483650, which is
2147483646 in 32 bits. ``hour`` of times after the year 246953 takes more than 32 bits. :class:`InclusiveProjection`
keeps such partitions, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from pyiceberg import expressions as predicates
from pyiceberg import types
from pyiceberg.expressions import visitors
from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import HourTransform, TruncateTransform

_MICROS_PER_HOUR: Final = 3_600_000_000
#: Hours since 1970 of the last and the first microsecond of 64 bits, as 32 bits hold them: the hours of times after
#: 2**31 hours are at most the first, those before -(2**31) hours at least the second.
_LAST_HOUR: Final = (2**63 - 1) // _MICROS_PER_HOUR - 2**32
_FIRST_HOUR: Final = -(2**63) // _MICROS_PER_HOUR + 2**32
#: Of a larger width, Java's sum of remainder and width wraps: an int may then be in any partition.
_MAX_ORDERED_WIDTH: Final = 2**30


class InclusiveProjection(visitors.InclusiveProjection):
    """Return a predicate on partition values that is true for the partition of each row for which a predicate on
    columns is true, and perhaps for other partitions."""

    def visit_bound_predicate(self, predicate: predicates.BoundPredicate) -> predicates.BooleanExpression:
        result: predicates.BooleanExpression = predicates.AlwaysTrue()
        for part in self.spec.fields_by_source_id(predicate.term.ref().field.field_id):
            projected = _projected(part, predicate)
            if projected is not None:
                result = predicates.And(result, projected)
        return result


def _projected(part: PartitionField, predicate: predicates.BoundPredicate) -> predicates.BooleanExpression | None:
    """Return a predicate on the values of ``part``; None if they rule out nothing."""
    transform, source = part.transform, predicate.term.ref().field.field_type
    if isinstance(transform, TruncateTransform) and isinstance(source, (types.IntegerType, types.LongType)):
        return _truncated(part.name, transform, predicate)
    projected = transform.project(part.name, predicate)
    if isinstance(transform, HourTransform) and isinstance(source, (types.TimestampType, types.TimestamptzType)):
        if isinstance(predicate, (predicates.BoundLessThan, predicates.BoundLessThanOrEqual)):
            return _or(projected, _make(predicates.GreaterThanOrEqual, part.name, _FIRST_HOUR))
        if isinstance(predicate, (predicates.BoundGreaterThan, predicates.BoundGreaterThanOrEqual)):
            return _or(projected, _make(predicates.LessThanOrEqual, part.name, _LAST_HOUR))
    return projected


def _truncated(
    name: str, transform: TruncateTransform[Any], predicate: predicates.BoundPredicate
) -> predicates.BooleanExpression | None:
    """Project a predicate on a column of ints or longs onto its truncated values."""
    width = transform.width
    # a column of longs may have been one of ints, which keeps its partition values
    sizes = (32,) if isinstance(predicate.term.ref().field.field_type, types.IntegerType) else (32, 64)
    if isinstance(predicate, predicates.BoundEqualTo):
        return _make(predicates.In, name, _truncations(predicate.literal.value, width, sizes))
    if isinstance(predicate, predicates.BoundIn):
        values = (literal.value for literal in predicate.literals)
        return _make(predicates.In, name, {each for value in values for each in _truncations(value, width, sizes)})
    if width > _MAX_ORDERED_WIDTH and isinstance(predicate, predicates.BoundLiteralPredicate):
        return None
    projected = transform.project(name, predicate)
    if isinstance(predicate, (predicates.BoundLessThan, predicates.BoundLessThanOrEqual)):
        # the smallest values may be in the partition after all others; ``>`` finds them there
        smallest = (-(1 << (bits - 1)) for bits in sizes)
        wrapped = {each for low in smallest if low % width for each in _truncations(low, width, sizes) if each > 0}
        return _or(projected, _make(predicates.In, name, wrapped))
    return projected


def _truncations(value: int, width: int, sizes: Iterable[int]) -> set[int]:
    """Return the partition values that writers give ``value`` in a column of these sizes, in bits."""
    found = set()
    for bits in sizes:
        if _wrapped(value, bits) == value:
            remainder = _remainder(_wrapped(_remainder(value, width) + width, bits), width)
            found |= {_wrapped(value - value % width, bits), _wrapped(value - remainder, bits)}  # Rust's, Java's
    return found


def _remainder(value: int, width: int) -> int:
    """Return the remainder of Java's division, which has the sign of ``value``."""
    return value % width if value >= 0 else -(-value % width)


def _wrapped(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def _or(
    projected: predicates.BooleanExpression | None, other: predicates.BooleanExpression
) -> predicates.BooleanExpression | None:
    return None if projected is None else predicates.Or(projected, other)


def _make(
    predicate: Callable[..., predicates.BooleanExpression], name: str, literal: int | set[int]
) -> predicates.BooleanExpression:
    """Make a predicate; pydantic hides the signatures."""
    return predicate(name, literal)
