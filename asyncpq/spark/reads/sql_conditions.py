"""Parse conditions in Spark SQL with sqlglot, for pruning. A part that the two may read differently becomes Unknown."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from asyncpq.errors import UsageError
from asyncpq.expressions import (
    And,
    CompareOp,
    Comparison,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Not,
    Or,
    atoms,
    columns,
)

#: Strings and quoted names in a text without escapes.
_QUOTED: Final = re.compile(r"'[^']*'|`[^`]*`")
#: Syntax that Spark and sqlglot may read differently: ``!`` for NOT, adjacent strings, parameters, comments.
_DOUBTFUL: Final = re.compile(r"""!(?!=)|''\s*''|\w''|[@?$;:]|/\*|--""")
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME: Final = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?)?", re.ASCII)
_WHOLE: Final = re.compile(r"\d+", re.ASCII)
_EXPONENT: Final = re.compile(r"(\d+\.?\d*|\.\d+)[eE][+-]?\d+", re.ASCII)
_DECIMAL: Final = re.compile(r"\d+\.\d*|\.\d+", re.ASCII)
#: Functions that Spark calls without brackets if no column has their name.
_WITHOUT_BRACKETS: Final = frozenset(
    {"current_date", "current_time", "current_timestamp", "current_user", "grouping__id", "session_user", "user"}
)
_STAR: Final = re.compile(r"(?:^|[(,.])\s*\*")


class Unknown(Expression):
    """A part of a condition that is not understood."""

    __slots__ = ()

    def _key(self) -> tuple[object, ...]:
        return ()

    def __str__(self) -> str:
        return "?"


class _SessionZone(dt.tzinfo):
    """Marks a wall-clock time that is an instant of the session's zone, whatever it is compared with."""

    def utcoffset(self, moment: dt.datetime | None) -> None:
        return None

    def dst(self, moment: dt.datetime | None) -> None:
        return None

    def tzname(self, moment: dt.datetime | None) -> None:
        return None


SESSION_ZONE: Final = _SessionZone()


def read_condition(text: str) -> Expression:
    """Parse a condition; :class:`Unknown` replaces the parts that are not understood.

    Raises:
        UsageError: sqlglot is not installed.
    """
    # Spark's settings decide about escapes in strings and about double quotes
    if "\\" in text or '"' in text or _DOUBTFUL.search(_QUOTED.sub("''", text)):
        return Unknown()
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ModuleNotFoundError as error:
        raise UsageError("conditions in SQL need sqlglot", hint="pip install 'asyncpq[spark]'.") from error
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
    except (SqlglotError, RecursionError, ValueError):
        return Unknown()  # Spark reports the error, if there is one
    try:
        return _condition(tree)
    except RecursionError:
        return Unknown()


def names(condition: Expression) -> list[str]:
    """Paths of the columns in the parts that are understood."""
    known = [atom for atom in atoms(condition) if not isinstance(atom, Unknown)]
    found = columns(And(tuple(known)))
    return [name for name in found if name.lower() not in _WITHOUT_BRACKETS]


def may_name(text: str, column: str) -> bool:
    """Whether a condition may read a column: it contains the name, or ``*``."""
    return column.replace("`", "``").lower() in text.lower() or _STAR.search(text) is not None


# -- the tree of sqlglot --------------------------------------------------------------------------


def _condition(node: Any) -> Expression:
    make = _CONDITIONS.get(type(node).__name__)
    found = None if make is None else make(node)
    return Unknown() if found is None else found


def _both(node: Any, join: type[And | Or]) -> Expression:
    return join((_condition(node.this), _condition(node.expression)))


def _comparison(op: CompareOp, turned: CompareOp) -> Callable[[Any], Expression | None]:
    def read(node: Any) -> Expression | None:
        for left, right, asked in ((node.this, node.expression, op), (node.expression, node.this, turned)):
            name, found = _name(left), _literal(right)
            if name is not None and found is not None:
                return Comparison(name, asked, found)
        return None

    return read


def _null_safe(node: Any) -> Expression | None:
    name, found = _name(node.this), _literal(node.expression)
    if name is None:
        return None
    if type(node.expression).__name__ == "Null":
        return IsNull(name)
    return None if found is None else And((Comparison(name, "==", found), Not(IsNull(name))))


def _in(node: Any) -> Expression | None:
    if any(value for key, value in node.args.items() if key not in ("this", "expressions")):
        return None  # a subquery, or a field
    name, values = _name(node.this), [_literal(item) for item in node.expressions]
    if name is None or not values or any(value is None for value in values):
        return None
    return In(name, tuple(values))


def _between(node: Any) -> Expression | None:
    name, low, high = _name(node.this), _literal(node.args["low"]), _literal(node.args["high"])
    if name is None or low is None or high is None or node.args.get("symmetric"):
        return None
    return And((Comparison(name, ">=", low), Comparison(name, "<=", high)))


def _is(node: Any) -> Expression | None:
    name = _name(node.this)
    return IsNull(name) if name is not None and type(node.expression).__name__ == "Null" else None


def _like(node: Any) -> Expression | None:
    name, found = _name(node.this), _literal(node.expression)
    others = [key for key, value in node.args.items() if value and key not in ("this", "expression")]
    return Like(name, found) if name is not None and isinstance(found, str) and not others else None


_CONDITIONS: Final[dict[str, Callable[[Any], Expression | None]]] = {
    "And": lambda node: _both(node, And),
    "Or": lambda node: _both(node, Or),
    "Not": lambda node: Not(_condition(node.this)),
    "Paren": lambda node: _condition(node.this),
    "EQ": _comparison("==", "=="),
    "NEQ": _comparison("!=", "!="),
    "LT": _comparison("<", ">"),
    "LTE": _comparison("<=", ">="),
    "GT": _comparison(">", "<"),
    "GTE": _comparison(">=", "<="),
    "NullSafeEQ": _null_safe,
    "In": _in,
    "Between": _between,
    "Is": _is,
    "Like": _like,
    "Boolean": lambda node: Constant(bool(node.this)),
    "Null": lambda node: Constant(None),
}


def _name(node: Any) -> str | None:
    """The dotted path of a column or field; None for other nodes."""
    if type(node).__name__ == "Paren":
        return _name(node.this)
    if type(node).__name__ == "Dot":
        inside = _name(node.this)
        field = node.expression
        return f"{inside}.{field.name}" if inside and type(field).__name__ == "Identifier" and _plain(field) else None
    if type(node).__name__ != "Column" or node.args.get("join_mark"):
        return None
    parts = list(node.parts)
    if any(type(part).__name__ != "Identifier" or not _plain(part) for part in parts):
        return None
    return ".".join(part.name for part in parts)


def _plain(identifier: Any) -> bool:
    """Whether the name has no dot, which asyncpq would read as a field."""
    return bool(identifier.name) and "." not in identifier.name


def _literal(node: Any) -> Any:
    """The literal's value in the type that Spark gives it; None for other nodes and for null."""
    kind = type(node).__name__
    if kind == "Paren":
        return _literal(node.this)
    if kind == "Neg":
        inner = _literal(node.this)
        return -inner if isinstance(inner, (int, float, Decimal)) and not isinstance(inner, bool) else None
    if kind == "Boolean":
        return bool(node.this)
    if kind == "Literal":
        return node.this if node.is_string else _number(node.this)
    if kind in ("Cast", "TryCast") and type(node.this).__name__ == "Literal":
        return _cast(node)
    return None


def _number(text: str) -> int | float | Decimal | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    if _EXPONENT.fullmatch(text):
        return float(text)
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def _cast(node: Any) -> Any:
    """The value of a typed literal, which sqlglot parses as a cast: ``DATE '2024-05-01'``, ``5L``, ``1.5D``."""
    target, text, is_string = node.to.this.name, node.this.this, node.this.is_string
    if target == "DATE" and is_string:
        return date_of(text)
    if target in ("TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMP") and is_string:
        moment = time_of(text)
        return None if moment is None else moment.replace(tzinfo=SESSION_ZONE)
    if target == "TIMESTAMPNTZ" and is_string:
        return time_of(text)
    if target == "DOUBLE" and not is_string:
        number = _number(text)
        return None if number is None else float(number)
    if target == "BIGINT" and not is_string and _WHOLE.fullmatch(text):
        return int(text)
    return None


def date_of(text: str) -> dt.date | None:
    """A date in the full form YYYY-MM-DD; None for other text."""
    try:
        return dt.date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def time_of(text: str) -> dt.datetime | None:
    """A wall-clock time in full form, or midnight of a date; None for other text."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, clock, fraction = found.groups()
    try:
        return dt.datetime.fromisoformat(f"{day} {clock or '00:00:00'}.{(fraction or '').ljust(6, '0')}")
    except ValueError:
        return None
