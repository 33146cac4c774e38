"""Questions asked of files in memory, and pyarrow's answers to the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.expressions import Expression
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
    table = pq.ParquetFile(pa.BufferReader(data)).read()
    if where is None:
        return table
    try:
        return table.filter(oracle(where))
    except (pa.ArrowInvalid, OverflowError):
        return table.filter(pa.array([model(where, row) for row in table.to_pylist()], pa.bool_()))


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
