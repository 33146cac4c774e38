"""Iceberg tables of two Glue catalogs, each on moto with its own S3: the session names no store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

import asyncpq
from tests.real_stores import BUCKET, RealStore, require_package, running_moto

pytestmark = pytest.mark.services

_KEYS = {"access-key-id": "key", "secret-access-key": "secret", "region": "us-east-1"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealStore]]:
    require_package("boto3")
    with ExitStack() as stack:
        yield [
            stack.enter_context(running_moto(tmp_path_factory.mktemp("moto"), {**os.environ, "PYTHONPATH": ""}))
            for _ in range(2)
        ]


def glue_table(store: RealStore, name: str, prefixes: list[str], file_io: str) -> Table:
    """A table of ten rows, which say ``name``. The keys have each of ``prefixes``."""
    endpoint = str(store.options["endpoint_url"])
    properties = {f"{prefix}.{key}": value for prefix in prefixes for key, value in _KEYS.items()}
    catalog = load_catalog(
        "glue",
        type="glue",
        warehouse=f"s3://{BUCKET}/warehouse",
        **{"glue.endpoint": endpoint, "s3.endpoint": endpoint, "py-io-impl": file_io, **properties},
    )
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table(f"db.by_{prefixes[-1]}", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    table.append(pa.table({"id": range(10), "name": [name] * 10}))
    return catalog.load_table(table.name())


async def test_tables_of_two_glue_catalogs(stores: list[RealStore]) -> None:
    tables = {}
    for number, store in enumerate(stores):
        name = f"store {number}"
        for prefixes, file_io in (
            (["glue", "s3"], "pyiceberg.io.pyarrow.PyArrowFileIO"),
            (["client"], "pyiceberg.io.fsspec.FsspecFileIO"),
        ):
            tables[name, file_io] = await asyncio.to_thread(glue_table, store, name, prefixes, file_io)
    async with asyncpq.Session() as session:
        for _ in range(2):  # the second reads find what the first have left in memory
            datasets = await asyncio.gather(*[session.open_dataset(table) for table in tables.values()])
            found = await asyncio.gather(*[dataset.lookup({"id": 7}) for dataset in datasets])
            for (name, _), rows in zip(tables, found, strict=True):
                assert rows.to_pylist() == [{"id": 7, "name": name}]
