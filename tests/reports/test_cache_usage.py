"""The caches outside of this process are counted and emptied, and nothing else is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.errors import InvalidOptionError, StoreError
from asyncpq.options import DiskCacheOptions, SharedCacheOptions
from asyncpq.reports.cache_usage import cache_usage
from asyncpq.testing import ObjectServer
from tests.caching.disk_folders import entry_files
from tests.parquet_bytes import parquet_bytes
from tests.servers import ADMIN_PASSWORD, ValkeyServer


async def held(
    cache: DiskCacheOptions | SharedCacheOptions, *, clear: bool = False
) -> tuple[int, int | None, int | None]:
    """Return the entries, the bytes and the removed entries of the report."""
    report = await cache_usage(cache, clear=clear)
    return report["entries"], report["bytes"], report["removed"]


async def fill(server: ObjectServer, folder: Path) -> None:
    server.put("bucket/x.parquet", parquet_bytes(pa.table({"x": range(1000)})))
    async with (
        asyncpq.Session(server.storage_options, disk_cache=folder) as session,
        await session.open_file("s3://bucket/x.parquet") as file,
    ):
        await file.lookup({"x": 5})


async def test_a_disk_cache_is_counted_and_cleared(tmp_path: Path, server: ObjectServer) -> None:
    folder = tmp_path / "cache"
    cache = DiskCacheOptions(path=str(folder))
    await fill(server, folder)
    files = entry_files(folder)
    assert files
    (folder / "00").mkdir(exist_ok=True)
    for mine in (folder / "mine.txt", folder / "00" / "mine.txt"):
        mine.write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in entry_files(folder)}
    size = sum(-(-path.stat().st_size // 4096) * 4096 for path in files)
    assert await held(cache) == (len(files), size, None)
    assert before == {path: path.stat().st_mtime_ns for path in entry_files(folder)}
    assert await held(cache, clear=True) == (0, 0, len(files))
    assert await held(cache) == (0, 0, None)
    assert (folder / "mine.txt").read_text() == (folder / "00" / "mine.txt").read_text() == "mine"
    await fill(server, folder)
    assert (await held(cache))[0] == len(files)


async def test_a_folder_that_is_no_cache_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    cache = DiskCacheOptions(path=str(tmp_path))
    assert await held(cache) == (0, 0, None)
    assert await held(cache, clear=True) == (0, 0, 0)
    assert os.listdir(tmp_path) == ["mine.txt"]
    for clear in (False, True):
        with pytest.raises(InvalidOptionError, match="there is no disk cache"):
            await held(DiskCacheOptions(path=str(tmp_path / "none")), clear=clear)
        with pytest.raises(InvalidOptionError, match="is a link or not a folder"):
            await held(DiskCacheOptions(path=str(tmp_path / "mine.txt")), clear=clear)


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


async def test_a_shared_cache_is_counted_and_cleared(valkey: ValkeyServer) -> None:
    for number in range(2500):
        valkey.admin.set(f"mine*:{number}", b"x")
    valkey.admin.set("mineX:other", b"x")
    admin = f"valkey://admin:{ADMIN_PASSWORD}@127.0.0.1:{valkey.port}"
    options = SharedCacheOptions(url=admin, prefix="mine*:", connect_timeout_s=20)
    assert await held(options) == (2500, None, None)
    assert await held(options, clear=True) == (0, None, 2500)
    assert await held(options) == (0, None, None)
    assert valkey.admin.exists("mineX:other")


async def test_errors_of_the_server_do_not_show_its_url(valkey: ValkeyServer) -> None:
    with pytest.raises(StoreError, match="NoPermissionError") as refused:
        await held(SharedCacheOptions(url=valkey.url))
    with pytest.raises(StoreError, match="cannot be reached") as gone:
        await held(SharedCacheOptions(url="valkey://:hidden@127.0.0.1:1"))
    assert "hidden" not in f"{refused.value} {gone.value}"
