"""Iceberg's columns as table fields, and the values in its metadata as literals: partition values, bounds, defaults.

Files match columns by field id, or by the name mapping where they have no ids. Types are pyiceberg's, with plain
``string``, ``binary`` and ``list``: pyiceberg has large forms only in empty results. Table spec, "Schema evolution",
"Column projection" and Appendix D, "Single-value serialization".
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg import types
from pyiceberg.conversions import from_bytes, from_json
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.name_mapping import MappedField, NameMapping

from asyncpq.datasets.model import OTHER_COLUMNS, VARIANT_PARTS, VARIANT_TYPE, ColumnBounds, TableField
from asyncpq.errors import AsyncpqError, UnsupportedFeatureError
from asyncpq.expressions.scalars import Scalar, Timestamp
from asyncpq.storage.urls import safe_url

if TYPE_CHECKING:
    from asyncpq.tables.iceberg.manifests import ManifestFileEntry

_REFUSED = (types.GeographyType, types.GeometryType)
_WITHOUT_BOUNDS = (*_REFUSED, types.UnknownType)
_DAYS_OR_MICROSECONDS = (types.DateType, types.TimestampType, types.TimestamptzType)
#: ClickHouse marks all its timestamps as UTC, also those of columns without a zone. The table's type counts.
_TIMESTAMPS = (types.TimestampType, types.TimestamptzType, types.TimestampNanoType, types.TimestamptzNanoType)
_MAX_FIXED_BYTES = 16 << 20
_NO_NAME = ("\ud800",)  # not UTF-8, so no field of a file has it


def as_literal(iceberg_type: types.PrimitiveType, value: Any) -> Scalar:
    """Convert a value that pyiceberg decoded from Avro, bytes or JSON (days, microseconds, ...) to a literal.

    Raises ValueError, OverflowError or TypeError if the value is not of the type, or Python cannot represent it.
    """
    if value is None:
        return None
    if isinstance(iceberg_type, (types.TimestampNanoType, types.TimestamptzNanoType)):
        zone = "UTC" if isinstance(iceberg_type, types.TimestamptzNanoType) else None
        if isinstance(value, str):  # in JSON
            value = pa.scalar(value).cast(pa.timestamp("ns", zone)).value
        return Timestamp(int(value), zone)
    if isinstance(value, str) and isinstance(iceberg_type, (types.FloatType, types.DoubleType)):
        return float(value)  # NaN or an infinity, as Java writes them to JSON
    literal: Scalar = from_json(iceberg_type, value)
    return literal


def _column_value(iceberg_type: types.PrimitiveType, value: Any) -> Any:
    """Convert a value that a column has in all rows of a file: a Python value, or a scalar of pyarrow for nanoseconds.

    Raises as :func:`as_literal` does.
    """
    literal = as_literal(iceberg_type, value)
    if isinstance(literal, Timestamp):
        return pa.scalar(literal.nanoseconds, pa.timestamp("ns", literal.timezone))
    return literal


def partition_value(column: types.NestedField, value: Any, table: str, url: str) -> Any:
    """Decode an identity partition's value, which the column has in all rows of the data file at ``url``.

    Returns a Python value, or a pyarrow scalar for nanoseconds, and for a date or time outside of Python's range.
    """
    assert isinstance(column.field_type, types.PrimitiveType)
    try:
        return _column_value(column.field_type, value)
    except (ValueError, TypeError, ArithmeticError):
        if isinstance(value, int) and isinstance(column.field_type, _DAYS_OR_MICROSECONDS):
            return pa.scalar(value, schema_to_pyarrow(column.field_type))
        raise UnsupportedFeatureError(
            f"{table}: asyncpq cannot represent the partition value {value!r}", url=safe_url(url), column=column.name
        ) from None


def with_own_zeros(
    values: Mapping[str, Any], fields: tuple[TableField, ...]
) -> tuple[Mapping[str, Any], tuple[TableField, ...]]:
    """Return the partition ``values`` of a file without those of 0.0, and ``fields``, with these as defaults.

    Trino 483 writes 0.0 for infinity and for -0.0: what the file itself has counts.
    """
    zeros = {name: value for name, value in values.items() if isinstance(value, float) and repr(value) == "0.0"}
    if not zeros:
        return values, fields
    defaulted = [replace(part, default=zeros[part.name]) if part.name in zeros else part for part in fields]
    return {name: value for name, value in values.items() if name not in zeros}, tuple(defaulted)


def struct_leaves(schema: Schema, without: Collection[int] = ()) -> dict[str, types.NestedField]:
    """Return the primitive fields outside of lists and maps, keyed by dotted path; ambiguous paths are left out.

    ``without``: ids of fields to leave out, with their children.
    """
    leaves: dict[str, types.NestedField] = {}
    shared = set()
    for path, field in _leaves("", schema.fields, without):
        if path in leaves:
            shared.add(path)
        leaves[path] = field
    return {path: field for path, field in leaves.items() if path not in shared}


def _leaves(
    prefix: str, fields: tuple[types.NestedField, ...], without: Collection[int]
) -> Iterator[tuple[str, types.NestedField]]:
    for field in fields:
        if field.field_id in without:
            continue
        if isinstance(field.field_type, types.StructType):
            yield from _leaves(f"{prefix}{field.name}.", field.field_type.fields, without)
        elif isinstance(field.field_type, types.PrimitiveType) and not isinstance(field.field_type, _WITHOUT_BOUNDS):
            yield prefix + field.name, field


def column_bounds(field: types.NestedField, file: ManifestFileEntry) -> ColumnBounds:
    """Decode the bounds and counts of a field from a manifest entry. The field is primitive, not in a list or map."""
    iceberg_type = field.field_type
    field_id = field.field_id
    is_float = isinstance(iceberg_type, (types.FloatType, types.DoubleType))
    low, high = _bound(iceberg_type, file.lower_bounds, field_id), _bound(iceberg_type, file.upper_bounds, field_id)
    if low != low or high != high:  # NaN
        low = high = None
    null_count = file.null_counts.get(field_id)
    if null_count is not None and not 0 <= null_count <= file.num_rows:
        null_count = None
    return ColumnBounds(
        min=low,
        max=high,
        null_count=null_count,
        all_null=null_count is not None and null_count == file.num_rows,
        exact=False,  # the spec allows any bounds; those of strings are truncated
        may_be_nan=is_float and file.nan_counts.get(field_id) != 0,
    )


def _bound(iceberg_type: types.IcebergType, bounds: Mapping[int, bytes], field_id: int) -> Scalar:
    raw = bounds.get(field_id)
    is_ordered = not isinstance(iceberg_type, types.UUIDType)  # writers disagree on the order of UUIDs
    if raw is None or not isinstance(iceberg_type, types.PrimitiveType) or not is_ordered:
        return None
    try:
        return as_literal(iceberg_type, from_bytes(iceberg_type, raw))
    except (ValueError, TypeError, ArithmeticError, struct.error):
        return None  # of an earlier type of the column, or too fine for a literal: unknown


def table_fields(
    schema: Schema,
    mapping: NameMapping | None,
    table: str,
    foreign: Mapping[int, str] = MappingProxyType({}),
    defaults: Mapping[int, Any] = MappingProxyType({}),
) -> tuple[TableField, ...]:
    """Convert the columns of ``schema`` to table fields. Columns of types that asyncpq does not read are unreadable.

    Args:
        schema: the columns.
        mapping: column names in files without field ids; None: such files are refused.
        table: the table's name, for errors.
        foreign: types that pyiceberg does not know, by the ids of their fields.
        defaults: initial defaults that ``schema`` lacks, as in JSON, by the ids of their fields.
    """
    names = None if mapping is None else _by_id(mapping.root)
    return tuple(_field(field, field.name, names, table, foreign, defaults) for field in schema.fields)


def untrusted_fields(schemas: Iterable[Schema], mapping: NameMapping | None) -> frozenset[int]:
    """Return the ids of fields whose statistics and partition values may belong to another column.

    In files without field ids, a name may have moved from one field to another: a rename, then a new column under the
    old name. Manifests still give the statistics of that name to the first field.
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
    names: dict[int, tuple[str, ...]] = {}
    for field in fields:
        if field.field_id is not None:
            names[field.field_id] = tuple(field.names)
        names |= _by_id(field.fields)
    return names


def _field(
    field: types.NestedField,
    path: str,
    names: Mapping[int, tuple[str, ...]] | None,
    table: str,
    foreign: Mapping[int, str],
    defaults: Mapping[int, Any],
) -> TableField:
    """Convert a column, or a part of one at the dotted ``path``."""
    iceberg_type = field.field_type
    own_names = () if names is None else names.get(field.field_id) or _NO_NAME
    initial_default = defaults.get(field.field_id, field.initial_default)
    unreadable: AsyncpqError | None = None
    default = None
    parts: tuple[types.NestedField, ...] = ()
    if isinstance(iceberg_type, types.StructType):
        parts = iceberg_type.fields
    elif isinstance(iceberg_type, types.ListType):
        parts = (iceberg_type.element_field,)
    elif isinstance(iceberg_type, types.MapType):
        parts = (iceberg_type.key_field, iceberg_type.value_field)
    children = tuple(_field(part, f"{path}.{part.name}", names, table, foreign, defaults) for part in parts)
    type_name = foreign.get(field.field_id, str(iceberg_type))
    if type_name == "variant":
        arrow_type, children = VARIANT_TYPE, VARIANT_PARTS
        if initial_default is not None:
            unreadable = _no_default(initial_default, path, table)
    elif field.field_id in foreign or isinstance(iceberg_type, _REFUSED):
        arrow_type = pa.binary() if isinstance(iceberg_type, _REFUSED) else pa.null()
        unreadable = UnsupportedFeatureError(
            f"{table}: asyncpq does not support Iceberg type {type_name}", column=path, hint=OTHER_COLUMNS
        )
    else:
        arrow_type = _arrow_type(iceberg_type, children, path, table)
        try:
            default = _default(field, initial_default, table)
        except UnsupportedFeatureError as error:
            unreadable = error
    return TableField(
        name=field.name,
        type=arrow_type,
        nullable=field.optional,
        field_id=field.field_id,
        names=own_names,
        default=default,
        children=children,
        is_variant=type_name == "variant",
        ignores_zone=isinstance(iceberg_type, _TIMESTAMPS),
        unreadable=unreadable,
    )


def _arrow_type(
    iceberg_type: types.IcebergType, children: tuple[TableField, ...], name: str, table: str
) -> pa.DataType:
    if isinstance(iceberg_type, types.StringType):
        return pa.string()
    if isinstance(iceberg_type, types.BinaryType):
        return pa.binary()
    parts = [pa.field(child.name, child.type, child.nullable) for child in children]
    if isinstance(iceberg_type, types.StructType):
        return pa.struct(parts)
    if isinstance(iceberg_type, types.ListType):
        return pa.list_(parts[0])
    if isinstance(iceberg_type, types.MapType):
        return pa.map_(*parts)
    if isinstance(iceberg_type, types.FixedType) and len(iceberg_type) > _MAX_FIXED_BYTES:  # a null takes as much
        raise UnsupportedFeatureError(
            f"{table}: asyncpq does not support values of {len(iceberg_type)} bytes in each row", column=name
        )
    try:
        return schema_to_pyarrow(iceberg_type)
    except (ValueError, OverflowError) as error:
        raise UnsupportedFeatureError(
            f"{table}: asyncpq does not support Iceberg type {iceberg_type}", column=name
        ) from error


def _default(field: types.NestedField, default: Any, table: str) -> Any:
    """Convert the initial ``default`` to the column's value in files that are older than the column; None is null."""
    if default is None:
        return None
    if not isinstance(field.field_type, types.PrimitiveType):
        raise UnsupportedFeatureError(
            f"{table}: asyncpq does not support a default of a nested column", column=field.name
        )
    try:
        return _column_value(field.field_type, default)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise _no_default(default, field.name, table) from error


def _no_default(default: Any, column: str, table: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{table}: asyncpq cannot represent the initial default {default!r:.200} of a column",
        column=column,
        hint=f"{OTHER_COLUMNS} Or rewrite the files that lack this one.",
    )
