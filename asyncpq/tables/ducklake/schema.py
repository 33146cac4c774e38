"""A DuckLake table's columns as fields, the leaves that have statistics, and the columns of added files.

Files match columns by field id. Files that were added to a DuckLake as they are match by name, through a mapping:
their field ids are not the table's. Spec: ``ducklake_column_mapping``, ``ducklake_name_mapping``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from asyncpq.datasets.model import TableField
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.expressions.scalars import Timestamp
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url
from asyncpq.tables.ducklake.sql_catalog import Row
from asyncpq.tables.ducklake.values import RESOLUTIONS, arrow_type, value_of_text

_Children: TypeAlias = Mapping[int | None, Sequence[Row]]  # by parent id, in column order

_NESTED = ("struct", "list", "map")
_NO_NAME = ("\ud800",)  # not UTF-8, so no field of a file has it
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class DuckLakeColumn:
    """A column, or a part of a nested column."""

    field: TableField
    type_name: str  # DuckLake's name of the type
    children: tuple[DuckLakeColumn, ...]


def columns_of_rows(rows: Sequence[Row], table: str) -> tuple[DuckLakeColumn, ...]:
    """Decode a snapshot's rows of ``ducklake_column``.

    Raises UnsupportedFeatureError, which names the column and ``table``, for an unsupported type or default.
    """
    children = _by_parent(rows)
    return tuple(_column(row, children, table) for row in children.get(None, ()))


def leaves_of(columns: Sequence[Row], ever: Sequence[Row]) -> dict[str, Row]:
    """Return the rows of the primitive columns and struct parts that can have bounds, keyed by dotted path.

    Left out are text columns that once had another type, whose bounds may follow that type's order, and paths that
    name two columns. ``columns``: rows of the snapshot. ``ever``: rows of all snapshots.
    """
    retyped = {row["column_id"] for row in ever if row["column_type"] != "varchar"}
    leaves = list(_leaf_paths(_by_parent(columns), None, ""))
    times = Counter(path for path, _ in leaves)
    return {
        path: row
        for path, row in leaves
        if times[path] == 1 and not (row["column_type"] == "varchar" and row["column_id"] in retyped)
    }


def _leaf_paths(children: _Children, parent: int | None, above: str) -> Iterator[tuple[str, Row]]:
    for row in children.get(parent, ()):
        path = f"{above}{row['column_name']}"
        if row["column_type"] == "struct":
            yield from _leaf_paths(children, row["column_id"], f"{path}.")
        elif row["column_type"] not in _NESTED:
            yield path, row


def _by_parent(columns: Sequence[Row]) -> _Children:
    children: dict[int | None, list[Row]] = {}
    for row in sorted(columns, key=lambda row: row["column_order"]):
        children.setdefault(row["parent_column"], []).append(row)
    return children


def _column(row: Row, below: _Children, table: str) -> DuckLakeColumn:
    children = tuple(_column(child, below, table) for child in below.get(row["column_id"], ()))
    fields = tuple(child.field for child in children)
    name, type_name = str(row["column_name"]), str(row["column_type"])
    type_ = _type(type_name, fields)
    if type_ is None:
        raise UnsupportedFeatureError(
            f"DuckLake table {table}: asyncpq does not support columns of type {type_name}", column=name
        )
    field = TableField(
        name=name,
        type=type_,
        nullable=bool(row["nulls_allowed"]),
        field_id=row["column_id"],
        default=_default(row, type_, table),
        children=fields,
    )
    return DuckLakeColumn(field, type_name, children)


def _type(name: str, children: tuple[TableField, ...]) -> pa.DataType | None:
    parts = [pa.field(child.name, child.type, child.nullable) for child in children]
    if name == "struct" and parts:
        return pa.struct(parts)
    if name == "list" and len(parts) == 1:
        return pa.list_(parts[0])
    if name == "map" and len(parts) == 2:
        return pa.map_(parts[0].with_nullable(False), parts[1])
    return arrow_type(name) if not children else None


def _default(row: Row, type_: pa.DataType, table: str) -> pa.Scalar | None:
    """Parse the ``initial_default``: the column's value in files without the column. None is null."""
    text = row["initial_default"]
    if text is None:
        return None
    try:
        return typed(str(text), str(row["column_type"]), type_)
    except (ValueError, pa.ArrowException):
        raise UnsupportedFeatureError(
            f"DuckLake table {table}: asyncpq cannot read an initial default of type {row['column_type']}",
            column=str(row["column_name"]),
        ) from None


def typed(text: str, type_name: str, type_: pa.DataType) -> pa.Scalar:
    """Convert a text in the catalog or in a path to a value of DuckLake's type ``type_name``.

    Raises ValueError or pyarrow.ArrowException if the text is not a value of the type.
    """
    value = value_of_text(text, type_name)
    return pa.scalar(value.nanoseconds if isinstance(value, Timestamp) else value, type_)


def mapped_fields(
    fields: Sequence[TableField], names: Sequence[Row], types: Mapping[int, str], url: str
) -> tuple[tuple[TableField, ...], dict[str, Any]]:
    """Return the table's columns as a file has them that was added with ``ducklake_add_data_files``.

    The second item: the partition values in the directories ``key=value`` of ``url``, keyed by column. ``names``: rows
    of ``ducklake_name_mapping`` for the file. ``types``: DuckLake's type names keyed by column id.
    """
    by_target = {row["target_field_id"]: row for row in names}
    partition: dict[str, Any] = {}
    for field in fields:
        row = by_target.get(field.field_id)
        if row is not None and row.get("is_partition"):
            text = _path_value(url, str(row["source_name"]))
            try:
                partition[field.name] = None if text is None else typed(text, types[row["target_field_id"]], field.type)
            except (ValueError, pa.ArrowException):
                raise UnsupportedFeatureError(
                    f"the file's path has {text!r}, which is not a value of type {field.type}",
                    url=safe_url(url),
                    column=field.name,
                ) from None
    return tuple(_mapped(field, by_target, types) for field in fields), partition


def _mapped(field: TableField, by_target: Mapping[int, Row], types: Mapping[int, str]) -> TableField:
    row = None if field.field_id is None else by_target.get(field.field_id)
    return dataclasses.replace(
        field,
        field_id=None,
        names=_NO_NAME if row is None else (str(row["source_name"]),),
        children=tuple(_mapped(child, by_target, types) for child in field.children),
        resolution=None if field.field_id is None else RESOLUTIONS.get(types[field.field_id]),
    )


def _path_value(url: str, key: str) -> str | None:
    values = {part.partition("=")[2] for part in url.split("/")[:-1] if part.partition("=")[:2] == (key, "=")}
    if len(values) != 1:
        raise UnsupportedFeatureError(
            f"the file's path must have exactly one value of the partition column {key!r}", url=safe_url(url)
        )
    (text,) = values
    return None if text == _HIVE_NULL else unquote(text)
