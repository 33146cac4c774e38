"""Conditions of a scan: an asyncpq expression, a filter list, Spark's SQL, or a column of PySpark.

A condition becomes a Spark column, which filters the rows, and pruning terms, with which asyncpq skips data that cannot
match. :mod:`asyncpq.spark.reads.conditions` reads SQL and columns, for pruning only.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import operator
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.types import BinaryType, StructType, TimestampNTZType

from asyncpq import Expression
from asyncpq.engine.foreign_conditions import ForeignCondition, ForeignTest, since_epoch
from asyncpq.errors import ExpressionError
from asyncpq.spark.reads.conditions import may_name, read_column, read_condition
from asyncpq.spark.reads.pruning_terms import Instants, LakeColumns, pruning_terms, wall_clock_times
from asyncpq.spark.types.read_conf import ReadConf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger: logging.Logger = logging.getLogger(__name__)

_FIXED_ZONES: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "Etc/GMT", "Zulu"})
_MANY: Final = 20  # more values become SQL text: one call of the JVM instead of one for each
_EPOCH: Final = dt.datetime(1970, 1, 1)
_CYCLE_YEARS: Final = 400  # after which the Gregorian calendar repeats itself
_CYCLE_US: Final = 146_097 * 86_400 * 1_000_000

#: Functions that Spark calls without brackets if no column has their name.
_WITHOUT_BRACKETS: Final = frozenset(
    {"current_date", "current_time", "current_timestamp", "current_user", "grouping__id", "session_user", "user"}
)


class Condition:
    """The condition of a scan: an expression, a filter list, a condition in SQL, or a column of PySpark.

    Relative times are resolved at the time ``now``. ``by_fields``: a dot in a name always precedes a struct field; see
    :class:`asyncpq.spark.reads.pruning_terms.LakeColumns`. It is always true for SQL and columns.
    """

    def __init__(self, where: object, now: dt.datetime | None = None, *, by_fields: bool = False) -> None:
        self._sql = where if isinstance(where, str) else None
        self._column = where if isinstance(where, Column) else None
        self._by_fields = by_fields or self._sql is not None or self._column is not None
        self._now = now or dt.datetime.now(dt.UTC)
        read = where
        if self._sql is not None:
            read = read_condition(self._sql)
        elif self._column is not None:
            read = read_column(self._column)
        self._condition = ForeignCondition(read)

    def __str__(self) -> str:
        if self._column is not None:
            return str(self._column)
        return str(self._condition) if self._sql is None else self._sql

    def names(self, struct: StructType, conf: ReadConf) -> list[str]:
        """Return the names of the top-level columns that the condition reads; the result may contain a few others."""
        if self._sql is not None:
            return [field.name for field in struct.fields if may_name(self._sql, field.name)]
        if self._column is not None:
            text = str(self._column).lower()
            return [name for name in struct.names if "*" in text or "`" in name or name.lower() in text]
        lake = self._columns(struct, conf)
        places = [lake.split(name)[0] for name in self._condition.columns]
        return [struct.fields[place].name for place in dict.fromkeys(places) if place is not None]

    def unknown_names(self, struct: StructType, conf: ReadConf) -> list[str]:
        """Return the names in the condition that are not columns of ``struct``. SQL that is not parsed is ignored."""
        lake = self._columns(struct, conf)
        calls = _WITHOUT_BRACKETS if self._sql is not None else ()
        return [name for name in self._condition.columns if name.lower() not in calls and not lake.knows(name)]

    def column(self, struct: StructType, conf: ReadConf) -> Column:
        """Return the condition as a column for ``DataFrame.filter``. Raises ExpressionError if Spark has no equivalent
        of the condition."""
        if self._sql is not None:
            return F.expr(self._sql)
        if self._column is not None:
            return self._column
        resolved = self._resolved(self._columns(struct, conf))
        columns = _SparkColumns(LakeColumns(struct, None, conf), resolved)
        column: Column = resolved.expressed(
            columns.test,
            constant=lambda value: F.lit(value).cast("boolean"),
            junction=lambda word, parts: reduce(operator.and_ if word == "and" else operator.or_, parts),
            negated=lambda part: ~part,
        )
        return column

    def times(self) -> set[dt.datetime]:
        """Return the wall-clock times, without a zone, in the condition, which may have to be compared with points
        in time."""
        return wall_clock_times(self._condition.expression)

    def terms(self, struct: StructType, schema: pa.Schema, conf: ReadConf, instants: Instants) -> Expression | None:
        """Return the predicate for pruning; None if the condition excludes no data, which is logged with the reason.

        ``struct`` and ``schema`` are the lake's columns in Spark and in Arrow. ``instants`` maps wall-clock times to
        points in time: see :func:`instants_of`.
        """
        lake = self._columns(struct, conf, schema)
        if self._sql is not None:
            terms = read_condition(self._sql, conf, lake.dtype)
        else:
            terms = self._resolved(lake).expression if self._column is None else read_column(self._column, conf)
        pruned = pruning_terms(terms, lake, schema, instants)
        if pruned is None and (self._condition.tests or self._condition.reasons):
            logger.warning("the condition %s skips no data: %s", self, self.why_unused())
        return pruned

    def why_unused(self) -> str:
        """Return the reason why the condition skips no data. Only meaningful if :meth:`terms` returned None."""
        return (
            "; ".join(self._condition.reasons) or "all rows may match, or Spark may compare the column as another type"
        )

    def _columns(self, struct: StructType, conf: ReadConf, schema: pa.Schema | None = None) -> LakeColumns:
        return LakeColumns(struct, schema, conf, by_fields=self._by_fields)

    def _resolved(self, lake: LakeColumns) -> ForeignCondition:
        """Return the condition with relative times replaced by absolute ones."""
        zoneless = [name for name in self._condition.columns if isinstance(lake.dtype(name), TimestampNTZType)]
        return self._condition.at(self._now, zoneless)


def filter_column(where: object, frame: DataFrame) -> Column:
    """Return a condition on the columns of ``frame`` as a Spark column. Raises ExpressionError if Spark has no
    equivalent condition."""
    return Condition(where).column(frame.schema, ReadConf.of(frame.sparkSession))


def quoted(name: str) -> str:
    """Return the column's name in backquotes, for SQL."""
    return "`" + name.replace("`", "``") + "`"


# -- wall-clock times -----------------------------------------------------------------------------


def fixed_instants(times: set[dt.datetime], conf: ReadConf) -> dict[dt.datetime, dt.datetime]:
    """Map wall-clock times to points in time in UTC, if the session's time zone is UTC; empty for other zones."""
    if conf.session_time_zone in _FIXED_ZONES:
        return {moment: moment.replace(tzinfo=dt.UTC) for moment in times}
    return {}


def instants_of(times: set[dt.datetime], conf: ReadConf, spark: SparkSession) -> dict[dt.datetime, dt.datetime]:
    """Map wall-clock times of the session's time zone to points in time in UTC, without times that Spark cannot
    convert. Spark converts the times in a query, since Python's time zone data may differ from Spark's."""
    if not times or (known := fixed_instants(times, conf)):
        return known if times else {}
    moments = sorted(times)
    asked = [
        F.unix_micros(F.lit(moment.isoformat(" ")).try_cast("timestamp_ltz")).alias(f"t{number}")
        for number, moment in enumerate(moments)
    ]
    (row,) = spark.range(1).select(*asked).collect()
    instants = dict[dt.datetime, dt.datetime]()
    for moment, micros in zip(moments, row, strict=True):
        if micros is not None:
            with contextlib.suppress(OverflowError):  # in UTC a day later, in the year 10000
                instants[moment] = _EPOCH.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    return instants


# -- Spark's columns ------------------------------------------------------------------------------

_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _SparkColumns:
    """Makes Spark columns of the comparisons of a condition."""

    def __init__(self, lake: LakeColumns, condition: ForeignCondition) -> None:
        self._lake = lake
        self._condition = condition

    def test(self, test: ForeignTest) -> Column:
        verb, columns = test.verb, [F.col(self._text(name)) for name in test.columns]
        made: Any = None
        if len(columns) == 2:
            made = _OPERATORS[verb](*columns)
        elif verb in _OPERATORS:
            made = _OPERATORS[verb](columns[0], self._literal(test.values[0], test.columns[0]))
        elif test.is_list:
            made = self._member(test, columns[0])
        elif verb in ("is null", "is null or nan"):
            null = columns[0].isNull()
            made = null if verb == "is null" else null | F.isnan(columns[0])
        elif verb == "starts with":
            made = columns[0].startswith(F.lit(test.values[0]))
        elif verb == "contains":
            made = columns[0].contains(F.lit(test.values[0]))
        elif verb == "like" and isinstance(test.values[0], str):
            made = columns[0].like(test.values[0])
        elif verb == "has":
            made = F.array_contains(columns[0], self._literal(test.values[0], test.columns[0]))
        if made is None:
            raise ExpressionError(
                f"Spark has no equivalent of {verb} in the condition {self._condition}",
                hint="Use contains(), like() or starts_with(), or a condition in SQL.",
            )
        return cast(Column, made)

    def _text(self, path: str) -> str:
        """Return the path quoted for SQL. An unknown path is quoted as one name, for which Spark raises the error."""
        place, parts = self._lake.split(path)
        return quoted(path) if place is None else ".".join(map(quoted, (self._lake.struct.names[place], *parts)))

    def _member(self, test: ForeignTest, column: Column) -> Column:
        name = test.columns[0]
        values = [value for value in test.values if value is not None]
        if test.verb == "equals any":
            values = [value for value in values if value == value]
        if not values:
            member = F.lit(False)
        elif len(values) > _MANY and all(type(value) is int and abs(value) < 1 << 63 for value in values):
            member = F.expr(f"{self._text(name)} IN ({', '.join(map(str, values))})")
        else:
            member = column.isin([self._literal(value, name) for value in values])
        return member | column.isNull() if test.verb == "in" and None in test.values else member

    def _literal(self, value: Any, path: str) -> Column:
        dtype = self._lake.dtype(path)
        dtype = getattr(dtype, "elementType", dtype)
        time = since_epoch(value)
        if time is not None and time.days is not None:
            return F.expr(f"date_from_unix_date({time.days})")
        if time is not None and time.nanoseconds is not None:
            micros, nanos = divmod(time.nanoseconds, 1000)
            if nanos:
                raise ExpressionError(
                    f"the literal {value} has nanoseconds, but Spark's timestamps only have microseconds",
                    column=path,
                    hint="Round the literal to microseconds.",
                )
            if not -(1 << 63) <= micros < 1 << 63:
                raise ExpressionError("the literal lies outside of the years that Spark's timestamps have", column=path)
            return self._moment(micros, dtype, zoned=time.zoned)
        if hasattr(value, "hex") and hasattr(value, "fields"):  # a UUID
            return F.lit(value.bytes if isinstance(dtype, BinaryType) else str(value))
        if type(value) is int and not -(1 << 63) <= value < 1 << 63:
            return F.lit(str(value)).cast(f"decimal({min(38, len(str(abs(value))))},0)")
        return F.lit(value)

    def _moment(self, micros: int, dtype: Any, *, zoned: bool) -> Column:
        """Return a time as a column. ``micros``: microseconds since 1970, of UTC if ``zoned``, else of the wall
        clock."""
        # as text: the zone of Python and the calendar of Java may differ from those of the session; and Python's years
        # end at 9999. The calendar repeats itself.
        cycles, micros = divmod(micros, _CYCLE_US)
        moment = _EPOCH + dt.timedelta(microseconds=micros)
        year = moment.year + _CYCLE_YEARS * cycles
        text = f"{'-' if year < 0 else ''}{abs(year):04}{moment.isoformat(' ')[4:]}{'+00:00' if zoned else ''}"
        ntz = not zoned and isinstance(dtype, TimestampNTZType)
        return F.lit(text).cast("timestamp_ntz" if ntz else "timestamp_ltz")
