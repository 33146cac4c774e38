"""Reads of files in memory, also in the terms of a dataset, and pyarrow's rows for the same."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.datasets.column_matching import view_of
from asyncpq.datasets.model import TableField
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.expressions import Expression, has_open_literals
from asyncpq.metrics import ReadMetrics
from asyncpq.scan.plan import Plan, describe
from asyncpq.scan.request import LookupKeys, ScanRequest
from tests.parquet_bytes import parquet_bytes
from tests.predicates import model, oracle

T = TypeVar("T")

TRUSTING = asyncpq.ReadOptions()
DISTRUSTING = asyncpq.ReadOptions(trust_statistics=False)


def ask(data: bytes, question: Callable[[asyncpq.File], Awaitable[T]], **options: Any) -> T:
    """Put a file into fsspec's memory filesystem and ask it something."""
    fsspec.filesystem("memory").pipe_file("/reads/file.parquet", data)

    async def run() -> T:
        async with asyncpq.Session(**options) as session:
            return await question(await session.open_file("memory://reads/file.parquet"))

    return asyncio.run(run())


def by_pyarrow(data: bytes, where: Expression | None = None) -> pa.Table:
    """The whole file as pyarrow reads it, which looks at no page index, then filtered.

    Where pyarrow's casts cannot hold a literal, plain Python compares.
    """
    table = _whole(data)
    if where is None:
        return table
    try:
        return table.filter(oracle(where))
    except (pa.ArrowInvalid, OverflowError):
        return table.filter(pa.array([model(where, row) for row in table.to_pylist()], pa.bool_()))


@functools.lru_cache(maxsize=8)  # many predicates in a row are for one file
def _whole(data: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def values(table: pa.Table) -> list[str]:
    """Every column's values, as text: NaN is NaN, and -0.0 is not 0.0."""
    return [repr(column.to_pylist()) for column in table.columns]


def assert_reads(data: bytes, *predicates: Expression, columns: Sequence[str] | None = None) -> None:
    """Whole reads, and those with each predicate, give pyarrow's rows, whether statistics are trusted or not."""

    async def question(file: asyncpq.File) -> None:
        whole = by_pyarrow(data)
        assert values(await file.read(columns)) == values(whole.select(columns or whole.column_names))
        for predicate in predicates:
            wanted = by_pyarrow(data, predicate)
            found = await file.read(columns, predicate)
            assert found.schema.equals(wanted.select(columns or wanted.column_names).schema)
            assert values(found) == values(wanted.select(columns or wanted.column_names)), str(predicate)
            assert await file.count(predicate) == wanted.num_rows, str(predicate)

    ask(data, question, read=TRUSTING)
    ask(data, question, read=DISTRUSTING)


def row_groups_read(data: bytes, where: Expression | None) -> int:
    """How many row groups a read with a predicate still looks into."""
    return _plan(data, where).pruning.row_groups_kept


def rows_left(data: bytes, where: Expression | None) -> int:
    """How many rows may match after pruning."""
    return _plan(data, where).pruning.rows_kept


def _plan(data: bytes, where: Expression | None) -> asyncpq.Plan:
    async def question(file: asyncpq.File) -> asyncpq.Plan:
        return await file.plan(where=where)

    return ask(data, question)


class Viewed(NamedTuple):
    """What a read of a file in a dataset's terms gave, and what it cost."""

    table: pa.Table
    metrics: ReadMetrics


def view(
    file: asyncpq.File,
    schema: pa.Schema,
    fields: tuple[TableField, ...] | None = None,
    partition: Mapping[str, Any] | None = None,
) -> SchemaAdapter:
    """How a file has a dataset's columns."""
    return view_of(file._version, schema, fields, partition or {})


async def read(file: asyncpq.File, question: ScanRequest) -> Viewed:
    """All rows of a question."""
    operation = file._operation("read")
    _, table = await file._collect(question, operation)
    return Viewed(table, operation.metrics)


async def count(file: asyncpq.File, question: ScanRequest) -> int:
    """How many rows match."""
    prepared, _ = await file._collect(question._replace(rows_only=True), file._operation("count"))
    return prepared.file_scan.rows_matched


async def lookup(file: asyncpq.File, view: SchemaAdapter, keys: Mapping[str, Any], with_keys: bool = False) -> pa.Table:
    """Rows by key."""
    wanted = LookupKeys(keys)
    plain = wanted.exact and not with_keys
    names = () if plain else wanted.names
    question = ScanRequest(keys=names, where=wanted.where, prune=wanted.prune, view=view)
    table = (await read(file, question)).table
    return table if plain else wanted.finish(table, with_keys)


async def plan(file: asyncpq.File, question: ScanRequest) -> Plan:
    """What would be read."""
    preparation = file._prepare("plan", question)
    with preparation.operation:
        prepared = await preparation.prepare(scan=True)
    return describe(preparation, prepared, scan=True)


def read_as(
    data: bytes,
    schema: pa.Schema,
    *,
    fields: tuple[TableField, ...] | None = None,
    partition: Mapping[str, Any] | None = None,
    columns: Sequence[str | int] | None = None,
    where: Expression | None = None,
    limit: int | None = None,
    read_dictionary: Sequence[str] = (),
    **options: Any,
) -> pa.Table:
    """The rows of a file in memory in a dataset's terms; the count is held to them."""

    async def question(file: asyncpq.File) -> pa.Table:
        asked = ScanRequest(
            columns=columns,
            where=where,
            unresolved=where if where is not None and has_open_literals(where) else None,
            limit=limit,
            read_dictionary=read_dictionary,
            view=view(file, schema, fields, partition),
        )
        table = (await read(file, asked)).table
        if limit is None:
            assert await count(file, asked) == table.num_rows
        return table.slice(0, limit)

    return ask(data, question, **options)


ROWS = 1000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int32()),
        "s": pa.array(
            [None if row % 3 == 0 else {"x": row, "y": str(row)} for row in range(ROWS)],
            pa.struct([("x", pa.int32()), ("y", pa.string())]),
        ),
        "l": pa.array([[{"k": row}] for row in range(ROWS)], pa.list_(pa.struct([("k", pa.int32())]))),
        "m": pa.array(
            [[("a", {"v": row})] for row in range(ROWS)], pa.map_(pa.string(), pa.struct([("v", pa.int32())]))
        ),
    }
)
FILE = parquet_bytes(TABLE, row_group_size=100, write_page_index=True)
