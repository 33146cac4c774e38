r"""Rows that a DuckLake keeps in its catalog ("data inlining"), as a small Parquet file in memory.

What a value looks like depends on the database: SQLite has text where PostgreSQL has types, text is bytes there.

Lists, structs and maps that a DuckLake's catalog keeps as text.

DuckDB writes them in two forms: as a cast to VARCHAR does, where strings are quoted only if they must be and ``\``
stands before a quote or another ``\``; and, for the scalars directly in a column that is a struct, as SQL literals.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import DataFile, TableField
from asyncpq.decoding.arrow import parquet_bytes
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.expressions.scalars import Timestamp
from asyncpq.tables.ducklake.schema import Column, columns_of_rows
from asyncpq.tables.ducklake.sql import InlinedRows, Row, TableState
from asyncpq.tables.ducklake.values import value_of_text

_WHITE = " \t\n\v\f\r"  # DuckDB's white space: it does not quote a string for any other
_SPACE = re.compile(f"[{_WHITE}]*")
_BARE = re.compile(r"[^,{}\[\]=:'\"()]*")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_KEY = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_CAST = re.compile(r"CAST\('((?:[^']|'')*)' AS [A-Z_]+(?:\(\d+, ?\d+\))?\)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def nested_of_text(text: str, column: Column) -> Any:
    """The value of a list, struct or map: lists, dicts and lists of pairs, with the texts of scalars in them.

    Raises:
        ValueError: it is not how DuckDB writes such a value, or DuckDB itself reads another one.
    """
    reader = _Reader(text)
    value = reader.value(column, is_literal=column.type_name == "struct")
    reader.end()
    return value


class _Reader:
    """What was read of a text, up to a position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def value(self, column: Column, *, is_literal: bool) -> Any:
        """
        Args:
            is_literal: scalars are SQL literals.
        """
        self._space()
        if self._text.startswith("NULL", self._at) and self._ends(self._at + 4):
            self._at += 4
            return None
        if column.type_name == "struct":
            return self._struct(column.children, is_literal)
        if column.type_name == "list":
            return self._list(column.children[0])
        if column.type_name == "map":
            return self._map(*column.children)
        return self._scalar(is_literal)

    def end(self) -> None:
        """
        Raises:
            ValueError: there is more text.
        """
        self._space()
        if self._at != len(self._text):
            raise self._error()

    def _struct(self, parts: Sequence[Column], is_literal: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._take("{")
        for part in parts:
            if found:
                self._take(",")
            self._key(part.field.name)
            self._take(":")
            found[part.field.name] = self.value(part, is_literal=is_literal)
        self._take("}")
        return found

    def _key(self, name: str) -> None:
        self._space()
        match = _KEY.match(self._text, self._at)
        if match is None or name not in (match[1].replace("''", "'"), _ESCAPE.sub(r"\1", match[1])):
            raise self._error()
        self._at = match.end()

    def _list(self, element: Column) -> list[Any]:
        found: list[Any] = []
        self._take("[")
        while not self._takes("]"):
            if found:
                self._take(",")
            found.append(self.value(element, is_literal=False))
        return found

    def _map(self, key: Column, value: Column) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        self._take("{")
        while not self._takes("}"):
            if found:
                self._take(",")
            name = self.value(key, is_literal=False)
            self._take("=")
            found.append((name, self.value(value, is_literal=False)))
        return found

    def _scalar(self, is_literal: bool) -> str:
        text, at = self._text, self._at
        cast = _CAST.match(text, at) if is_literal else None
        if cast is not None:
            self._at = cast.end()
            return cast[1].replace("''", "'")
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            bare = _BARE.match(text, at)
            assert bare is not None  # perhaps empty
            if not (found := bare[0].strip(_WHITE)):
                raise self._error()
            self._at = bare.end()
            return found
        self._at = quoted.end()
        if is_literal and ("\\" in quoted[1] or text.startswith("'", self._at)):
            raise ValueError(
                "a quote or backslash in a struct's text, which DuckDB writes in one way and reads in another"
            )
        return _ESCAPE.sub(r"\1", quoted[1])

    def _ends(self, at: int) -> bool:
        """Whether a word ends here."""
        space = _SPACE.match(self._text, at)
        assert space is not None  # perhaps empty
        return space.end() == len(self._text) or self._text[space.end()] in ",]}="

    def _space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        assert space is not None  # perhaps empty
        self._at = space.end()

    def _takes(self, character: str) -> bool:
        self._space()
        found = self._text.startswith(character, self._at)
        self._at += found
        return found

    def _take(self, character: str) -> None:
        if not self._takes(character):
            raise self._error()

    def _error(self) -> ValueError:
        return ValueError(f"not a nested value: {self._text[:80]!r} at {self._at}")


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
