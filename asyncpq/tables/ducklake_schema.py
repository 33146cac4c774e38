"""A DuckLake table's columns as fields, found in files by field id, and the leaves that have statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from asyncpq.datasets.model import TableField
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.scalars import Timestamp
from asyncpq.tables.ducklake_catalog import Row
from asyncpq.tables.ducklake_types import arrow_type, value_of_text

_Children: TypeAlias = Mapping[int | None, Sequence[Row]]  # by the parent's id, in their order

_NESTED = ("struct", "list", "map")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column, or a part of a struct, that has bounds.

    Attributes:
        column_id: in the table; the Parquet field id in its files.
        type_name: DuckLake's.
    """

    column_id: int
    type_name: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a part of a nested one.

    Attributes:
        field: as files have it.
        type_name: DuckLake's.
        children: its parts.
    """

    field: TableField
    type_name: str
    children: tuple[Column, ...]


def columns_of_rows(rows: Sequence[Row], table: str) -> tuple[Column, ...]:
    """The columns of a snapshot's rows of ``ducklake_column``.

    Raises:
        UnsupportedFeatureError: a type, or a default, that is not read; names column and ``table``.
    """
    children = _by_parent(rows)
    return tuple(_column(row, children, table) for row in children.get(None, ()))


def leaves_of(columns: Sequence[Row], ever: Sequence[Row]) -> dict[str, Leaf]:
    """What statistics can be looked up for, by name or dotted path; ``ever`` are the columns of any snapshot.

    A text column that once had another type is left out, as its bounds may be in that type's order; so are
    paths that mean two columns.
    """
    types: dict[int, set[str]] = {}
    for row in ever:
        types.setdefault(row["column_id"], set()).add(row["column_type"])
    found: dict[str, Leaf] = {}
    twice: set[str] = set()
    for path, row in _leaf_paths(_by_parent(columns), None, ""):
        if path in found:
            twice.add(path)
        if row["column_type"] != "varchar" or types[row["column_id"]] == {"varchar"}:
            found[path] = Leaf(row["column_id"], row["column_type"])
    return {path: leaf for path, leaf in found.items() if path not in twice}


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


def _column(row: Row, below: _Children, table: str) -> Column:
    children = tuple(_column(child, below, table) for child in below.get(row["column_id"], ()))
    fields = tuple(child.field for child in children)
    name, type_name = str(row["column_name"]), str(row["column_type"])
    type_ = _type(type_name, fields)
    if type_ is None:
        raise UnsupportedFeatureError(f"DuckLake table {table}: columns of type {type_name} are not read", column=name)
    field = TableField(
        name=name,
        type=type_,
        nullable=bool(row["nulls_allowed"]),
        field_id=row["column_id"],
        default=_default(row, type_, table),
        children=fields,
    )
    return Column(field, type_name, children)


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
    """What rows of files without the column hold: ``initial_default``, which is text."""
    text = row["initial_default"]
    if text is None:
        return None
    try:
        return typed(str(text), str(row["column_type"]), type_)
    except (ValueError, pa.ArrowException):
        raise UnsupportedFeatureError(
            f"DuckLake table {table}: an initial default of type {row['column_type']} is not read",
            column=str(row["column_name"]),
        ) from None


def typed(text: str, type_name: str, type_: pa.DataType) -> pa.Scalar:
    """A value that the catalog, or a path, has as text.

    Raises:
        ValueError, pyarrow.ArrowException: it is none of the type.
    """
    value = value_of_text(text, type_name)
    return pa.scalar(value.nanoseconds if isinstance(value, Timestamp) else value, type_)
