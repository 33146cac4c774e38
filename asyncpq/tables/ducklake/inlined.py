"""Inlined rows: rows that a DuckLake keeps in its catalog, as a small Parquet file in memory.

The catalog's database casts values to text, so that no driver rounds or changes them: floats, decimals, times and
intervals are parsed by one parser whatever the database. Only strings and bytes are taken as they are. Lists, structs
and maps are text in two forms: like a cast to VARCHAR, where only some strings are quoted and a backslash escapes a
quote or a backslash; and, where the database has no structs, as SQL literals for the scalars directly in a struct
column.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import OTHER_COLUMNS, DataFile, TableField
from asyncpq.decoding.arrow import parquet_bytes
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.tables.ducklake.schema import DuckLakeColumn, arrow_value, columns_of_rows
from asyncpq.tables.ducklake.sql_catalog import DuckLakeState, InlinedRows, covers

_TEXT = ("varchar", "json")
_STRUCTS = ("struct", "variant")
_NO_COLUMN = (1 << 31) - 1  # a field id that no column has
_WHITE = " \t\n\v\f\r"  # DuckDB quotes strings that contain these, but no other white space
_SPACE = re.compile(f"[{_WHITE}]*")
_BARE = re.compile(r"[^,{}\[\]=:'\"()]*")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_KEY = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_CAST = re.compile(r"CAST\('((?:[^']|'')*)' AS [A-Z_]+(?:\(\d+, ?\d+\))?\)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def inlined_file(
    inlined: InlinedRows, state: DuckLakeState, fields: Sequence[TableField], table: str
) -> tuple[DataFile, dict[int | None, AsyncpqError]]:
    """Return a file in memory with the rows ``inlined``, and with the columns that the table had when the rows were
    written; and the error of each column that the file lacks because it has a value that cannot be represented, by
    field id."""
    wanted = {field.field_id for field in fields if field.unreadable is None}
    unreadable: dict[int | None, AsyncpqError] = {}
    arrays: list[pa.Array] = []
    columns: list[pa.Field] = []
    for position, column in _columns_then(inlined, state, wanted, table).items():
        literals = inlined.struct_literals and column.type_name == "struct"
        try:
            array = _array([row[position] for row in inlined.rows], column, literals)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, pa.ArrowException) as error:
            unreadable[column.field.field_id] = UnsupportedFeatureError(
                f"DuckLake table {table}: an inlined value cannot be represented: {error}",
                column=column.field.name,
                hint=OTHER_COLUMNS,
            )
        else:
            arrays.append(array)
            columns.append(_with_id(column.field))
    if not arrays:  # the table has none of the columns that the rows were written with
        arrays = [pa.nulls(len(inlined.rows), pa.int32())]
        columns = [_with_id(TableField(name="rows", type=pa.int32(), field_id=_NO_COLUMN))]
    file = DataFile(
        url=f"ducklake://{table}/{inlined.name}/{state.snapshot_id}",
        num_rows=len(inlined.rows),
        immutable=True,
        content=parquet_bytes(pa.table(arrays, schema=pa.schema(columns))),
    )
    return file, unreadable


def _with_id(field: TableField) -> pa.Field:
    """Convert to an Arrow field with Parquet field ids, as DuckDB writes it."""
    children = [_with_id(child) for child in field.children]
    arrow_type = field.type
    if isinstance(arrow_type, pa.StructType):
        arrow_type = pa.struct(children)
    elif isinstance(arrow_type, pa.ListType):
        arrow_type = pa.list_(children[0])
    elif isinstance(arrow_type, pa.MapType):
        arrow_type = pa.map_(children[0].with_nullable(False), children[1])
    ids = None if field.field_id is None else {"PARQUET:field_id": str(field.field_id)}  # parts of variants have none
    return pa.field(field.name, arrow_type, metadata=ids)


def _columns_then(
    inlined: InlinedRows, state: DuckLakeState, wanted: Collection[int | None], table: str
) -> dict[int, DuckLakeColumn]:
    """Return the columns with ids in ``wanted``, as of when the rows were written, by position in the rows.

    Raises CorruptFileError if the name of an inlined column does not match exactly one column of the table.
    """
    begin = state.schema_begins.get(inlined.schema_version)
    columns: dict[int, DuckLakeColumn] = {}
    for position, name in enumerate(inlined.names):
        matching = [row for row in state.columns if row["parent_column"] is None and row["column_name"] == name]
        if begin is not None:
            matching = [row for row in matching if covers(row, begin)]
        if len(matching) != 1:
            raise CorruptFileError(
                f"the catalog's {inlined.name} has a column {name!r} that matches {len(matching)} columns of the table",
                column=name,
            )
        if matching[0]["column_id"] in wanted:
            snapshot = matching[0]["begin_snapshot"] if begin is None else begin
            parts = [row for row in state.columns if row["parent_column"] is not None and covers(row, snapshot)]
            (columns[position],) = columns_of_rows([matching[0], *parts], table)
    return columns


def _array(values: Sequence[Any], column: DuckLakeColumn, literals: bool = False) -> pa.Array:
    """Convert a column's values to an Arrow array.

    ``values``: strings or bytes as they are, others as text; of a part of a nested column, as :func:`parse_nested`
    returns them. ``literals``: scalars in the texts of structs are SQL literals. Raises ValueError, TypeError, KeyError
    or pyarrow.ArrowException if a value has another type than the column.
    """
    if column.field.unreadable is not None:
        raise ValueError(column.field.unreadable.message)
    if not column.children:
        return pa.array([_scalar(value, column.type_name) for value in values], column.field.type)
    nested = [parse_nested(value, column, literals) if isinstance(value, str) else value for value in values]
    arrow_type = _with_id(column.field).type
    is_null = pa.array([value is None for value in nested], pa.bool_())
    if column.type_name in _STRUCTS:
        parts = [_array([value and value[part.field.name] for value in nested], part) for part in column.children]
        return pa.StructArray.from_arrays(parts, fields=list(arrow_type), mask=is_null)
    collections = [value or () for value in nested]
    offsets = pa.array([0, *accumulate(map(len, collections))], pa.int32())
    if column.type_name == "list":
        element = _array([item for items in collections for item in items], column.children[0])
        return pa.ListArray.from_arrays(offsets, element, type=arrow_type, mask=is_null)
    keys = _array([key for entries in collections for key, _ in entries], column.children[0])
    items = _array([item for entries in collections for _, item in entries], column.children[1])
    return pa.MapArray.from_arrays(offsets, keys, items, type=arrow_type, mask=is_null)


def _scalar(value: Any, type_name: str) -> Any:
    if value is None:
        return None
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).decode() if type_name in _TEXT else bytes(value)
    return arrow_value(value, type_name)


def parse_nested(text: str, column: DuckLakeColumn, is_literal: bool = False) -> Any:
    """Parse the text of a list, struct or map into a list, a dict, or a list of (key, value) pairs, with scalars as
    texts. ``is_literal``: ``column`` is a struct, whose scalars are SQL literals.

    Raises ValueError for a text that DuckDB would not write, or that it would read back as another value.
    """
    parser = _NestedParser(text)
    value = parser.value(column, is_literal=is_literal)
    parser.end()
    return value


class _NestedParser:
    """A parser of one text of a nested value, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def value(self, column: DuckLakeColumn, *, is_literal: bool) -> Any:
        """Parse the next value. ``is_literal``: scalars are SQL literals."""
        self._space()
        if self._text.startswith("NULL", self._position) and self._ends(self._position + 4):
            self._position += 4
            return None
        if column.type_name in _STRUCTS:
            return self._struct(column.children, is_literal)
        if column.type_name == "list":
            return self._list(column.children[0])
        if column.type_name == "map":
            return self._map(*column.children)
        return self._scalar(is_literal)

    def end(self) -> None:
        """Check that no text is left. Raises ValueError if there is more text."""
        self._space()
        if self._position != len(self._text):
            raise self._error()

    def _struct(self, parts: Sequence[DuckLakeColumn], is_literal: bool) -> dict[str, Any]:
        values: dict[str, Any] = {}
        self._take("{")
        for part in parts:
            if values:
                self._take(",")
            self._key(part.field.name)
            self._take(":")
            values[part.field.name] = self.value(part, is_literal=is_literal)
        self._take("}")
        return values

    def _key(self, name: str) -> None:
        self._space()
        match = _KEY.match(self._text, self._position)
        if match is None or name not in (match[1].replace("''", "'"), _ESCAPE.sub(r"\1", match[1])):
            raise self._error()
        self._position = match.end()

    def _list(self, element: DuckLakeColumn) -> list[Any]:
        elements: list[Any] = []
        self._take("[")
        while not self._takes("]"):
            if elements:
                self._take(",")
            elements.append(self.value(element, is_literal=False))
        return elements

    def _map(self, key: DuckLakeColumn, value: DuckLakeColumn) -> list[tuple[Any, Any]]:
        entries: list[tuple[Any, Any]] = []
        self._take("{")
        while not self._takes("}"):
            if entries:
                self._take(",")
            entry_key = self.value(key, is_literal=False)
            self._take("=")
            entries.append((entry_key, self.value(value, is_literal=False)))
        return entries

    def _scalar(self, is_literal: bool) -> str:
        text, position = self._text, self._position
        cast = _CAST.match(text, position) if is_literal else None
        if cast is not None:
            self._position = cast.end()
            return cast[1].replace("''", "'")
        quoted = _QUOTED.match(text, position)
        if quoted is None:
            bare = _BARE.match(text, position)
            assert bare is not None  # it matches the empty text
            if not (scalar := bare[0].strip(_WHITE)):
                raise self._error()
            self._position = bare.end()
            return scalar
        self._position = quoted.end()
        if is_literal and ("\\" in quoted[1] or text.startswith("'", self._position)):
            raise ValueError(
                "a quote or backslash in a struct's text: DuckDB reads a value that differs from the one it wrote"
            )
        return _ESCAPE.sub(r"\1", quoted[1])

    def _ends(self, position: int) -> bool:
        """Return whether a word ends at ``position``: after spaces, the text ends or has one of ``,]}=``."""
        space = _SPACE.match(self._text, position)
        assert space is not None  # it matches the empty text
        return space.end() == len(self._text) or self._text[space.end()] in ",]}="

    def _space(self) -> None:
        space = _SPACE.match(self._text, self._position)
        assert space is not None  # it matches the empty text
        self._position = space.end()

    def _takes(self, character: str) -> bool:
        self._space()
        is_next = self._text.startswith(character, self._position)
        self._position += is_next
        return is_next

    def _take(self, character: str) -> None:
        if not self._takes(character):
            raise self._error()

    def _error(self) -> ValueError:
        return ValueError(f"not a nested value: {self._text[:80]!r} at {self._position}")
