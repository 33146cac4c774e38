"""Order-independent checksums of a DataFrame, to compare the rows of two DataFrames.

Each value has a 64-bit hash. A checksum is the exclusive or and the sum of the hashes; the sum notices duplicates.
There is one checksum for each column, and one for whole rows, which notices values that moved to other rows. Floats
hash as Spark's ``=`` compares them: all NaN are equal, and so are the two zeros.
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
    """Checksum of values in any order.

    Attributes:
        nulls: number of nulls.
        xor, total: exclusive or and sum of the hashes.
    """

    nulls: int
    xor: int
    total: int


@dataclass(frozen=True, slots=True)
class Checksums:
    """Checksums of a DataFrame.

    Attributes:
        rows: number of rows.
        whole: of the rows; a row's hash combines those of its values.
        columns: by name.
    """

    rows: int
    whole: Checksum
    columns: Mapping[str, Checksum] = field(repr=False)

    def differences(self, other: Checksums) -> list[str]:
        """Describe the differences, columns first; empty if both have the same rows."""
        found = [name for name, mine in self.columns.items() if other.columns.get(name) != mine]
        found += [name for name in other.columns if name not in self.columns]
        named = [f"column {name!r}" for name in found]
        if self.rows != other.rows:
            named.append(f"{self.rows} rows and {other.rows}")
        elif self.whole != other.whole and not named:
            named.append("which values belong to one row")
        return named


def numbered(frame: DataFrame) -> DataFrame:
    """The frame with columns named ``c0``, ``c1``, ..., since names may contain dots or differ only in case."""
    return frame.toDF(*[f"c{at}" for at in range(len(frame.columns))])


def checksums(frame: DataFrame, more: Mapping[str, Column] | None = None) -> tuple[Checksums, Mapping[str, Any]]:
    """Compute checksums in one read of ``frame``.

    Args:
        more: further aggregates over the columns of :func:`numbered`.

    Returns:
        The checksums, and the values of ``more``.
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
    """A 64-bit hash of a row of :func:`numbered`; equal rows have equal hashes."""
    return columns_hash([(F.col(f"c{at}"), field.dataType) for at, field in enumerate(schema.fields)])


def columns_hash(columns: Sequence[tuple[Column, DataType]]) -> Column:
    """A 64-bit hash of columns, which distinguishes null from all values."""
    parts = [part for column, kind in columns for part in _inside(column, kind)]
    return F.xxhash64(*parts) if parts else F.lit(0).cast("bigint")


def _summed(name: str, hashed: Column) -> list[Column]:
    # decimals, since overflow of a 64-bit sum is an error in Spark's ANSI mode
    return [
        F.bit_xor(hashed).alias(f"xor{name}"),
        F.sum(hashed.cast("decimal(38,0)")).alias(f"total{name}"),
    ]


def _checksum(row: Any, name: str, nulls: int) -> Checksum:
    return Checksum(nulls, row[f"xor{name}"] or 0, int(row[f"total{name}"] or 0))


def _inside(value: Column, kind: DataType) -> list[Column]:
    """The result of :func:`_hashable` with a null flag, since xxhash64 skips nulls."""
    return [value.isNull(), *_hashable(value, kind)]


def _hashable(value: Column, kind: DataType) -> list[Column]:
    """Columns that xxhash64 accepts for ``value``: it refuses maps and variants, and lists must hash apart."""
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
        return [value.cast("binary")]  # a collation may make different strings equal
    return [value]
