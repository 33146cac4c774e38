"""Keys of a lookup join: what Spark compares them as, and which values of the lake's column that is.

Spark casts both sides of ``left = right`` to one type. Here it casts the left's key to that type, and from there to the
type of the lake's column; where casting that back gives the key again, it is the one value that the lake may have. That
needs a cast of the lake's values that keeps them apart: others cannot be asked for by key.

What of a lake is read for some keys: predicates in asyncpq's terms, which no row fails that has one of the keys.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import AtomicType, DataType, StringType, StructField

from asyncpq.expressions import And, Comparison, Expression, KeyIn, Not, Or
from asyncpq.expressions.scalars import Scalar, as_scalar
from asyncpq.spark.types.read_conf import CHAR_VARCHAR_KEY
from asyncpq.spark.types.rebase import FIRST_SURE_DAY, FIRST_SURE_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


#: How keys come to the tasks: of the lake's type; as doubles, to which the lake's integers are rounded.
KeyForm = Literal["value", "rounded"]

_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_EXACT: Final = {"float": ("tinyint", "smallint"), "double": ("tinyint", "smallint", "int", "float")}
_MOST_ROUNDED: Final = float(1 << 63)
_MOST_EXPLAINED: Final = 12
_FIXED_ZONE: Final = re.compile(r"(Etc/)?(UTC|GMT|UCT|Zulu)|Z|(UTC|GMT|UT)?[+-]\d{1,2}(:\d\d){0,2}")
_TYPE: Final = r"[a-z_]+(?:\(\d+,\d+\))?"
_CAST_KEYS: Final = "Cast the keys to the lake's types"
_CAST: Final = re.compile(rf" as ({_TYPE})\)")


@dataclass(frozen=True)
class KeyRefused:
    """Such keys cannot be looked up.

    Attributes:
        why: for whom asks.
        remedy: what helps, if anything does.
    """

    why: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class KeyRule:
    """How keys of one column are made from the left's.

    Attributes:
        lake: type of the lake's column, in SQL.
        left_casts, lake_casts: what Spark casts the two sides to, one after another, before it compares them.
        form: what tasks are given.
    """

    lake: str
    left_casts: tuple[str, ...] = ()
    lake_casts: tuple[str, ...] = ()
    form: KeyForm = "value"

    @property
    def num_columns(self) -> int:
        """How many columns :meth:`columns` gives."""
        return 2 if self._is_start_of_day else 1

    @property
    def _is_start_of_day(self) -> bool:
        return self.lake == "date" and self.lake_casts[-1:] == ("timestamp",)

    def columns(self, key: Column) -> list[Column]:
        """Values that the lake may have for ``key``, each in a column of its own; null where there is none."""
        common = _cast(key, self.left_casts)
        if self.form == "rounded":
            is_one = (functions.rint(common) == common) & (functions.abs(common) <= _MOST_ROUNDED)
            return [functions.when(is_one, common)]
        if not self.lake_casts:
            return [common]
        value = common.try_cast(self.lake)
        candidates = [value]
        if self._is_start_of_day:
            # a day that a zone left out begins when the next one does
            candidates.append(functions.date_sub(value, 1))
        return [self._checked(value, common) for value in candidates]

    def _checked(self, value: Column, common: Column) -> Column:
        is_it = _cast(value, self.lake_casts).eqNullSafe(common)
        if self.lake == "string":
            is_it &= functions.is_valid_utf8(value)
        return functions.when(is_it, value)


def _cast(column: Column, types: Sequence[str]) -> Column:
    for type_ in types:
        column = column.cast(type_)
    return column


def key_rules(
    spark: SparkSession, pairs: Sequence[tuple[StructField, StructField]], time_zone: str | None
) -> list[KeyRule | KeyRefused]:
    """
    Args:
        pairs: of the left's key column and the lake's, of types that Spark can compare.
        time_zone: ``spark.sql.session.timeZone``.

    Returns:
        for each pair the rule, or why there is none.
    """
    asked = [at for at, (left, lake) in enumerate(pairs) if left.dataType != lake.dataType and _is_plain(left, lake)]
    casts = dict(zip(asked, _comparisons(spark, [pairs[at] for at in asked]), strict=True))
    return [_rule(*pair, casts.get(at), time_zone) for at, pair in enumerate(pairs)]


def _is_plain(*fields: StructField) -> bool:
    return all(isinstance(field.dataType, AtomicType) and not _collation(field.dataType) for field in fields)


def _collation(kind: DataType) -> str | None:
    """Of a string that is not compared byte by byte."""
    if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
        return kind.collation
    return None


def _rule(
    left: StructField, lake: StructField, casts: tuple[tuple[str, ...], tuple[str, ...]] | None, time_zone: str | None
) -> KeyRule | KeyRefused:
    for kind in (left.dataType, lake.dataType):
        if _collation(kind):
            return KeyRefused(f"strings of collation {_collation(kind)} are not compared byte by byte")
        if not isinstance(kind, AtomicType):
            return KeyRefused(f"keys of type {kind.simpleString()} are not looked up")
    padded = [str((field.metadata or {}).get(CHAR_VARCHAR_KEY, "")).startswith("char") for field in (left, lake)]
    if any(padded):
        return KeyRefused("Spark pads CHAR when it compares it")
    name = lake.dataType.simpleString()
    if left.dataType == lake.dataType:
        return KeyRule(lake=name)
    if casts is None:
        return KeyRefused(
            f"Spark's way to compare {left.dataType.simpleString()} with {name} is not understood", _CAST_KEYS
        )
    left_casts, lake_casts = casts
    common = lake_casts[-1] if lake_casts else name
    form = _form(name, common, bool(_FIXED_ZONE.fullmatch(time_zone or "")))
    if form is None:
        return KeyRefused(
            f"Spark compares the lake's {name} as {common}, as which different values may be equal", _CAST_KEYS
        )
    return KeyRule(lake=name, left_casts=left_casts, lake_casts=lake_casts, form=form)


def _form(lake: str, common: str, fixed_zone: bool) -> KeyForm | None:
    """How keys of type ``common`` are asked for, where the lake's values are cast to it; None where they cannot be."""
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
        kept = common == "timestamp" and fixed_zone  # else hours that a zone leaves out are equal to later ones
    else:
        kept = (lake, common) in (("date", "timestamp"), ("date", "timestamp_ntz"), ("string", "binary"))
    return "value" if kept else None


def _decimal(type_: str) -> tuple[int, int]:
    """Precision and scale; zeros where it is none."""
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", type_)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _comparisons(
    spark: SparkSession, pairs: Sequence[tuple[StructField, StructField]]
) -> list[tuple[tuple[str, ...], tuple[str, ...]] | None]:
    """What Spark casts the two sides of ``left = right`` to; None where it compares them in another way.

    No function tells the type that two are compared as; the analysed plan of such a comparison does. Plans are shown
    with 25 columns at most (``spark.sql.debug.maxToStringFields``).
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
    found: list[tuple[tuple[str, ...], tuple[str, ...]] | None] = []
    for at in range(len(pairs)):
        left, right = (rf"(?:cast\()*{side}{at}#\d+L?((?: as {_TYPE}\))*)" for side in "lr")
        match = re.search(rf"\({left} = {right}\) AS e{at}#", plan)
        found.append(match and (tuple(_CAST.findall(match[1])), tuple(_CAST.findall(match[2]))))
    return found


# -- values in files ------------------------------------------------------------------------------


def can_be_asked(stored: pa.DataType, type_: DataType, *, int96_is_shifted: bool) -> bool:
    """Whether values of a column that asyncpq reads as ``stored`` are Spark's, of type ``type_``, as they are.

    Args:
        int96_is_shifted: ``spark.sql.parquet.int96TimestampConversion``.
    """
    kind = stored.value_type if isinstance(stored, pa.DictionaryType) else stored
    name = type_.simpleString()
    if name in _DIGITS:
        return bool(pa.types.is_integer(kind))
    if name.startswith("decimal"):
        is_same = pa.types.is_decimal(kind) and (kind.precision, kind.scale) == _decimal(name)
        return bool(is_same or (pa.types.is_uint64(kind) and name == "decimal(20,0)"))
    if name in ("timestamp", "timestamp_ntz"):
        may_be_shifted = name == "timestamp" and int96_is_shifted  # whatever other files have
        return bool(pa.types.is_timestamp(kind) and not may_be_shifted)
    if name in ("string", "binary"):
        return bool(is_bytes(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))
    same = {"float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(), "date": pa.date32()}
    return bool(same.get(name) == kind)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether asyncpq compares such values as bytes, and not as text."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


#: Keys of several columns of which each is asked for; of more at once, only the values of each column.
MOST_TUPLES: Final = 256

# Times after it are asked for all together, as those before the first sure ones are: Python has no values for some.
_LAST_TIME: Final = dt.datetime(9999, 12, 29)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_WHOLE: Final = 1 << 53  # as doubles, integers below it are all different


class KeyPredicate(NamedTuple):
    """
    Attributes:
        where: true for all rows that have one of the keys, and perhaps for others.
        prune: a sharper one to prune by, or None.
    """

    where: Expression
    prune: Expression | None = None


@dataclass(frozen=True, kw_only=True)
class KeyColumn:
    """A key column of the lake.

    Attributes:
        name: as asyncpq names it.
        stored: its type in the dataset.
        form: of its keys.
    """

    name: str
    stored: pa.DataType
    form: KeyForm = "value"


def predicates(columns: Sequence[KeyColumn], keys: Sequence[pa.Array]) -> Iterator[tuple[range, KeyPredicate]]:
    """What is read for the keys: positions of some of them, and what gives every row that has one of these. It may give
    rows that have other keys, too, which are given again for those.

    Args:
        keys: for each column its values, in Spark's type, without nulls; those of one position are one key.
    """
    parts = [_KeyLiterals(column, values) for column, values in zip(columns, keys, strict=True)]
    if len(parts) == 1:
        yield range(len(keys[0])), KeyPredicate(parts[0].any_of(0, len(keys[0])))
        return
    for begin in range(0, len(keys[0]), MOST_TUPLES):
        stop = min(begin + MOST_TUPLES, len(keys[0]))
        where = And(tuple(part.any_of(begin, stop) for part in parts))
        tuples = tuple(And(tuple(part.any_of(at, at + 1) for part in parts)) for at in range(begin, stop))
        yield range(begin, stop), KeyPredicate(where, tuples[0] if len(tuples) == 1 else Or(tuples))


class _KeyLiterals:
    """The keys of one column, as asyncpq's literals; where a key has none, as a predicate that others share."""

    def __init__(self, column: KeyColumn, keys: pa.Array) -> None:
        self._name = column.name
        kind = column.stored.value_type if isinstance(column.stored, pa.DictionaryType) else column.stored
        self._keys: list[Scalar | Expression] = [
            one if isinstance(one, Expression) else as_scalar(one) for one in self._literals(kind, keys, column.form)
        ]

    def any_of(self, begin: int, stop: int) -> Expression:
        """Rows that have one of the keys ``[begin, stop)``."""
        values: list[Scalar] = []
        others: dict[Expression, None] = {}
        for key in self._keys[begin:stop]:
            if isinstance(key, Expression):
                others[key] = None
            else:
                values.append(key)
        if not others:
            return self._equals(values[0]) if len(values) == 1 else KeyIn(self._name, tuple(values))
        some: list[Expression] = [KeyIn(self._name, tuple(values))] if values else []
        some.extend(others)
        return some[0] if len(some) == 1 else Or(tuple(some))

    def _equals(self, value: Scalar) -> Expression:
        return Comparison(self._name, "==", value)

    def _literals(self, kind: pa.DataType, keys: pa.Array, form: KeyForm) -> list[Any]:
        if form == "rounded":
            return [self._rounded_to(key) for key in keys.to_pylist()]
        if pa.types.is_floating(kind):
            nan = Not(Comparison(self._name, "<=", math.inf))
            return [nan if key != key else key for key in keys.to_pylist()]
        if pa.types.is_timestamp(kind):
            zone = None if kind.tz is None else dt.UTC
            epoch, unit = _EPOCH.replace(tzinfo=zone), dt.timedelta(microseconds=1)
            first, last = FIRST_SURE_TIME.replace(tzinfo=zone), _LAST_TIME.replace(tzinfo=zone)
            return self._times(keys.view(pa.int64()), epoch, unit, first, last)
        if pa.types.is_date32(kind):
            days = keys.view(pa.int32())
            return self._times(days, _EPOCH.date(), dt.timedelta(days=1), FIRST_SURE_DAY, _LAST_TIME.date())
        if is_bytes(kind):
            keys = keys.cast(pa.binary())
        values: list[Any] = keys.to_pylist()
        return [int(value) for value in values] if pa.types.is_integer(kind) else values

    def _times(self, keys: pa.Array, epoch: Any, unit: dt.timedelta, first: Any, last: Any) -> list[Any]:
        """
        Args:
            keys: numbers of ``unit`` since ``epoch``.
        """
        least, most = (first - epoch) // unit, (last - epoch) // unit
        early, late = Comparison(self._name, "<", first), Comparison(self._name, ">", last)
        return [early if key < least else late if key > most else epoch + key * unit for key in keys.to_pylist()]

    def _rounded_to(self, key: float) -> int | Expression:
        """The integers that are ``key`` as doubles."""
        if abs(key) < _WHOLE:
            return int(key)
        low, high = int(math.nextafter(key, -math.inf)), int(math.nextafter(key, math.inf))
        return And((Comparison(self._name, ">", low), Comparison(self._name, "<", high)))
