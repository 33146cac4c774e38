"""A unit that fails while those before it are still on their way: the consumer gets their rows, then the error."""

from __future__ import annotations

import asyncio
import os

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("kind", ["file", "dataset"])
async def test_units_behind_one_that_failed_take_no_turn(kind: str) -> None:
    table = pa.table({"id": [os.urandom(200) for _ in range(80)]})
    data = parquet_bytes(table, row_group_size=10, compression="none", use_dictionary=False)
    requests = asyncpq.RequestOptions(tail_bytes=1500, gap_bytes=0)
    limits, retry = asyncpq.LimitOptions(unit_bytes=1), asyncpq.RetryOptions(max_attempts=1)
    async with ObjectServer() as server:
        server.put("bucket/lake/0.parquet", data)
        async with asyncpq.Session(server.storage_options, requests=requests, retry=retry, limits=limits) as session:
            opened: asyncpq.File | asyncpq.Dataset = await session.open_file("s3://bucket/lake/0.parquet")
            if kind == "dataset":
                opened = await session.open_dataset("s3://bucket/lake/")
            await opened.count()
            server.faults = [
                Fault(path="0.parquet", ranged=True, times=1, latency_s=0.3),  # the first unit
                Fault(path="0.parquet", ranged=True, after=1, times=1, status=403, code="AccessDenied"),  # the third
            ]
            found: list[bytes] = []

            async def scan_all() -> None:
                async with opened.scan() as scan:
                    async for batch in scan:
                        found.extend(batch["id"].to_pylist())

            with pytest.raises(asyncpq.AccessDeniedError):
                await asyncio.wait_for(scan_all(), 20)
            assert found == table["id"].to_pylist()[: len(found)]
            assert len(found) in (10, 20)
