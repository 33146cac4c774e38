"""Which manifests and partitions of an Iceberg table may hold matching rows.

A predicate becomes a weaker one of pyiceberg's, which projects it on the partition transforms (table spec,
"Scan planning"). Column bounds are not looked at here: whoever asked for the files does that.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
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
from asyncpq.expressions.scalars import Scalar

# pydantic hides the signatures: all take a column, and what it is compared with
_MAKE: dict[str, Callable[..., BooleanExpression]] = {
    "==": EqualTo,
    "!=": NotEqualTo,
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
_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


class PartitionFilter:
    """Rules out manifests by their partition summaries and files by their partition values."""

    def __init__(self, where: tree.Expression | None, schema: Schema, leaves: dict[str, NestedField]) -> None:
        """``leaves`` are those of ``schema``, from :func:`asyncpq.tables.iceberg.schema.struct_leaves`."""
        self._schema = schema
        self._expr = AlwaysTrue() if where is None else _Translation(leaves).may_be(where, True)
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
    def __init__(self, leaves: dict[str, NestedField]) -> None:
        self._leaves = leaves

    def may_be(self, expr: tree.Expression, truth: bool) -> BooleanExpression:
        """True for every row for which ``expr`` is ``truth``; perhaps for others."""
        if isinstance(expr, tree.Not):
            return self.may_be(expr.arg, not truth)
        if isinstance(expr, (tree.And, tree.Or)):
            args = [self.may_be(arg, truth) for arg in expr.args]
            if isinstance(expr, tree.And) is truth:
                return And(AlwaysTrue(), *args) if args else AlwaysTrue()
            return Or(AlwaysFalse(), *args) if args else AlwaysFalse()
        if isinstance(expr, tree.Constant):
            return AlwaysTrue() if expr.value is truth else AlwaysFalse()
        if isinstance(expr, tree.Comparison):
            return self._comparison(expr.column, expr.op if truth else _OPPOSITE[expr.op], expr.value)
        if isinstance(expr, (tree.In, tree.KeyIn)):
            return self._membership(expr, truth)
        if isinstance(expr, tree.IsNull) and not expr.nan_is_null and expr.column in self._leaves:
            return _MAKE["null" if truth else "not null"](expr.column)
        if isinstance(expr, (tree.StartsWith, tree.Like)) and truth:
            kind, prefix = self._kind(expr.column), expr.prefix
            if isinstance(kind, StringType) and isinstance(prefix, str) and prefix:
                return _MAKE["starts with"](expr.column, prefix)
        return AlwaysTrue()

    def _kind(self, column: str) -> IcebergType | None:
        field = self._leaves.get(column)
        return None if field is None else field.field_type

    def _comparison(self, column: str, op: str, value: Scalar) -> BooleanExpression:
        kind = self._kind(column)
        literal = _literal(kind, value)
        if literal is None:
            return AlwaysTrue()
        if isinstance(literal, dt.date) and op in ("<", "<=", "=="):
            epoch = _epoch(literal)
            if literal < epoch or (literal == epoch and op == "<"):
                op, literal = "<=", epoch  # early writers: never beyond the partition that begins there
        compared = _MAKE[op](column, literal)
        if isinstance(kind, DoubleType) and op not in ("==", "!="):
            return Or(compared, _MAKE["nan"](column))  # not (x < 1) is true for NaN
        return compared

    def _membership(self, expr: tree.In | tree.KeyIn, truth: bool) -> BooleanExpression:
        kind = self._kind(expr.column)
        if kind is None or isinstance(kind, FloatType) or (not truth and isinstance(kind, DoubleType)):
            return AlwaysTrue()  # not (x in [0.0]) is true for -0.0, which equals 0.0 in pyiceberg
        asked = [value for value in expr.values if value is not None and value == value]
        literals = [_literal(kind, value) for value in asked]
        if any(literal is None or (truth and _is_early(literal)) for literal in literals):
            return AlwaysTrue()
        if not truth:
            return _MAKE["not in"](expr.column, literals) if literals else AlwaysTrue()
        found: BooleanExpression = _MAKE["in"](expr.column, literals) if literals else AlwaysFalse()
        if isinstance(expr, tree.In):
            if None in expr.values:
                found = Or(found, _MAKE["null"](expr.column))
            if isinstance(kind, DoubleType) and len(asked) < len(expr.values):
                found = Or(found, _MAKE["nan"](expr.column))
        return found


def _literal(kind: IcebergType | None, value: Scalar) -> bool | int | float | str | bytes | Decimal | dt.date | None:
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


def _scaled(kind: IcebergType | None, value: Decimal) -> Decimal | None:
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
