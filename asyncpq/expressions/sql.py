"""Conditions in SQL as predicates, with ANSI's rules for nulls: ``parse_sql("id = 42 AND name LIKE 'a%'")``.

A predicate has exactly the condition's meaning, or there is none: a part without an equal predicate is an
ExpressionError that says what to write. sqlglot parses the text; it is loaded when a condition is parsed, so nodes are
told apart by the names of their classes. Spark's conditions (``spark/reads/sql_conditions.py``) share
:func:`name_parts` and :data:`COMPARISONS`; their literals and nulls are Spark's.

A number or quoted text has no type of its own: it becomes :class:`asyncpq.expressions.scalars.Untyped`, which the
column's type resolves, as SQL engines do. ``DATE '...'``, ``CAST(... AS ...)`` and the like have a type.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NoReturn

from asyncpq.errors import ExpressionError, UsageError
from asyncpq.expressions import tree
from asyncpq.expressions.builder import box_predicate
from asyncpq.expressions.like_patterns import like
from asyncpq.expressions.scalars import RelativeTime, Scalar, Untyped
from asyncpq.expressions.sql_literals import interval, typed_literal
from asyncpq.expressions.tokens import tokens
from asyncpq.expressions.tree import Expression

#: For each comparison of sqlglot the operator, and that with both sides exchanged.
COMPARISONS: Final[dict[str, tuple[tree.CompareOp, tree.CompareOp]]] = {
    "EQ": ("==", "=="),
    "NEQ": ("!=", "!="),
    "LT": ("<", ">"),
    "LTE": ("<=", ">="),
    "GT": (">", "<"),
    "GTE": (">=", "<="),
}
_OPERATORS: Final[dict[tree.CompareOp, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SHOWN: Final = 100  # characters of a part in an error
_DIGITS: Final = 400  # before or behind the point: more than any column holds
_EXACT: Final = 1 << 24  # every type of numbers holds smaller integers, or compares them exactly
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*\"""")
_HEX_NUMBER: Final = re.compile(r"\b0[xX][0-9a-fA-F]")
_WHOLE: Final = re.compile(r"\d+", re.ASCII)
_NUMBER: Final = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INSTALL: Final = "Run pip install 'asyncpq[cli]'."
_FORM: Final = (
    "Write comparisons of columns and literals, joined with AND, OR and NOT, such as: id = 42 AND name LIKE 'a%'."
)


_RESERVED: Final = 'Names that are words of SQL stand in double quotes: "from" = 1.'
_BEFORE: Final = "SELECT 1 WHERE "


class _Path(str):
    """The dotted path of a column."""

    __slots__ = ()


def parse_sql(text: str) -> Expression:
    """Return a condition in SQL, what stands behind WHERE, as a predicate.

    Raises:
        ExpressionError: the text is no condition, or a part of it has no predicate of exactly its meaning.
        UsageError: sqlglot is not installed.
    """
    try:
        import sqlglot.errors
    except ModuleNotFoundError as error:
        raise UsageError(
            "a condition in SQL requires the package sqlglot, which is not installed", hint=_INSTALL
        ) from error
    if not text.strip():
        raise ExpressionError("the SQL condition is empty", hint="Pass None for all rows.")
    if _HEX_NUMBER.search(_QUOTED.sub("''", text)):
        raise ExpressionError(f"SQL condition {_cut(text)}: 0x... is a number or bytes", hint="Write X'1F' for bytes.")
    try:
        # In a query, since a text alone may be taken for a statement, such as SET x = 1.
        statements = sqlglot.parse(f"{_BEFORE}{text}", dialect=_dialect())
        query = statements[0]
        clauses = set() if query is None else {name for name, part in query.args.items() if part}
        is_condition = len(statements) == 1 and kind_of(query) == "Select" and clauses == {"expressions", "where"}
        if not is_condition or text.rstrip().endswith(","):
            raise ExpressionError(f"{_cut(text)} is not one SQL condition", hint=_FORM)
        return _condition(query.args["where"].this)  # type: ignore[union-attr]  # it is a query
    except sqlglot.errors.SqlglotError as error:
        raise ExpressionError(
            f"SQL condition {_cut(text)}: {_syntax_error(error)}", hint=f"{_FORM} {_RESERVED}"
        ) from error
    except RecursionError as error:
        raise ExpressionError(
            f"SQL condition {_cut(text)}: it is nested too deeply", hint="Write x IN (...) for many values."
        ) from error


@functools.cache
def _dialect() -> Any:
    """Return sqlglot's own dialect, which is the nearest to ANSI's, with ANSI's ``X'00ff'`` for bytes."""
    import sqlglot

    class Tokenizer(sqlglot.Tokenizer):
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012  # as sqlglot declares it

    return type("AsyncpqSql", (sqlglot.Dialect,), {"Tokenizer": Tokenizer})


def _syntax_error(error: Any) -> str:
    details = getattr(error, "errors", None)
    if not details:
        return "a quote or bracket is not closed"
    first = details[0]
    column = first["col"] - (len(_BEFORE) if first["line"] == 1 else 0)
    if column < 1:
        return "there is no condition"
    return f"syntax error at {first['highlight']!r} (line {first['line']}, column {column})"


def _cut(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _refuse(node: Any, why: str, hint: str) -> NoReturn:
    raise ExpressionError(f"SQL condition: {_cut(node.sql(dialect=_dialect()))} {why}", hint=hint)


def kind_of(node: Any) -> str:
    """Return the name of a node's class, since sqlglot's classes are not loaded with this module."""
    return type(node).__name__


def name_parts(node: Any) -> list[str] | None:
    """Return the parts of a column's name with those of struct fields; None for other nodes."""
    if kind_of(node) == "Paren":
        return name_parts(node.this)
    if kind_of(node) == "Dot":
        outer, parts = name_parts(node.this), [node.expression]
    elif kind_of(node) == "Column" and not node.args.get("join_mark"):
        outer, parts = [], list(node.parts)
    else:
        return None
    if outer is None or any(kind_of(part) != "Identifier" or not part.name for part in parts):
        return None
    return [*outer, *[part.name for part in parts]]


# -- conditions -----------------------------------------------------------------------------------


def _condition(node: Any) -> Expression:
    make = _CONDITIONS.get(kind_of(node))
    if make is not None:
        return make(node)
    path = _path(node)
    if path is not None:  # a column of booleans
        return tree.Comparison(path, "==", True)
    hint = _HINTS.get(kind_of(node), _FORM)
    _refuse(node, "is not a condition that asyncpq can evaluate", hint)


def _only(node: Any, *known: str) -> None:
    """Refuse a node with arguments other than ``known``, such as a subquery of IN."""
    others = [name for name, value in node.args.items() if value and name not in known]
    if others:
        _refuse(node, f"has a part that asyncpq cannot evaluate ({', '.join(others)})", _FORM)


def _junction(join: type[tree.And | tree.Or]) -> Callable[[Any], Expression]:
    def read(node: Any) -> Expression:
        # not by recursion: generated conditions have thousands of terms
        return join(tuple([_condition(term) for term in node.flatten()]))

    return read


def _not(node: Any) -> Expression:
    return tree.Not(_condition(node.this))


def _comparison(node: Any) -> Expression:
    op, flipped = COMPARISONS[kind_of(node)]
    return _compared(node, op, flipped, _operand(node.this), _operand(node.expression))


def _compared(node: Any, op: tree.CompareOp, flipped: tree.CompareOp, left: Any, right: Any) -> Expression:
    if isinstance(left, _Path):
        if isinstance(right, _Path):
            return tree.ColumnComparison(str(left), op, str(right))
        return tree.Comparison(str(left), op, right)
    if isinstance(right, _Path):
        return tree.Comparison(str(right), flipped, left)
    left, right = _plain(left), _plain(right)
    if left is None or right is None:
        return tree.Constant(None)
    numbers = (int, Decimal)
    if type(left) is not type(right) and not (type(left) in numbers and type(right) in numbers):
        _refuse(node, "compares literals of different types", "Compare a column with a literal.")
    return tree.Constant(_OPERATORS[op](left, right))


def _plain(value: Any) -> Any:
    """Return a literal as a Python value that compares with other literals."""
    if isinstance(value, Untyped):
        return Decimal(value.text) if value.is_number else value.text
    return Decimal(value) if type(value) is int else value


def _between(node: Any) -> Expression:
    _only(node, "this", "low", "high")
    value, low, high = _operand(node.this), _operand(node.args["low"]), _operand(node.args["high"])
    return tree.And((_compared(node, ">=", "<=", value, low), _compared(node, "<=", ">=", value, high)))


def _in(node: Any) -> Expression:
    """Read ``x IN (...)``: null where x is null, and with a NULL among the values where no value is equal."""
    _only(node, "this", "expressions")
    path = _column(node, node.this)
    values = [_operand(item) for item in node.expressions]
    if any(isinstance(value, _Path) for value in values):
        _refuse(node, "has a column among the values", "Write x = y OR x = z.")
    if not values:
        _refuse(node, "has no values", "Write FALSE, or at least one value.")
    keys = tuple([value for value in values if value is not None])
    found: Expression = tree.Comparison(path, "==", keys[0]) if len(keys) == 1 else tree.KeyIn(path, keys)
    if len(keys) == len(values):
        return found
    return tree.Or((found, tree.Constant(None))) if keys else tree.Constant(None)


def _is(node: Any) -> Expression:
    path = _column(node, node.this)
    if kind_of(node.expression) == "Null":
        return tree.IsNull(path)
    if kind_of(node.expression) == "Boolean":
        return _never_null(path, bool(node.expression.this))
    _refuse(node, "is a test that asyncpq does not know", "Write IS NULL, IS NOT NULL, IS TRUE or IS FALSE.")


def _never_null(path: str, value: Scalar) -> Expression:
    return tree.And((tree.Comparison(path, "==", value), tree.Not(tree.IsNull(path))))


def _not_distinct(node: Any) -> Expression:
    left, right = _operand(node.this), _operand(node.expression)
    if not isinstance(left, _Path):
        left, right = right, left
    if not isinstance(left, _Path):
        _refuse(node, "compares no column", "Compare a column with a literal.")
    if right is None:
        return tree.IsNull(left)
    if not isinstance(right, _Path):
        return _never_null(left, right)
    nulls = [tree.IsNull(left), tree.IsNull(right)]
    both = tree.And((tree.ColumnComparison(left, "==", right), *map(tree.Not, nulls)))
    return tree.Or((both, tree.And(tuple(nulls))))


def _like(node: Any, escape: str | None = None) -> Expression:
    _only(node, "this", "expression", "negate")
    path, pattern = _column(node, node.this), _operand(node.expression)
    if pattern is None:
        return tree.Constant(None)
    if not isinstance(pattern, Untyped) or pattern.is_number:
        _refuse(node, "has a pattern that is not text in quotes", "Write LIKE 'a%'.")
    try:
        matches = like(path, pattern.text, escape)
    except ValueError as error:
        _refuse(node, f"has a wrong pattern: {error}", "Escape only %, _ and the escape character itself.")
    return tree.Not(matches) if node.args.get("negate") else matches


def _escape(node: Any) -> Expression:
    character = _operand(node.expression)
    if kind_of(node.this) != "Like" or not isinstance(character, Untyped) or len(character.text) != 1:
        _refuse(node, "has a wrong ESCAPE", "Write LIKE '10!%' ESCAPE '!', with one character.")
    return _like(node.this, character.text)


def _is_nan(node: Any) -> Expression:
    path = _column(node, node.this)
    return tree.ColumnComparison(path, "!=", path)  # null for null, true for NaN alone


def _text_function(make: Callable[[str, str], Expression]) -> Callable[[Any], Expression]:
    def read(node: Any) -> Expression:
        arguments = node.expressions if kind_of(node) == "Anonymous" else [node.this, node.expression]
        path, text = _column(node, arguments[0]), _operand(arguments[1])
        if not isinstance(text, Untyped) or text.is_number:
            _refuse(node, "needs text in quotes", "Write starts_with(name, 'a').")
        return make(path, text.text)

    return read


def _words(node_type: type[tree.HasTokens | tree.HasPhrase]) -> Callable[[str, str], Expression]:
    def make(path: str, text: str) -> Expression:
        words = tuple(tokens(text))
        if not words:
            raise ExpressionError(f"SQL condition: {_cut(text)} has no word", column=path, hint="Search with LIKE.")
        return node_type(path, words)

    return make


def _has(node: Any) -> Expression:
    arguments = node.expressions if kind_of(node) == "Anonymous" else [node.this, node.expression]
    path, value = _column(node, arguments[0]), _operand(arguments[1])
    if value is None or isinstance(value, _Path):
        _refuse(node, "needs a literal", "Write list_contains(tags, 'a').")
    return tree.Has(path, value)


def _box(node: Any) -> Expression:
    column, *corners = node.expressions
    numbers = [_operand(corner) for corner in corners]
    if not all(
        isinstance(number, (int, float)) or (isinstance(number, Untyped) and number.is_number) for number in numbers
    ):
        _refuse(node, "needs four numbers", "Write intersects_box(geometry, xmin, ymin, xmax, ymax).")
    path = _column(node, column)
    return box_predicate(path, [float(number.text) if isinstance(number, Untyped) else number for number in numbers])


_FUNCTIONS: Final[dict[str, Callable[[Any], Expression]]] = {
    "has_tokens": _text_function(_words(tree.HasTokens)),
    "has_phrase": _text_function(_words(tree.HasPhrase)),
    "list_contains": _has,
    "intersects_box": _box,
}


def _function(node: Any) -> Expression:
    make = _FUNCTIONS.get(str(node.this).lower())
    if make is None or len(node.expressions) != (5 if make is _box else 2):
        known = ", ".join(["starts_with", "contains", "isnan", "array_contains", *_FUNCTIONS])
        _refuse(node, "is a function that conditions do not have", f"Use one of {known}, or a comparison.")
    return make(node)


_CONDITIONS: Final[dict[str, Callable[[Any], Expression]]] = {
    "And": _junction(tree.And),
    "Or": _junction(tree.Or),
    "Not": _not,
    "Paren": lambda node: _condition(node.this),
    **dict.fromkeys(COMPARISONS, _comparison),
    "Between": _between,
    "In": _in,
    "Is": _is,
    "NullSafeEQ": _not_distinct,
    "NullSafeNEQ": lambda node: tree.Not(_not_distinct(node)),
    "Like": _like,
    "Escape": _escape,
    "IsNan": _is_nan,
    "StartsWith": _text_function(tree.StartsWith),
    "Contains": _text_function(tree.Contains),
    "ArrayContains": _has,
    "Anonymous": _function,
    "Boolean": lambda node: tree.Constant(bool(node.this)),
    "Null": lambda node: tree.Constant(None),
}
_HINTS: Final = {
    "Subquery": "Read the values of the subquery first, and write x IN (...).",
    "ILike": "Text is compared with its case; has_tokens(name, 'word') finds words in any case.",
    "RegexpLike": "Write LIKE, starts_with() or contains().",
    "SimilarTo": "Write LIKE, starts_with() or contains().",
    "Exists": "Read the values of the subquery first, and write x IN (...).",
}

# -- columns and literals -------------------------------------------------------------------------


def _path(node: Any) -> _Path | None:
    parts = name_parts(node)
    return None if parts is None else _Path(".".join(parts))


def _column(node: Any, operand: Any) -> str:
    path = _path(operand)
    if path is None:
        _refuse(node, f"tests {_cut(operand.sql(dialect=_dialect()))}, which is no column", _FORM)
    return str(path)


def _operand(node: Any) -> Any:
    """Return the path of a column, or the value of a literal; None is NULL."""
    path = _path(node)
    if path is not None:
        return path
    read = _LITERALS.get(kind_of(node))
    if read is None:
        _refuse(node, "is neither a column nor a literal", _OPERAND_HINTS.get(kind_of(node), _OPERAND_HINT))
    return read(node)


def _literal(node: Any) -> Scalar:
    text = str(node.this)
    if node.is_string:
        return Untyped(text, is_number=False)
    return _number(node, text)


def _number(node: Any, text: str) -> Scalar:
    if _WHOLE.fullmatch(text) and int(text) <= _EXACT:
        return int(text)
    if _NUMBER.fullmatch(text) is None:
        _refuse(node, "is not a number", "Write digits, such as 1000 or 2.5e3.")
    if abs(Decimal(text).adjusted()) > _DIGITS:
        _refuse(node, "has too many digits", "Write a number that a column can hold.")
    return Untyped(text, is_number=True)


def _negative(node: Any) -> Scalar:
    value = _operand(node.this)
    if isinstance(value, Untyped) and value.is_number:
        return Untyped(value.text.removeprefix("-") if value.text.startswith("-") else f"-{value.text}", is_number=True)
    if type(value) in (int, Decimal, float, dt.timedelta):
        return -value  # type: ignore[no-any-return]  # one of these
    _refuse(node, "is neither a column nor a literal", _OPERAND_HINT)


def _cast(node: Any) -> Scalar:
    value = _operand(node.this)
    if isinstance(value, _Path):
        _refuse(
            node, "casts a column", f"Compare {value} itself with a literal of its type, such as DATE '2024-05-01'."
        )
    if value is None:
        return None
    lengths = [int(one.this.this) for one in node.to.expressions if kind_of(one) == "DataTypeParam"]
    try:
        return typed_literal(node.to.this.name, value, lengths)
    except (ValueError, ArithmeticError) as error:
        _refuse(node, f"is no literal: {error}", "Write the value as the type has it.")


def _bytes(node: Any) -> Scalar:
    try:
        return bytes.fromhex(str(node.this))
    except ValueError:
        _refuse(node, "has not two hexadecimal digits for each byte", "Write X'00ff'.")


def _interval(node: Any) -> Scalar:
    try:
        return interval(str(node.this.this), "" if node.args.get("unit") is None else node.args["unit"].name)
    except (ValueError, ArithmeticError, AttributeError) as error:
        _refuse(node, f"is no length of time: {error}", "Write INTERVAL '7' DAY, with weeks or smaller units.")


def _sum(node: Any) -> Scalar:
    left, right = _operand(node.this), _operand(node.expression)
    if not isinstance(left, RelativeTime) or type(right) is not dt.timedelta:
        _refuse(node, "is a calculation", f"{_OPERAND_HINT} Only now() - INTERVAL '7' DAY is calculated.")
    return left + right if kind_of(node) == "Add" else left - right


def _now(node: Any) -> Scalar:
    if kind_of(node) == "Anonymous" and (str(node.this).lower() != "now" or node.expressions):
        _refuse(node, "is neither a column nor a literal", _OPERAND_HINT)
    return RelativeTime(dt.timedelta())


_LITERALS: Final[dict[str, Callable[[Any], Any]]] = {
    "Paren": lambda node: _operand(node.this),
    "Literal": _literal,
    "Neg": _negative,
    "Boolean": lambda node: bool(node.this),
    "Null": lambda node: None,
    "Cast": _cast,
    "HexString": _bytes,
    "Interval": _interval,
    "Add": _sum,
    "Sub": _sum,
    "CurrentTimestamp": _now,
    "Anonymous": _now,
}
_OPERAND_HINT: Final = "Compare a column with a literal: move calculations to the literal, and write their result."
_OPERAND_HINTS: Final = {
    "CurrentDate": "It depends on the time zone: write today's date, such as DATE '2024-05-01'.",
    "Any": "Write list_contains(tags, 'a') for an element of a list, or x IN (...).",
    "Subquery": "Read its value first, and write it.",
    "Placeholder": "Write the value itself.",
    "Parameter": "Write the value itself.",
    "Tuple": "Write (a = 1 AND b = 2) OR (a = 3 AND b = 4).",
    "Bracket": "A struct's field is s.field; list_contains(tags, 'a') tests a list.",
    "National": "Write the text in plain quotes.",
}
