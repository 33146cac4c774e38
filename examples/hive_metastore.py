"""A catalog of one's own: tables of a Hive Metastore.

A class with one method, ``snapshot``, is all that ``Session.open_dataset`` asks for: which columns a table has, which
files, and what is known of each file without opening it.

    async with asyncpq.Session() as session:
        trips = await session.open_dataset(HiveTable(client, "default", "trips"))
        table = await trips.read(where=asyncpq.col("day") == datetime.date(2024, 1, 31))  # opens that day's files only

``client`` is a Thrift client of the metastore, or whatever has its ``get_table`` and ``get_partitions``.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from asyncpq import CatalogReader, DataFile, FileList, TableField, UnsupportedFeatureError

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
TYPES: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {  # and how a partition's value is written
    "boolean": (pa.bool_(), lambda text: text.lower() == "true"),
    "tinyint": (pa.int8(), int),
    "smallint": (pa.int16(), int),
    "int": (pa.int32(), int),
    "bigint": (pa.int64(), int),
    "float": (pa.float32(), float),
    "double": (pa.float64(), float),
    "string": (pa.string(), str),
    "date": (pa.date32(), dt.date.fromisoformat),
    "timestamp": (pa.timestamp("ns"), dt.datetime.fromisoformat),
}


class HiveTable:
    """One table, as it is when a dataset is opened.

    Args:
        client: of the metastore; it blocks, and is called by one thread at a time.
        database, table: names.
    """

    def __init__(self, client: Any, database: str, table: str) -> None:
        self._client = client
        self._database = database
        self._table = table

    async def snapshot(self, reader: CatalogReader) -> FileList:
        """The table's columns and files, and the partition values of each file."""
        table = await asyncio.to_thread(self._client.get_table, self._database, self._table)
        if (table.parameters or {}).get("transactional", "").lower() == "true":
            raise UnsupportedFeatureError(f"{self._table} is transactional: its deletes are not looked at here")
        keys = table.partitionKeys or []
        parts: Sequence[Any] = [table]
        if keys:
            parts = await asyncio.to_thread(self._client.get_partitions, self._database, self._table, -1)
        listed = await asyncio.gather(*(self._files(reader, part, keys) for part in parts))
        return FileList(
            description=f"Hive table {self._database}.{self._table}, {len(parts)} partitions",
            data_files=tuple(file for files in listed for file in files),
            fields=tuple(TableField(name=column.name, type=kind(column)[0]) for column in (*table.sd.cols, *keys)),
        )

    async def _files(self, reader: CatalogReader, part: Any, keys: Sequence[Any]) -> list[DataFile]:
        """The files of a partition, or of a table that has none.

        What is told of a file must hold for each of its rows: files are ruled out by it. So the metastore's column
        statistics are not given as ``bounds``: nothing keeps them up to date.
        """
        if "parquet" not in part.sd.inputFormat.lower():
            raise UnsupportedFeatureError(f"files of {part.sd.inputFormat}", url=part.sd.location)
        texts = zip(keys, part.values if keys else (), strict=True)
        values = {key.name: None if text == HIVE_NULL else kind(key)[1](text) for key, text in texts}
        names = await reader.list_names(part.sd.location)
        return [
            DataFile(url=f"{part.sd.location.rstrip('/')}/{name}", partition=values)
            for name in names
            if not name.startswith(("_", "."))
        ]


def kind(column: Any) -> tuple[pa.DataType, Callable[[str], Any]]:
    """A column's Arrow type, and what makes a value of a partition's text."""
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", column.type)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2])), Decimal
    name = re.sub(r"\(\d+\)$", "", column.type)  # varchar(10) and char(3) are strings
    found = TYPES.get("string" if name in ("varchar", "char") else name)
    if found is None:
        raise UnsupportedFeatureError(f"Hive type {column.type}", column=column.name)
    return found
