"""Folders of Parquet and JSON segments keep to the contract."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq.errors import CorruptIndexError
from asyncpq.indexing import FolderBackend, JsonBackend
from asyncpq.indexing.backends import folder
from asyncpq.indexing.backends.folder import decode_latest, encode_latest
from asyncpq.indexing.commits import manifest_ages
from asyncpq.indexing.index_model import MAX_SNAPSHOT
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
async def test_folder(check: Check, tmp_path: Path) -> None:
    async with object_backends(FolderBackend, str(tmp_path / "index")) as make:
        await check(make)


@each_check
async def test_json(check: Check, tmp_path: Path) -> None:
    async with object_backends(JsonBackend, str(tmp_path / "index.json")) as make:
        await check(make)


@pytest.mark.sampled(3)
@each_check
@pytest.mark.parametrize("kind", [FolderBackend, JsonBackend])
async def test_object_server(check: Check, kind: Any) -> None:
    async with ObjectServer() as server:
        server.put("bucket/another", b"")
        async with object_backends(kind, "s3://bucket/an index/x.json", server.storage_options) as make:
            await check(make)


@pytest.mark.sampled(2)
@each_check
async def test_localstack(check: Check, localstack: str, bucket: str) -> None:
    options = {"endpoint_url": localstack, "key": "test", "secret": "test"}
    async with object_backends(FolderBackend, f"s3://{bucket}/index", options) as make:
        await check(make)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"1\n{}", b"9" * 20 + b"\n{}", b"9" * 5000 + b"\n{}", b"-%019d\n{}" % 1, b"%020d" % 1, b"%020d {}" % 1),
        b"%020d\n{}" % (MAX_SNAPSHOT + 1),
    ],
)
def test_a_pointer_without_a_number(data: bytes) -> None:
    with pytest.raises(CorruptIndexError, match="`latest` is damaged") as caught:
        decode_latest(data, "s3://b/index/latest")
    assert len(str(caught.value)) < 300
    assert decode_latest(encode_latest(MAX_SNAPSHOT, b"{}"), "") == (MAX_SNAPSHOT, b"{}")


async def test_names_that_are_no_numbers_of_manifests() -> None:
    async with ObjectServer() as server, asyncpq.Session(server.storage_options) as session:
        backend = FolderBackend(session, "s3://bucket/index")
        for name in (
            "9" * 20,
            "9" * 900,
            "\u00b2" * 20,
            "\uff11" * 20,
            "-" + "1" * 19,
            "x",
            f"{MAX_SNAPSHOT + 1:020d}",
        ):
            server.put(f"bucket/index/manifests/{name}.json", b"{}")
        server.put(f"bucket/index/manifests/{7:020d}.json", b"{}")
        assert list(await manifest_ages(backend)) == [7]


async def test_a_manifest_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_MANIFEST_BYTES", 1000)
    async with ObjectServer() as server, asyncpq.Session(server.storage_options) as session:
        backend = FolderBackend(session, "s3://bucket/index")
        server.put(f"bucket/index/manifests/{1:020d}.json", bytes(1000))
        assert await backend.manifest(1) == bytes(1000)
        server.put(f"bucket/index/manifests/{1:020d}.json", bytes(1001))
        with pytest.raises(CorruptIndexError, match="more than 1000 bytes"):
            await backend.manifest(1)
