"""An Iceberg table on S3: metadata, data and deletes come through the session's own store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import asyncpq
from asyncpq import col


def _written(endpoint: str, bucket: str, folder: Path) -> Table:
    properties = {
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "s3.endpoint": endpoint,
        "s3.access-key-id": "test",
        "s3.secret-access-key": "test",
        "s3.region": "us-east-1",
    }
    catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"s3://{bucket}/wh", **properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.events", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for start in range(0, 100, 20):
        ids = range(start, start + 20)
        table.append(pa.table({"id": list(ids), "name": [f"n{n}" for n in ids]}))
    return table


@pytest.mark.heavy
async def test_on_s3(localstack: str, bucket: str, tmp_path: Path) -> None:
    table = await asyncio.to_thread(_written, localstack, bucket, tmp_path)
    expected = await asyncio.to_thread(lambda: table.scan().to_arrow().sort_by("id"))
    storage = {"key": "test", "secret": "test", "endpoint_url": localstack}
    storage_options = {**storage, "client_kwargs": {"region_name": "us-east-1"}}
    for target in (table, table.metadata_location):
        async with asyncpq.open_dataset(target, format="iceberg", storage_options=storage_options) as dataset:
            assert (await dataset.read()).sort_by("id").equals(expected)
            with asyncpq.measure() as cost:
                assert (await dataset.read(where=col("id") == 47)).to_pylist() == [{"id": 47, "name": "n47"}]
            assert cost.files_opened == 1  # by the bounds in the manifests
            assert cost.requests == 0  # small files are known whole from the read before
