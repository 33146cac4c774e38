"""Conditions in Spark's SQL as predicates, for pruning.

sqlglot parses the text, and :mod:`asyncpq.spark.reads.condition_calls` makes the predicate. A part that Spark and
sqlglot may read differently excludes no data, and the other parts still do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T  # noqa: N812  # as PySpark's documentation calls it

from asyncpq import Expression
from asyncpq.engine.foreign_conditions import Untranslated
from asyncpq.errors import UsageError, install_hint
from asyncpq.spark.reads.condition_calls import FunctionCall, Name, Node, Value, predicate
from asyncpq.spark.reads.pruning_terms import SESSION_ZONE, date_of, time_of
from asyncpq.spark.types.read_conf import ReadConf

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
_OPERATORS: Final = {"!>": "<=", "!<": ">=", "!": " NOT ", "::": "::"}
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
            yield _OPERATORS[found]
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


# -- nodes ----------------------------------------------------------------------------------------


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
    return call("")


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
