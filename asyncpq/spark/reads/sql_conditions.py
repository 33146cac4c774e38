"""Conditions in Spark's SQL as predicates, for pruning.

sqlglot parses the text. A part that Spark and sqlglot may read differently, or that asyncpq cannot express as a
predicate, becomes :class:`Unknown`: it excludes no data, and the other parts still do. Spark itself filters the rows by
the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T  # noqa: N812  # as PySpark's documentation calls it

from asyncpq import Expression
from asyncpq.errors import ExpressionError, UsageError, install_hint
from asyncpq.expressions import tree
from asyncpq.expressions.sql import COMPARISONS
from asyncpq.expressions.sql_operands import kind_of, name_parts
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


class Unknown(Expression):
    """A part of a condition that asyncpq cannot translate, so that it excludes no data; ``reason`` says why."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason: str = reason

    def _key(self) -> tuple[object, ...]:
        return (self.reason,)

    def __str__(self) -> str:
        return "?"


def read_condition(text: str, conf: ReadConf | None = None, type_of: TypeOf = lambda path: None) -> Expression:
    """Parse a condition in SQL. :class:`Unknown` replaces the parts that asyncpq cannot translate.

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
        return _condition(sqlglot.parse_one(plain, dialect="spark").transform(lambda node: _uncast(node, type_of)))
    except _DoubtfulError as error:
        return Unknown(f"the text has {error}, which asyncpq does not interpret")
    except (SqlglotError, RecursionError, ValueError):  # Spark reports the error, if there is one
        return Unknown(f"asyncpq cannot parse {_cut(text)!r}")


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
    if kind_of(node) not in ("Cast", "TryCast") or (name := _name(node.this)) is None:
        return node
    target, dtype = node.to.this.name, type(type_of(name))
    keeps = dtype is _SAME.get(target)
    for types in _WIDER:
        kinds = list(types.values())
        keeps |= target in types and dtype in kinds[: list(types).index(target) + 1]
    return node.this if keeps and not node.to.expressions else node


def _condition(node: Any) -> Expression:
    make = _CONDITIONS.get(kind_of(node))
    condition = None if make is None else make(node)
    return Unknown(f"asyncpq does not translate {_cut(node.sql(dialect='spark'))}") if condition is None else condition


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _comparison(node: Any) -> Expression | None:
    op, turned = COMPARISONS[kind_of(node)]
    for left, right, asked in ((node.this, node.expression, op), (node.expression, node.this, turned)):
        name, value = _name(left), _literal(right)
        if name is not None and value is not None:
            return tree.Comparison(name, asked, value)
    return None


def _null_safe(node: Any) -> Expression | None:
    name, value = _name(node.this), _literal(node.expression)
    if name is None or value is None:
        return _is(node)
    return tree.And((tree.Comparison(name, "==", value), tree.Not(tree.IsNull(name))))


def _in(node: Any) -> Expression | None:
    if any(value for key, value in node.args.items() if key not in ("this", "expressions")):
        return None  # a subquery, or a field
    name, values = _name(node.this), [_literal(item) for item in node.expressions]
    if name is None or not values or any(value is None for value in values):
        return None
    return tree.In(name, tuple(values))


def _between(node: Any) -> Expression | None:
    name, low, high = _name(node.this), _literal(node.args["low"]), _literal(node.args["high"])
    if name is None or low is None or high is None or node.args.get("symmetric"):
        return None
    return tree.And((tree.Comparison(name, ">=", low), tree.Comparison(name, "<=", high)))


def _is(node: Any) -> Expression | None:
    name = _name(node.this)
    return tree.IsNull(name) if name is not None and kind_of(node.expression) == "Null" else None


def _like(node: Any) -> Expression | None:
    name, pattern = _name(node.this), _literal(node.expression)
    others = [key for key, value in node.args.items() if value and key not in ("this", "expression")]
    if name is None or not isinstance(pattern, str) or others:
        return None
    try:
        return tree.Like(name, pattern)
    except ExpressionError:  # too many wildcards
        return None


_CONDITIONS: Final[dict[str, Callable[[Any], Expression | None]]] = {
    "And": lambda node: tree.And((_condition(node.this), _condition(node.expression))),
    "Or": lambda node: tree.Or((_condition(node.this), _condition(node.expression))),
    "Not": lambda node: tree.Not(_condition(node.this)),
    "Paren": lambda node: _condition(node.this),
    **dict.fromkeys(COMPARISONS, _comparison),
    "NullSafeEQ": _null_safe,
    "In": _in,
    "Between": _between,
    "Is": _is,
    "Like": _like,
    "Boolean": lambda node: tree.Constant(bool(node.this)),
    "Null": lambda node: tree.Constant(None),
    "Column": lambda node: None if (name := _name(node)) is None else tree.Comparison(name, "==", True),
}


def _name(node: Any) -> str | None:
    """Return the dotted path of a column or field; None for other nodes, and for names that contain a dot."""
    parts = name_parts(node)
    return None if parts is None or any("." in part for part in parts) else ".".join(parts)


def _literal(node: Any) -> Any:
    """Return a literal's value in the type that Spark infers for it; None for other nodes and for null."""
    dtype = kind_of(node)
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
    if dtype in ("Cast", "TryCast") and kind_of(node.this) == "Literal":
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
