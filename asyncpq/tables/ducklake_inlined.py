"""Rows that a DuckLake keeps in its catalog ("data inlining"), as a small Parquet file in memory.

What a value looks like depends on the database: SQLite has text where PostgreSQL has types, text is bytes there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import DataFile, TableField
from asyncpq.decoding.arrow import parquet_bytes
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.scalars import Timestamp
from asyncpq.tables.ducklake_catalog import InlinedRows, Row, TableState
from asyncpq.tables.ducklake_schema import Column, columns_of_rows
from asyncpq.tables.ducklake_text import nested_of_text
from asyncpq.tables.ducklake_types import value_of_text

_TEXT = ("varchar", "json")
_NO_COLUMN = (1 << 31) - 1  # a field id that no column has
_HINT = "Write them to files: CALL ducklake_flush_inlined_data(...)."


def inlined_file(inlined: InlinedRows, state: TableState, fields: Sequence[TableField], table: str) -> DataFile:
    """The rows as a file of the table, with the columns that the table had when they were written.

    Raises:
        UnsupportedFeatureError: a value that is not read; names column and table.
    """
    wanted = {field.field_id for field in fields}
    arrays: list[pa.Array] = []
    columns: list[pa.Field] = []
    for at, column in _columns_then(inlined, state, wanted, table).items():
        columns.append(_with_id(column.field))
        try:
            arrays.append(_array([row[at] for row in inlined.rows], column))
        except (ValueError, TypeError, KeyError, OverflowError, pa.ArrowException) as error:
            raise UnsupportedFeatureError(
                f"DuckLake table {table}: inlined rows with such a value are not read: {error}",
                column=column.field.name,
                hint=_HINT,
            ) from error
    if not arrays:  # rows of nothing but columns that were added since
        arrays = [pa.nulls(len(inlined.rows), pa.int32())]
        columns = [_with_id(TableField(name="rows", type=pa.int32(), field_id=_NO_COLUMN))]
    return DataFile(
        url=f"ducklake://{table}/{inlined.name}/{state.snapshot_id}",
        num_rows=len(inlined.rows),
        immutable=True,
        content=parquet_bytes(pa.table(arrays, schema=pa.schema(columns))),
    )


def _with_id(field: TableField) -> pa.Field:
    """A field of a file, which has field ids as the files that DuckDB writes."""
    children = [_with_id(child) for child in field.children]
    kind = field.type
    if isinstance(kind, pa.StructType):
        kind = pa.struct(children)
    elif isinstance(kind, pa.ListType):
        kind = pa.list_(children[0])
    elif isinstance(kind, pa.MapType):
        kind = pa.map_(children[0].with_nullable(False), children[1])
    return pa.field(field.name, kind, metadata={"PARQUET:field_id": str(field.field_id)})


def _columns_then(
    inlined: InlinedRows, state: TableState, wanted: Collection[int | None], table: str
) -> dict[int, Column]:
    """Of the columns that are wanted, those that the table had when the rows were written, by position in the rows."""
    begin = state.schema_begins.get(inlined.schema_version)
    found: dict[int, Column] = {}
    for at, name in enumerate(inlined.names):
        same = [row for row in state.columns if row["parent_column"] is None and row["column_name"] == name]
        if begin is not None:
            same = [row for row in same if _covers(row, begin)]
        if len(same) != 1:
            raise CorruptFileError(f"no telling which column {name!r} of {inlined.name} is", column=name)
        if same[0]["column_id"] in wanted:
            then = same[0]["begin_snapshot"] if begin is None else begin
            parts = [row for row in state.columns if row["parent_column"] is not None and _covers(row, then)]
            (found[at],) = columns_of_rows([same[0], *parts], table)
    return found


def _covers(row: Row, snapshot: int) -> bool:
    return row["begin_snapshot"] <= snapshot and (row["end_snapshot"] is None or row["end_snapshot"] > snapshot)


def _array(values: Sequence[Any], column: Column) -> pa.Array:
    """
    Args:
        values: as the database gives them, nested ones as text or as Python's.

    Raises:
        ValueError, TypeError, KeyError, pyarrow.ArrowException: a value that is not one of the column's type.
    """
    if not column.children:
        return pa.array([_scalar(value, column.type_name) for value in values], column.field.type)
    nested = [nested_of_text(value, column) if isinstance(value, str) else value for value in values]
    kind = _with_id(column.field).type
    is_null = pa.array([value is None for value in nested], pa.bool_())
    if column.type_name == "struct":
        parts = [_array([value and value[part.field.name] for value in nested], part) for part in column.children]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=is_null)
    found = [_entries(value) if column.type_name == "map" else value or () for value in nested]
    offsets = pa.array([0, *accumulate(map(len, found))], pa.int32())
    if column.type_name == "list":
        element = _array([item for items in found for item in items], column.children[0])
        return pa.ListArray.from_arrays(offsets, element, type=kind, mask=is_null)
    keys = _array([key for entries in found for key, _ in entries], column.children[0])
    items = _array([item for entries in found for _, item in entries], column.children[1])
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=is_null)


def _entries(value: Any) -> Sequence[tuple[Any, Any]]:
    return tuple(value.items()) if isinstance(value, Mapping) else value or ()


def _scalar(value: Any, type_name: str) -> Any:
    if value is None:
        return None
    if type_name in _TEXT:
        return bytes(value).decode() if isinstance(value, (bytes, memoryview)) else value
    if type_name == "interval" and not isinstance(value, str):  # a timedelta has lost the months
        raise ValueError("interval values are not read from inside of lists, structs and maps of this database")
    if isinstance(value, str):
        value = value_of_text(value, type_name)
    elif isinstance(value, dt.time) and value.tzinfo is not None:
        value = value_of_text(value.isoformat(), type_name)
    if isinstance(value, Timestamp):
        return value.nanoseconds
    return bool(value) if type_name == "boolean" else value
