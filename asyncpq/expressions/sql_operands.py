"""The operands of conditions in SQL: columns, parts of VARIANT columns, and literals.

Takes sqlglot's nodes and returns a :class:`ColumnPath` or the value of a literal; ``sql.py`` makes conditions of them.
A number or quoted text without a type becomes an :class:`asyncpq.expressions.scalars.Untyped`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import re
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

from asyncpq.checkpoints import checkpoint
from asyncpq.errors import ExpressionError
from asyncpq.expressions import tree
from asyncpq.expressions.scalars import (
    NANOSECONDS,
    Day,
    RelativeTime,
    Scalar,
    Timestamp,
    Untyped,
    day,
    days_of,
    time_of_day,
    timestamp,
)
from asyncpq.expressions.tree import (
    Expression,
    Function,
    FunctionTest,
    Path,
    VariantTest,
    text_hint,
    variant_path,
    variant_type,
)

_SHOWN: Final = 100  # characters of a part in an error
_DIGITS: Final = 400  # before or behind the point: more than any column holds
_EXACT: Final = 1 << 24  # every type of numbers holds smaller integers, or compares them exactly
_WHOLE: Final = re.compile(r"\d+", re.ASCII)
_SIGNED: Final = re.compile(r"-?\d+", re.ASCII)
_NUMBER: Final = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
FORM: Final = (
    "Write comparisons of columns and literals, joined with AND, OR and NOT, such as: id = 42 AND name LIKE 'a%'."
)
VARIANT_FORM: Final = "A part of a variant is try_variant_get(v, '$.a', 'bigint')."
#: Both names mean Spark's ``try_variant_get``: the name of the Python verb, and Spark's.
VARIANT_FUNCTIONS: Final = ("try_variant_get", "variant_get")
#: Functions of a column that conditions have, by sqlglot's nodes.
_FUNCTIONS: Final[dict[str, Function]] = {"Lower": "lower", "Upper": "upper", "Mod": "mod"}
_TESTS: Final = (tree.Comparison, tree.KeyIn, tree.IsNull, tree.StartsWith, tree.Contains, tree.Like)


class ColumnPath(str):
    """The dotted path of a column, such as ``address.city``."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The column of a comparison with this operand: the path as plain text."""
        return str(self)


class VariantOperand(ColumnPath):
    """A part of a VARIANT column, as an operand of a condition. As a string, it is the part's form in messages.

    While a condition is parsed, it stands in comparisons as their column; :func:`with_parts` then replaces these
    comparisons by :class:`VariantTest` nodes.
    """

    __slots__ = ("column", "path", "type")
    column: str
    path: Path
    type: str

    @classmethod
    def of(cls, column: str, path: str, type_: str) -> VariantOperand:
        """Return the part of ``column`` at a path such as ``$.a``, to be cast to the type that ``type_`` names. Raises
        ExpressionError if ``path`` is not a path, or the type is unknown."""
        kind = variant_type(type_.lower())
        operand = cls(f"variant_get({column}, {path!r}, {kind!r})")
        operand.column, operand.path, operand.type = column, variant_path(path), kind
        return operand

    @property
    def name(self) -> VariantOperand:
        """The column of a comparison with this operand: the operand itself, until :func:`with_parts` replaces it."""
        return self


class FunctionOperand(ColumnPath):
    """A function of a column, as an operand of a condition; as :class:`VariantOperand` otherwise."""

    __slots__ = ("column", "divisor", "function")
    column: str
    function: Function
    divisor: int

    @classmethod
    def of(cls, column: str, function: Function, divisor: int = 0) -> FunctionOperand:
        """Return the function of ``column``; ``divisor``: of ``mod``."""
        shown = "lower" if function == "folded" else function
        operand = cls(f"{column} % {divisor}" if function == "mod" else f"{shown}({column})")
        operand.column, operand.function, operand.divisor = column, function, divisor
        return operand

    @property
    def name(self) -> FunctionOperand:
        """The operand itself."""
        return self


def with_parts(expr: Expression) -> Expression:
    """Return ``expr`` with each comparison of a :class:`VariantOperand` replaced by a :class:`VariantTest`, and of a
    :class:`FunctionOperand` by a :class:`FunctionTest`.

    Raises ExpressionError if the kind of comparison is not supported for them.
    """

    def with_part(atom: tree.Atom) -> Expression:
        part = atom.column
        if not isinstance(part, (VariantOperand, FunctionOperand)):
            return atom
        if not isinstance(atom, _TESTS):
            what = "a part of a variant" if isinstance(part, VariantOperand) else "a function of a column"
            raise ExpressionError(
                f"SQL condition: {atom}: this test does not work on {what}",
                column=part.column,
                hint="Compare it, or write IN, LIKE, starts_with(), contains() or IS NULL.",
            )
        if isinstance(part, FunctionOperand):
            if isinstance(atom, tree.IsNull):
                return tree.IsNull(part.column)
            return FunctionTest(part.column, part.function, part.divisor, dataclasses.replace(atom, column=str(part)))
        return VariantTest(part.column, part.path, part.type, dataclasses.replace(atom, column=str(part)))

    return tree.replace_atoms(expr, with_part)


@functools.cache
def dialect() -> Any:
    """Return the SQL dialect for sqlglot: its own, which is the nearest to ANSI SQL, but ``X'00ff'`` means bytes, as in
    ANSI SQL."""
    import sqlglot

    class Tokenizer(sqlglot.Tokenizer):
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012  # as sqlglot declares it

    parts: dict[str, Any] = {"Tokenizer": Tokenizer}
    with contextlib.suppress(TypeError):  # the extra sqlglot[c] compiles it, which leaves little to wait for

        class Parser(sqlglot.Parser):
            def _advance(self, times: int = 1) -> None:
                checkpoint()
                super()._advance(times)

        parts["Parser"] = Parser
    return type("AsyncpqSql", (sqlglot.Dialect,), parts)


def cut(text: str) -> str:
    """Return the text of a condition, or of a part of it, for an error message: in quotes and shortened."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def refuse_column(node: Any, why: str, operand: ColumnPath, hint: str) -> NoReturn:
    """Raise ExpressionError about a node with a column where a text is expected; ``why`` and ``hint`` are as in
    :func:`refuse`."""
    refuse(node, why, hint if isinstance(operand, VariantOperand) else f"{hint} {text_hint(operand)}")


def refuse(node: Any, why: str, hint: str) -> NoReturn:
    """Raise ExpressionError about a node: its SQL text followed by ``why``, such as "has a part that ..."."""
    raise ExpressionError(f"SQL condition: {cut(node.sql(dialect=dialect()))} {why}", hint=hint)


def kind_of(node: Any) -> str:
    """Return the name of a node's class. Names are compared, since this module does not load sqlglot's classes."""
    return type(node).__name__


def name_parts(node: Any) -> list[str] | None:
    """Return a column's name and the names of struct fields below it, as a list; None if ``node`` is no column."""
    if kind_of(node) == "Paren":
        return name_parts(node.this)
    if kind_of(node) == "Dot":
        outer, parts = name_parts(node.this), [node.expression]
    elif kind_of(node) == "Column" and not node.args.get("join_mark"):
        outer, parts = [], list(node.parts)
    else:
        return None
    if outer is None or any(kind_of(part) != "Identifier" or not (part.name or part.quoted) for part in parts):
        return None
    return [*outer, *[part.name for part in parts]]


def path_of(node: Any) -> ColumnPath | None:
    """Return the operand for a node that is a column or a part of a variant; None for other nodes."""
    if kind_of(node) == "Paren":
        return path_of(node.this)
    if kind_of(node) == "Anonymous" and str(node.this).lower() in VARIANT_FUNCTIONS:
        return _variant_part(node)
    if kind_of(node) in _FUNCTIONS:
        return _function_of(node)
    parts = name_parts(node)
    return None if parts is None else ColumnPath(".".join(parts))


def _function_of(node: Any) -> FunctionOperand:
    function = _FUNCTIONS[kind_of(node)]
    parts = name_parts(node.this)
    if parts is None:
        refuse(node, "is a function of something else than a column", _OPERAND_HINT)
    column = ".".join(parts)
    if function != "mod":
        return FunctionOperand.of(column, function)
    divisor = operand_of(node.expression)
    if isinstance(divisor, Untyped) and divisor.is_number and _SIGNED.fullmatch(divisor.text):
        divisor = int(divisor.text)
    if type(divisor) is not int or not 0 < abs(divisor) < 1 << 63:
        refuse(node, "is not a remainder of a division by a whole number", "Write id % 10 = 3.")
    return FunctionOperand.of(column, function, abs(divisor))  # the remainder has the column's sign


def _variant_part(node: Any) -> VariantOperand:
    if len(node.expressions) != 3:
        refuse(node, "needs a column, a path and a type", VARIANT_FORM)
    parts = name_parts(node.expressions[0])
    if parts is None:
        refuse(node, "is about no column", VARIANT_FORM)
    path, type_ = (operand_of(argument) for argument in node.expressions[1:])
    if not all(isinstance(text, Untyped) and not text.is_number for text in (path, type_)):
        refuse(node, "needs its path and its type in quotes", VARIANT_FORM)
    return VariantOperand.of(".".join(parts), path.text, type_.text)


def column_of(node: Any, operand: Any) -> str:
    """Return the name of the column, or the part, that ``node`` tests. Raises ExpressionError if it tests none."""
    path = path_of(operand)
    if path is None:
        refuse(node, f"tests {cut(operand.sql(dialect=dialect()))}, which is no column", _form_of(operand, FORM))
    return path.name


def operand_of(node: Any) -> Any:
    """Return the path of a column, or the value of a literal; the value of NULL is None."""
    path = path_of(node)
    if path is not None:
        return path
    read = _LITERALS.get(kind_of(node))
    if read is None:
        refuse(node, "is neither a column nor a literal", _form_of(node, _OPERAND_HINT))
    return read(node)


def _form_of(node: Any, default: str) -> str:
    """Return a hint: what to write in place of a node that is neither a column nor a literal."""
    if kind_of(node) == "Anonymous" and str(node.this).lower() in _PARTS_ELSEWHERE:
        return VARIANT_FORM
    return _OPERAND_HINTS.get(kind_of(node), default)


def _literal(node: Any) -> Scalar:
    text = str(node.this)
    if node.is_string:
        return Untyped(text, is_number=False)
    return _number(node, text)


def _number(node: Any, text: str) -> Scalar:
    if _WHOLE.fullmatch(text) and len(text) <= _DIGITS and int(text) <= _EXACT:
        return int(text)
    if _NUMBER.fullmatch(text) is None:
        refuse(node, "is not a number", "Write digits, such as 1000 or 2.5e3.")
    if abs(Decimal(text).adjusted()) > _DIGITS:
        refuse(node, "has too many digits", "Write a number that a column can hold.")
    return Untyped(text, is_number=True)


def _negative(node: Any) -> Scalar:
    value = operand_of(node.this)
    if isinstance(value, Untyped) and value.is_number:
        return Untyped(value.text.removeprefix("-") if value.text.startswith("-") else f"-{value.text}", is_number=True)
    if type(value) in (int, Decimal, float, dt.timedelta):
        return -value  # type: ignore[no-any-return]  # one of these
    refuse(node, "is neither a column nor a literal", _OPERAND_HINT)


def _cast(node: Any) -> Scalar:
    value = operand_of(node.this)
    if isinstance(value, ColumnPath):
        refuse(
            node,
            "casts a column",
            f"date_trunc('day', {value}) = '2024-05-01' is that whole day of a timestamp."
            if str(node.to) == "DATE"
            else f"Compare {value} itself with a literal of its type, such as DATE '2024-05-01'. {VARIANT_FORM}",
        )
    if value is None:
        return None
    lengths = [int(one.this.this) for one in node.to.expressions if kind_of(one) == "DataTypeParam"]
    try:
        return typed_literal(node.to.this.name, value, lengths)
    except (ValueError, ArithmeticError) as error:
        refuse(node, f"is no literal: {error}", "Write the value as the type has it.")


def _bytes(node: Any) -> Scalar:
    try:
        return bytes.fromhex(str(node.this))
    except ValueError:
        refuse(node, "has not two hexadecimal digits for each byte", "Write X'00ff'.")


def _interval(node: Any) -> Scalar:
    try:
        return interval(str(node.this.this), "" if node.args.get("unit") is None else node.args["unit"].name)
    except (ValueError, ArithmeticError, AttributeError) as error:
        refuse(node, f"is no length of time: {error}", "Write INTERVAL '7' DAY, with weeks or smaller units.")


def _sum(node: Any) -> Scalar:
    left, right = operand_of(node.this), operand_of(node.expression)
    if not isinstance(left, RelativeTime) or type(right) is not dt.timedelta:
        refuse(node, "is a calculation", f"{_OPERAND_HINT} {_CALCULATED}")
    return left + right if kind_of(node) == "Add" else left - right


def _now(node: Any) -> Scalar:
    if kind_of(node) == "Anonymous" and (str(node.this).lower() != "now" or node.expressions):
        refuse(node, "is neither a column nor a literal", _form_of(node, _OPERAND_HINT))
    return RelativeTime(dt.timedelta())


_LITERALS: Final[dict[str, Callable[[Any], Any]]] = {
    "Paren": lambda node: operand_of(node.this),
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
#: Functions of other engines for parts of variants and JSON.
_PARTS_ELSEWHERE: Final = frozenset({"variant_extract", "get_path", "get", "json_value", "json_extract_string"})
_OPERAND_HINT: Final = "Compare a column with a literal: move calculations to the literal, and write their result."
_CALCULATED: Final = (
    "Only now() - INTERVAL '7' DAY is calculated. Text and dates stand in single quotes: name = 'u-1', "
    "day = '2026-05-01'."
)
_OPERAND_HINTS: Final = {
    "DateTrunc": "Compare it with a literal by =, <>, <, <=, >, >= or BETWEEN: date_trunc('day', ts) = '2024-05-01'.",
    **dict.fromkeys(
        ("Extract", "Year", "Quarter", "Month", "Week", "Day", "Date", "TsOrDsToDate"),
        "Write a range of the column: date_trunc('month', ts) = '2024-05-01' is May 2024.",
    ),
    "CurrentDate": "It depends on the time zone: write today's date, such as DATE '2024-05-01'.",
    "Any": "Write list_contains(tags, 'a') for an element of a list, or x IN (...).",
    "Subquery": "Read its value first, and write that value instead.",
    "Placeholder": "Write the value itself.",
    "Parameter": "Write the value itself.",
    "Tuple": "Write (a = 1 AND b = 2) OR (a = 3 AND b = 4).",
    "Bracket": f"A struct's field is s.field; list_contains(tags, 'a') tests a list. {VARIANT_FORM}",
    "JSONExtract": VARIANT_FORM,
    "JSONExtractScalar": VARIANT_FORM,
    "National": "Write the text in plain quotes.",
}


# -- literals that state their type ----------------------------------------------------------------
# DATE '2024-05-01', CAST('1.50' AS DECIMAL(5, 2)), ... Each function raises ValueError or ArithmeticError for a text
# that is not a value of the type, or that a conversion would change.


_DATE: Final = r"([+-]?\d{4,7})-(\d\d)-(\d\d)"
_CLOCK: Final = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
_ZONE: Final = r"(?: ?(?:(Z|UTC)|([+-])(\d\d)(?::?(\d\d))?))?"
_DATE_TEXT: Final = re.compile(_DATE, re.ASCII)
_CLOCK_TEXT: Final = re.compile(_CLOCK, re.ASCII)
_MOMENT_TEXT: Final = re.compile(f"{_DATE}(?:[ T]{_CLOCK}{_ZONE})?", re.ASCII)
_DAY: Final = 86_400 * NANOSECONDS["s"]
_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64, "INT128": 128}
_UNITS: Final = {
    "WEEK": dt.timedelta(weeks=1),
    "DAY": dt.timedelta(days=1),
    "HOUR": dt.timedelta(hours=1),
    "MINUTE": dt.timedelta(minutes=1),
    "SECOND": dt.timedelta(seconds=1),
    "MILLISECOND": dt.timedelta(milliseconds=1),
    "MICROSECOND": dt.timedelta(microseconds=1),
}


def typed_literal(target: str, value: Any, lengths: Sequence[int] = ()) -> Scalar:
    """Return the value of ``CAST(value AS target(lengths))``. ``target`` is sqlglot's name of the type; ``lengths`` are
    its parameters, such as precision and scale."""
    if target in _BITS or (target.startswith("U") and target[1:] in _BITS):
        return _integer(target, _decimal_of(value))
    if target == "DECIMAL":
        return _decimal(_decimal_of(value), lengths)
    if target == "DOUBLE":
        return float(_decimal_of(value))
    if isinstance(value, bytes):
        if target in ("BINARY", "VARBINARY") and not lengths:
            return value
        raise ValueError(f"bytes cannot be cast to {target}")
    if target in ("VARCHAR", "TEXT") and not isinstance(value, bool):
        return _text(value, lengths)
    make = _OF_TEXT.get(target)
    if make is None:
        raise ValueError(f"casts to {target} are not supported")
    if not isinstance(value, Untyped) or value.is_number:
        if target == "BOOLEAN" and isinstance(value, bool):
            return value
        raise ValueError(f"a value of type {target} must be written in quotes")
    if lengths:
        raise ValueError(f"{target} with a precision is not supported, because it may round the value")
    return make(value.text)


def date(text: str) -> dt.date | Day:
    """Parse a date of the form 2024-05-01. The year may have a sign and up to seven digits."""
    parts = _DATE_TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is not a date such as 2024-05-01")
    return day(days_of(*map(int, parts.groups())))


def moment(text: str) -> dt.datetime | Timestamp:
    """Parse a timestamp of the form ``2024-05-01 12:30:00.25``. With an offset, such as ``+02:00`` or ``Z``, it is an
    instant."""
    parts = _MOMENT_TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is not a time such as 2024-05-01 12:30:00")
    since_epoch = days_of(*map(int, parts.groups()[:3])) * _DAY + (
        _nanoseconds(*parts.groups()[3:7]) if parts[4] else 0
    )
    if not (parts[8] or parts[9]):
        return timestamp(since_epoch, None)
    offset = (int(parts[10]) * 60 + int(parts[11] or 0)) * 60 if parts[9] else 0
    since_epoch -= offset * NANOSECONDS["s"] * (-1 if parts[9] == "-" else 1)
    plain = timestamp(since_epoch, None)
    return plain.replace(tzinfo=dt.UTC) if isinstance(plain, dt.datetime) else Timestamp(since_epoch, "UTC")


def interval(text: str, unit: str) -> dt.timedelta:
    """Parse an SQL interval in units from weeks to microseconds: ``text`` is the quoted part, ``unit`` the next
    word."""
    amount, _, rest = text.strip().partition(" ")
    name = (unit or rest).strip().upper()
    step = _UNITS.get(name) or _UNITS.get(name.removesuffix("S"))
    if step is None or (unit and rest):
        raise ValueError(f"{' '.join(filter(None, [text, unit]))!r} must have one unit, from weeks to microseconds")
    micros = _decimal_of(Untyped(amount, is_number=True)) * (step // dt.timedelta(microseconds=1))
    if micros != int(micros):
        raise ValueError(f"{text!r} is finer than a microsecond")
    return dt.timedelta(microseconds=int(micros))


def clock(text: str) -> Scalar:
    """Parse a time of day of the form ``12:30:00.25``."""
    parts = _CLOCK_TEXT.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text!r} is not a time of day such as 12:30:00")
    return time_of_day(_nanoseconds(*parts.groups()))


def _nanoseconds(hours: str, minutes: str, seconds: str | None, fraction: str | None) -> int:
    clock = dt.time(int(hours), int(minutes), int(seconds or 0))  # checks the ranges
    whole = (clock.hour * 60 + clock.minute) * 60 + clock.second
    return whole * NANOSECONDS["s"] + int((fraction or "").ljust(9, "0"))


def _zoned(text: str) -> Scalar:
    value = moment(text)
    if (value.timezone if isinstance(value, Timestamp) else value.tzinfo) is None:
        raise ValueError("the time has no offset from UTC, such as +00:00")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


_OF_TEXT: Final[dict[str, Callable[[str], Scalar]]] = {
    "DATE": date,
    "TIME": clock,
    "TIMESTAMP": moment,  # with an offset it has a zone, as in ANSI
    "TIMESTAMPNTZ": moment,
    "DATETIME": moment,
    "TIMESTAMPTZ": _zoned,
    "UUID": uuid.UUID,
    "BOOLEAN": _boolean,
}


def _decimal_of(value: Any) -> Decimal:
    if type(value) in (int, Decimal):
        return Decimal(value)
    number = Decimal(value.text.strip()) if isinstance(value, Untyped) else None
    if number is None or not number.is_finite():
        raise ValueError("the value is not a finite number")
    return number


def _integer(target: str, number: Decimal) -> int:
    bits = _BITS.get(target)
    low, high = (0, 1 << _BITS[target[1:]]) if bits is None else (-1 << bits - 1, 1 << bits - 1)
    if number != number.to_integral_value():
        raise ValueError("SQL engines disagree on how to round the value")
    if not low <= number < high:
        raise ValueError(f"the value is out of the range of {target}")
    return int(number)


def _decimal(number: Decimal, lengths: Sequence[int]) -> Decimal:
    if not lengths:
        return number
    precision, scale = (*lengths, 0)[:2]
    _, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int), "it is finite"
    if -exponent > scale or len(digits) + exponent > precision - scale:
        raise ValueError(f"DECIMAL({precision}, {scale}) cannot represent the number exactly")
    return number


def _text(value: Any, lengths: Sequence[int]) -> str:
    text = value.text if isinstance(value, Untyped) else str(value)
    if isinstance(value, (float, dt.date, Day, dt.timedelta)) or (isinstance(value, Untyped) and value.is_number):
        raise ValueError("SQL engines disagree on how to write the value as text")
    if lengths and len(text) > lengths[0]:
        raise ValueError(f"the text has more than {lengths[0]} characters")
    return text
