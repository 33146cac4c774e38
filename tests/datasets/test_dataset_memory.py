"""A scan of many files takes memory by its budget, not by how many or how large they are together."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

MIB = 1024 * 1024
ROWS = MIB // 8


def file_of_one_mib() -> bytes:
    values = np.random.default_rng(3).integers(1, 1 << 62, ROWS)
    table = pa.table({"value": pa.array(values)})
    return parquet_bytes(table, compression="none", use_dictionary=False, write_page_index=True)


async def scanned(num_files: int, **memory: int) -> dict[str, Any]:
    data = file_of_one_mib()
    async with ObjectServer() as server:
        for number in range(num_files):
            server.put(f"bucket/lake/{number // 100:04d}/{number % 100:02d}.parquet", data)
        script = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.datasets.many_files",
            json.dumps(server.storage_options),
            json.dumps(memory),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await script.communicate()
        assert script.returncode == 0
        found: dict[str, Any] = json.loads(output)
        assert found["rows"] == num_files * ROWS
        assert found["firsts"]
        return found


@pytest.mark.heavy
async def test_hundreds_of_files_in_a_small_budget() -> None:
    found = await scanned(400, in_flight_bytes=16 * MIB, memory_cache_bytes=16 * MIB)
    # the budget, as much again decoded, the cache, and what the allocators keep
    assert found["grown"] < 120 * MIB, found


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_ten_thousand_files_in_the_default_budget() -> None:
    found = await scanned(10_000)
    # 10 GiB in 128 MiB of bytes in flight, as much again decoded, and the cache of 256 MiB
    assert found["grown"] < 700 * MIB, found
