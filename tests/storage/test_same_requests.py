"""Warm lookups of one key each (the workload W2 of the benchmarks) ask every store for the same bytes.

The same file and the same keys: the same GETs, byte for byte, through asyncpq's own clients, s3fs and obstore, through
fsspec, and of a local file. Stores that can only compare what an object's info says ask for that, too.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import fsspec
import pytest

from asyncpq.testing import ObjectServer
from tests.store_backends import obstore_options
from tests.warm_lookups import KEYS, Cost, parquet, table, warm_lookups

pytestmark = pytest.mark.io

ROWS = table()
DATA = parquet(ROWS)


async def cost_of(kind: str, server: ObjectServer, folder: Path) -> Cost:
    url, options = "s3://bucket/file.parquet", dict[str, Any](server.storage_options)
    if kind == "s3-through-s3fs":
        options["s3_additional_kwargs"] = {"ExpectedBucketOwner": "000000000000"}
    elif kind.endswith("-through-obstore"):
        protocol = kind.partition("-")[0]
        url, options = f"{protocol}://bucket/file.parquet", obstore_options(server, protocol)
    elif kind == "http":
        url, options = f"{server.endpoint}/bucket/file.parquet", {}
    elif kind == "memory":
        url, options = "memory://same-requests.parquet", {}
        fsspec.filesystem("memory").pipe_file("/same-requests.parquet", DATA)
    elif kind == "local":
        url, options = str(folder / "file.parquet"), {}
        await asyncio.to_thread(Path(url).write_bytes, DATA)
    return await warm_lookups(url, options, ROWS)


SERVED = ["http", "s3-through-s3fs", "s3-through-obstore", "gs-through-obstore", "az-through-obstore"]


@pytest.fixture
async def direct(server: ObjectServer, tmp_path: Path) -> Cost:
    """What asyncpq's own client of S3 asks for."""
    server.put("bucket/file.parquet", DATA)
    return await cost_of("s3", server, tmp_path)


@pytest.mark.parametrize("kind", [*SERVED, "local", "memory"])
async def test_each_store_is_asked_for_the_same_bytes(
    kind: str, direct: Cost, server: ObjectServer, tmp_path: Path
) -> None:
    assert sum(map(len, direct.gets)) > 2 * len(KEYS)  # for most keys, a page of each column
    server.log.clear()
    cost = await cost_of(kind, server, tmp_path)
    if kind == "local":  # its descriptor shows that the file is the same, without a read
        assert cost.gets == [[get for get in gets if get[0] != "validate"] for gets in direct.gets]
    else:
        assert cost.gets == direct.gets
    count = sum(map(len, direct.gets))
    assert cost.infos == (count if kind == "memory" else 0)
    if kind in SERVED:  # the server says the same as the metrics
        sent = server.log[-count:]
        asked = [get for gets in direct.gets for get in gets]
        assert sorted(str(get.range) for get in sent) == sorted(f"bytes={get[1]}-{get[2] - 1}" for get in asked)
        assert sum(get.sent for get in sent) == sum(get[3] for get in asked)
