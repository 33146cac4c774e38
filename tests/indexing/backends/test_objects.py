"""Indexes in object stores keep to the contract."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import asyncpq
from asyncpq.indexing import FolderBackend, JsonBackend
from asyncpq.testing import ObjectServer
from asyncpq.testing.backend_contract import BACKEND_CHECKS, BackendMaker

Check = Callable[[BackendMaker], Awaitable[None]]

each_check = pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.__name__)


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
