"""A store that lists ETags and sends none with its objects: a listing proves nothing of what is cached."""

from __future__ import annotations

import pyarrow as pa

import asyncpq
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes


def _file(first: int) -> bytes:
    return parquet_bytes(pa.table({"id": range(first, first + 100)}), use_dictionary=False, compression="none")


async def test_a_replaced_file_is_read_anew() -> None:
    async with ObjectServer() as server:
        server.faults = [Fault(method="GET", path=".parquet", times=None, etag="none")]
        server.put("bucket/lake/a.parquet", _file(100), modified=1_700_000_000)
        options = {"s3": server.storage_options}
        async with asyncpq.Session(storage_options=options, cache_policy=asyncpq.etag(0)) as session:
            dataset = await session.open_dataset("s3://bucket/lake/")
            for _ in range(2):
                assert (await dataset.read())["id"].to_pylist()[0] == 100
            server.put("bucket/lake/a.parquet", _file(900), modified=1_700_000_100)
            assert (await dataset.read())["id"].to_pylist()[0] == 900
            assert (await dataset.lookup({"id": [100, 950]}))["id"].to_pylist() == [950]
