"""Local files, fsspec's filesystems, and which store serves what."""

from __future__ import annotations

import asyncio
import datetime
import errno
import io
import os
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import fsspec
import pyarrow as pa
import pytest
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry, known_implementations

import asyncpq
from asyncpq.errors import (
    AccessDeniedError,
    InvalidOptionError,
    InvalidResponseError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    TransportError,
    UnsupportedStoreError,
)
from asyncpq.storage.base import Guarantee, Validator
from asyncpq.storage.fsspec import FsspecStore, is_young, modified_of, validator_of
from asyncpq.storage.urls import place_of
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import FAST_RETRIES, LIMITS, new_context, open_test_store

DATA = random.Random(9).randbytes(300_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(DATA)
    return made


# -- local files ----------------------------------------------------------------------------------


async def test_a_scan_stays_with_the_file_that_it_began_with(path: Path, tmp_path: Path) -> None:
    store = open_test_store("file", {})
    stored = await store.open_object(str(path))
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    for scans in (True, False):
        assert (await stored.fetch_range(0, 9, context=new_context(scan=scans), pin=pin)).validates
    other = tmp_path / "other"
    other.write_bytes(b"x" * len(DATA))
    other.replace(path)
    scan = new_context(scan=True)
    result = await stored.fetch_range(0, 100_000, context=scan, pin=pin)
    assert result.data == DATA[:100_000]
    assert not result.validates  # the caches' present version is another one
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 9, context=new_context(), pin=pin)
    os.unlink(path)
    assert (await stored.fetch_range(0, 9, context=scan, pin=pin)).data == DATA[:9]
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 9, context=new_context(), pin=pin)
    with pytest.raises(ObjectNotFoundError):
        await stored.fetch_tail(9, context=new_context())
    await store.close()


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("change", ["same size", "truncated", "longer"])
async def test_written_in_place(path: Path, change: str, scan: bool) -> None:
    store = open_test_store("file", {})
    stored = await store.open_object(f"file://{path}")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    with path.open("r+b") as file:
        if change == "truncated":
            file.truncate(150_000)
        elif change == "longer":
            file.seek(0, os.SEEK_END)
        file.write(b"new")
    os.utime(path, ns=(0, 0))
    for length in (9, 200_000):  # on the loop, and in a thread
        context = new_context(scan=scan)
        with pytest.raises(ObjectChangedError):
            await stored.fetch_range(0, length, context=context, pin=pin)
        log = context.metrics.log  # a scan reads, and notices then; a lookup looks before it reads
        assert [(record.stop, record.status, record.bytes) for record in log] == [(length, 0, 0)] * scan
    tail = await stored.fetch_tail(9, context=new_context())
    expected = {"same size": DATA, "truncated": DATA[:150_000], "longer": DATA + b"new"}[change]
    assert tail.data == expected[-9:]
    await store.close()


async def test_what_cannot_be_opened(path: Path, tmp_path: Path) -> None:
    store = open_test_store("file", {})
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StoreError, match="not a regular file"):
        await store.open_object(str(tmp_path / "fifo"))
    for name in (".", "missing", "file/below"):
        with pytest.raises(ObjectNotFoundError):
            await store.open_object(str(tmp_path / name))
    if os.geteuid() != 0:  # root may read everything
        os.chmod(path, 0)
        with pytest.raises(AccessDeniedError):
            await store.open_object(str(path))
    await store.close()


async def test_descriptors_are_closed_with_the_handle_or_the_store(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = open_test_store("file", {})
    handles = [await store.open_object(str(path)) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before + 5
    await handles[0].close()
    await handles[0].close()
    assert len(os.listdir("/proc/self/fd")) == before + 4
    opening = [asyncio.ensure_future(store.open_object(str(path))) for _ in range(5)]
    reading = asyncio.ensure_future(handles[1].fetch_range(0, len(DATA), context=new_context()))
    await asyncio.sleep(0)
    for task in opening:
        task.cancel()
    await handles[1].close()  # while it is read
    assert (await reading).data == DATA
    await store.close()
    await asyncio.gather(*opening, return_exceptions=True)
    assert len(os.listdir("/proc/self/fd")) == before


# -- fsspec ---------------------------------------------------------------------------------------


class Odd(MemoryFileSystem):  # type: ignore[misc]  # fsspec is not typed
    """A memory filesystem that does what ``trick`` says."""

    protocol = "oddmemory"
    store: dict[str, Any] = {}  # noqa: RUF012  # as in the base class
    trick = ""
    calls = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("oddmemory://")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        type(self).calls += 1
        data: bytes = super().cat_file(path, start=start, end=end, **options)
        if self.trick == "short":
            return data[:-1]
        if self.trick == "short once" and self.calls == 1:
            return data[:-1]
        if self.trick == "long":
            return data + b"x"
        if self.trick == "broken":
            raise OSError("disk on fire")
        if self.trick == "strange":
            raise LookupError("whatever a client raises")
        if self.trick == "denied":
            raise PermissionError
        if self.trick == "replaced":
            self.pipe_file(path, DATA[::-1])
        return data


class Strict(MemoryFileSystem):  # type: ignore[misc]  # fsspec is not typed
    def __init__(self, **options: Any) -> None:
        if "no_such" in options:
            raise TypeError("unexpected argument no_such")
        super().__init__(**options)


@pytest.mark.parametrize(
    ("trick", "error", "calls"),
    [
        ("short", TransportError, FAST_RETRIES.max_attempts),
        ("long", InvalidResponseError, 1),
        ("broken", TransportError, FAST_RETRIES.max_attempts),
        ("strange", StoreError, 1),
        ("denied", AccessDeniedError, 1),
        ("replaced", ObjectChangedError, 1),
        ("short once", None, 2),
    ],
)
@pytest.mark.parametrize("pinned", [True, False])
async def test_filesystems_that_fail(
    monkeypatch: pytest.MonkeyPatch, trick: str, error: type[StoreError] | None, calls: int, pinned: bool
) -> None:
    fsspec.register_implementation("oddmemory", Odd, clobber=True)
    store = open_test_store("oddmemory", {})
    assert isinstance(store, FsspecStore)
    store.filesystem.pipe_file("/file", DATA)
    stored = await store.open_object("oddmemory:///file")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    monkeypatch.setattr(Odd, "trick", trick)
    monkeypatch.setattr(Odd, "calls", 0)
    context = new_context()
    if error is None:
        result = await stored.fetch_range(5, 50, context=context, pin=pin if pinned else None)
        assert result.data == DATA[5:50]
    else:
        with pytest.raises(StoreError) as caught:
            await stored.fetch_range(5, 50, context=context, pin=pin if pinned else None)
        assert type(caught.value) is error
    assert sum(record.method == "GET" for record in context.metrics.log) == Odd.calls == calls
    read = trick not in ("broken", "strange", "denied")
    infos = [record for record in context.metrics.log if record.method == "HEAD"]
    assert len(infos) == calls * (read + (not pinned))
    assert {(record.purpose, record.status) for record in infos} <= {("stat", 200)}
    await store.close()


async def test_infos_that_fail_are_counted() -> None:
    store = open_test_store("memory", {})
    stored = await store.open_object("memory://no/such/file")
    context = new_context()
    with pytest.raises(ObjectNotFoundError):
        await stored.fetch_tail(8, context=context)
    (record,) = context.metrics.log
    assert (record.method, record.purpose, record.status, record.bytes) == ("HEAD", "stat", 0, 0)
    await store.close()


async def test_a_size_alone_guarantees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("oddmemory", Odd, clobber=True)
    monkeypatch.setattr(Odd, "info", lambda self, path, **_: {"name": path, "size": 3, "type": "file"})
    store = open_test_store("oddmemory", {})
    assert isinstance(store, FsspecStore)
    store.filesystem.pipe_file("/sized", b"abc")
    stored = await store.open_object("oddmemory:///sized")
    tail = await stored.fetch_tail(8, context=new_context())
    assert (tail.data, tail.validates, stored.guarantee) == (b"abc", False, Guarantee.NONE)
    for validator, expected in (
        (Validator(size=3, last_modified="then"), Guarantee.BRACKETED),
        (tail.validator, Guarantee.NONE),
    ):
        stored.learn(validator)
        assert stored.guarantee is expected
    await store.close()


def test_validators() -> None:
    s3 = validator_of({"size": 5, "ETag": '"a"', "LastModified": "2026-01-01"})
    assert (s3.size, s3.etag, s3.last_modified, s3.version) == (5, '"a"', "2026-01-01", None)
    gcs = validator_of({"size": 5, "generation": "17", "updated": "then"})
    assert gcs != validator_of({"size": 5, "generation": "18", "updated": "then"})
    local = {"size": 5, "ino": 3, "mtime": 1.5}
    assert validator_of(local) != validator_of({**local, "mtime": 2.5})


# -- which store ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol", ["nosuch", "reference", "simplecache", "filecache", "dir", "generic", "zip", "tar"]
)
async def test_protocols_that_are_not_read(protocol: str) -> None:
    with pytest.raises(UnsupportedStoreError, match=protocol):
        open_test_store(protocol, {})


async def test_no_wrapper_of_fsspec_is_read() -> None:
    """Every filesystem of the installed fsspec that takes another one, whether it can be imported or not."""
    folder = Path(fsspec.__file__).parent.parent
    wrappers = {"generic"}
    for protocol, entry in known_implementations.items():
        module = folder.joinpath(*entry["class"].split(".")[:-1]).with_suffix(".py")
        if module.is_relative_to(folder / "fsspec") and "target_protocol" in module.read_text(encoding="utf-8"):
            wrappers.add(protocol)
    assert {"async_wrapper", "dask", "dir", "zip", "reference", "simplecache"} <= wrappers
    for protocol in wrappers:
        with pytest.raises(UnsupportedStoreError, match=r"wrap|refer"):
            open_test_store(protocol, {})


async def test_a_wrapper_of_somebody_else_is_not_read() -> None:
    class Wrapper(DirFileSystem):  # type: ignore[misc]  # fsspec is not typed
        protocol = "wrapper"

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)

    fsspec.register_implementation("wrapper", Wrapper, clobber=True)
    with pytest.raises(UnsupportedStoreError, match="wrap"):
        open_test_store("wrapper", {"target_protocol": "memory", "path": "/"})


async def test_refused_options_are_named_and_not_quoted() -> None:
    class Quoting(MemoryFileSystem):  # type: ignore[misc]  # fsspec is not typed
        def __init__(self, **options: Any) -> None:
            raise ValueError(f"bad endpoint: {options['endpoint']}")

    fsspec.register_implementation("quoting", Quoting, clobber=True)
    with pytest.raises(InvalidOptionError, match="endpoint") as caught:
        open_test_store("quoting", {"endpoint": "http://user:SECRET@h", "other": "o"})
    assert "SECRET" not in str(caught.value)
    assert "other" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


async def test_options_that_cannot_be() -> None:
    with pytest.raises(InvalidOptionError, match="no_such"):
        open_test_store("file", {"no_such": 1})
    fsspec.register_implementation("strictmemory", Strict, clobber=True)
    with pytest.raises(InvalidOptionError, match="no_such"):
        open_test_store("strictmemory", {"no_such": 1})


async def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if it were not installed
    monkeypatch.delitem(_registry, "gs", raising=False)
    with pytest.raises(UnsupportedStoreError, match="not installed"):
        FsspecStore("gs", {}, retry=FAST_RETRIES, limits=LIMITS)


# -- versions ---------------------------------------------------------------------------------------

NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("info", "validator"),
    [
        ({"size": 3, "generation": 7, "etag": "e", "updated": "t"}, Validator(3, version="7")),
        ({"size": 3, "ETag": '"a"'}, Validator(3, etag='"a"')),
        ({"size": 3, "e_tag": "a", "LastModified": NOON}, Validator(3, etag="a", last_modified=repr(NOON.timestamp()))),
        ({"size": 3, "ino": 5, "mtime": 1.5}, Validator(3, last_modified="1.5", version="5-1.5")),
        (
            {"size": 3, "length": 3, "fileId": 16388, "accessTime": 7, "modificationTime": 1796113337659},  # of WebHDFS
            Validator(3, last_modified="1796113337659", version="16388-1796113337659"),
        ),
        ({"size": 3, "VersionId": "v"}, Validator(3, version="v")),
        ({"size": 3}, Validator(3)),
    ],
    ids=["generation", "etag", "datetime", "inode", "milliseconds", "version", "size alone"],
)
def test_versions(info: dict[str, Any], validator: Validator) -> None:
    assert validator_of(info) == validator


def test_a_number_and_a_datetime_are_the_same_time() -> None:
    seconds = NOON.timestamp()
    assert validator_of({"size": 1, "mtime": NOON}) == validator_of({"size": 1, "mtime": seconds})
    assert modified_of({"mtime": NOON}) == modified_of({"created": seconds}) == seconds
    assert modified_of({"modificationTime": 1796113337659}) == 1796113337.659
    assert modified_of({"mtime": "no time"}) is modified_of({}) is None


def test_only_a_time_of_whole_seconds_is_young() -> None:
    now = float(int(time.time()))
    assert is_young({"mtime": now})
    assert not is_young({"mtime": now - 3600})
    assert not is_young({"mtime": now, "etag": "a"})
    assert not is_young({"mtime": now, "generation": 1})
    assert not is_young({})


class PlacedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Reads host, user and password from its urls, as ftp and sftp do; each host has a folder of its own."""

    protocol = "placed"
    cachable = False
    find = fsspec.AbstractFileSystem.find

    def __init__(self, host: str, username: str = "", password: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.host = host

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(urlsplit(path).path if "://" in path else path).rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        parts = urlsplit(path)
        found = {"host": parts.hostname, "username": parts.username, "password": parts.password}
        return {name: value for name, value in found.items() if value}

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {**super().info(f"/{self.host}{path}", **options), "name": path}

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        found = super().ls(f"/{self.host}{path}", detail=True, **options)
        return [{**item, "name": item["name"].removeprefix(f"/{self.host}")} for item in found]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        return bytes(super().cat_file(f"/{self.host}{path}", start, end, **options))


class LoopedFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """As sshfs does, it connects when it is made, in fsspec's own loop alone, with all its options, and reads parts
    through ``open`` alone."""

    protocol = "looped"
    cachable = False

    def __init__(self, *, fails: bool = False, **options: Any) -> None:
        super().__init__(**options)
        if fails:
            raise LookupError("no route for password=hunter2")
        sync(self.loop, self._connect, **options)

    async def _connect(self) -> None:
        """Do nothing, with no options."""

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": 10, "type": "file", "mtime": 1.0}

    async def _cat_file(self, path: str, **options: Any) -> bytes:
        return b"0123456789"

    def _open(self, path: str, *arguments: Any, **options: Any) -> Any:
        return io.BytesIO(b"0123456789")


class OneCallFileSystem(FTPFileSystem):  # type: ignore[misc]
    """Mixes up the answers of calls at once, as ftp does."""

    protocol = "onecall"
    cachable = False

    def __init__(self, **options: Any) -> None:
        fsspec.AbstractFileSystem.__init__(self, **options)
        self.running = self.calls = 0
        self.began = threading.Event()

    def __del__(self) -> None:
        """There is no connection to close."""

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": 10, "type": "file", "modify": "20200101000000"}

    def invalidate_cache(self, path: str | None = None) -> None:
        """There is none."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self.running += 1
        self.calls += 1
        self.began.set()
        time.sleep(0.02)
        data = b"0123456789"[start:end] if self.running == 1 else b"x" * ((end or 0) - (start or 0))
        self.running -= 1
        return data


@pytest.fixture
def placed() -> Iterator[None]:
    for filesystem in (PlacedFileSystem, LoopedFileSystem, OneCallFileSystem):
        fsspec.register_implementation(filesystem.protocol, filesystem, clobber=True)
    memory = MemoryFileSystem()
    for host in ("one", "two"):
        memory.pipe_file(f"/{host}/t/a.parquet", parquet_bytes(pa.table({"host": [host]})))
    yield
    memory.store.clear()


@pytest.mark.usefixtures("placed")
async def test_the_host_and_user_of_a_url_count() -> None:
    async with asyncpq.Session() as session:
        for host in ("one", "two", "one"):
            file = await session.open_file(f"placed://user:hunter2@{host}/t/a.parquet")
            assert (await file.scan().to_table())["host"].to_pylist() == [host]
            dataset = await session.open_dataset(f"placed://user:hunter2@{host}/t/")
            assert (await dataset.scan().to_table())["host"].to_pylist() == [host]
            assert "hunter2" not in f"{file!r} {dataset!r} {file.url}"
        urls = [f"placed://user:hunter2@{host}/t/a.parquet" for host in ("one", "two")]
        both = await session.open_dataset(urls)
        assert (await both.scan().to_table())["host"].to_pylist() == ["one", "two"]
    async with asyncpq.Session({"host": "two", "password": "other"}) as session:
        with pytest.raises(InvalidOptionError, match="differ in host, password") as caught:
            await session.open_file("placed://user:hunter2@one/t/a.parquet")
        assert "hunter2" not in str(caught.value)
        assert "other" not in str(caught.value)
        with pytest.raises(InvalidOptionError, match="differ in password"):
            await session.open_file("placed://user:hunter2@two/t/a.parquet")
        file = await session.open_file("placed://user@two/t/a.parquet")
        assert (await file.scan().to_table())["host"].to_pylist() == ["two"]


@pytest.mark.usefixtures("placed")
async def test_marks_of_urls_in_names() -> None:
    """ftp and sftp take them for a query and a fragment, and cut the name off there."""
    names = ["h#h.parquet", "q?z.parquet", "a#b?c.parquet"]
    for name in names:
        MemoryFileSystem().pipe_file(f"/one/u/{name}", parquet_bytes(pa.table({"name": [name]})))
    async with asyncpq.Session() as session:
        folder = await session.open_dataset("placed://one/u/")
        assert sorted((await folder.scan().to_table())["name"].to_pylist()) == sorted(names)
        for name in names:
            file = await session.open_file(f"placed://one/u/{name}")
            assert (await file.scan().to_table())["name"].to_pylist() == [name]


@pytest.mark.usefixtures("placed")
async def test_a_filesystem_with_one_connection_gets_one_call_at_a_time() -> None:
    store = open_test_store("onecall", {})
    stored = await store.open_object("onecall://host/x")
    pin = (await stored.fetch_tail(2, context=new_context())).validator
    parts = await asyncio.gather(*[stored.fetch_range(n, n + 2, context=new_context(), pin=pin) for n in range(8)])
    assert [bytes(part.data) for part in parts] == [b"0123456789"[n : n + 2] for n in range(8)]

    assert isinstance(store, FsspecStore)
    before = store.filesystem.calls
    store.filesystem.began.clear()
    reads = [asyncio.ensure_future(stored.fetch_range(0, 2, context=new_context(), pin=pin)) for _ in range(8)]
    await asyncio.to_thread(store.filesystem.began.wait)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    assert bytes((await stored.fetch_range(3, 5, context=new_context(), pin=pin)).data) == b"34"
    assert store.filesystem.calls - before <= 3  # those that had not begun were dropped
    await store.close()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("ftp://host/x?y#z", {"host": "host"}),
        ("ftp://u:p@host:21/x", {"host": "host", "port": 21, "username": "u", "password": "p"}),
        ("github://o:r@main/x", {"org": "o", "repo": "r", "sha": "main"}),
        ("hdfs://node:8020/x", {"host": "node", "port": 8020}),
        ("memory://x/y", {}),
        ("s3://bucket/key", {}),
        ("nothing://x/y", {}),
        ("ftp://host:port/x", {}),
    ],
)
def test_places_are_read_by_fsspec(url: str, place: dict[str, Any]) -> None:
    assert place_of(url.partition(":")[0], url) == place


@pytest.mark.usefixtures("placed")
async def test_caches_tell_filesystems_apart_by_their_options() -> None:
    identities = []
    for options in ({"host": "one"}, {"host": "one", "password": "hunter2"}, {"host": "one"}):
        store = open_test_store("placed", options)
        identities.append((await store.open_object("placed://one/t/a.parquet")).identity)
        await store.close()
    first, second, third = identities
    assert first == third != second
    assert "hunter2" not in second


class ClientOSError(OSError):
    """An error of a class that a client has made, as smbprotocol's SMBOSError: its errno says what happened."""


class ClientFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec is not typed
    protocol = "client"
    error = errno.ENOENT

    def __init__(self, connects: bool = True) -> None:
        super().__init__()
        if not connects:
            try:
                raise ConnectionRefusedError
            except OSError as error:
                raise ValueError("Failed to connect to 'host:445'") from error

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        raise ClientOSError(self.error, "hunter2")


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOENT, ObjectNotFoundError),
        (errno.ENOTDIR, ObjectNotFoundError),
        (errno.EISDIR, ObjectNotFoundError),
        (errno.EACCES, AccessDeniedError),
        (errno.EIO, TransportError),
    ],
)
async def test_a_client_s_own_os_errors_are_told_by_their_number(
    number: int, error: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("client", ClientFileSystem, clobber=True)
    monkeypatch.setattr(ClientFileSystem, "error", number)
    store = open_test_store("client", {}, FAST_RETRIES)
    stored = await store.open_object("client://a/b")
    with pytest.raises(error) as caught:
        await stored.fetch_tail(3, context=new_context())
    await store.close()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLError(1, "wrong version number"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        ssl.SSLWantReadError(2, "the operation did not complete"),
        socket.gaierror(2, "EAI_AGAIN of macOS"),
        socket.herror(1, "host not found"),
        aiohttp.ClientConnectorDNSError(None, socket.gaierror(2, "EAI_AGAIN of macOS")),  # type: ignore[arg-type]
    ],
    ids=lambda error: type(error).__name__,
)
async def test_numbers_of_tls_and_of_the_resolver_are_no_errno(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def info(*_: object, **options: object) -> dict[str, Any]:
        raise error

    fsspec.register_implementation("client", ClientFileSystem, clobber=True)
    monkeypatch.setattr(ClientFileSystem, "info", info)
    store = open_test_store("client", {}, FAST_RETRIES)
    stored = await store.open_object("client://a/b")
    with pytest.raises(TransportError):
        await stored.fetch_tail(3, context=new_context())
    await store.close()


def test_a_filesystem_that_does_not_connect_refuses_no_options() -> None:
    fsspec.register_implementation("client", ClientFileSystem, clobber=True)
    with pytest.raises(TransportError, match=r"the client filesystem cannot be opened \(ConnectionRefusedError\)"):
        open_test_store("client", {"connects": False})


@pytest.mark.usefixtures("placed")
async def test_a_filesystem_that_connects_in_its_own_loop_is_read_there() -> None:
    store = open_test_store("looped", {})
    stored = await store.open_object("looped://a/b")
    assert bytes((await stored.fetch_tail(3, context=new_context())).data) == b"789"
    assert bytes((await stored.fetch_range(2, 4, context=new_context())).data) == b"23"
    await store.close()
    with pytest.raises(StoreError, match=r"cannot be opened \(builtins\.LookupError\)") as caught:
        open_test_store("looped", {"fails": True})
    assert "hunter2" not in str(caught.value)


async def test_options_of_s3_mean_nothing_to_other_stores() -> None:
    for name in "key", "endpoint_url", "aws_region":
        async with asyncpq.Session({name: "hidden"}) as session:
            with pytest.raises(InvalidOptionError, match=f"memory have no option {name}.* per protocol") as caught:
                await session.open_file("memory://x.parquet")
            assert "hidden" not in str(caught.value)
