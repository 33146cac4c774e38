"""Checksums of a DataFrame's rows that do not depend on their order: whether two DataFrames hold the same rows.

A row counts by the 64-bit hashes of its values: their exclusive or, and their sum, which tells apart what comes twice.
Of each column, and of rows as a whole: columns whose rows were shuffled against each other have the same checksums, but
their rows have not. Floats are the same where Spark's ``=`` says so: all NaN, and the two zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
    VariantType,
)

from asyncpq.spark.types.special_types import is_spatial


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of values in any order.

    Attributes:
        nulls: how many are null.
        xor, total: of the hashes of all of them.
    """

    nulls: int
    xor: int
    total: int


@dataclass(frozen=True, slots=True)
class Checksums:
    """Of a DataFrame.

    Attributes:
        rows: how many.
        whole: of rows, whose hashes are made of those of their values.
        columns: by name.
    """

    rows: int
    whole: Checksum
    columns: Mapping[str, Checksum] = field(repr=False)

    def differences(self, other: Checksums) -> list[str]:
        """What is not the same, in words, columns first; empty if both hold the same rows."""
        found = [name for name, mine in self.columns.items() if other.columns.get(name) != mine]
        found += [name for name in other.columns if name not in self.columns]
        named = [f"column {name!r}" for name in found]
        if self.rows != other.rows:
            named.append(f"{self.rows} rows and {other.rows}")
        elif self.whole != other.whole and not named:
            named.append("which values stand in one row")
        return named


def numbered(frame: DataFrame) -> DataFrame:
    """The same columns, named ``c0``, ``c1``, ...: names may hold dots, or differ by case alone."""
    return frame.toDF(*[f"c{at}" for at in range(len(frame.columns))])


def checksums(frame: DataFrame, more: Mapping[str, Column] | None = None) -> tuple[Checksums, Mapping[str, Any]]:
    """Read all of ``frame`` once.

    Args:
        more: aggregates to compute on the way, over columns as :func:`numbered` names them.

    Returns:
        the checksums, and the values of ``more``.
    """
    fields, more = frame.schema.fields, more or {}
    hashes = [F.xxhash64(*_inside(F.col(f"c{at}"), one.dataType)) for at, one in enumerate(fields)]
    hashed = numbered(frame).select("*", *[one.alias(f"h{at}") for at, one in enumerate(hashes)])
    names = [f"h{at}" for at in range(len(fields))]
    measured = [F.count(F.lit(1)).alias("rows"), *_summed("row", F.xxhash64(*names) if names else F.lit(0))]
    for at, name in enumerate(names):
        measured += [F.count_if(F.col(f"c{at}").isNull()).alias(f"nulls{at}"), *_summed(str(at), F.col(name))]
    measured += [column.alias(f"more {name}") for name, column in more.items()]
    row = hashed.agg(*measured).collect()[0]
    columns = {one.name: _checksum(row, str(at), row[f"nulls{at}"]) for at, one in enumerate(fields)}
    found = Checksums(row["rows"], _checksum(row, "row", 0), columns)
    return found, {name: row[f"more {name}"] for name in more}


def row_hash(schema: StructType) -> Column:
    """A 64-bit hash of a row of :func:`numbered`: the same for equal rows."""
    return columns_hash([(F.col(f"c{at}"), field.dataType) for at, field in enumerate(schema.fields)])


def columns_hash(columns: Sequence[tuple[Column, DataType]]) -> Column:
    """A 64-bit hash of columns with their types, nulls told apart from all values."""
    parts = [part for column, kind in columns for part in _inside(column, kind)]
    return F.xxhash64(*parts) if parts else F.lit(0).cast("bigint")


def _summed(name: str, hashed: Column) -> list[Column]:
    # as decimals: a sum of 64-bit integers overflows, which is an error in Spark's ANSI mode
    return [
        F.bit_xor(hashed).alias(f"xor{name}"),
        F.sum(hashed.cast("decimal(38,0)")).alias(f"total{name}"),
    ]


def _checksum(row: Any, name: str, nulls: int) -> Checksum:
    return Checksum(nulls, row[f"xor{name}"] or 0, int(row[f"total{name}"] or 0))


def _inside(value: Column, kind: DataType) -> list[Column]:
    """As :func:`_hashable`, where null must be told apart, since xxhash64 passes over nulls."""
    return [value.isNull(), *_hashable(value, kind)]


def _hashable(value: Column, kind: DataType) -> list[Column]:
    """What xxhash64 takes in the place of ``value``: it refuses maps and variants, and no two lists may look alike."""
    if isinstance(kind, MapType):
        of_key, of_value = kind.keyType, kind.valueType
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.xxhash64(*_inside(entry["key"], of_key), *_inside(entry["value"], of_value)),
        )
        return [F.size(value), F.array_sort(entries)]
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return [F.size(value), F.transform(value, lambda item: F.xxhash64(*_inside(item, element)))]
    if isinstance(kind, StructType):
        return [part for one in kind.fields for part in _inside(value.getField(one.name), one.dataType)]
    if isinstance(kind, VariantType):
        return [F.to_json(value), F.schema_of_variant(value)]
    if is_spatial(kind):
        return [F.st_srid(value), F.st_asbinary(value)]
    if isinstance(kind, NullType):
        return []
    if isinstance(kind, StringType):
        return [value.cast("binary")]  # collations take different strings for one
    return [value]
