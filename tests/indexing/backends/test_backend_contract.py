"""Where indexes are kept: every place keeps to the contract that asyncpq ships, on each storage it is meant for."""

from __future__ import annotations

import contextlib
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.indexing import FolderBackend, JsonBackend, MemoryBackend, SqlBackend, ValkeyBackend
from asyncpq.indexing.model import TABLE_SCHEMAS, VALUE_TAG, KeyRange
from asyncpq.testing import ObjectServer
from asyncpq.testing.backend_contract import BACKEND_CHECKS, BackendMaker, check_large, write
from tests.servers import ADMIN_PASSWORD, PostgresServer, ValkeyServer

Check = Callable[[BackendMaker], Awaitable[None]]

each_check = pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.__name__)
#: Databases have no segments that are read in another way, and take longest for large ones.
each_check_of_sql = pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=pytest.mark.slow if check is check_large else ()) for check in BACKEND_CHECKS],
    ids=lambda check: check.__name__,
)


@contextlib.asynccontextmanager
async def object_backends(
    kind: Any, url: str, storage_options: dict[str, Any] | None = None
) -> AsyncIterator[BackendMaker]:
    """Each is of another session than the one before; every other one reads no segment whole."""
    in_parts = asyncpq.RequestOptions(whole_segment_bytes=0)
    async with (
        asyncpq.Session(storage_options=storage_options) as first,
        asyncpq.Session(storage_options=storage_options, requests=in_parts) as second,
    ):
        sessions = itertools.cycle((first, second))
        yield lambda: kind(next(sessions)._runtime, url)


@pytest.mark.parametrize("seed", range(4))
async def test_many_zones_some_of_which_reach_far(seed: int) -> None:
    """What is asked of zones looks at few of many, and gives just those whose intervals end late enough."""
    numbers = random.Random(seed)
    zones = []
    for file in range(3000):
        low = numbers.randrange(10_000)
        high = low + (numbers.randrange(10_000) if numbers.random() < 0.01 else numbers.randrange(20))
        zones.append((VALUE_TAG + low.to_bytes(4, "big"), VALUE_TAG + high.to_bytes(4, "big"), file, 0, 1))
    zones.sort()
    schema = TABLE_SCHEMAS["bounds"]
    rows = pa.Table.from_pylist([dict(zip(schema.names, zone, strict=True)) for zone in zones], schema)
    backend = MemoryBackend()
    segment = await write(backend, "a", "bounds", rows)
    for _ in range(50):
        ends = sorted(VALUE_TAG + numbers.randrange(12_000).to_bytes(4, "big") for _ in range(3))
        for ranges, within in (
            (None, zones),
            ([KeyRange(b"", ends[2])], [zone for zone in zones if zone[0] < ends[2]]),
        ):
            found = await backend.read_segment(segment, ranges, at_least=("max", ends[1]))
            assert found is not None
            assert found["file"].to_pylist() == [zone[2] for zone in within if zone[1] >= ends[1]]


@each_check
async def test_memory(check: Check) -> None:
    backend = MemoryBackend()
    await check(lambda: backend)


@each_check
async def test_folder(check: Check, tmp_path: Path) -> None:
    async with object_backends(FolderBackend, str(tmp_path / "index")) as make:
        await check(make)


@each_check
async def test_json(check: Check, tmp_path: Path) -> None:
    async with object_backends(JsonBackend, str(tmp_path / "index.json")) as make:
        await check(make)


@each_check
@pytest.mark.parametrize("kind", [FolderBackend, JsonBackend])
async def test_object_server(check: Check, kind: Any) -> None:
    async with ObjectServer() as server:
        server.put("bucket/another", b"")
        async with object_backends(kind, "s3://bucket/an index/x.json", server.storage_options) as make:
            await check(make)


@each_check
async def test_localstack(check: Check, localstack: str, bucket: str) -> None:
    options = {"endpoint_url": localstack, "key": "test", "secret": "test"}
    async with object_backends(FolderBackend, f"s3://{bucket}/index", options) as make:
        await check(make)


@each_check_of_sql
async def test_sqlite(check: Check, tmp_path: Path) -> None:
    await check(lambda: SqlBackend(f"sqlite:///{tmp_path}/index.sqlite"))


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@each_check_of_sql
async def test_postgresql(check: Check, postgres: PostgresServer) -> None:
    name = f"index_{uuid.uuid4().hex[:8]}"
    await check(lambda: SqlBackend(postgres.url("postgres"), name))


@pytest.fixture(scope="module")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey"), "--maxmemory-policy", "noeviction") as server:
        yield f"valkey://admin:{quote(ADMIN_PASSWORD)}@127.0.0.1:{server.port}"


@each_check
async def test_valkey(check: Check, valkey_url: str) -> None:
    prefix = f"index-{uuid.uuid4().hex}:"
    await check(lambda: ValkeyBackend(valkey_url, prefix))
