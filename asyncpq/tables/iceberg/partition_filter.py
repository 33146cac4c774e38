"""Which manifests and partitions of an Iceberg table may hold matching rows.

A predicate becomes a weaker one of pyiceberg's, which projects it on the partition transforms (table spec,
"Scan planning"). Column bounds are not looked at here: whoever asked for the files does that.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable
from decimal import Decimal

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotIn,
    NotNull,
    Or,
    StartsWith,
)
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection, manifest_evaluator
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from asyncpq.expressions import tree
from asyncpq.expressions.analysis import (
    EVERYTHING,
    Comparable,
    Incomparable,
    Interval,
    Points,
    ToKey,
    Truth,
    ValueDomain,
    ValueSet,
    follow,
    value_set,
)
from asyncpq.expressions.scalars import Scalar

# pydantic hides the signatures: all take a column, and what it is compared with
_MAKE: dict[str, Callable[..., BooleanExpression]] = {
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "in": In,
    "not in": NotIn,
    "null": IsNull,
    "not null": NotNull,
    "nan": IsNaN,
    "starts with": StartsWith,
}


class PartitionFilter:
    """Rules out manifests by their partition summaries and files by their partition values."""

    def __init__(self, where: tree.Expression | None, schema: Schema, leaves: dict[str, NestedField]) -> None:
        """``leaves`` are those of ``schema``, from :func:`asyncpq.tables.iceberg.schema.struct_leaves`."""
        self._schema = schema
        self._expr = AlwaysTrue() if where is None else _Translation(leaves).may_be(where, Truth.TRUE)
        self._manifest: dict[int, Callable[[ManifestFile], bool]] = {}
        self._file: dict[int, Callable[[IcebergFile], bool]] = {}

    def keeps_manifest(self, manifest: ManifestFile, spec: PartitionSpec) -> bool:
        if spec.spec_id not in self._manifest:
            self._manifest[spec.spec_id] = manifest_evaluator(spec, self._schema, self._projected(spec))
        return self._manifest[spec.spec_id](manifest)

    def keeps_all(self, spec: PartitionSpec) -> bool:
        """Whether no file of a spec can be ruled out."""
        return isinstance(self._projected(spec), AlwaysTrue)

    def keeps_file(self, file: IcebergFile, spec: PartitionSpec) -> bool:
        if spec.spec_id not in self._file:
            partition = Schema(*spec.partition_type(self._schema).fields)
            evaluate = expression_evaluator(partition, self._projected(spec), True)
            self._file[spec.spec_id] = lambda file: evaluate(file.partition)
        return self._file[spec.spec_id](file)

    def _projected(self, spec: PartitionSpec) -> BooleanExpression:
        """What the predicate asks of partition values."""
        return inclusive_projection(self._schema, spec)(self._expr)


class _Translation:
    """Predicates as pyiceberg's, on the values that give them a result."""

    def __init__(self, leaves: dict[str, NestedField]) -> None:
        self._leaves = leaves
        self._domains: dict[str, ValueDomain] = {}

    def may_be(self, expr: tree.Expression, truth: Truth) -> BooleanExpression:
        """True for every row for which ``expr`` is ``truth``; perhaps for others."""
        return follow(expr, truth, self._atom, _all_of, _any_of)

    def _atom(self, atom: tree.Atom, truth: Truth) -> BooleanExpression:
        column = atom.column
        field = None if column is None else self._leaves.get(column)
        if column is None or field is None:
            return AlwaysTrue()
        domain = self._domains.get(column)
        if domain is None:
            domain = self._domains[column] = ValueDomain(_to_key(field.field_type))
        wanted = value_set(atom, truth, domain)
        return AlwaysTrue() if wanted.of_elements else _term(column, field.field_type, wanted)


def _all_of(parts: Iterable[BooleanExpression]) -> BooleanExpression:
    return And(AlwaysTrue(), *terms) if (terms := list(parts)) else AlwaysTrue()


def _any_of(parts: Iterable[BooleanExpression]) -> BooleanExpression:
    return Or(AlwaysFalse(), *terms) if (terms := list(parts)) else AlwaysFalse()


def _term(column: str, kind: IcebergType, wanted: ValueSet) -> BooleanExpression:
    """True for all members of the set."""
    values = wanted.values
    if values in (EVERYTHING, Points((), inverted=True)):
        return AlwaysTrue() if wanted.null else _MAKE["not null"](column)
    terms: list[BooleanExpression] = []
    if not isinstance(values, Points):
        terms += [_interval(column, interval) for interval in values]
    elif values.inverted:  # null and NaN are not among the keys either
        return _MAKE["not in"](column, values.keys)
    else:
        early = [key for key in values.keys if _is_early(key)]
        terms += [_interval(column, Interval(key, key)) for key in early]
        if len(early) < len(values.keys):
            terms.append(_MAKE["in"](column, values.keys[len(early) :]))
    if wanted.null:
        terms.append(_MAKE["null"](column))
    if wanted.nan and isinstance(kind, (FloatType, DoubleType)):
        terms.append(_MAKE["nan"](column))
    return _any_of(terms)


def _interval(column: str, interval: Interval) -> BooleanExpression:
    low, high, low_open, high_open = interval
    if isinstance(interval.prefix, str):
        return _MAKE["starts with"](column, interval.prefix)
    if isinstance(high, dt.date):
        epoch = _epoch(high)
        if high < epoch or (high == epoch and high_open):
            high, high_open = epoch, False  # early writers: never beyond the partition that begins there
    above = AlwaysTrue() if low is None else _MAKE[">" if low_open else ">="](column, low)
    below = AlwaysTrue() if high is None else _MAKE["<" if high_open else "<="](column, high)
    return And(above, below)


def _to_key(kind: IcebergType) -> ToKey:
    """Literals as pyiceberg takes them."""

    def to_key(value: Scalar) -> Comparable | Incomparable:
        literal = _literal(kind, value)
        return Incomparable(f"not a literal of {kind}") if literal is None else Comparable(literal)

    return to_key


def _literal(kind: IcebergType, value: Scalar) -> bool | int | float | str | bytes | Decimal | dt.date | None:
    """``value`` if it is one of a column of type ``kind``, as pyiceberg takes it; else None: it does not prune."""
    if isinstance(value, bool):
        return value if isinstance(kind, BooleanType) else None
    if isinstance(value, int):
        bits = 31 if isinstance(kind, IntegerType) else 63
        return value if isinstance(kind, (IntegerType, LongType)) and -(1 << bits) <= value < 1 << bits else None
    if isinstance(value, float):
        return value if isinstance(kind, DoubleType) and not math.isnan(value) else None
    if isinstance(value, str):
        return value if isinstance(kind, StringType) else None
    if isinstance(value, bytes):
        return value if isinstance(kind, BinaryType) else None
    if isinstance(value, Decimal):
        return _scaled(kind, value)
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return value if isinstance(kind, TimestampType) else None
        return value.astimezone(dt.UTC) if isinstance(kind, TimestamptzType) else None
    if isinstance(value, dt.date):
        return value if isinstance(kind, DateType) else None
    return None


def _scaled(kind: IcebergType, value: Decimal) -> Decimal | None:
    """``value`` with the column's scale, where that is exact."""
    if not isinstance(kind, DecimalType) or not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    more = exponent + kind.scale
    if more < 0 or len(digits) + more > kind.precision:
        return None
    return Decimal((sign, (*digits, *(0,) * more), -kind.scale))


def _is_early(literal: object) -> bool:
    """Early writers rounded years to hours before 1970 towards it: such a row may be one partition later."""
    return isinstance(literal, dt.date) and literal < _epoch(literal)


def _epoch(literal: dt.date) -> dt.date:
    """The beginning of 1970, as a literal of the same type."""
    if isinstance(literal, dt.datetime):
        return dt.datetime(1970, 1, 1, tzinfo=literal.tzinfo)
    return dt.date(1970, 1, 1)
