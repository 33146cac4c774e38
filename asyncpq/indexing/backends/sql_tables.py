"""The SQL tables of an index, and the conversion of their rows to Arrow and back. Imports SQLAlchemy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    func,
    literal_column,
)
from sqlalchemy.types import TypeEngine

from asyncpq.indexing.index_model import TABLE_SCHEMAS, KeyRange


class IndexTables:
    """The tables of one index, whose names begin with ``name``. Manifests, segments and builds have a row each. The
    rows of all segments of a kind are in one table, indexed by segment, key and ordinal."""

    def __init__(self, name: str, schema: str | None) -> None:
        self.metadata = MetaData(schema=schema)
        self.manifests = Table(
            f"{name}_manifests",
            self.metadata,
            Column("number", BigInteger, primary_key=True, autoincrement=False),
            Column("content", LargeBinary, nullable=False),
            Column("created", Double, nullable=False),
        )
        self.segments = Table(
            f"{name}_segments",
            self.metadata,
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
            Column("name", Text, nullable=False, unique=True),
            Column("kind", Text, nullable=False),
            Column("num_rows", BigInteger),  # null: the segment is incomplete
            Column("created", Double, nullable=False),
        )
        self.builds = Table(
            f"{name}_builds",
            self.metadata,
            Column("name", Text, primary_key=True),
            Column("created", Double, nullable=False),
        )
        self.rows = {kind: self._rows_of(f"{name}_{kind}_rows", schema) for kind, schema in TABLE_SCHEMAS.items()}

    def _rows_of(self, name: str, schema: pa.Schema) -> Table:
        return Table(
            name,
            self.metadata,
            Column("segment", BigInteger, primary_key=True, autoincrement=False),
            Column("key", LargeBinary, primary_key=True),
            Column("ordinal", BigInteger, primary_key=True, autoincrement=False),
            *(Column(field.name, _type(field.type), nullable=field.nullable) for field in list(schema)[1:]),
            sqlite_with_rowid="payload" in schema.names,  # else the primary key holds the rows
        )


def clock(dialect: str) -> ColumnElement[float]:
    """Return an expression for the database's time, in seconds since the epoch."""
    if dialect == "sqlite":
        return literal_column("(julianday('now') - 2440587.5) * 86400.0", Double)
    return func.extract("epoch", func.clock_timestamp()).cast(Double)


def conditions(key: ColumnElement[bytes], ranges: Sequence[KeyRange]) -> list[ColumnElement[bool]]:
    """Return conditions that one search by ``key`` each can answer. In one OR, SQLite would scan the whole segment."""
    points = [low for low, high in ranges if high == low + b"\x00"]
    found = [
        key >= low if high is None else and_(key >= low, key < high) for low, high in ranges if high != low + b"\x00"
    ]
    return [*found, key.in_(points)] if points else found


def to_rows(batch: pa.RecordBatch, segment: int, first: int) -> list[dict[str, Any]]:
    """Return rows to insert; ``first`` is the ordinal of the first one in its segment."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    for ordinal, row in enumerate(rows, first):
        row["segment"], row["ordinal"] = segment, ordinal
        for name, value in row.items():
            if isinstance(value, list):
                row[name] = json.dumps(value)
    return rows


def to_table(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Return the rows as a table. Raises ValueError: the values do not fit ``schema``."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        if pa.types.is_list(field.type):
            values = tuple(None if value is None else json.loads(value) for value in values)
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _type(kind: pa.DataType) -> TypeEngine[Any]:
    if pa.types.is_binary(kind):
        return LargeBinary()
    if pa.types.is_integer(kind):
        return BigInteger()
    return Text()  # strings; and lists, as JSON
