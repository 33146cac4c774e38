"""Keys of a lookup join: find the values of the lake's column that match a value of the left.

Spark casts both sides of ``left = right`` to a common type. Here the left's key is cast to that type and then to the
type of the lake's column. If the cast back gives the key again, that is the only value of the lake that can match. This
needs a cast of the lake's values that keeps different values different; other types are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import AtomicType, DataType, StringType, StructField

from asyncpq.spark.types.read_conf import CHAR_VARCHAR_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


#: How keys come: as values of the lake's type, or as doubles to which the lake's integers are rounded.
KeyForm: TypeAlias = Literal["value", "rounded"]

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


def candidate_columns(left: DataFrame, rules: Sequence[KeyRule], places: Sequence[int]) -> list[Column]:
    """Return the columns ``k0``, ``k1``, ... with the values that keys may have in the lake.

    ``left`` is ``numbered``; ``places`` are the positions of its key columns, in the order of ``rules``.
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
        types = pa.types
        kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        return bool(types.is_fixed_size_binary(dtype) or any(is_kind(dtype) for is_kind in kinds))
    same = {"float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(), "date": pa.date32()}
    return bool(same.get(name) == dtype)
