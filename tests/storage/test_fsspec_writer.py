"""Writes of fsspec's filesystems: which create in one step, and what their failures become."""

from __future__ import annotations

import asyncio
import datetime
import errno
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.registry import _registry

from asyncpq.errors import StoreError, UnsupportedStoreError
from asyncpq.metrics import ReadMetrics
from asyncpq.storage import fsspec_writer
from asyncpq.storage.base import RequestContext, WritableStore, writable
from tests.store_backends import FAST_RETRIES, new_context, open_test_store


class HttpError(Exception):
    """As older versions of gcsfs raise it: no OSError, with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{code} from SECRET")
        self.code = code


class FakeObjects(AsyncFileSystem):  # type: ignore[misc]  # fsspec is not typed
    """The interface of gcsfs that matters here: a generation that must match is the mode "create"."""

    protocol = ("gs", "gcs")
    objects: dict[str, bytes]
    fail: list[Exception]
    clock = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)

    def _answer(self) -> None:
        if self.fail:
            raise self.fail.pop(0)

    async def _pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        await asyncio.sleep(0)
        self._answer()
        if mode == "create" and path in self.objects:
            raise FileExistsError(path)
        self.objects[path] = data

    async def _put_file(self, lpath: str, rpath: str, mode: str = "overwrite") -> None:
        self._answer()
        if mode == "create" and rpath in self.objects:
            raise FileExistsError(rpath)
        self.objects[rpath] = await asyncio.to_thread(Path(lpath).read_bytes)

    async def _rm_file(self, path: str) -> None:
        self._answer()
        try:
            del self.objects[path]
        except KeyError as error:
            raise FileNotFoundError(path) from error

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        size = len(self.objects[path])
        return {"name": path, "size": size, "type": "file", "generation": "1", "updated": self.clock.isoformat()}


class WithOverwrite(FakeObjects):
    """The interface of adlfs that matters here: put_file has an option instead of a mode, and replaces by default."""

    protocol = ("az", "abfs")

    async def _put_file(self, lpath: str, rpath: str, overwrite: bool = True) -> None:  # type: ignore[override]
        await super()._put_file(lpath, rpath, mode="overwrite" if overwrite else "create")


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[WritableStore]:
    kind = getattr(request, "param", FakeObjects)
    monkeypatch.setitem(_registry, kind.protocol[0], kind)
    monkeypatch.setattr(FakeObjects, "objects", {}, raising=False)
    monkeypatch.setattr(FakeObjects, "fail", [], raising=False)
    made = writable(open_test_store(kind.protocol[0], {}), "")
    yield made
    await made.close()


async def test_creating_by_generation(fake: WritableStore) -> None:
    creates = [fake.create_object("gs://b/1", content, context=new_context()) for content in (b"one", b"two")]
    outcomes = await asyncio.gather(*creates)
    assert sorted(outcomes) == [False, True]
    assert FakeObjects.objects == {"b/1": b"one" if outcomes[0] else b"two"}
    assert await fake.probe_create("gs://b/", context=new_context()) is True
    assert list(FakeObjects.objects) == ["b/1"]


async def test_what_a_filesystem_raises(fake: WritableStore) -> None:
    FakeObjects.fail = [HttpError(503), HttpError(429), OSError("SECRET")]
    context = new_context()
    assert await fake.create_object("gs://b/1", b"1", context=context) is True
    assert (context.metrics.retries, context.metrics.throttles) == (3, 2)
    assert {record.purpose for record in context.metrics.log} == {"write"}
    FakeObjects.fail = [HttpError(412)]
    assert await fake.create_object("gs://b/2", b"1", context=new_context()) is False
    FakeObjects.fail = [HttpError(400)]
    with pytest.raises(StoreError) as caught:
        await fake.delete_objects(["gs://b/1"], context=new_context())
    assert "SECRET" not in str(caught.value)
    FakeObjects.fail = [OSError("SECRET")] * FAST_RETRIES.max_attempts
    with pytest.raises(StoreError):
        await fake.put_object("gs://b/1", b"2", context=new_context())
    assert FakeObjects.objects == {"b/1": b"1"}


async def test_files_and_time(fake: WritableStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    context = RequestContext(ReadMetrics())
    await fake.put_file("gs://b/folder/1", path, context=context)
    assert FakeObjects.objects == {"b/folder/1": b"content"}
    assert [(record.method, record.stop) for record in context.metrics.log] == [("PUT", 7)]
    assert await fake.clock("gs://b/folder/", context=new_context()) == FakeObjects.clock.timestamp()
    assert list(FakeObjects.objects) == ["b/folder/1"]


@pytest.mark.parametrize("fake", [FakeObjects, WithOverwrite], indirect=True)
@pytest.mark.parametrize("whole_bytes", [10, 1], ids=["at once", "through a file"])
async def test_what_comes_piece_by_piece(
    fake: WritableStore, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(fsspec_writer, "_WHOLE_BYTES", whole_bytes)

    async def pieces(*some: bytes) -> AsyncIterator[bytes]:
        for piece in some:
            yield piece

    context = new_context()
    assert isinstance(fake, fsspec_writer.WritableFsspecStore)
    url = f"{fake.protocol}://b/1"
    assert await fake.create_stream(url, pieces(b"one ", b"two"), context=context) is True
    assert FakeObjects.objects == {"b/1": b"one two"}
    assert [(record.method, record.stop) for record in context.metrics.log] == [("PUT", 7)]
    assert await fake.create_stream(url, pieces(b"another"), context=new_context()) is False
    assert FakeObjects.objects == {"b/1": b"one two"}


async def test_a_disk_that_is_full_on_the_way(
    fake: WritableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = Path.open

    def fail(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "content":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"1"

    with pytest.raises(StoreError, match="local file") as caught:
        await fake.create_stream("gs://b/1", pieces(), context=new_context())
    assert caught.value.url == "gs://b/1"
    assert (FakeObjects.objects, os.listdir(tmp_path)) == ({}, [])


@pytest.mark.parametrize("protocol", ["ftp", "http"])
async def test_stores_that_only_read(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem that writes in place, or looks before it writes, is none that an index can be kept in."""
    monkeypatch.setitem(_registry, "ftp", FakeObjects)
    store = open_test_store(protocol, {})
    with pytest.raises(UnsupportedStoreError, match="cannot be written to") as caught:
        writable(store, f"{protocol}://host/index/")
    assert caught.value.url == f"{protocol}://host/index/"
    await store.close()
