"""Iceberg tables of ids and names: their rows, reads and planned files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

import asyncpq
from asyncpq.datasets.model import DataFile
from asyncpq.tables.iceberg.catalog import IcebergCatalog
from tests.iceberg_tables import LocalReader

ID_NAME_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def id_name_rows(start: int, stop: int) -> pa.Table:
    return pa.table({"id": list(range(start, stop)), "name": [f"n{n}" for n in range(start, stop)]}, ID_NAME_SCHEMA)


async def read_rows(table: Table | str, version: Any = None, where: Any = None) -> pa.Table:
    async with asyncpq.open_dataset(table, format="iceberg", version=version) as dataset:
        return (await dataset.read(where=where)).sort_by("id")


async def planned_files(table: Table | str, reader: LocalReader | None = None, where: Any = None) -> list[DataFile]:
    reader = reader or LocalReader()
    snapshot = await IcebergCatalog(table).snapshot(reader)
    return list(await snapshot.files(where, reader))
