"""Conditions of a scan: an asyncpq expression, a filter list, or Spark's SQL.

A condition becomes a Spark column, which decides, and pruning terms, by which asyncpq skips data that cannot match.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.types import BinaryType, StructType, TimestampNTZType

from asyncpq.errors import ExpressionError
from asyncpq.expressions import (
    And,
    ColumnComparison,
    Comparison,
    Constant,
    Contains,
    Expression,
    Has,
    HasPhrase,
    HasTokens,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
    columns,
    parse_filters,
    resolve_times,
)
from asyncpq.expressions.scalars import Timestamp
from asyncpq.spark.reads import pruning_terms, sql_conditions
from asyncpq.spark.types.read_conf import ReadConf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIXED_ZONES: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "Etc/GMT", "Zulu"})
_MANY: Final = 20  # more values become SQL text: one call of the JVM instead of one for each


class Condition:
    """The condition of a scan.

    Args:
        where: an expression, a filter list, or a condition in SQL.
        now: the time to which relative times are resolved; None for the present.
        by_fields: see :class:`asyncpq.spark.reads.pruning_terms.LakeColumns`; always true for SQL.

    Raises:
        ExpressionError: ``where`` is none of these.
    """

    def __init__(self, where: object, now: dt.datetime | None = None, *, by_fields: bool = False) -> None:
        self._sql = where if isinstance(where, str) else None
        self._by_fields = by_fields or self._sql is not None
        self._now = now or dt.datetime.now(dt.UTC)
        self._asked = None if isinstance(where, str) else parse_filters(where)
        self._terms = sql_conditions.read_condition(where) if isinstance(where, str) else self._asked

    def __str__(self) -> str:
        return self._sql if self._sql is not None else str(self._asked)

    def names(self, struct: StructType, conf: ReadConf) -> list[str]:
        """Top-level columns that the condition reads; may include others."""
        if self._sql is not None:
            return [field.name for field in struct.fields if sql_conditions.may_name(self._sql, field.name)]
        found = self._columns(struct, pa.schema([]), conf)
        places = [found.split(name)[0] for name in columns(self._resolved(struct, conf))]
        return [struct.fields[at].name for at in dict.fromkeys(places) if at is not None]

    def unknown_names(self, struct: StructType, conf: ReadConf) -> list[str]:
        """Columns in the condition that do not exist, as far as SQL is understood."""
        if self._terms is None:
            return []
        found = self._columns(struct, pa.schema([]), conf)
        names = sql_conditions.names(self._terms) if self._sql is not None else columns(self._terms)
        return [name for name in names if not found.knows(name)]

    def column(self, struct: StructType, conf: ReadConf) -> Column:
        """The condition for ``DataFrame.filter``.

        Raises:
            ExpressionError: Spark has no such condition.
        """
        if self._sql is not None:
            return F.expr(self._sql)
        return _SparkColumns(struct, conf).column(self._resolved(struct, conf))

    def times(self) -> set[dt.datetime]:
        """Wall-clock times that the condition may compare with instants."""
        return set() if self._terms is None else pruning_terms.wall_clock_times(self._terms)

    def terms(
        self, struct: StructType, schema: pa.Schema, conf: ReadConf, instants: pruning_terms.Instants
    ) -> Expression | None:
        """The predicate to prune by; None for none.

        Args:
            struct: columns of the dataset as Spark has them.
            schema: the same columns as asyncpq has them.
            instants: see :func:`instants_of`.
        """
        asked = self._terms if self._sql is not None else self._resolved(struct, conf)
        if asked is None:
            return None
        return pruning_terms.pruning_terms(asked, self._columns(struct, schema, conf), schema, instants)

    def _columns(self, struct: StructType, schema: pa.Schema, conf: ReadConf) -> pruning_terms.LakeColumns:
        return pruning_terms.LakeColumns(struct, schema, conf, by_fields=self._by_fields)

    def _resolved(self, struct: StructType, conf: ReadConf) -> Expression:
        """The expression with relative times resolved."""
        asked = Constant(True) if self._asked is None else self._asked
        found = self._columns(struct, pa.schema([]), conf)
        zoneless = [
            name for name in columns(asked) if isinstance(_kind_at(struct, *found.split(name), conf), TimestampNTZType)
        ]
        return resolve_times(asked, self._now, zoneless)


def filter_column(where: object, frame: DataFrame) -> Column:
    """The column of a condition on a DataFrame.

    Raises:
        ExpressionError: Spark has no such condition.
    """
    conf = ReadConf.of(frame.sparkSession)
    return Condition(where).column(frame.schema, conf)


# -- wall-clock times -----------------------------------------------------------------------------


def fixed_instants(times: set[dt.datetime], conf: ReadConf) -> dict[dt.datetime, dt.datetime]:
    """Instants of wall-clock times in a session zone with a fixed offset; empty if Spark must be queried."""
    if conf.session_time_zone in _FIXED_ZONES:
        return {moment: moment.replace(tzinfo=dt.UTC) for moment in times}
    return {}


def instants_of(times: set[dt.datetime], conf: ReadConf, spark: SparkSession) -> dict[dt.datetime, dt.datetime]:
    """Instants of wall-clock times in the session's zone.

    Spark's time zone data may differ from Python's, so a small query asks Spark.
    """
    if not times or (known := fixed_instants(times, conf)):
        return known if times else {}
    moments = sorted(times)
    asked = [
        F.unix_micros(F.lit(moment.isoformat(" ")).try_cast("timestamp_ltz")).alias(f"t{at}")
        for at, moment in enumerate(moments)
    ]
    (row,) = spark.range(1).select(*asked).collect()
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return {
        moment: epoch + dt.timedelta(microseconds=micros)
        for moment, micros in zip(moments, row, strict=True)
        if micros is not None
    }


# -- Spark's columns ------------------------------------------------------------------------------


def _kind_at(struct: StructType, at: int | None, parts: Sequence[str], conf: ReadConf) -> Any:
    kind: Any = None if at is None else struct.fields[at].dataType
    for part in parts:
        fields = kind.fields if isinstance(kind, StructType) else []
        kind = next((one.dataType for one in fields if conf.key(one.name) == conf.key(part)), None)
    return kind


def quoted(name: str) -> str:
    """The column's name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


class _SparkColumns:
    """Translates expressions to Spark columns."""

    def __init__(self, struct: StructType, conf: ReadConf) -> None:
        self._struct = struct
        self._conf = conf
        self._columns = pruning_terms.LakeColumns(struct, pa.schema([]), conf)

    def column(self, expr: Expression) -> Column:
        if isinstance(expr, Constant):
            return F.lit(expr.value).cast("boolean")
        if isinstance(expr, Not):
            return ~self.column(expr.arg)
        if isinstance(expr, (And, Or)):
            join = (lambda a, b: a & b) if isinstance(expr, And) else (lambda a, b: a | b)
            return reduce(join, map(self.column, expr.args)) if expr.args else F.lit(isinstance(expr, And))
        if isinstance(expr, Comparison):
            return self._compare(F.col(self._text(expr.column)), expr.op, self._literal(expr.value, expr.column))
        if isinstance(expr, ColumnComparison):
            return self._compare(F.col(self._text(expr.left)), expr.op, F.col(self._text(expr.right)))
        if isinstance(expr, (In, KeyIn)):
            return self._member(expr)
        if isinstance(expr, IsNull):
            found = F.col(self._text(expr.column))
            return found.isNull() | F.isnan(found) if expr.nan_is_null else found.isNull()
        if isinstance(expr, StartsWith):
            return F.col(self._text(expr.column)).startswith(F.lit(expr.prefix))
        if isinstance(expr, Contains):
            return F.col(self._text(expr.column)).contains(F.lit(expr.text))
        if isinstance(expr, Like) and isinstance(expr.pattern, str):
            return F.col(self._text(expr.column)).like(expr.pattern)
        if isinstance(expr, Has):
            return F.array_contains(F.col(self._text(expr.column)), self._literal(expr.value, expr.column))
        verb = "has_tokens and has_phrase" if isinstance(expr, (HasTokens, HasPhrase)) else type(expr).__name__
        raise ExpressionError(
            f"{expr}: Spark has no condition like {verb}",
            hint="Use contains(), like() or starts_with(), or a condition in SQL.",
        )

    def _text(self, path: str) -> str:
        """The quoted path; an unknown path is passed on unchanged, so that Spark raises the error."""
        at, parts = self._columns.split(path)
        if at is None:
            return quoted(path)
        return ".".join(map(quoted, (self._struct.fields[at].name, *parts)))

    @staticmethod
    def _compare(left: Column, op: str, right: Column) -> Column:
        if op == "==":
            return left == right
        if op == "!=":
            return left != right
        if op in ("<", "<="):
            return left < right if op == "<" else left <= right
        return left > right if op == ">" else left >= right

    def _member(self, expr: In | KeyIn) -> Column:
        values = [value for value in expr.values if value is not None]
        if isinstance(expr, KeyIn):
            values = [value for value in values if value == value]
        name = self._text(expr.column)
        if not values:
            found = F.lit(False)
        elif len(values) > _MANY and all(type(value) is int and abs(value) < 1 << 63 for value in values):
            found = F.expr(f"{name} IN ({', '.join(map(str, values))})")
        else:
            found = F.col(name).isin([self._literal(value, expr.column) for value in values])
        return found | F.col(name).isNull() if isinstance(expr, In) and None in expr.values else found

    def _literal(self, value: Any, path: str) -> Column:
        kind = _kind_at(self._struct, *self._columns.split(path), self._conf)
        kind = getattr(kind, "elementType", kind)
        if isinstance(value, Timestamp):
            if value.nanoseconds % 1000:
                raise ExpressionError("Spark's timestamps have microseconds, not nanoseconds", column=path)
            zone = None if value.timezone is None else dt.UTC
            value = dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=value.nanoseconds // 1000)
        if isinstance(value, dt.datetime):
            ntz = value.tzinfo is None and isinstance(kind, TimestampNTZType)
            # as text: the zone of Python and the calendar of Java may differ from those of the session
            text = value.isoformat(" ") if value.tzinfo is None else value.astimezone(dt.UTC).isoformat(" ")
            return F.lit(text).cast("timestamp_ntz" if ntz else "timestamp_ltz")
        if isinstance(value, dt.date):
            return F.lit(value.isoformat()).cast("date")
        if hasattr(value, "hex") and hasattr(value, "fields"):  # a UUID
            return F.lit(value.bytes if isinstance(kind, BinaryType) else str(value))
        if type(value) is int and not -(1 << 63) <= value < 1 << 63:
            return F.lit(str(value)).cast(f"decimal({min(38, len(str(abs(value))))},0)")
        return F.lit(value)
