"""Values in Iceberg's metadata (partition values, bounds, defaults) as asyncpq's literals.

Table spec, Appendix D: "Single-value serialization".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator
from typing import Any

from pyiceberg.conversions import from_bytes, from_json
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UUIDType,
)

from asyncpq.datasets.model import ColumnBounds
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.scalars import Scalar, Timestamp
from asyncpq.storage.urls import safe_url


def as_literal(kind: PrimitiveType, value: Any) -> Scalar:
    """A value as pyiceberg decodes it from Avro, bytes or JSON (days, microseconds, ...), as a literal.

    Raises:
        ValueError, OverflowError, TypeError: it is no value of this type, or one that Python cannot hold.
    """
    if value is None:
        return None
    if isinstance(kind, (TimestampNanoType, TimestamptzNanoType)):
        return Timestamp(int(value), "UTC" if isinstance(kind, TimestamptzNanoType) else None)
    literal: Scalar = from_json(kind, value)
    return literal


def partition_value(column: NestedField, value: Any, table: str, url: str) -> Scalar:
    """The value that a column has in all rows of the data file at ``url``, by an identity partition.

    Raises:
        UnsupportedFeatureError: a literal cannot hold it.
    """
    assert isinstance(column.field_type, PrimitiveType)
    try:
        return as_literal(column.field_type, value)
    except (ValueError, TypeError, ArithmeticError):
        raise UnsupportedFeatureError(
            f"{table}: partition value {value!r} is not read", url=safe_url(url), column=column.name
        ) from None


def struct_leaves(schema: Schema, without: Collection[int] = ()) -> dict[str, NestedField]:
    """The leaves below no list or map, by dotted path. A path that two leaves share names neither.

    Args:
        without: ids of fields to leave out, with all below them.
    """
    found: dict[str, NestedField] = {}
    shared = set()
    for path, field in _leaves("", schema.fields, without):
        if path in found:
            shared.add(path)
        found[path] = field
    return {path: field for path, field in found.items() if path not in shared}


def _leaves(
    prefix: str, fields: tuple[NestedField, ...], without: Collection[int]
) -> Iterator[tuple[str, NestedField]]:
    for field in fields:
        if field.field_id in without:
            continue
        if isinstance(field.field_type, StructType):
            yield from _leaves(f"{prefix}{field.name}.", field.field_type.fields, without)
        elif isinstance(field.field_type, PrimitiveType):
            yield prefix + field.name, field


def column_bounds(field: NestedField, file: IcebergFile) -> ColumnBounds:
    """What a manifest entry says of a leaf that is below no list or map."""
    kind = field.field_type
    at = field.field_id
    is_float = isinstance(kind, (FloatType, DoubleType))
    low, high = _bound(kind, file.lower_bounds, at), _bound(kind, file.upper_bounds, at)
    if is_float and _is_nan(low, high):
        low = high = None
    null_count = (file.null_value_counts or {}).get(at)
    if null_count is not None and not 0 <= null_count <= file.record_count:
        null_count = None
    return ColumnBounds(
        min=low,
        max=high,
        null_count=null_count,
        all_null=null_count is not None and null_count == file.record_count,
        exact=False,  # the spec asks for bounds only; those of strings are cut short
        may_be_nan=is_float and (file.nan_value_counts or {}).get(at) != 0,
    )


def _bound(kind: IcebergType, bounds: dict[int, bytes] | None, field_id: int) -> Scalar:
    raw = (bounds or {}).get(field_id)
    if raw is None or not isinstance(kind, PrimitiveType) or isinstance(kind, UUIDType):  # whose order is disputed
        return None
    try:
        return as_literal(kind, from_bytes(kind, raw))
    except (ValueError, TypeError, ArithmeticError, struct.error):
        return None  # of the type that the column had, or finer than a literal: nothing is known


def _is_nan(low: Scalar, high: Scalar) -> bool:
    return any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high))
