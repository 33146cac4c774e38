"""Rows that a DuckLake keeps in its catalog ("data inlining"), as a small Parquet file in memory.

What a value looks like depends on the database: SQLite has text where PostgreSQL has types, text is bytes there.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import DataFile, TableField
from asyncpq.decoding.arrow import parquet_bytes
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.scalars import Timestamp
from asyncpq.tables.ducklake_catalog import InlinedRows, Row, TableState
from asyncpq.tables.ducklake_types import arrow_type, value_of_text

_TEXT = ("varchar", "json")
_HINT = "Write them to files: CALL ducklake_flush_inlined_data(...)."


def inlined_file(inlined: InlinedRows, state: TableState, fields: Sequence[TableField], table: str) -> DataFile:
    """The rows as a file of the table.

    Raises:
        UnsupportedFeatureError: a value that is not read; names column and table.
    """
    then = _columns_then(inlined, state)
    arrays: list[pa.Array] = []
    names: list[str] = []
    for field in fields:
        position = next((at for at, row in then.items() if row["column_id"] == field.field_id), None)
        if position is None:
            continue  # added since: the default
        arrays.append(_array([row[position] for row in inlined.rows], then[position], field, table))
        names.append(field.name)
    if not arrays:  # rows of nothing but columns that were added since
        arrays, names = [pa.nulls(len(inlined.rows), pa.int32())], [_unused_name(fields)]
    return DataFile(
        url=f"ducklake://{table}/{inlined.name}/{state.snapshot_id}",
        num_rows=len(inlined.rows),
        immutable=True,
        fields=tuple(map(_by_name, fields)),
        content=parquet_bytes(pa.table(arrays, names=names)),
    )


def _by_name(field: TableField) -> TableField:
    return dataclasses.replace(field, field_id=None, names=(field.name,), children=tuple(map(_by_name, field.children)))


def _unused_name(fields: Sequence[TableField]) -> str:
    name = "rows"
    while any(field.name == name for field in fields):
        name += "_"
    return name


def _columns_then(inlined: InlinedRows, state: TableState) -> Mapping[int, Row]:
    """The table's columns when the rows were written, by position in them."""
    begin = state.schema_begins.get(inlined.schema_version)
    top = [row for row in state.columns if row["parent_column"] is None]
    found: dict[int, Row] = {}
    for at, name in enumerate(inlined.names):
        same = [row for row in top if row["column_name"] == name]
        if begin is not None:
            same = [row for row in same if _covers(row, begin)]
        if len(same) != 1:
            raise CorruptFileError(f"no telling which column {name!r} of {inlined.name} is", column=name)
        found[at] = same[0]
    return found


def _covers(row: Row, snapshot: int) -> bool:
    return row["begin_snapshot"] <= snapshot and (row["end_snapshot"] is None or row["end_snapshot"] > snapshot)


def _array(values: Sequence[Any], then: Row, field: TableField, table: str) -> pa.Array:
    """Values of the type that the column had then, as the type that it has now."""
    name = str(then["column_type"])
    kind = arrow_type(name)
    try:
        if all(value is None for value in values):
            return pa.nulls(len(values), field.type)
        if kind is None:
            raise ValueError(f"{name} values are not read from text")
        array = pa.array([_value(value, name) for value in values], kind)
        return array if kind.equals(field.type) else array.cast(field.type)
    except (ValueError, pa.ArrowException) as error:
        raise UnsupportedFeatureError(
            f"DuckLake table {table}: inlined rows with such a value are not read: {error}",
            column=field.name,
            hint=_HINT,
        ) from error


def _value(value: Any, type_name: str) -> Any:
    if value is None:
        return None
    if type_name in _TEXT:
        return bytes(value).decode() if isinstance(value, (bytes, memoryview)) else value
    if type_name == "interval":  # a timedelta of PostgreSQL's has lost the months
        raise ValueError("interval values are not read from the catalog")
    if isinstance(value, str):
        value = value_of_text(value, type_name)
    elif isinstance(value, dt.time) and value.tzinfo is not None:
        value = value_of_text(value.isoformat(), type_name)
    if isinstance(value, Timestamp):
        return value.nanoseconds
    return bool(value) if type_name == "boolean" else value
