"""The columns of an Iceberg table: found in files by field id, or by the name mapping where files have no ids.

Table spec, "Schema evolution" and "Column projection". Types are those that pyiceberg gives, with ``string``,
``binary`` and ``list`` for its large forms, which only its empty results have.

Values in Iceberg's metadata (partition values, bounds, defaults) as asyncpq's literals.

Table spec, Appendix D: "Single-value serialization".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes, from_json
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    DoubleType,
    FloatType,
    GeographyType,
    GeometryType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
    UUIDType,
)

from asyncpq.datasets.model import ColumnBounds, TableField
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.expressions.scalars import Scalar, Timestamp
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


_REFUSED = (GeographyType, GeometryType, UnknownType)
_NO_NAME = ("\ud800",)  # not UTF-8, so no field of a file has it


def table_fields(schema: Schema, mapping: NameMapping | None, table: str) -> tuple[TableField, ...]:
    """The columns of ``schema``.

    Args:
        mapping: names in files without field ids; None: such files are refused.
        table: names the table in errors.

    Raises:
        UnsupportedFeatureError: a column has a type that is not read.
    """
    names = None if mapping is None else _by_id(mapping.root)
    return _children(schema.fields, names, table)


def doubtful_fields(schemas: Iterable[Schema], mapping: NameMapping | None) -> frozenset[int]:
    """Ids of fields whose statistics and partition values may be those of another column.

    A name that a field once had may be another field's by now, as far as files without ids go (a rename, then a new
    column under the old name). Manifests still say of the first field what such files have under that name.
    """
    if mapping is None:
        return frozenset()
    names = _by_id(mapping.root)
    return frozenset(
        field_id
        for schema in schemas
        for field_id, field in index_by_id(schema).items()
        if field.name not in names.get(field_id, ())
    )


def _by_id(fields: list[MappedField]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for field in fields:
        if field.field_id is not None:
            found[field.field_id] = tuple(field.names)
        found |= _by_id(field.fields)
    return found


def _children(
    fields: tuple[NestedField, ...], names: Mapping[int, tuple[str, ...]] | None, table: str
) -> tuple[TableField, ...]:
    return tuple(_field(field, names, table) for field in fields)


def _field(field: NestedField, names: Mapping[int, tuple[str, ...]] | None, table: str) -> TableField:
    kind = field.field_type
    children: tuple[TableField, ...] = ()
    if isinstance(kind, StructType):
        children = _children(kind.fields, names, table)
    elif isinstance(kind, ListType):
        children = _children((kind.element_field,), names, table)
    elif isinstance(kind, MapType):
        children = _children((kind.key_field, kind.value_field), names, table)
    elif isinstance(kind, _REFUSED):
        raise UnsupportedFeatureError(f"{table}: Iceberg type {kind} is not read", column=field.name)
    return TableField(
        name=field.name,
        type=_arrow_type(kind, children),
        nullable=field.optional,
        field_id=field.field_id,
        names=() if names is None else names.get(field.field_id) or _NO_NAME,
        default=_default(field, table),
        children=children,
    )


def _arrow_type(kind: IcebergType, children: tuple[TableField, ...]) -> pa.DataType:
    if isinstance(kind, StringType):
        return pa.string()
    if isinstance(kind, BinaryType):
        return pa.binary()
    parts = [pa.field(child.name, child.type, child.nullable) for child in children]
    if isinstance(kind, StructType):
        return pa.struct(parts)
    if isinstance(kind, ListType):
        return pa.list_(parts[0])
    if isinstance(kind, MapType):
        return pa.map_(*parts)
    return schema_to_pyarrow(kind)


def _default(field: NestedField, table: str) -> Any:
    """Value of the column in files that were written before it was added."""
    if field.initial_default is None:
        return None
    if not isinstance(field.field_type, PrimitiveType):
        raise UnsupportedFeatureError(f"{table}: a default of a nested column is not read", column=field.name)
    try:
        value = as_literal(field.field_type, field.initial_default)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise UnsupportedFeatureError(
            f"{table}: the default {field.initial_default!r} is not read", column=field.name
        ) from error
    if isinstance(value, Timestamp):
        return pa.scalar(value.nanoseconds, pa.timestamp("ns", value.timezone))
    return value
