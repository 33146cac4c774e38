"""Prune the manifests and files of an Iceberg table by their partition values.

A predicate becomes a weaker pyiceberg predicate, which pyiceberg projects onto the partition transforms (table spec,
"Scan planning"). The caller prunes by column bounds.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable
from decimal import Decimal

from pyiceberg import expressions as predicates
from pyiceberg import types
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection, manifest_evaluator
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from asyncpq.expressions import analysis, tree
from asyncpq.expressions.scalars import Scalar

# pydantic hides the signatures: each takes a column, and a value where the term has one
_MAKE: dict[str, Callable[..., predicates.BooleanExpression]] = {
    "<": predicates.LessThan,
    "<=": predicates.LessThanOrEqual,
    ">": predicates.GreaterThan,
    ">=": predicates.GreaterThanOrEqual,
    "in": predicates.In,
    "not in": predicates.NotIn,
    "null": predicates.IsNull,
    "not null": predicates.NotNull,
    "nan": predicates.IsNaN,
    "starts with": predicates.StartsWith,
}


#: The columns that pyiceberg compares with literals of a type.
_COLUMN_TYPES: dict[type, type[types.IcebergType]] = {
    bool: types.BooleanType,
    float: types.DoubleType,
    str: types.StringType,
    bytes: types.BinaryType,
    dt.date: types.DateType,
}


class PartitionFilter:
    """A filter that rules out manifests with their partition summaries, and files with their partition values."""

    def __init__(self, where: tree.Expression | None, schema: Schema, leaves: dict[str, types.NestedField]) -> None:
        """Translate ``where``; None keeps all files. ``leaves``: the ``struct_leaves`` of ``schema``."""
        self._schema = schema
        self._expr = (
            predicates.AlwaysTrue() if where is None else _Translation(leaves).may_be(where, analysis.Truth.TRUE)
        )
        self._manifest: dict[int, Callable[[ManifestFile], bool]] = {}
        self._file: dict[int, Callable[[IcebergFile], bool]] = {}

    def keeps_manifest(self, manifest: ManifestFile, spec: PartitionSpec) -> bool:
        if spec.spec_id not in self._manifest:
            self._manifest[spec.spec_id] = manifest_evaluator(spec, self._schema, self._projected(spec))
        return self._manifest[spec.spec_id](manifest)

    def keeps_all(self, spec: PartitionSpec) -> bool:
        """Return whether the filter keeps every partition of a spec."""
        return isinstance(self._projected(spec), predicates.AlwaysTrue)

    def keeps_file(self, file: IcebergFile, spec: PartitionSpec) -> bool:
        if spec.spec_id not in self._file:
            partition = Schema(*spec.partition_type(self._schema).fields)
            evaluate = expression_evaluator(partition, self._projected(spec), True)
            self._file[spec.spec_id] = lambda file: evaluate(file.partition)
        return self._file[spec.spec_id](file)

    def _projected(self, spec: PartitionSpec) -> predicates.BooleanExpression:
        """Return the predicate on the partition values of a spec."""
        return inclusive_projection(self._schema, spec)(self._expr)


class _Translation:
    """A translation of predicates to pyiceberg's predicates."""

    def __init__(self, leaves: dict[str, types.NestedField]) -> None:
        self._leaves = leaves
        self._domains: dict[str, analysis.ValueDomain] = {}

    def may_be(self, expr: tree.Expression, truth: analysis.Truth) -> predicates.BooleanExpression:
        """Return a predicate that is true for each row where ``expr`` is ``truth``, and perhaps for other rows."""
        return analysis.follow(expr, truth, self._atom, _all_of, _any_of)

    def _atom(self, atom: tree.Atom, truth: analysis.Truth) -> predicates.BooleanExpression:
        column = atom.column
        field = None if column is None else self._leaves.get(column)
        if column is None or field is None:
            return predicates.AlwaysTrue()
        domain = self._domains.get(column)
        if domain is None:
            domain = self._domains[column] = analysis.ValueDomain(_to_key(field.field_type))
        wanted = analysis.result_values(atom, truth, domain)
        return predicates.AlwaysTrue() if wanted.of_elements else _term(column, field.field_type, wanted)


def _all_of(parts: Iterable[predicates.BooleanExpression]) -> predicates.BooleanExpression:
    return predicates.And(predicates.AlwaysTrue(), *terms) if (terms := list(parts)) else predicates.AlwaysTrue()


def _any_of(parts: Iterable[predicates.BooleanExpression]) -> predicates.BooleanExpression:
    return predicates.Or(predicates.AlwaysFalse(), *terms) if (terms := list(parts)) else predicates.AlwaysFalse()


def _term(column: str, iceberg_type: types.IcebergType, wanted: analysis.ResultValues) -> predicates.BooleanExpression:
    """Return a predicate on a column that is true for all values in ``wanted``, and perhaps for other values."""
    values = wanted.values
    if values in (analysis.EVERYTHING, analysis.Points((), inverted=True)):
        return predicates.AlwaysTrue() if wanted.null else _MAKE["not null"](column)
    terms: list[predicates.BooleanExpression] = []
    if not isinstance(values, analysis.Points):
        terms += [_interval(column, interval) for interval in values]
    elif values.inverted:  # null and NaN are in neither set
        return _MAKE["not in"](column, values.keys)
    else:
        early = [key for key in values.keys if _is_early(key)]
        terms += [_interval(column, analysis.Interval(key, key)) for key in early]
        if len(early) < len(values.keys):
            terms.append(_MAKE["in"](column, values.keys[len(early) :]))
    if wanted.null:
        terms.append(_MAKE["null"](column))
    if wanted.nan and isinstance(iceberg_type, (types.FloatType, types.DoubleType)):
        terms.append(_MAKE["nan"](column))
    return _any_of(terms)


def _interval(column: str, interval: analysis.Interval) -> predicates.BooleanExpression:
    low, high, low_open, high_open = interval
    if isinstance(interval.prefix, str):
        return _MAKE["starts with"](column, interval.prefix)
    if isinstance(high, dt.date):
        epoch = _epoch(high)
        if high < epoch or (high == epoch and high_open):
            high, high_open = epoch, False  # early writers: at most in the partition that begins in 1970
    above = predicates.AlwaysTrue() if low is None else _MAKE[">" if low_open else ">="](column, low)
    below = predicates.AlwaysTrue() if high is None else _MAKE["<" if high_open else "<="](column, high)
    return predicates.And(above, below)


def _to_key(iceberg_type: types.IcebergType) -> analysis.ToKey:
    """Return the function that converts literals to the values that pyiceberg compares with the column."""

    def to_key(value: Scalar) -> analysis.Comparable | analysis.Incomparable:
        literal = _literal(iceberg_type, value)
        return (
            analysis.Incomparable(f"not a literal of {iceberg_type}")
            if literal is None
            else analysis.Comparable(literal)
        )

    return to_key


def _literal(
    iceberg_type: types.IcebergType, value: Scalar
) -> bool | int | float | str | bytes | Decimal | dt.date | None:
    """Convert ``value`` to a literal of the type; None if pyiceberg cannot compare the two, so nothing is pruned."""
    if isinstance(value, Decimal):
        return _scaled(iceberg_type, value)
    if isinstance(value, dt.datetime):
        zoneless = value.tzinfo is None
        if not isinstance(iceberg_type, types.TimestampType if zoneless else types.TimestamptzType):
            return None
        return value if zoneless else value.astimezone(dt.UTC)
    if isinstance(value, int) and not isinstance(value, bool):
        if not isinstance(iceberg_type, (types.IntegerType, types.LongType)):
            return None
        bits = 31 if isinstance(iceberg_type, types.IntegerType) else 63
        return value if -(1 << bits) <= value < 1 << bits else None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, (bool, float, str, bytes, dt.date)) and isinstance(iceberg_type, _COLUMN_TYPES[type(value)]):
        return value
    return None


def _scaled(iceberg_type: types.IcebergType, value: Decimal) -> Decimal | None:
    """Return ``value`` with the column's scale; None if the scale would round the value."""
    if not isinstance(iceberg_type, types.DecimalType) or not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    more = exponent + iceberg_type.scale
    if more < 0 or len(digits) + more > iceberg_type.precision:
        return None
    return Decimal((sign, (*digits, *(0,) * more), -iceberg_type.scale))


def _is_early(literal: object) -> bool:
    """Return whether a date is before 1970: early writers may have put it one partition too late."""
    return isinstance(literal, dt.date) and literal < _epoch(literal)


def _epoch(literal: dt.date) -> dt.date:
    """Return the beginning of 1970 as a date or time of the type and zone of ``literal``."""
    if isinstance(literal, dt.datetime):
        return dt.datetime(1970, 1, 1, tzinfo=literal.tzinfo)
    return dt.date(1970, 1, 1)
