"""Keys of a lookup join: find the values of the lake's column that match a value of the left, and make predicates.

Spark casts both sides of ``left = right`` to a common type. Here the left's key is cast to that type and then to the
type of the lake's column. If the cast back gives the key again, that is the only value of the lake that can match. This
needs a cast of the lake's values that keeps different values different; other types are refused.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions
from pyspark.sql.types import AtomicType, DataType, StringType, StructField

from asyncpq import Expression, col
from asyncpq.engine.foreign_predicates import CompareOp, compared
from asyncpq.expressions import And, KeyIn, Or, simplify
from asyncpq.expressions.scalars import Scalar, as_scalar
from asyncpq.spark.types.calendars import FIRST_SURE_DAY, FIRST_SURE_TIME
from asyncpq.spark.types.read_conf import CHAR_VARCHAR_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


#: How tasks get keys: as values of the lake's type, or as doubles to which the lake's integers are rounded.
KeyForm = Literal["value", "rounded"]

_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_EXACT: Final = {"float": ("tinyint", "smallint"), "double": ("tinyint", "smallint", "int", "float")}
_MOST_ROUNDED: Final = float(1 << 63)
_MOST_EXPLAINED: Final = 12
_FIXED_ZONE: Final = re.compile(r"(Etc/)?(UTC|GMT|UCT|Zulu)|Z|(UTC|GMT|UT)?[+-]\d{1,2}(:\d\d){0,2}")
_TYPE: Final = r"[a-z_]+(?:\(\d+,\d+\))?"
_CAST_KEYS: Final = "Cast the keys to the lake's types"
_Casts: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]  # of the left and of the lake
_CAST: Final = re.compile(rf" as ({_TYPE})\)")


@dataclass(frozen=True)
class KeyRefused:
    """The reason why keys cannot be looked up, and the remedy for the user (empty if there is no remedy)."""

    why: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class KeyRule:
    """The rule that turns values of a key column of the left into keys of the lake's column."""

    lake: str  # SQL type of the lake's column
    left_casts: tuple[str, ...] = ()  # types to which Spark casts the left, in turn, before it compares
    lake_casts: tuple[str, ...] = ()
    form: KeyForm = "value"

    @property
    def num_columns(self) -> int:
        """Number of columns that :meth:`columns` returns."""
        return 2 if self.lake == "date" and self.lake_casts[-1:] == ("timestamp",) else 1

    def columns(self, key: Column) -> list[Column]:
        """Return columns with the values that match ``key`` in the lake; null where no value of the lake can match."""
        common = _cast(key, self.left_casts)
        if self.form == "rounded":
            is_integer = (functions.rint(common) == common) & (functions.abs(common) <= _MOST_ROUNDED)
            return [functions.when(is_integer, common)]
        if not self.lake_casts:
            return [common]
        value = common.try_cast(self.lake)
        # a day that a time zone skipped begins when the next day does
        candidates = [value] if self.num_columns == 1 else [value, functions.date_sub(value, 1)]
        return [self._checked(value, common) for value in candidates]

    def _checked(self, value: Column, common: Column) -> Column:
        is_equal = _cast(value, self.lake_casts).eqNullSafe(common)
        if self.lake == "string":
            is_equal &= functions.is_valid_utf8(value)
        return functions.when(is_equal, value)


def _cast(column: Column, types: Sequence[str]) -> Column:
    for type_ in types:
        column = column.cast(type_)
    return column


def numbered(left: DataFrame) -> DataFrame:
    """Return the left side with the columns ``c0``, ``c1``, ..., since its names may occur twice."""
    return left.toDF(*[f"c{at}" for at in range(len(left.columns))])


def candidate_columns(left: DataFrame, rules: Sequence[KeyRule], places: Sequence[int]) -> list[Column]:
    """Return the columns ``k0``, ``k1``, ... with the values that keys may have in the lake.

    ``left`` is :func:`numbered`; ``places`` are the positions of its key columns, in the order of ``rules``.
    """
    found = [column for rule, place in zip(rules, places, strict=True) for column in rule.columns(left[f"c{place}"])]
    return [column.alias(f"k{number}") for number, column in enumerate(found)]


def key_rules(
    spark: SparkSession, pairs: Sequence[tuple[StructField, StructField]], time_zone: str | None
) -> list[KeyRule | KeyRefused]:
    """Return for each pair of key columns, the left's and the lake's, its rule, or why its keys cannot be looked up.

    Spark must be able to compare the types of a pair. ``time_zone`` is ``spark.sql.session.timeZone``.
    """
    refusals = [_refusal(left) or _refusal(lake) for left, lake in pairs]
    compared = [
        number
        for number, (left, lake) in enumerate(pairs)
        if refusals[number] is None and left.dataType != lake.dataType
    ]
    casts = dict(zip(compared, _comparisons(spark, [pairs[number] for number in compared]), strict=True))
    return [
        refusals[number] or _rule(left.dataType, lake.dataType, casts.get(number), time_zone)
        for number, (left, lake) in enumerate(pairs)
    ]


def _refusal(field: StructField) -> KeyRefused | None:
    """Return why values of this column cannot be keys; None if they can be keys."""
    dtype = field.dataType
    if isinstance(dtype, StringType) and not dtype.isUTF8BinaryCollation():
        return KeyRefused(
            f"a key column has the collation {dtype.collation}, which does not compare strings byte by byte"
        )
    if not isinstance(dtype, AtomicType):
        return KeyRefused(f"asyncpq does not support keys of type {dtype.simpleString()}")
    if str((field.metadata or {}).get(CHAR_VARCHAR_KEY, "")).startswith("char"):
        return KeyRefused("Spark pads CHAR values with spaces when it compares keys, which asyncpq does not support")
    return None


def _rule(left: DataType, lake: DataType, casts: _Casts | None, time_zone: str | None) -> KeyRule | KeyRefused:
    name = lake.simpleString()
    if left == lake:
        return KeyRule(lake=name)
    if casts is None:
        return KeyRefused(f"asyncpq does not support {left.simpleString()} keys for a {name} column", _CAST_KEYS)
    left_casts, lake_casts = casts
    common = lake_casts[-1] if lake_casts else name
    form = _form(name, common, bool(_FIXED_ZONE.fullmatch(time_zone or "")))
    if form is None:
        return KeyRefused(
            f"Spark casts the lake's {name} to {common} to compare, which makes different values equal", _CAST_KEYS
        )
    return KeyRule(lake=name, left_casts=left_casts, lake_casts=lake_casts, form=form)


def _form(lake: str, common: str, fixed_zone: bool) -> KeyForm | None:
    """Return the form of keys of type ``common``, to which Spark casts the lake's values; None if some become equal."""
    if lake == "bigint" and common == "double":
        return "rounded"
    precision, scale = _decimal(common)
    if lake == common or lake in _EXACT.get(common, ()):
        kept = True
    elif lake in _DIGITS:
        digits = _DIGITS[lake]
        kept = digits < _DIGITS.get(common, 0) or precision - scale >= digits
    elif lake.startswith("decimal"):
        digits, places = _decimal(lake)
        kept = scale >= places and precision - scale >= digits - places
    elif lake == "boolean":
        kept = common in (*_DIGITS, *_EXACT) or precision > scale
    elif lake == "timestamp_ntz":
        kept = common == "timestamp" and fixed_zone  # in other zones skipped hours are equal to later ones
    else:
        kept = (lake, common) in (("date", "timestamp"), ("date", "timestamp_ntz"), ("string", "binary"))
    return "value" if kept else None


def _decimal(type_: str) -> tuple[int, int]:
    """Return precision and scale of a decimal type; two zeros for other types."""
    match = re.fullmatch(r"decimal\((\d+),(\d+)\)", type_)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _comparisons(spark: SparkSession, pairs: Sequence[tuple[StructField, StructField]]) -> list[_Casts | None]:
    """Return the casts that Spark applies to both sides of ``left = right``; None for a pair that is not parsed.

    No function of Spark returns the casts, so they are parsed from the analysed plan of a comparison. Spark shows at
    most 25 columns of a plan (``spark.sql.debug.maxToStringFields``).
    """
    if not pairs:
        return []
    if len(pairs) > _MOST_EXPLAINED:
        return _comparisons(spark, pairs[:_MOST_EXPLAINED]) + _comparisons(spark, pairs[_MOST_EXPLAINED:])
    nulls = ", ".join(
        f"CAST(NULL AS {field.dataType.simpleString()}) AS {side}{at}"
        for at, pair in enumerate(pairs)
        for side, field in zip("lr", pair, strict=True)
    )
    compared = ", ".join(f"(l{at} = r{at}) AS e{at}" for at in range(len(pairs)))
    (row,) = spark.sql(f"EXPLAIN EXTENDED SELECT {compared} FROM (SELECT {nulls})").collect()
    plan = str(row[0]).partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
    casts: list[_Casts | None] = []
    for at in range(len(pairs)):
        left, right = (rf"(?:cast\()*{side}{at}#\d+L?((?: as {_TYPE}\))*)" for side in "lr")
        match = re.search(rf"\({left} = {right}\) AS e{at}#", plan)
        casts.append(match and (tuple(_CAST.findall(match[1])), tuple(_CAST.findall(match[2]))))
    return casts


def has_equal_values(stored: pa.DataType, type_: DataType, *, int96_is_shifted: bool) -> bool:
    """Return whether a value that asyncpq reads as ``stored`` is the same value in Spark's type ``type_``.

    ``int96_is_shifted`` is ``spark.sql.parquet.int96TimestampConversion``.
    """
    dtype = stored.value_type if isinstance(stored, pa.DictionaryType) else stored
    name = type_.simpleString()
    if name in _DIGITS:
        return bool(pa.types.is_integer(dtype))
    if name.startswith("decimal"):
        is_same = pa.types.is_decimal(dtype) and (dtype.precision, dtype.scale) == _decimal(name)
        return bool(is_same or (pa.types.is_uint64(dtype) and name == "decimal(20,0)"))
    if name in ("timestamp", "timestamp_ntz"):
        may_be_shifted = name == "timestamp" and int96_is_shifted  # some files may store INT96
        return bool(pa.types.is_timestamp(dtype) and not may_be_shifted)
    if name in ("string", "binary"):
        return bool(is_bytes(dtype) or pa.types.is_string(dtype) or pa.types.is_large_string(dtype))
    same = {"float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(), "date": pa.date32()}
    return bool(same.get(name) == dtype)


def is_bytes(dtype: pa.DataType) -> bool:
    """Return whether asyncpq compares values of this type as bytes, not as text."""
    return bool(pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_fixed_size_binary(dtype))


#: Maximum number of keys of several columns in one predicate.
MOST_TUPLES: Final = 256

# Later times share one predicate, since Python lacks values for some; so do times before FIRST_SURE_TIME.
_LAST_TIME: Final = dt.datetime(9999, 12, 29)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_WHOLE: Final = 1 << 53  # smaller integers are exact as doubles


class KeyPredicate(NamedTuple):
    """A predicate that reads all rows with one of some keys."""

    where: Expression  # true for all rows with one of the keys, and perhaps for others
    prune: Expression | None = None  # a stricter predicate to prune by


@dataclass(frozen=True, kw_only=True)
class JoinKey:
    """A key column of a lookup join in the form that the join's tasks need to make predicates."""

    name: str  # asyncpq's name of the lake's column
    stored: pa.DataType  # its type in the dataset
    form: KeyForm = "value"
    candidates: tuple[int, ...]  # columns of the left with the values that a key may have in the lake
    place: int  # position among the columns that are read from the lake
    type: pa.DataType  # of the lake's column in Spark; keys have this type, or are doubles if they are rounded


def predicates(columns: Sequence[JoinKey], keys: Sequence[pa.Array]) -> Iterator[tuple[range, KeyPredicate]]:
    """Yield ranges of positions in ``keys``, each with a predicate for the rows whose key is at one of these positions.

    A predicate matches all these rows, and perhaps rows with other keys. The caller keeps only rows whose key is in the
    range, so that no row is returned twice.

    Args:
        keys: for each column, values in Spark's type, without nulls; the values at one position form a key.
    """
    literals = [_literals(column, values) for column, values in zip(columns, keys, strict=True)]
    if len(columns) == 1:
        yield range(len(keys[0])), KeyPredicate(_any_of(columns[0].name, literals[0]))
        return

    def rows_in(begin: int, stop: int) -> Expression:
        return And(tuple(_any_of(key.name, own[begin:stop]) for key, own in zip(columns, literals, strict=True)))

    for begin in range(0, len(keys[0]), MOST_TUPLES):
        positions = range(begin, min(begin + MOST_TUPLES, len(keys[0])))
        tuples = tuple(rows_in(place, place + 1) for place in positions)
        prune = simplify(tuples[0] if len(tuples) == 1 else Or(tuples))
        yield positions, KeyPredicate(rows_in(positions.start, positions.stop), prune)


def one_predicate(columns: Sequence[JoinKey], keys: Sequence[pa.Array]) -> KeyPredicate:
    """Return one predicate for the rows with any of ``keys``, as :func:`predicates` takes them; it may match others.

    Many keys of several columns become a condition on each column.
    """
    if len(columns) == 1 or len(keys[0]) <= MOST_TUPLES:
        ((_, predicate),) = predicates(columns, keys)
        return predicate
    values = [_literals(column, pc.unique(array)) for column, array in zip(columns, keys, strict=True)]
    return KeyPredicate(And(tuple([_any_of(key.name, own) for key, own in zip(columns, values, strict=True)])))


def bounds_predicate(columns: Sequence[JoinKey], bounds: Sequence[pa.Array]) -> KeyPredicate | None:
    """Return a predicate for the rows between bounds of the keys; None if no literal expresses any of the bounds.

    ``bounds`` are for each column the lower bound and the upper one, in Spark's type.
    """
    terms: list[Expression] = []
    for column, array in zip(columns, bounds, strict=True):
        for operator, literal in zip((">=", "<="), _literals(column, array), strict=True):
            if not isinstance(literal, Expression):
                atom = compared(column.name, cast(CompareOp, operator), literal, is_float=False)
                terms.append(cast(Expression, atom.true))
    return KeyPredicate(And(tuple(terms))) if terms else None


def _any_of(name: str, keys: Sequence[Scalar | Expression]) -> Expression:
    """Return the predicate that a column equals one of ``keys``, which are literals, or predicates of their own."""
    values = tuple([key for key in keys if not isinstance(key, Expression)])
    terms: list[Expression] = [col(name) == values[0]] if len(values) == 1 else []
    if len(values) > 1:
        terms.append(KeyIn(name, values))
    terms += dict.fromkeys([key for key in keys if isinstance(key, Expression)])
    return terms[0] if len(terms) == 1 else Or(tuple(terms))


def _literals(column: JoinKey, keys: pa.Array) -> list[Scalar | Expression]:
    """Return for each key its literal, or a predicate if no literal can express the key."""
    dtype = column.stored.value_type if isinstance(column.stored, pa.DictionaryType) else column.stored
    if column.form == "rounded":
        return [_rounded_to(column.name, key) for key in keys.to_pylist()]
    if pa.types.is_floating(dtype):
        nan = col(column.name).is_nan()
        return [nan if key != key else as_scalar(key) for key in keys.to_pylist()]
    if pa.types.is_timestamp(dtype):
        zone = None if dtype.tz is None else dt.UTC
        epoch, first, last = (time.replace(tzinfo=zone) for time in (_EPOCH, FIRST_SURE_TIME, _LAST_TIME))
        return _times(column.name, keys.view(pa.int64()), epoch, dt.timedelta(microseconds=1), first, last)
    if pa.types.is_date32(dtype):
        days = keys.view(pa.int32())
        return _times(column.name, days, _EPOCH.date(), dt.timedelta(days=1), FIRST_SURE_DAY, _LAST_TIME.date())
    values = (keys.cast(pa.binary()) if is_bytes(dtype) else keys).to_pylist()
    return [as_scalar(int(value) if pa.types.is_integer(dtype) else value) for value in values]


def _times(
    name: str, keys: pa.Array, epoch: Any, unit: dt.timedelta, first: Any, last: Any
) -> list[Scalar | Expression]:
    """Return literals of dates or timestamps from numbers of ``unit`` since ``epoch``.

    A key before ``first`` or after ``last``, which Python may not express, becomes a predicate on that side.
    """
    least, most = (first - epoch) // unit, (last - epoch) // unit
    early, late = col(name) < first, col(name) > last
    return [early if key < least else late if key > most else as_scalar(epoch + key * unit) for key in keys.to_pylist()]


def _rounded_to(name: str, key: float) -> Scalar | Expression:
    """Return the integer that becomes ``key`` as a double, or a predicate for a range if several integers do."""
    if abs(key) < _WHOLE:
        return int(key)
    low, high = int(math.nextafter(key, -math.inf)), int(math.nextafter(key, math.inf))
    return (col(name) > low) & (col(name) < high)
