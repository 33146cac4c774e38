"""Conditions of a scan: an asyncpq expression, a filter list, Spark's SQL, or a column of PySpark.

A condition becomes a Spark column, which filters the rows, and pruning terms, with which asyncpq skips data that cannot
match. SQL, which sqlglot parses, and columns are read for pruning only. A column such as ``F.col("id") == 17`` is a
tree of calls, names and literals: objects of the JVM in classic Spark, messages of Spark Connect's protocol otherwise.
Both become calls of Spark's functions, with names and literals as arguments, whose predicate :func:`predicate` returns.
A part that asyncpq cannot express, or that Spark and sqlglot may read differently, becomes ``Untranslated``: it
excludes no data, and the other parts still do.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql import types as T  # noqa: N812  # as PySpark's documentation calls it
from pyspark.sql.types import BinaryType, StructType, TimestampNTZType

from asyncpq import Expression, col
from asyncpq.engine.foreign_conditions import ForeignCondition, ForeignTest, Untranslated, constant, since_epoch
from asyncpq.errors import ExpressionError, UsageError, install_hint
from asyncpq.spark.reads.pruning_terms import (
    SESSION_ZONE,
    Instants,
    LakeColumns,
    date_of,
    pruning_terms,
    time_of,
    wall_clock_times,
)
from asyncpq.spark.types.read_conf import ReadConf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Name(NamedTuple):
    """A column, or a field inside of structs, by the names on the way to it."""

    parts: Sequence[str]


class Value(NamedTuple):
    """A literal in the type that Spark has for it; None for null."""

    value: Any


class FunctionCall(NamedTuple):
    """A call of a function or operator. ``shown`` returns its text for messages."""

    function: str  # in lower case
    arguments: Sequence[Node]
    shown: Callable[[], str]


#: None is a part that has no such form. An expression is a condition that was translated already.
Node: TypeAlias = Name | Value | FunctionCall | Expression | None


def predicate(node: Node) -> Expression:
    """Return the predicate of a condition."""
    if isinstance(node, Expression):
        return node
    condition: Expression | None = None
    if isinstance(node, Value) and (node.value is None or isinstance(node.value, bool)):
        condition = constant(node.value)
    elif isinstance(node, Name):
        condition = _call("=", [node, Value(True)])
    elif isinstance(node, FunctionCall):
        if node.function in _JOINED:
            condition = reduce(_JOINED[node.function], map(predicate, node.arguments))
        elif node.function in ("not", "!"):
            condition = ~predicate(node.arguments[0])
        else:
            try:
                condition = _call(node.function, node.arguments)
            except ExpressionError:  # a pattern with too many wildcards
                condition = None
    if condition is not None:
        return condition
    return Untranslated(
        f"asyncpq does not translate {node.shown() if isinstance(node, FunctionCall) else 'a part of it'}"
    )


_JOINED: Final[dict[str, Callable[[Expression, Expression], Expression]]] = {"and": operator.and_, "or": operator.or_}
#: For each comparison the operator, and that with both sides exchanged.
_COMPARISONS: Final[dict[str, tuple[Callable[[Any, Any], Expression], Callable[[Any, Any], Expression]]]] = {
    "=": (operator.eq, operator.eq),
    "==": (operator.eq, operator.eq),
    "!=": (operator.ne, operator.ne),
    "<": (operator.lt, operator.gt),
    "<=": (operator.le, operator.ge),
    ">": (operator.gt, operator.lt),
    ">=": (operator.ge, operator.le),
}
_OF_TEXT: Final = {"startswith": "starts_with", "contains": "contains", "like": "like"}


def _call(function: str, arguments: Sequence[Node]) -> Expression | None:
    """Return the predicate of a call of ``function``, such as a comparison with its operands in either order, or a
    function of a column; None if asyncpq has none."""
    first, *others = arguments or (None,)
    is_turned = isinstance(first, Value) and len(others) == 1 and function in _COMPARISONS
    if is_turned:
        first, others = others[0], [first]
    values = [other.value for other in others if isinstance(other, Value)]
    if not isinstance(first, Name) or len(values) < len(others) or any("." in part for part in first.parts):
        return None
    column = col(".".join(first.parts))
    if function in ("isnull", "isnotnull") and not values:
        return column.is_null() if function == "isnull" else column.is_valid()
    if function == "<=>" and len(values) == 1:
        return column.is_null() if values[0] is None else (column == values[0]) & column.is_valid()
    if not values or None in values:
        return None
    if function == "in":
        return column.is_in(values)
    if function in _COMPARISONS and len(values) == 1:
        return _COMPARISONS[function][is_turned](column, values[0])
    if function in _OF_TEXT and len(values) == 1 and isinstance(values[0], str):
        made: Expression = getattr(column, _OF_TEXT[function])(values[0])
        return made
    return None


# -- SQL ------------------------------------------------------------------------------------------


#: Returns Spark's type of a column or field by its dotted path; None if there is none.
TypeOf: TypeAlias = Callable[[str], T.DataType | None]

#: What Spark's lexer takes as one token and sqlglot may not.
_TOKEN: Final = re.compile(
    r"""
      (?P<name>`(?:[^`]|``)*`)
    | (?P<raw>\b[rR](?:'[^']*'|"[^"]*"))
    | (?P<string>'(?:[^'\\]|\\.|'')*')
    | (?P<double>"(?:[^"\\]|\\.|"")*")
    | (?P<comment>--[^\r\n\\]*(?![^\r\n])|/\*(?!\+)(?:(?!/\*|\*/).)*\*/)
    | (?P<operator>!>|!<|!(?!=)|(?<!:)::(?!:))
    | (?P<doubtful>--|/\*|[@?$;:\\'"`])
    """,
    re.VERBOSE | re.DOTALL,
)
_OTHER_OPERATORS: Final = {"!>": "<=", "!<": ">=", "!": " NOT ", "::": "::"}
_OPAQUE: Final = "asyncpq_opaque"  # a call of this function stands for a string that is not interpreted
_SHOWN: Final = 100  # characters of a part in a message
_WHOLE: Final = re.compile(r"\d+", re.ASCII)
_EXPONENT: Final = re.compile(r"(\d+\.?\d*|\.\d+)[eE][+-]?\d+", re.ASCII)
_DECIMAL: Final = re.compile(r"\d+\.\d*|\.\d+", re.ASCII)
_STAR: Final = re.compile(r"(?:^|[(,.])\s*\*")
#: Numeric types, by sqlglot's names, in the order in which a cast keeps all values.
_WIDER: Final[tuple[Mapping[str, type[T.DataType]], ...]] = (
    {"TINYINT": T.ByteType, "SMALLINT": T.ShortType, "INT": T.IntegerType, "BIGINT": T.LongType},
    {"FLOAT": T.FloatType, "DOUBLE": T.DoubleType},
)
_SAME: Final[dict[str, type[T.DataType]]] = {"DATE": T.DateType, "BOOLEAN": T.BooleanType, "BINARY": T.BinaryType}


def read_condition(text: str, conf: ReadConf | None = None, type_of: TypeOf = lambda path: None) -> Expression:
    """Parse a condition in SQL. :class:`Untranslated` replaces the parts that asyncpq cannot translate.

    A cast of a column is left out if it keeps all values; ``type_of`` returns the column's type. Raises UsageError if
    sqlglot is not installed.
    """
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ModuleNotFoundError as error:
        raise UsageError(
            "a condition in SQL requires the package sqlglot, which is not installed",
            hint=install_hint("sqlglot", "spark"),
        ) from error
    try:
        plain = "".join(_plain(text, conf or ReadConf()))
        return predicate(
            _of_sql(sqlglot.parse_one(plain, dialect="spark").transform(lambda node: _uncast(node, type_of)))
        )
    except _DoubtfulError as error:
        return Untranslated(f"the text has {error}, which asyncpq does not interpret")
    except (SqlglotError, RecursionError, ValueError):  # Spark reports the error, if there is one
        return Untranslated(f"asyncpq cannot parse {_cut(text)!r}")


def may_name(text: str, column: str) -> bool:
    """Return whether a condition in SQL may read a column: its text contains the column's name or ``*``."""
    return column.replace("`", "``").lower() in text.lower() or _STAR.search(text) is not None


# -- text -----------------------------------------------------------------------------------------


class _DoubtfulError(Exception):
    """Raised for text with a token that Spark and sqlglot may read differently."""


def _plain(text: str, conf: ReadConf) -> Iterator[str]:
    """Yield the text, token by token, in the syntax that Spark and sqlglot share. Raises _DoubtfulError if it has
    none."""
    start = 0
    for token in _TOKEN.finditer(text):
        yield text[start : token.start()]
        start, found = token.end(), token[0]
        if token.lastgroup == "doubtful":
            raise _DoubtfulError(repr(found))
        if token.lastgroup == "string":
            yield _string(found, conf)
        elif token.lastgroup == "double":
            yield f"{_OPAQUE}()" if conf.double_quoted_identifiers else _string(found, conf)
        elif token.lastgroup == "operator":
            yield _OTHER_OPERATORS[found]
        else:
            yield {"raw": f"{_OPAQUE}()", "comment": " "}.get(token.lastgroup or "", found)
    yield text[start:]


def _string(token: str, conf: ReadConf) -> str:
    """Return a quoted string in sqlglot's form. Settings of Spark decide what a backslash and a doubled quote mean."""
    quote, inner = token[0], token[1:-1]
    doubled = quote * 2 in inner
    if "\\" in inner or (doubled and conf.consecutive_string_literals):
        return f"{_OPAQUE}()"
    return "'" + inner.replace(quote * 2, quote).replace("'", "\\'") + "'"


# -- nodes of SQL ---------------------------------------------------------------------------------


def _uncast(node: Any, type_of: TypeOf) -> Any:
    """Return the inner column if ``node`` casts it to a type that holds the same values; else ``node`` itself."""
    if type(node).__name__ not in ("Cast", "TryCast") or (parts := _parts(node.this)) is None:
        return node
    if any("." in part for part in parts):
        return node
    target, dtype = node.to.this.name, type(type_of(".".join(parts)))
    keeps = dtype is _SAME.get(target)
    for types in _WIDER:
        kinds = list(types.values())
        keeps |= target in types and dtype in kinds[: list(types).index(target) + 1]
    return node.this if keeps and not node.to.expressions else node


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _of_sql(node: Any) -> Node:
    """Return a node of sqlglot as a call; None if it is neither a call nor a name or literal."""
    kind, args = type(node).__name__, {name for name, value in node.args.items() if value}
    if kind == "Paren":
        return _of_sql(node.this)
    parts = _parts(node)
    if parts is not None:
        return Name(parts)
    value = _literal(node)
    if value is not None or kind == "Null":
        return Value(value)

    def call(function: str, *arguments: Any) -> FunctionCall:
        made = [item if isinstance(item, FunctionCall) else _of_sql(item) for item in arguments]
        return FunctionCall(function, made, lambda: _cut(node.sql(dialect="spark")))

    if kind == "Between" and args == {"this", "low", "high"}:
        return call("and", call(">=", node.this, node.args["low"]), call("<=", node.this, node.args["high"]))
    if kind == "In" and args == {"this", "expressions"}:  # neither a subquery nor a field
        return call("in", node.this, *node.expressions)
    if kind == "Not" and args == {"this"}:
        return call("not", node.this)
    if args == {"this", "expression"}:
        if kind == "Is" and type(node.expression).__name__ == "Null":
            return call("isnull", node.this)
        if kind in _FUNCTIONS:
            return call(_FUNCTIONS[kind], node.this, node.expression)
    return call("")  # no function of Spark: Untranslated, whose message shows the node's SQL


#: Functions and operators by sqlglot's names.
_FUNCTIONS: Final = {
    "And": "and",
    "Or": "or",
    "EQ": "=",
    "NEQ": "!=",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
    "NullSafeEQ": "<=>",
    "Like": "like",
}


def _parts(node: Any) -> list[str] | None:
    """Return a column's name and the names of the struct fields below it; None if ``node`` is not a column."""
    kind = type(node).__name__
    if kind == "Paren":
        return _parts(node.this)
    if kind == "Dot":
        outer, inner = _parts(node.this), [node.expression]
    elif kind == "Column" and not node.args.get("join_mark"):
        outer, inner = [], list(node.parts)
    else:
        return None
    if outer is None or any(type(part).__name__ != "Identifier" or not (part.name or part.quoted) for part in inner):
        return None
    return [*outer, *[part.name for part in inner]]


def _literal(node: Any) -> Any:
    """Return a literal's value in the type that Spark infers for it; None for other nodes and for null."""
    dtype = type(node).__name__
    if dtype == "Paren":
        return _literal(node.this)
    if dtype == "Neg":
        inner = _literal(node.this)
        return -inner if isinstance(inner, (int, float, Decimal)) and not isinstance(inner, bool) else None
    if dtype == "Boolean":
        return bool(node.this)
    if dtype == "HexString":
        digits = str(node.this)
        return bytes.fromhex(digits if len(digits) % 2 == 0 else f"0{digits}")
    if dtype == "Literal":
        return node.this if node.is_string else _number(node.this)
    if dtype in ("Cast", "TryCast") and type(node.this).__name__ == "Literal":
        return _cast(node.to.this.name, node.this.this, is_string=node.this.is_string)
    return None


def _number(text: str) -> int | float | Decimal | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    if _EXPONENT.fullmatch(text):
        return float(text)
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def _cast(target: str, text: str, *, is_string: bool) -> Any:
    """Return the value of a typed literal, such as ``DATE '2024-05-01'``, ``5L`` or ``1.5D``; None if unsupported.
    sqlglot parses typed literals as casts to the type ``target``."""
    if is_string:
        if target == "DATE":
            return date_of(text)
        moment = time_of(text) if target.startswith("TIMESTAMP") else None
        if moment is not None and target in ("TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMP"):
            return moment.replace(tzinfo=SESSION_ZONE)
        return moment if target == "TIMESTAMPNTZ" else None
    number = _number(text)
    if target == "DOUBLE":
        return None if number is None else float(number)
    return number if target == "BIGINT" and isinstance(number, int) else None


# -- columns of PySpark ---------------------------------------------------------------------------


_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^`.]+)")
_PLAIN: Final = (bool, int, float, str, Decimal, bytes)


def read_column(column: Column, conf: ReadConf | None = None) -> Expression:
    """Return the predicate of a boolean column; ``Untranslated`` replaces the parts that asyncpq cannot express."""
    made: Any = column
    if hasattr(type(made), "to_plan"):  # of Spark Connect
        node = _of_message(made.to_plan(None), conf or ReadConf())
    else:
        node = _of_jvm(made._jc.node(), conf or ReadConf())  # noqa: SLF001  # PySpark has no public way
    return predicate(node)


# -- nodes of columns -----------------------------------------------------------------------------


def _of_jvm(node: Any, conf: ReadConf) -> Node:
    kind = node.getClass().getSimpleName()
    if kind == "UnresolvedAttribute":
        return Name(_sequence(node.nameParts()))
    if kind == "Literal":
        try:
            value = _of_java(node.value())
        except OverflowError:  # a time outside of the years of Python
            return None
        return None if value is _NO_VALUE else Value(value)
    if kind == "UnresolvedFunction":
        return _function_call(
            node.functionName(), [_of_jvm(argument, conf) for argument in _sequence(node.arguments())]
        )
    return read_condition(node.expression(), conf) if kind == "SqlExpression" else None


def _function_call(function: str, arguments: Sequence[Node]) -> FunctionCall:
    return FunctionCall(function.lower(), arguments, lambda: f"the function {function} with these arguments")


def _sequence(items: Any) -> list[Any]:
    return [items.apply(at) for at in range(items.size())]


_NO_VALUE: Final = object()


def _of_java(value: Any) -> Any:
    """Return the Python value of a JVM literal; ``_NO_VALUE`` if it has a type that asyncpq does not support."""
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    kind = value.getClass().getName()
    if kind == "java.sql.Date":
        return date_of(value.toString()) or _NO_VALUE
    if kind == "java.sql.Timestamp":
        seconds = value.getTime() // 1000
        return _EPOCH_UTC + dt.timedelta(seconds=seconds, microseconds=value.getNanos() // 1000)
    if kind == "scala.math.BigDecimal":
        return Decimal(value.toString())
    return _NO_VALUE


def _of_message(message: Any, conf: ReadConf) -> Node:
    kind = message.WhichOneof("expr_type")
    if kind == "unresolved_attribute":
        return Name(_names(message.unresolved_attribute.unparsed_identifier))
    if kind == "literal":
        literal = message.literal
        read = _LITERALS.get(literal.WhichOneof("literal_type"))
        try:
            return None if read is None else Value(read(literal))
        except OverflowError:  # a time outside of the years of Python
            return None
    if kind == "unresolved_function":
        call = message.unresolved_function
        return _function_call(call.function_name, [_of_message(argument, conf) for argument in call.arguments])
    return read_condition(message.expression_string.expression, conf) if kind == "expression_string" else None


def _names(name: str) -> list[str]:
    """Split a dotted name into its parts, which may be in backquotes."""
    return [quoted.replace("``", "`") or plain for quoted, plain in _PART.findall(name)]


_LITERALS: Final[dict[str, Callable[[Any], Any]]] = {
    "null": lambda literal: None,
    **{
        name: attrgetter(name)
        for name in ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary")
    },
    "decimal": lambda literal: Decimal(literal.decimal.value),
    "date": lambda literal: _EPOCH_UTC.date() + dt.timedelta(days=literal.date),
    "timestamp": lambda literal: _EPOCH_UTC + dt.timedelta(microseconds=literal.timestamp),
    "timestamp_ntz": lambda literal: _EPOCH_UTC.replace(tzinfo=None) + dt.timedelta(microseconds=literal.timestamp_ntz),
}


# -- conditions of scans --------------------------------------------------------------------------


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


def numbered(frame: DataFrame) -> DataFrame:
    """Return the rows with the columns ``c0``, ``c1``, ..., since names may contain dots, or occur twice."""
    return frame.toDF(*[f"c{at}" for at in range(len(frame.columns))])


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
                instants[moment] = _EPOCH_UTC + dt.timedelta(microseconds=micros)
    return instants


# -- Spark's columns ------------------------------------------------------------------------------


class _SparkColumns:
    """Makes Spark columns of the comparisons of a condition."""

    def __init__(self, lake: LakeColumns, condition: ForeignCondition) -> None:
        self._lake = lake
        self._condition = condition

    def test(self, test: ForeignTest) -> Column:
        verb, columns = test.verb, [F.col(self._text(name)) for name in test.columns]
        made: Any = None
        if len(columns) == 2:
            made = _COMPARISONS[verb][0](*columns)
        elif verb in _COMPARISONS:
            made = _COMPARISONS[verb][0](columns[0], self._literal(test.values[0], test.columns[0]))
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
