"""Iceberg tables as pyiceberg writes them, read through a session: equal to pyiceberg's own reader.

Histories of writes, deletes, changed columns and changed partitions; random predicates on each.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DecimalType, DoubleType, LongType, NestedField, StringType

import asyncpq
from asyncpq import col
from asyncpq.datasets.dataset import Dataset
from asyncpq.datasets.opening import open_table
from asyncpq.expressions import Expression
from asyncpq.tables.iceberg import catalog_of
from tests.iceberg_tables import add_files, data_files, deletion_vectors, make_table, position_deletes
from tests.predicates import atoms, oracle, trees

_DAY = dt.datetime(2024, 2, 29)
_SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("price", pa.float32()),
        ("cost", pa.decimal128(5, 2)),
        ("at", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def rows(start: int, stop: int) -> pa.Table:
    """Rows of ``_SCHEMA`` with nulls in all columns but the first."""

    def row(n: int) -> dict[str, Any]:
        return {
            "id": n,
            "name": None if n % 7 == 3 else f"name {n % 10}",
            "price": None if n % 5 == 1 else float("nan") if n % 11 == 4 else n / 4,
            "cost": None if n % 6 == 2 else Decimal(n % 900) / 4,
            "at": None if n % 9 == 5 else _DAY + dt.timedelta(hours=n),
            "tags": None if n % 4 == 3 else [f"t{n}", None][: n % 3],
            "place": None if n % 8 == 6 else {"city": f"c{n % 3}", "zip": n if n % 3 else None},
            "counts": None if n % 10 == 9 else {f"k{n}": n},
        }

    return pa.Table.from_pylist([row(n) for n in range(start, stop)], _SCHEMA)


@asynccontextmanager
async def opened(table: Table | str, **choice: Any) -> AsyncIterator[Dataset]:
    async with asyncpq.Session() as session:
        resources = session._resources
        operation = resources.operation("files", "iceberg")
        yield await open_table(resources, catalog_of(table, **choice), "iceberg", operation, skips=False)


async def read(table: Table | str, where: Expression | None = None, **choice: Any) -> pa.Table:
    async with opened(table, **choice) as dataset:
        return await dataset.read(where=where)


def same_rows(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.names == expected.schema.names
    assert found.sort_by("id").to_pylist() == expected.sort_by("id").cast(found.schema).to_pylist()


# -- histories ------------------------------------------------------------------------------------


def appended(folder: Path) -> Table:
    table = make_table(folder, _SCHEMA)
    for start in (0, 50, 80):
        table.append(rows(start, start + 30))
    return table


HISTORIES: dict[str, Callable[[Path], Table]] = {"appended": appended}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=list(HISTORIES))
async def test_whole_tables(tmp_path: Path, history: Callable[[Path], Table]) -> None:
    table = history(tmp_path)
    same_rows(await read(table), table.scan().to_arrow())
