"""Random typed columns and predicates, and two oracles for them: pyarrow's engine, and a model in plain Python."""

from __future__ import annotations

import datetime as dt
import functools
import math
import operator
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume
from hypothesis import strategies as st

from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
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
)
from asyncpq.expressions import atoms as atoms_of
from asyncpq.expressions.scalars import Timestamp
from tests import words

UTC = dt.UTC
PARIS = dt.timezone(dt.timedelta(hours=2))
DAY = dt.datetime(2024, 2, 29)
LIST = "list"  # the kind of columns of lists of 32-bit integers
WORDS = (HasTokens, HasPhrase)  # of which pyarrow has no form
INSIDE = (*WORDS, Contains, Like)  # of which ranges and bounds know little
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NAN = math.nan


def _single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _times(zone: dt.tzinfo | None, step: dt.timedelta) -> st.SearchStrategy[Any]:
    return st.integers(-3, 6).map(lambda n: (DAY + n * step).replace(tzinfo=zone))


_FLOATS = st.sampled_from([0.0, -0.0, NAN, 1.0, -1.0, 1.5, 2.0, 3.0, math.inf, -math.inf, 0.1, 16777216.0])
_TEXT = st.sampled_from(["", "a", "ab", "abc", "b", "ba", "é", "z" * 70, "z" * 70 + "a", "zz", "a B-é", "b_a%", "\n"])
_PATTERNS = st.sampled_from(
    ["", "%", "_", "a%", "%b", "%a%", "a_%", "_b", "é%", "z%a", "b\\_a%", "%\\%", "\\%%", "%a B%"]
)
_TOKENS = st.lists(st.sampled_from(["a", "b", "é", "ab", "zz"]), min_size=1, max_size=2).map(tuple)
_BYTES = st.sampled_from([b"", b"a", b"ab", b"\xff", b"\xff\xff", b"b", b"\x00"])
_DECIMALS = st.integers(-5, 12).map(lambda n: Decimal(n) / 4)
_UUIDS = st.integers(0, 6).map(lambda n: uuid.UUID(int=n << 124 | n))

# For each kind of column its Arrow type and its values.
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-4, 6)),
    "int32": (pa.int32(), st.integers(-4, 6) | st.sampled_from([-(2**31), 2**31 - 1])),
    "int64": (pa.int64(), st.integers(-4, 6) | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 2**24 + 1])),
    "uint8": (pa.uint8(), st.integers(0, 6) | st.just(255)),
    "uint32": (pa.uint32(), st.integers(0, 6) | st.just(2**32 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 6) | st.sampled_from([2**63, 2**64 - 1])),
    "float32": (pa.float32(), _FLOATS.map(_single)),
    "float64": (pa.float64(), _FLOATS),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), _TEXT),
    "large_string": (pa.large_string(), _TEXT),
    "binary": (pa.binary(), _BYTES),
    "fixed": (pa.binary(2), st.sampled_from([b"aa", b"ab", b"b\x00", b"\xff\xff"])),
    "date32": (pa.date32(), st.integers(-3, 6).map(lambda n: DAY.date() + dt.timedelta(n))),
    "timestamp_ms": (pa.timestamp("ms"), _times(None, dt.timedelta(hours=8))),
    "timestamp_us": (pa.timestamp("us"), _times(None, dt.timedelta(microseconds=1))),
    "timestamp_utc": (pa.timestamp("us", "UTC"), _times(UTC, dt.timedelta(hours=8))),
    "timestamp_zone": (pa.timestamp("ms", "+02:00"), _times(UTC, dt.timedelta(hours=8))),
    "time32": (pa.time32("ms"), st.integers(0, 6).map(lambda n: dt.time(n))),
    "time64": (pa.time64("us"), st.integers(0, 6).map(lambda n: dt.time(0, 0, 0, n))),
    "duration": (pa.duration("us"), st.integers(-2, 4).map(lambda n: dt.timedelta(n))),
    "decimal": (pa.decimal128(7, 2), _DECIMALS),
    "wide_decimal": (pa.decimal256(50, 2), _DECIMALS),
    "uuid": (pa.uuid(), _UUIDS),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), _TEXT),
}
KINDS = st.sampled_from(list(COLUMNS))
# Of all types, so that most meet a column of another.
_NUMBERS: list[Any] = [0, 1, -1, 3, 255, 300, 2**24 + 1, 2**31, 2**53 + 1, 2**62, 2**63, 2**65]
_NUMBERS += [0.0, -0.0, 1.0, 1.5, 0.1, -7.25, 1e300, NAN, math.inf]
_NUMBERS += [Decimal("1.25"), Decimal("1.250"), Decimal("0.001"), Decimal(3)]
_MOMENTS: list[Any] = [DAY.date(), DAY, DAY + dt.timedelta(microseconds=1), DAY.replace(tzinfo=UTC)]
_MOMENTS += [DAY.replace(tzinfo=PARIS), dt.time(1), dt.time(0, 0, 0, 1), dt.timedelta(1), dt.timedelta(microseconds=1)]
_MOMENTS += [Timestamp(1709164800000000001), Timestamp(1709164800000000000, "UTC")]
_STRINGS: list[Any] = ["a", "ab", "é", "2024-02-29", b"a", b"ab", b"\xff"]
EVERY_LITERAL = [None, True, False, *_NUMBERS, *_MOMENTS, *_STRINGS, uuid.UUID(int=1 << 124 | 1)]
LITERALS = st.sampled_from(EVERY_LITERAL)


# Strategies are kept: Hypothesis checks each new one, which takes longer than to draw from it.
@functools.cache
def arrays(kind: str, *, min_size: int = 0, max_size: int = 12) -> st.SearchStrategy[list[Any]]:
    """Values of a column, nulls among them."""
    return st.lists(st.none() | COLUMNS[kind][1], min_size=min_size, max_size=max_size)


def array(kind: str, values: list[Any]) -> pa.Array:
    """The column."""
    type_ = COLUMNS[kind][0]
    if isinstance(type_, pa.DictionaryType):
        return pa.array(values, type_.value_type).dictionary_encode()
    if kind == "uuid":
        return pa.array([None if value is None else value.bytes for value in values], type_)
    return pa.array(values, type_)


@functools.lru_cache(1000)
def atoms(
    column: str, kind: str, *, foreign: bool = True, own: st.SearchStrategy[Any] | None = None
) -> st.SearchStrategy[Expression]:
    """Predicates on one column, with literals of its ``own`` values and, if ``foreign``, of any type."""
    if kind == LIST:
        return st.builds(Has, st.just(column), st.integers(0, 9)) | st.builds(IsNull, st.just(column))
    own = COLUMNS[kind][1] if own is None else own
    literal = st.one_of(own, own, LITERALS) if foreign else own
    many = st.lists(own | st.none(), max_size=4).map(tuple)
    choices: list[st.SearchStrategy[Expression]] = [
        st.builds(Comparison, st.just(column), st.sampled_from(list(OPS)), literal),
        st.builds(In, st.just(column), many),
        st.builds(KeyIn, st.just(column), many),
        st.builds(IsNull, st.just(column), st.booleans()),
    ]
    if foreign:
        choices.append(st.builds(In, st.just(column), st.lists(LITERALS, min_size=1, max_size=2).map(tuple)))
        choices.append(st.builds(KeyIn, st.just(column), st.lists(LITERALS, max_size=2).map(tuple)))
    if kind in ("string", "large_string"):
        choices.append(st.builds(StartsWith, st.just(column), _TEXT))
        choices.append(st.builds(Contains, st.just(column), _TEXT))
        choices.append(st.builds(Like, st.just(column), _PATTERNS))
        choices.append(st.builds(HasTokens, st.just(column), _TOKENS))
        choices.append(st.builds(HasPhrase, st.just(column), _TOKENS))
    if kind == "binary":
        choices.append(st.builds(StartsWith, st.just(column), _BYTES))
        choices.append(st.builds(Contains, st.just(column), _BYTES))
        choices.append(
            st.builds(Like, st.just(column), st.sampled_from([b"", b"%", b"a%", b"%\xff", b"_", b"\xff%", b"a_"]))
        )
    return st.one_of(choices)


def expressions(columns: Mapping[str, str], *, foreign: bool = True) -> st.SearchStrategy[Expression]:
    """Predicates on columns given by name and kind."""
    return trees(st.one_of([atoms(name, kind, foreign=foreign) for name, kind in columns.items()]))


def uses(expr: Expression, *kinds: type[Expression]) -> bool:
    """Whether an atom of ``expr`` is of one of the kinds."""
    return any(isinstance(atom, kinds) for atom in atoms_of(expr))


_LEAF: None = None  # its place in a shape
_SHAPES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([*[_LEAF] * 6, Constant(True), Constant(False), Constant(None)]),
    lambda inner: st.one_of(
        st.tuples(st.just(Not), inner),
        st.tuples(st.just(And), st.lists(inner, max_size=3)),
        st.tuples(st.just(Or), st.lists(inner, max_size=3)),
    ),
    max_leaves=5,
)


@st.composite
def trees(draw: st.DrawFn, leaves: st.SearchStrategy[Expression]) -> Expression:
    """AND, OR and NOT of atoms and constants."""

    def filled(shape: Any) -> Expression:
        if shape is _LEAF:
            return draw(leaves)
        if isinstance(shape, Constant):
            return shape
        make, inside = shape
        if make is Not:
            return Not(filled(inside))
        joined: Expression = make(tuple(map(filled, inside)))
        return joined

    return filled(draw(_SHAPES))


def without_views(table: pa.Table) -> pa.Table:
    """The table with plain strings and binary for views, which pyarrow's kernels do not compare."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return table.cast(pa.schema([field.with_type(plain.get(field.type, field.type)) for field in table.schema]))


def oracle(expr: Expression) -> pc.Expression:
    """The same predicate written with pyarrow's own operators."""
    match expr:
        case Constant(value):
            return pc.scalar(pa.scalar(value, pa.bool_()))
        case Not(arg):
            return ~oracle(arg)
        case And(args):
            joined = pc.scalar(True)
            for arg in args:
                joined = joined & oracle(arg)
            return joined
        case Or(args):
            joined = pc.scalar(False)
            for arg in args:
                joined = joined | oracle(arg)
            return joined
        case Comparison(column, op, value):
            return OPS[op](_field(column), _arrow(value))
        case ColumnComparison(left, op, right):
            return OPS[op](_field(left), _field(right))
        case In(column, values):
            return _field(column).isin([_arrow(value) for value in values])
        case KeyIn(column, values):
            joined = pc.scalar(False)
            for value in values:
                if value is not None and value == value:
                    joined = joined | (_field(column) == _arrow(value))
            return joined
        case IsNull(column, nan_is_null):
            return _field(column).is_null(nan_is_null=nan_is_null)
        case StartsWith(column, prefix):
            return pc.starts_with(_field(column), prefix)
        case Contains(column, text):
            return pc.match_substring(_field(column), text)
        case Like(column, pattern):
            return pc.match_like(_field(column), pattern)
        case HasTokens(column, asked):
            return words.by_pyarrow("has_tokens", _field(column), asked)
        case Has(column, literal):
            return words.by_pyarrow_has(_field(column), literal)
        case HasPhrase(column, asked):
            return words.by_pyarrow("has_phrase", _field(column), asked)
    raise AssertionError(expr)


def _field(name: str) -> pc.Expression:
    return pc.field(*name.split("."))


def _arrow(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return pa.scalar(value.nanoseconds, pa.timestamp("ns", value.timezone))
    return value


def model(expr: Expression, row: Mapping[str, Any]) -> bool | None:
    """The predicate's result for one row, by the rules as they are documented.

    Raises:
        TypeError: Python does not compare the two either.
    """
    match expr:
        case Constant(value):
            return value
        case Not(arg):
            result = model(arg, row)
            return None if result is None else not result
        case And(args):
            results = [model(arg, row) for arg in args]
            return False if False in results else None if None in results else True
        case Or(args):
            results = [model(arg, row) for arg in args]
            return True if True in results else None if None in results else False
        case Comparison(column, op, literal):
            return None if row[column] is None or literal is None else _compare(op, row[column], literal)
        case In(column, values):
            return any(_same(row[column], value) for value in values)
        case KeyIn(column, values):
            keys = [value for value in values if value is not None and value == value]
            if row[column] is None:
                return None if keys else False
            return True in [_compare("==", row[column], key) for key in keys]  # each must compare, as in an OR
        case IsNull(column, nan_is_null):
            return row[column] is None or (nan_is_null and row[column] != row[column])
        case StartsWith(column, prefix):
            held = row[column]
            return None if held is None else held.startswith(prefix)
        case Contains(column, text):
            return None if row[column] is None else text in row[column]
        case Like(column, pattern):
            return None if row[column] is None else _like(row[column], pattern)
        case HasTokens(column, asked):
            return None if row[column] is None else words.has_tokens(row[column], list(asked))
        case Has(column, literal):
            elements = row[column]
            return (
                None if elements is None else any(one is not None and _compare("==", one, literal) for one in elements)
            )
        case HasPhrase(column, asked):
            return None if row[column] is None else words.has_phrase(row[column], list(asked))
    raise AssertionError(expr)


def _like(value: str | bytes, pattern: str | bytes) -> bool:
    """SQL's LIKE for patterns with no backslash but before a wildcard."""
    if not pattern:
        return not value
    if pattern[:1] in ("\\", b"\\"):
        return value[:1] == pattern[1:2] and _like(value[1:], pattern[2:])
    if pattern[:1] in ("%", b"%"):
        return any(_like(value[at:], pattern[1:]) for at in range(len(value) + 1))
    return bool(value) and pattern[:1] in (value[:1], "_", b"_") and _like(value[1:], pattern[1:])


def _compare(op: str, value: Any, literal: Any) -> bool:
    _check_kinds(value, literal)
    if isinstance(value, uuid.UUID):
        value, literal = value.bytes, literal.bytes
    if isinstance(value, dt.datetime) and type(literal) is dt.date:
        literal = dt.datetime(literal.year, literal.month, literal.day, tzinfo=value.tzinfo and UTC)
    if isinstance(value, dt.datetime) and isinstance(literal, Timestamp):
        value, literal = _instant(value), literal.nanoseconds
    return bool(OPS[op](value, literal))


def _instant(value: dt.datetime) -> int:
    epoch = dt.datetime(1970, 1, 1, tzinfo=value.tzinfo and UTC)
    return (value - epoch) // dt.timedelta(microseconds=1) * 1000


def _check_kinds(value: Any, literal: Any) -> None:
    numbers = (int, float, Decimal)
    if isinstance(value, numbers) and isinstance(literal, numbers):
        if isinstance(value, bool) is isinstance(literal, bool):
            return
    elif isinstance(value, dt.datetime) and type(literal) is dt.date:
        return
    elif isinstance(value, dt.datetime) and isinstance(literal, (dt.datetime, Timestamp)):
        zone = literal.tzinfo if isinstance(literal, dt.datetime) else literal.timezone
        if (value.tzinfo is None) is (zone is None):
            return
    elif type(value) is type(literal):
        return
    raise TypeError(f"{value!r} and {literal!r}")


def _same(value: Any, member: Any) -> bool:
    """Equality as ``isin`` has it: null is null, NaN is NaN, -0.0 is not 0.0."""
    if value is None or member is None:
        return value is None and member is None
    _check_kinds(value, member)
    if isinstance(value, float) and isinstance(member, (int, float)):
        return struct.pack("<d", value) == struct.pack("<d", float(member)) or (value != value and member != member)
    return _compare("==", value, member)


def sorted_values(values: list[Any], *, reverse: bool) -> list[Any]:
    """The values in order; nulls and NaN behind them, in the order given."""
    present = sorted((value for value in values if value is not None and value == value), reverse=reverse)
    return present + [value for value in values if value is None or value != value]


def results(expr: Expression, table: pa.Table) -> list[bool | None]:
    """The predicate's result for each row, by the exact filter."""
    try:
        compiled = compile_filter(expr, table.schema)
        mask = compiled.mask({name: table[name] for name in compiled.columns}, len(table))
    except PredicateTypeError:
        assume(False)
    found: list[bool | None] = mask.to_pylist()
    return found
