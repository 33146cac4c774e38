"""Conditions in SQL as predicates, with ANSI's rules for nulls: ``parse_sql("id = 42 AND name LIKE 'a%'")``.

A predicate has exactly the condition's meaning. If no predicate has the meaning of a part of the condition,
ExpressionError says what to write instead. sqlglot parses the text. It is loaded when the first condition is parsed, so
the code tells sqlglot's nodes apart by the names of their classes.

A number or quoted text has no type of its own: it becomes :class:`asyncpq.expressions.scalars.Untyped`, which takes the
column's type, as in SQL engines. ``DATE '...'``, ``CAST(... AS ...)`` and the like have a type. ``sql_operands.py``
reads columns and literals.

ANSI SQL's LIKE patterns have an escape character only if an ESCAPE clause names one. Those of :class:`tree.Like` have
the backslash.

A truncated time (``date_trunc``) is at least a literal where the time itself is at least the literal, rounded up to the
unit. So each comparison is a range of the column, which bounds can answer. Times with an offset are truncated in UTC.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final

from asyncpq.checkpoints import checkpoint
from asyncpq.errors import ExpressionError, UsageError, install_hint
from asyncpq.expressions import tree
from asyncpq.expressions.builder import box_predicate
from asyncpq.expressions.scalars import Scalar, Untyped
from asyncpq.expressions.sql_operands import (
    FORM,
    VARIANT_FORM,
    VARIANT_FUNCTIONS,
    ColumnPath,
    FunctionOperand,
    VariantOperand,
    column_of,
    cut,
    dialect,
    kind_of,
    moment,
    operand_of,
    path_of,
    refuse,
    refuse_column,
    with_parts,
)
from asyncpq.expressions.tokens import tokens
from asyncpq.expressions.tree import Expression

#: The operators of sqlglot's comparisons.
_COMPARISONS: Final[dict[str, tree.CompareOp]] = {
    "EQ": "==",
    "NEQ": "!=",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
}
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*\"""")
_JOINTS: Final = re.compile(r"\b(?:AND|OR|BETWEEN)\b", re.IGNORECASE)
_BRACKETS: Final = re.compile(r"[()]")
_MAX_BRACKETS: Final = 200  # inside of each other: sqlglot follows them by recursion, and ends at fewer
_HEX_NUMBER: Final = re.compile(r"\b0[xX][0-9a-fA-F]")
#: Parts of a query before and after its condition.
_LEADING: Final = re.compile(r"\s*(SELECT\b.*\bFROM|WHERE)\s+[\w(]", re.IGNORECASE | re.DOTALL)
_TRAILING: Final = re.compile(r"(?:^|\s)(LIMIT|OFFSET|ORDER\s+BY|GROUP\s+BY|HAVING|QUALIFY)\s+[\w(-]", re.IGNORECASE)
_RESERVED: Final = 'Write names that are keywords of SQL, or have spaces, in double quotes: "from" = 1.'
_BEFORE: Final = "SELECT 1 WHERE "
_MANY: Final = 64  # equalities that are parsed as a list
_LITERAL: Final = r"(?:-?\d+(?:\.\d+)?(?![\w.])|'[^'\\]*'(?!'))"
#: Quoted text; or equalities of one column joined by OR, which are all of a text or of what brackets enclose.
_EQUALITIES: Final = re.compile(
    r"""'[^']*'|"[^"]*"|(?:(?<=\()|\A)\s*(?P<name>[A-Za-z_]\w*)\s*=\s*LITERAL"""
    r"""(?:\s+(?i:OR)\s+(?P=name)\s*=\s*LITERAL){MOST,}\s*(?=\)|\Z)""".replace("LITERAL", _LITERAL).replace(
        "MOST", str(_MANY - 1)
    )
)
_EQUAL_TO: Final = re.compile(rf"=\s*({_LITERAL})")
_COMMENT: Final = re.compile(r"--|/\*|\$\$|#")


def parse_sql(text: str) -> Expression:
    """Convert a condition in SQL, the text that would follow WHERE, to a predicate.

    Raises:
        ExpressionError: the text is not a condition, or no predicate has exactly the meaning of a part of it.
        UsageError: sqlglot is not installed.
    """
    try:
        import sqlglot.errors  # noqa: F401  # for its error
    except ModuleNotFoundError as error:
        raise UsageError(
            "a condition in SQL requires the package sqlglot, which is not installed",
            hint=install_hint("sqlglot", "cli"),
        ) from error
    if not text.strip():
        raise ExpressionError("the SQL condition is empty", hint="Leave the condition out to read all rows.")
    unquoted = _QUOTED.sub("''", text)
    if _HEX_NUMBER.search(unquoted):
        raise ExpressionError(
            f"SQL condition {cut(text)}: 0x... may mean a number or bytes", hint="Write X'1F' for bytes."
        )
    levels = accumulate(1 if bracket == "(" else -1 for bracket in _BRACKETS.findall(unquoted))
    if max(levels, default=0) > _MAX_BRACKETS:
        raise _too_deep(text)
    shorter = _with_lists(text)
    if shorter != text:
        with contextlib.suppress(ExpressionError):  # whose text the user did not write
            return _parsed(shorter)
    return _parsed(text)


def _parsed(text: str) -> Expression:
    import sqlglot.errors

    statements: list[Any] = []
    try:
        # In a query, since a text alone may be taken for a statement, such as SET x = 1.
        statements = sqlglot.parse(f"{_BEFORE}{text}", dialect=dialect())
        query = statements[0]
        clauses = set() if query is None else {name for name, part in query.args.items() if part}
        is_condition = len(statements) == 1 and kind_of(query) == "Select" and clauses == {"expressions", "where"}
        if not is_condition or text.rstrip().endswith(","):
            raise ExpressionError(f"{cut(text)} is not one SQL condition", hint=_more_than_condition(text) or FORM)
        condition = _condition(query.args["where"].this)  # type: ignore[union-attr]  # it is a query
        return with_parts(tree.require_shallow(condition))
    except sqlglot.errors.SqlglotError as error:
        variant = f" {VARIANT_FORM}" if ":" in _QUOTED.sub("", text) else ""  # as in v:a.b
        raise ExpressionError(
            f"SQL condition {cut(text)}: {_syntax_error(error)}",
            hint=_more_than_condition(text) or f"{FORM} {_RESERVED}{variant}",
        ) from error
    except RecursionError as error:
        raise _too_deep(text) from error
    finally:
        _unlink(statements)


def _unlink(statements: list[Any]) -> None:
    """Cut the links of sqlglot's nodes to their parents. Else each tree would stay until the garbage collector runs,
    and make it run often."""
    for statement in statements:
        for node in () if statement is None else statement.walk():
            node.parent = None


def _with_lists(text: str) -> str:
    """Write ``x = 1 OR x = 2 OR ...`` of many terms as ``x IN (1, 2, ...)``, which means the same: sqlglot takes
    several times as long for an equality as for an element of a list."""
    if _COMMENT.search(text) or "\\" in text:
        return text
    return _EQUALITIES.sub(_with_list, text)


def _with_list(match: re.Match[str]) -> str:
    name = match["name"]
    return match[0] if name is None else f"{name} IN ({', '.join(_EQUAL_TO.findall(match[0]))})"


def num_joined(text: str) -> int:
    """Return how many conditions AND and OR join in a text of SQL, without parsing it."""
    words = Counter(map(str.upper, _JOINTS.findall(_QUOTED.sub("", text))))
    return words["AND"] + words["OR"] - words["BETWEEN"] + 1


def _too_deep(text: str) -> ExpressionError:
    return ExpressionError(
        f"SQL condition {cut(text)}: it is nested too deeply",
        hint="Write fewer brackets and NOTs inside one another; and x IN (...) for many values.",
    )


def _more_than_condition(text: str) -> str | None:
    """Return a hint for a condition with other parts of a query around it; None if there is none."""
    unquoted = re.split("['\"]", _QUOTED.sub("x", text), maxsplit=1)[0]
    if _LEADING.match(unquoted):
        return "Leave out the words up to WHERE: only the condition after it is expected."
    clause = _TRAILING.search(unquoted)
    if clause is None:
        return None
    name = " ".join(clause[1].upper().split())
    return (
        "Leave out LIMIT: the limit is an option of its own."
        if name == "LIMIT"
        else f"Leave out {name}: only the condition is expected."
    )


def _syntax_error(error: Any) -> str:
    details = getattr(error, "errors", None)
    if not details:
        return "a quote or bracket is not closed"
    first = details[0]
    column = first["col"] - (len(_BEFORE) if first["line"] == 1 else 0)
    if column < 1:
        return "there is no condition"
    word = first["highlight"]
    column -= len(word) - 1  # sqlglot counts to the word's end
    return f"syntax error at {word!r} (line {first['line']}, column {max(column, 1)})"


# -- conditions -----------------------------------------------------------------------------------


def _condition(node: Any) -> Expression:
    checkpoint()
    make = _CONDITIONS.get(kind_of(node))
    if make is not None:
        return make(node)
    path = path_of(node)
    if isinstance(path, FunctionOperand):
        refuse(node, "is not a condition that asyncpq can evaluate", "Compare it: id % 10 = 3, lower(name) = 'a'.")
    if path is not None:  # a column of booleans
        return tree.Comparison(path.name, "==", True)
    hint = _HINTS.get(kind_of(node), FORM)
    refuse(node, "is not a condition that asyncpq can evaluate", hint)


def _only(node: Any, *known: str) -> None:
    """Raise ExpressionError if a node has arguments other than ``known``, such as the subquery of an IN."""
    others = [name for name, value in node.args.items() if value and name not in known]
    if others:
        form = "Write the values of IN in brackets: id IN (1, 2)." if others == ["field"] else FORM
        refuse(node, f"has a part that asyncpq cannot evaluate ({', '.join(others)})", form)


def _junction(join: type[tree.And | tree.Or]) -> Callable[[Any], Expression]:
    def read(node: Any) -> Expression:
        # not by recursion: generated conditions have thousands of terms
        return join(tuple([_condition(term) for term in node.flatten()]))

    return read


def _not(node: Any) -> Expression:
    return tree.Not(_condition(node.this))


def _comparison(node: Any) -> Expression:
    op = _COMPARISONS[kind_of(node)]
    if is_truncation(node.this) or is_truncation(node.expression):
        return compare_truncated(node, op, node.this, node.expression)
    return _compared(node, op, operand_of(node.this), operand_of(node.expression))


def _compared(node: Any, op: tree.CompareOp, left: Any, right: Any) -> Expression:
    if isinstance(left, ColumnPath):
        if isinstance(right, ColumnPath):
            return _columns_compared(node, left, op, right)
        return tree.Comparison(left.name, op, right)
    if isinstance(right, ColumnPath):
        return tree.Comparison(right.name, tree.MIRRORED[op], left)
    left, right = _plain(left), _plain(right)
    if left is None or right is None:
        return tree.Constant(None)
    numbers = (int, Decimal)
    if type(left) is not type(right) and not (type(left) in numbers and type(right) in numbers):
        refuse(node, "compares literals of different types", "Compare a column with a literal.")
    return tree.Constant(tree.OPERATORS[op](left, right))


def _columns_compared(node: Any, left: str, op: tree.CompareOp, right: str) -> Expression:
    for kind, what in ((VariantOperand, "a part of a variant"), (FunctionOperand, "a function of a column")):
        if isinstance(left, kind) or isinstance(right, kind):
            refuse(node, f"compares {what} with a column", "Compare it with a literal.")
    return tree.ColumnComparison(str(left), op, str(right))


def _plain(value: Any) -> Any:
    """Return a literal without a column as a Python value that compares with other literals; numbers become Decimal."""
    if isinstance(value, Untyped):
        return Decimal(value.text) if value.is_number else value.text
    return Decimal(value) if type(value) is int else value


def _between(node: Any) -> Expression:
    _only(node, "this", "low", "high")
    if is_truncation(node.this):
        truncated, low, high = node.this, node.args["low"], node.args["high"]
        above = compare_truncated(node, ">=", truncated, low)
        return tree.And((above, compare_truncated(node, "<=", truncated, high)))
    value, low, high = operand_of(node.this), operand_of(node.args["low"]), operand_of(node.args["high"])
    return tree.And((_compared(node, ">=", value, low), _compared(node, "<=", value, high)))


def _in(node: Any) -> Expression:
    """Convert ``x IN (...)`` to a predicate. It is null where x is null, and, if a NULL is among the values, where no
    value equals x."""
    _only(node, "this", "expressions")
    path = column_of(node, node.this)
    values = [operand_of(item) for item in node.expressions]
    named = next((value for value in values if isinstance(value, ColumnPath)), None)
    if named is not None:
        refuse_column(node, "has a column among the values", named, "Write x = y OR x = z for columns.")
    if not values:
        refuse(node, "has no values", "Write FALSE, or at least one value.")
    keys = tuple([value for value in values if value is not None])
    found: Expression = tree.Comparison(path, "==", keys[0]) if len(keys) == 1 else tree.KeyIn(path, keys)
    if len(keys) == len(values):
        return found
    return tree.Or((found, tree.Constant(None))) if keys else tree.Constant(None)


def _is(node: Any) -> Expression:
    path = column_of(node, node.this)
    if kind_of(node.expression) == "Null":
        return tree.IsNull(path)
    if kind_of(node.expression) == "Boolean":
        return _never_null(path, bool(node.expression.this))
    refuse(
        node,
        "is a test that asyncpq does not know",
        "Write IS NULL, IS NOT NULL, IS TRUE or IS FALSE; isnan(x) tests for NaN.",
    )


def _never_null(path: str, value: Scalar) -> Expression:
    return tree.And((tree.Comparison(path, "==", value), tree.Not(tree.IsNull(path))))


def _not_distinct(node: Any) -> Expression:
    left, right = operand_of(node.this), operand_of(node.expression)
    if not isinstance(left, ColumnPath):
        left, right = right, left
    if not isinstance(left, ColumnPath):
        refuse(node, "compares no column", "Compare a column with a literal.")
    if right is None:
        return tree.IsNull(left.name)
    if not isinstance(right, ColumnPath):
        return _never_null(left.name, right)
    nulls = [tree.IsNull(left.name), tree.IsNull(right.name)]
    both = tree.And((_columns_compared(node, left, "==", right), *map(tree.Not, nulls)))
    return tree.Or((both, tree.And(tuple(nulls))))


def _like(node: Any, escape: str | None = None) -> Expression:
    _only(node, "this", "expression", "negate")
    path, pattern = column_of(node, node.this), operand_of(node.expression)
    ignores_case = kind_of(node) == "ILike"
    if ignores_case and isinstance(path, (FunctionOperand, VariantOperand)):
        refuse(node, "has ILIKE of something else than a column", "Write name ILIKE 'a%', or lower(name) LIKE 'a%'.")
    if pattern is None:
        return tree.Constant(None)
    if isinstance(pattern, ColumnPath):
        refuse_column(node, "has a pattern that is not text in quotes", pattern, "Write LIKE 'a%'.")
    if not isinstance(pattern, Untyped) or pattern.is_number:
        refuse(node, "has a pattern that is not text in quotes", "Write LIKE 'a%'.")
    text = pattern.text
    if ignores_case:  # as SQL engines evaluate it
        path = FunctionOperand.of(path, "folded")
    try:
        matches = like(path, text, escape)
    except ExpressionError as error:
        refuse(node, f"has a wrong pattern: {error.message}", error.hint or FORM)
    except ValueError as error:
        refuse(node, f"has a wrong pattern: {error}", "Escape only %, _ and the escape character itself.")
    return tree.Not(matches) if node.args.get("negate") else matches


def _escape(node: Any) -> Expression:
    character = operand_of(node.expression)
    if kind_of(node.this) not in ("Like", "ILike") or not isinstance(character, Untyped) or len(character.text) != 1:
        refuse(node, "has a wrong ESCAPE", "Write LIKE '10!%' ESCAPE '!', with one character.")
    return _like(node.this, character.text)


def _is_nan(node: Any) -> Expression:
    path = column_of(node, node.this)
    if isinstance(path, FunctionOperand):
        refuse(node, "is a test that does not work on a function of a column", FORM)
    return tree.is_nan(path)


def _text_function(make: Callable[[str, str], Expression]) -> Callable[[Any], Expression]:
    def read(node: Any) -> Expression:
        arguments = node.expressions if kind_of(node) == "Anonymous" else [node.this, node.expression]
        path, text = column_of(node, arguments[0]), operand_of(arguments[1])
        if isinstance(text, ColumnPath):
            refuse_column(node, "needs text in quotes", text, "Write starts_with(name, 'a').")
        if not isinstance(text, Untyped) or text.is_number:
            refuse(node, "needs text in quotes", "Write starts_with(name, 'a').")
        return make(path, text.text)

    return read


def _words(node_type: type[tree.HasTokens | tree.HasPhrase]) -> Callable[[str, str], Expression]:
    def make(path: str, text: str) -> Expression:
        words = tuple(tokens(text))
        if not words:
            raise ExpressionError(f"SQL condition: {cut(text)} has no word", column=path, hint="Search with LIKE.")
        return node_type(path, words)

    return make


def _has(node: Any) -> Expression:
    arguments = node.expressions if kind_of(node) == "Anonymous" else [node.this, node.expression]
    path, value = column_of(node, arguments[0]), operand_of(arguments[1])
    if isinstance(value, ColumnPath):
        refuse_column(node, "needs a literal", value, "Write list_contains(tags, 'a').")
    if value is None:
        refuse(node, "needs a literal", "Write list_contains(tags, 'a').")
    return tree.Has(path, value)


def _box(node: Any) -> Expression:
    column, *corners = node.expressions or [None]
    numbers = [operand_of(corner) for corner in corners]
    if len(numbers) != 4 or not all(
        isinstance(number, (int, float)) or (isinstance(number, Untyped) and number.is_number) for number in numbers
    ):
        refuse(node, "needs four numbers", "Write intersects_box(geometry, xmin, ymin, xmax, ymax).")
    path = column_of(node, column)
    return box_predicate(path, [float(number.text) if isinstance(number, Untyped) else number for number in numbers])


_FUNCTIONS: Final[dict[str, Callable[[Any], Expression]]] = {
    "has_tokens": _text_function(_words(tree.HasTokens)),
    "has_phrase": _text_function(_words(tree.HasPhrase)),
    "list_contains": _has,
    "intersects_box": _box,
}


def _function(node: Any) -> Expression:
    part = path_of(node)
    if part is not None:  # a part of a variant that is a boolean
        return tree.Comparison(part.name, "==", True)
    make = _FUNCTIONS.get(str(node.this).lower())
    if make is None or (make is not _box and len(node.expressions) != 2):
        known = ", ".join(["starts_with", "contains", "isnan", "array_contains", *_FUNCTIONS, *VARIANT_FUNCTIONS])
        refuse(node, "is a function that conditions do not have", f"Use one of {known}, or a comparison.")
    return make(node)


_CONDITIONS: Final[dict[str, Callable[[Any], Expression]]] = {
    "And": _junction(tree.And),
    "Or": _junction(tree.Or),
    "Not": _not,
    "Paren": lambda node: _condition(node.this),
    **dict.fromkeys(_COMPARISONS, _comparison),
    "Between": _between,
    "In": _in,
    "Is": _is,
    "NullSafeEQ": _not_distinct,
    "NullSafeNEQ": lambda node: tree.Not(_not_distinct(node)),
    "Like": _like,
    "ILike": _like,
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
    "RegexpLike": "Write LIKE, starts_with() or contains().",
    "SimilarTo": "Write LIKE, starts_with() or contains().",
    "Exists": "Read the values of the subquery first, and write x IN (...).",
}


def like(column: str, pattern: str, escape: str | None) -> Expression:
    """Return the predicate ``column LIKE pattern ESCAPE escape``; ``escape`` None means no ESCAPE clause. Raises
    ValueError if the escape character is not followed by ``%``, ``_`` or itself."""
    pieces = _pieces(pattern, escape)
    texts = [text for text, wildcard in pieces if not wildcard]
    if not any(wildcard for _, wildcard in pieces):
        return tree.Comparison(column, "==", "".join(texts))
    if not any("\\" in text for text in texts):
        return tree.Like(column, _joined(pieces))
    # pyarrow takes two backslashes for two characters in the patterns "a%", "%a" and "%a%", for one in all others
    begins, ends = pieces[0] == ("%", True), pieces[-1] == ("%", True)
    inner = pieces[begins : len(pieces) - ends]
    if any(wildcard for _, wildcard in inner):
        return tree.Like(column, _joined(pieces))
    text = "".join(texts)
    if begins and ends:
        return tree.Contains(column, text)
    if ends:
        return tree.StartsWith(column, text)
    longer = tree.Like(column, _joined([("_", True), *pieces]))
    return tree.Or((tree.Comparison(column, "==", text), longer))


def _pieces(pattern: str, escape: str | None) -> list[tuple[str, bool]]:
    """Split the pattern into pairs: a character, and whether it is a wildcard. Several ``%`` in a row become one."""
    pieces: list[tuple[str, bool]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                wrong = f"is followed by {escaped!r}" if escaped else "ends the pattern"
                raise ValueError(f"the escape character {escape!r} {wrong}; it must be followed by %, _ or itself")
            pieces.append((escaped, False))
        elif character != "%" or not pieces or pieces[-1] != ("%", True):
            pieces.append((character, character in "%_"))
    return pieces


def _joined(pieces: list[tuple[str, bool]]) -> str:
    return "".join([text if wildcard or text not in "%_\\" else f"\\{text}" for text, wildcard in pieces])


_FORM: Final = "Write date_trunc('day', ts) = TIMESTAMP '2024-05-01 00:00:00', with a column and one literal."
_MONTHS: Final = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_DAYS: Final = {"DAY": 1, "WEEK": 7}
_SECONDS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600}


def is_truncation(node: Any) -> bool:
    """Return whether a node is a call of date_trunc."""
    return kind_of(node) == "DateTrunc" or (kind_of(node) == "Paren" and is_truncation(node.this))


def compare_truncated(node: Any, op: tree.CompareOp, left: Any, right: Any) -> Expression:
    """Return the range of the column in which ``left op right`` is true; one of the two is a call of date_trunc.
    ``node`` is named in errors.

    Raises ExpressionError if the other side is no literal of a time, or the unit is unknown.
    """
    if not is_truncation(left):
        left, right, op = right, left, tree.MIRRORED[op]
    while kind_of(left) == "Paren":
        left = left.this
    unit = str(left.args["unit"].name).upper()
    if left.args.get("zone") or unit not in {*_MONTHS, *_DAYS, *_SECONDS}:
        known = ", ".join([*_SECONDS, *_DAYS, *_MONTHS]).lower()
        refuse(node, "truncates to a unit that asyncpq does not know", f"Use one of {known}.")
    column, value = operand_of(left.this), None if is_truncation(right) else operand_of(right)
    if not isinstance(column, ColumnPath) or is_truncation(right) or isinstance(value, ColumnPath):
        refuse(node, "does not compare a truncated column with a literal", _FORM)
    if value is None:
        return tree.Constant(None)
    time, bound_of = _literal(node, value)
    try:
        below = _floor(time, unit)
        above = _next(below, unit)
    except (OverflowError, ValueError):
        refuse(node, "truncates to a time beyond the years 1 to 9999", "Compare the column itself.")
    first = below if below == time else above  # the least truncated time that is not less than the literal

    def is_from(bound: dt.datetime) -> Expression:
        return tree.Comparison(column.name, ">=", bound_of(bound))

    def is_before(bound: dt.datetime) -> Expression:
        return tree.Comparison(column.name, "<", bound_of(bound))

    if op in ("==", "!="):
        # false, or null for null, where no truncated time equals the literal
        equal = tree.And((is_from(first), is_before(above)))
        return equal if op == "==" else tree.Not(equal)
    return {">=": is_from(first), ">": is_from(above), "<": is_before(first), "<=": is_before(above)}[op]


def _literal(node: Any, value: Any) -> tuple[dt.datetime, Callable[[dt.datetime], Scalar]]:
    """Return a literal as a time, and a function that makes literals of its kind of other times."""
    if isinstance(value, Untyped) and not value.is_number:
        try:
            parsed = moment(value.text)
        except ValueError as error:
            refuse(node, f"is about no time: {error}", _FORM)
        if isinstance(parsed, dt.datetime):
            return parsed, _untyped
    if isinstance(value, dt.datetime):
        return value, lambda time: time
    if isinstance(value, dt.date):  # a date, or a time at midnight, as the column has it
        return dt.datetime(value.year, value.month, value.day), _untyped
    refuse(node, "does not compare with a time in microseconds of the years 1 to 9999", _FORM)


def _untyped(time: dt.datetime) -> Untyped:
    midnight = time.tzinfo is None and time.time() == dt.time()
    return Untyped(time.date().isoformat() if midnight else time.isoformat(" "), is_number=False)


def _floor(time: dt.datetime, unit: str) -> dt.datetime:
    if unit in _SECONDS:
        inside = time - time.replace(hour=0, minute=0, second=0, microsecond=0)
        return time - inside % dt.timedelta(seconds=_SECONDS[unit])
    day = time.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit in _DAYS:
        return day - dt.timedelta(days=day.weekday() if unit == "WEEK" else 0)
    months = _MONTHS[unit]
    return day.replace(month=(day.month - 1) // months * months + 1, day=1)


def _next(time: dt.datetime, unit: str) -> dt.datetime:
    if unit in _SECONDS:
        return time + dt.timedelta(seconds=_SECONDS[unit])
    if unit in _DAYS:
        return time + dt.timedelta(days=_DAYS[unit])
    years, month = divmod(time.month - 1 + _MONTHS[unit], 12)
    return time.replace(year=time.year + years, month=month + 1)
