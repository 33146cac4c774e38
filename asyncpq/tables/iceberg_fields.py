"""The columns of an Iceberg table: found in files by field id, or by the name mapping where files have no ids.

Table spec, "Schema evolution" and "Column projection". Types are those that pyiceberg gives, with ``string``,
``binary`` and ``list`` for its large forms, which only its empty results have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    GeographyType,
    GeometryType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    UnknownType,
)

from asyncpq.datasets.model import TableField
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.scalars import Timestamp
from asyncpq.tables.iceberg_values import as_literal

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
