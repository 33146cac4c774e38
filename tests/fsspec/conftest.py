"""An S3 server, and filesystems on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from asyncpq.fsspec import AsyncpqFileSystem
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import FAST_RETRIES

TABLE = pa.table({"id": range(20_000), "text": [f"text {number:06d}" for number in range(20_000)]})
Filesystems = Callable[..., AsyncpqFileSystem]


def parquet(table: pa.Table = TABLE) -> bytes:
    return parquet_bytes(table, row_group_size=5_000, use_dictionary=False, compression="none")


DATA = parquet()


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    """As the entry point does where the package is installed."""
    fsspec.register_implementation("asyncpq", "asyncpq.fsspec.AsyncpqFileSystem", clobber=True)


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer.in_thread() as server:
        server.put("bucket/trips.parquet", DATA)
        for day in range(3):
            server.put(f"bucket/lake/day={day}/part.parquet", parquet(TABLE.slice(day * 1000, 1000)))
        yield server


@pytest.fixture
def filesystem(server: ObjectServer) -> Iterator[Filesystems]:
    """Makes filesystems of the server, each with a session of its own."""
    made: list[AsyncpqFileSystem] = []

    def make(**options: Any) -> AsyncpqFileSystem:
        target = {"target_protocol": "s3", "target_options": server.storage_options}
        filesystem = AsyncpqFileSystem(**{**target, "retry": FAST_RETRIES, "skip_instance_cache": True, **options})
        made.append(filesystem)
        return filesystem

    yield make
    for filesystem in made:
        if not filesystem.asynchronous:
            filesystem.close()


def requests(server: ObjectServer) -> list[str]:
    """What was asked for since the last call: ranges, and keys of other requests."""
    asked = [request.headers.get("range", request.target).removeprefix("bytes=") for request in server.log]
    server.log.clear()
    return asked
