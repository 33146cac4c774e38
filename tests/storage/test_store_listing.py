"""Listings of every store beyond the contract: what LocalStack and the test server say, faults, and requests."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    CredentialsError,
    InvalidResponseError,
    ResourceLimitError,
    ThrottledError,
    TransportError,
    UsageError,
)
from asyncpq.options import LimitOptions, RetryOptions
from asyncpq.session import Session
from asyncpq.storage import open_store
from asyncpq.storage.base import FolderStore, Store
from asyncpq.storage.fsspec import FsspecStore
from asyncpq.testing import Fault, ObjectServer
from asyncpq.testing.object_server import Answer, LoggedRequest, answer_list
from localstack.seed import seed, storage_options
from tests.store_backends import FAST_RETRIES, LIMITS, new_context, obstore_options, open_test_store, retries_for

KEYS = [
    *("plain", "a b", "a+b", "100%", "%2F", "\u00e9/\u00fc", "a//b", "a?b=c&d", "#f", "\u65e5\u672c", "a:b@c", "~"),
    *("part=1/x.parquet", "k=a%2Fb/x", "a/../b", "<&>\"'", "\U0001f600", "folder/", "folder/x"),
]


def urls_of(bucket: str, keys: list[str]) -> list[str]:
    return [f"s3://{bucket}/{key}" for key in sorted(keys) if not key.endswith("/")]


async def listed(store: Store, url: str, **options: Any) -> list[str]:
    return [found.url for found in await store.list_objects(url, context=new_context(), **options)]


@pytest.fixture(params=["direct", "s3fs"])
async def served(request: pytest.FixtureRequest, server: ObjectServer) -> AsyncIterator[Store]:
    """S3Store on the server, by both paths."""
    more = {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if request.param == "s3fs" else {}
    made = open_test_store("s3", {**server.storage_options, **more}, retries_for(request))
    yield made
    await made.close()


# -- names and versions ---------------------------------------------------------------------------


@pytest.mark.parametrize("through_s3fs", [False, True])
async def test_localstack(localstack: str, bucket: str, through_s3fs: bool) -> None:
    await seed(localstack, bucket, {key: key.encode() for key in KEYS})
    more = {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if through_s3fs else {}
    store = open_test_store("s3", {**storage_options(localstack), **more})
    try:
        found = await store.list_objects(f"s3://{bucket}/", context=new_context())
        assert [item.url for item in found] == urls_of(bucket, KEYS)
        for item in found:
            if "?" in item.url or "/../" in item.url:
                continue  # no such key can be read from LocalStack, or by a url
            stored = await store.open_object(item.url)
            validator = (await stored.fetch_tail(8, context=new_context())).validator
            assert item.validator is not None
            assert item.validator.same_version(validator)
        assert await listed(store, f"s3://{bucket}") == urls_of(bucket, KEYS)
        assert await listed(store, f"s3://{bucket}/a") == urls_of(bucket, [key for key in KEYS if key[0] == "a"])
        assert await listed(store, f"s3a://{bucket}/folder/") == [f"s3a://{bucket}/folder/x"]
        assert await listed(store, f"s3://{bucket}/missing/") == []
        with pytest.raises(BucketNotFoundError):
            await listed(store, f"s3://{bucket}-missing/")
    finally:
        await store.close()


@pytest.mark.slow  # LocalStack takes long for thousands of keys
@pytest.mark.parametrize("through_s3fs", [False, True])
async def test_many_pages_of_localstack(localstack: str, bucket: str, through_s3fs: bool) -> None:
    # botocore always asks for encoded keys, which this LocalStack then compares with plain ones
    begin = "k" if through_s3fs else "k="
    keys = [f"{begin}{number % 40}/part-{number:05}" for number in range(2200)]
    await seed(localstack, bucket, dict.fromkeys(keys, b"x"))
    more = {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if through_s3fs else {}
    store = open_test_store("s3", {**storage_options(localstack), **more}, RetryOptions())
    try:
        assert await listed(store, f"s3://{bucket}/") == urls_of(bucket, keys)
        context = new_context()
        found = await store.list_objects(
            f"s3://{bucket}/", context=context, wants=lambda folder: folder.endswith(f"/{begin}7/")
        )
        assert [item.url for item in found] == urls_of(bucket, [key for key in keys if key.startswith(f"{begin}7/")])
        assert context.metrics.requests == 3
    finally:
        await store.close()


async def test_keys_of_the_server(served: Store, server: ObjectServer) -> None:
    server.objects.clear()
    for key in [*KEYS, "\x01", "a\nb"]:
        server.put(f"bucket/{key}", b"x")
    for page_keys in (1000, 3):
        server.page_keys = page_keys
        assert await listed(served, "s3://bucket/") == urls_of("bucket", [*KEYS, "\x01", "a\nb"])


async def test_versions_by_id_are_not_known(server: ObjectServer) -> None:
    """GETs of such a store name versions; listings do not, so nothing is said."""
    store = open_test_store("s3", {**server.storage_options, "version_aware": True})
    try:
        (found,) = await store.list_objects("s3://bucket/key", context=new_context())
        assert found.validator is None
    finally:
        await store.close()


# -- how many requests, and how they are recorded ---------------------------------------------------


async def test_io_log(store: Store, server: ObjectServer) -> None:
    server.objects.clear()
    for number in range(500):
        server.put(f"bucket/t/k={number}/x", b"x")
    context = new_context().step("list", 2)
    assert len(await store.list_objects("s3://bucket/t/", context=context)) == 500
    assert [request.target for request in server.log] == ["/bucket?list-type=2&prefix=t%2F"]
    assert [str(record) for record in context.metrics.log] == [f"round 2: GET list ({server.log[0].sent} bytes)"]
    for number in range(500, 2000):
        server.put(f"bucket/t/k={number}/x", b"x")
    server.log.clear()
    assert len(await store.list_objects("s3://bucket/t/", context=new_context())) == 2000
    assert len(server.log) == 2
    server.log.clear()
    found = await store.list_objects("s3://bucket/t/", context=new_context(), wants=lambda _: False)
    assert len(found) <= 2000
    assert len(server.log) <= 3
    server.log.clear()
    for number in range(2000):
        for more in "yz":
            server.put(f"bucket/t/k={number}/{more}", b"x")
    found = await store.list_objects("s3://bucket/t/", context=new_context(), wants=lambda url: url.endswith("k=77/"))
    assert [item.url for item in found] == [f"s3://bucket/t/k=77/{name}" for name in "xyz"]
    assert len(server.log) == 4


# -- faults -----------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=503, code="SlowDown"),
        Fault(truncate=50),
        Fault(truncate=50, reset=True),
        Fault(hang_up=True),
        Fault(stall_headers=True),
        Fault(stall_body=True, truncate=50),
        Fault(surplus=-40),
        Fault(slow_down_200=True),
    ],
    ids=lambda fault: repr({name: value for name, value in asdict(fault).items() if value != getattr(Fault(), name)}),
)
async def test_listed_after_another_try(served: Store, server: ObjectServer, fault: Fault) -> None:
    server.faults = [fault]
    context = new_context()
    (found,) = await served.list_objects("s3://bucket/k", context=context)
    assert found.url == "s3://bucket/key"
    assert 2 <= len(server.log) <= 3  # aiohttp repeats some by itself
    assert context.metrics.requests <= 3


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(status=500, times=None), TransportError),
        (Fault(status=503, code="SlowDown", times=None), ThrottledError),
        (Fault(truncate=50, times=None), TransportError),
        (Fault(surplus=-40, times=None), AsyncpqError),
        (Fault(status=403, code="AccessDenied"), AccessDeniedError),
        (Fault(status=403, code="InvalidAccessKeyId"), CredentialsError),
        (Fault(html_200=True, times=None), AsyncpqError),
        (Fault(redirect="http://127.0.0.1:1/"), AsyncpqError),
        (Fault(endless_listing=True, times=None), InvalidResponseError),
    ],
)
async def test_faults_that_stay(served: Store, server: ObjectServer, fault: Fault, error: type[AsyncpqError]) -> None:
    server.faults = [fault]
    with pytest.raises(error) as caught:
        await served.list_objects("s3://bucket/k", context=new_context())
    assert caught.value.url == "s3://bucket/k"
    if error is AccessDeniedError:
        assert "s3:ListBucket" in str(caught.value)
    assert len(server.log) <= FAST_RETRIES.max_attempts


async def test_keys_that_xml_cannot_hold(store: Store, server: ObjectServer) -> None:
    for key in ("key\x01", "key\x02"):
        server.put(f"bucket/{key}", b"x")
    server.page_keys = 2
    assert await listed(store, "s3://bucket/k") == ["s3://bucket/key", "s3://bucket/key\x01", "s3://bucket/key\x02"]
    assert ["encoding-type=url" in request.target for request in server.log] == [False, True, True]


async def test_broken_xml(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(surplus=-40, times=None)]
    with pytest.raises(InvalidResponseError, match="not well-formed"):
        await store.list_objects("s3://bucket/k", context=new_context())
    assert len(server.log) == 2  # once more with encoded keys, which XML can hold


async def test_a_page_of_the_greatest_length(
    store: Store, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = new_context()
    whole = await store.list_objects("s3://bucket/k", context=context)
    length = context.metrics.bytes_fetched
    monkeypatch.setattr("asyncpq.storage.s3.key_listing.PAGE_BYTES", length)
    assert await store.list_objects("s3://bucket/k", context=new_context()) == whole
    monkeypatch.setattr("asyncpq.storage.s3.key_listing.PAGE_BYTES", length - 1)
    with pytest.raises(InvalidResponseError, match="or more"):
        await store.list_objects("s3://bucket/k", context=new_context())


async def test_another_region(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(region="eu-central-1", times=None)]
    assert await listed(store, "s3://bucket/k") == ["s3://bucket/key"]
    assert len(server.log) == 2


async def test_a_page_in_the_middle_fails(store: Store, server: ObjectServer) -> None:
    server.objects.clear()
    for number in range(200):
        server.put(f"bucket/{number:03}", b"x")
    server.page_keys = 5
    server.faults = [Fault(after=7, times=3, status=503, code="SlowDown"), Fault(after=20, truncate=30)]
    assert len(await listed(store, "s3://bucket/")) == 200
    server.faults = [Fault(after=7, times=None, status=500)]
    with pytest.raises(TransportError):
        await listed(store, "s3://bucket/")


async def test_deadline(served: Store, server: ObjectServer) -> None:
    server.faults = [Fault(stall_headers=True, times=None)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(served.list_objects("s3://bucket/k", context=new_context()), 0.15)


async def test_closed(served: Store) -> None:
    await served.close()
    with pytest.raises(UsageError):
        await listed(served, "s3://bucket/k")


# -- local files ------------------------------------------------------------------------------------


@pytest.fixture
async def local() -> AsyncIterator[Store]:
    made = open_test_store("file", {})
    yield made
    await made.close()


async def test_links(local: Store, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_bytes(b"12")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "a" / "lost").symlink_to("nowhere")
    (tmp_path / "b").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "file").symlink_to(tmp_path / "a" / "b" / "x")
    os.mkfifo(tmp_path / "fifo")
    names = ["a/b/x", "b/x", "file"]
    assert await listed(local, f"{tmp_path}/") == [f"{tmp_path}/{name}" for name in names]
    assert await listed(local, f"file://{tmp_path}/a") == [f"file://{tmp_path}/a/b/x"]
    assert await listed(local, f"{tmp_path}/file/") == []


async def test_order_of_paths(local: Store, tmp_path: Path) -> None:
    names = ["a", "a.b", "b/x", "b-c", "b.d", "b0", "\u00e9", "\U0001f600", "\uffee"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    expected = sorted((f"{tmp_path}/{name}" for name in names), key=os.fsencode)
    assert await listed(local, f"{tmp_path}/") == expected


async def test_a_version_that_cannot_be_told(local: Store, tmp_path: Path) -> None:
    """A file with a coarse clock, just written: GETs do not give its bytes to another version, nor does a listing."""
    (tmp_path / "old").write_bytes(b"x")
    os.utime(tmp_path / "old", (1e9, 1e9))
    (tmp_path / "young").write_bytes(b"x")
    now = int(os.stat(tmp_path / "young").st_mtime)
    os.utime(tmp_path / "young", (now, now))
    old, young = await local.list_objects(f"{tmp_path}/", context=new_context())
    assert old.validator is not None
    assert young.validator is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_folder_that_may_not_be_read(local: Store, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0)
    with pytest.raises(AccessDeniedError, match=f"{tmp_path}/a"):
        await listed(local, f"{tmp_path}/")


async def test_unwanted_folders_are_not_walked(local: Store, tmp_path: Path) -> None:
    for name in ("k=1", "k=2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"")
    asked: list[str] = []

    def wants(folder: str) -> bool:
        asked.append(folder)
        return folder.endswith("k=2/")

    assert await listed(local, f"{tmp_path}/", wants=wants) == [f"{tmp_path}/k=2/x"]
    assert asked == [f"{tmp_path}/k=1/", f"{tmp_path}/k=2/"]


async def test_a_thread_lists(local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> Any:
        threads.append(threading.current_thread().name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    await listed(local, f"{tmp_path}/")
    assert len(threads) == 1
    assert threads[0].startswith("asyncpq-local")


# -- fsspec -----------------------------------------------------------------------------------------


class TouchyFileSystem(MemoryFileSystem):  # type: ignore[misc]  # Any: not typed
    """Fails to list some folders, and caches all it lists."""

    protocol = "touchy"
    store: dict[str, Any] = {}  # noqa: RUF012  # as in fsspec's
    pseudo_dirs = [""]  # noqa: RUF012
    failures: dict[str, list[Exception]] = {}  # noqa: RUF012

    find = fsspec.AbstractFileSystem.find  # folder by folder

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace(f"{cls.protocol}://", "memory://")))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        waiting = self.failures.get(path.strip("/"))
        if waiting:
            raise waiting.pop()
        if path in self.dircache:
            return self.dircache[path]
        self.dircache[path] = found = super().ls(path, detail=detail, **options)
        return found


@pytest.fixture
async def touchy() -> AsyncIterator[FsspecStore]:
    fsspec.register_implementation("touchy", TouchyFileSystem, clobber=True)
    TouchyFileSystem.store.clear()
    TouchyFileSystem.failures.clear()
    made = FsspecStore("touchy", {}, retry=FAST_RETRIES, limits=LIMITS)
    for name in ("/t/a/x", "/t/b/x", "/t/c", "/t2/x"):
        made.filesystem.pipe_file(name, b"12")
    yield made
    await made.close()


async def test_a_folder_that_fails_is_not_left_out(touchy: FsspecStore) -> None:
    """fsspec's own walk would leave it out without a word."""
    expected = [f"touchy://t/{name}" for name in ("a/x", "b/x", "c")]
    TouchyFileSystem.failures["t/a"] = [OSError(5, "once")]
    assert await listed(touchy, "touchy://t/") == expected
    TouchyFileSystem.failures["t/a"] = [OSError(5, "again") for _ in range(9)]
    with pytest.raises(TransportError):
        await listed(touchy, "touchy://t/")
    TouchyFileSystem.failures["t/a"] = [PermissionError()]
    with pytest.raises(AccessDeniedError):
        await listed(touchy, "touchy://t/")
    TouchyFileSystem.failures["t/a"] = [FileNotFoundError()]  # deleted meanwhile
    assert await listed(touchy, "touchy://t/") == expected[1:]


async def test_no_listing_is_cached(touchy: FsspecStore) -> None:
    before = await listed(touchy, "touchy://t/")
    TouchyFileSystem().pipe_file("/t/d/x", b"")
    assert await listed(touchy, "touchy://t/") == [*before, "touchy://t/d/x"]


async def test_unwanted_folders_are_not_asked_for(touchy: FsspecStore) -> None:
    TouchyFileSystem.failures["t/a"] = [PermissionError()]
    found = await listed(touchy, "touchy://t/", wants=lambda folder: folder != "touchy://t/a/")
    assert found == ["touchy://t/b/x", "touchy://t/c"]


class FlatFileSystem(TouchyFileSystem):
    """Finds all files at once, as object stores do."""

    protocol = "flat"
    found = 0

    def find(self, path: str, **options: Any) -> Any:
        type(self).found += 1
        return super().find(path, **options)


async def test_a_filesystem_that_lists_all_at_once(touchy: FsspecStore) -> None:
    fsspec.register_implementation("flat", FlatFileSystem, clobber=True)
    store = FsspecStore("flat", {}, retry=FAST_RETRIES, limits=LIMITS)
    try:
        context = new_context()
        found = await store.list_objects("flat://t/", context=context)
        assert [item.url for item in found] == [f"flat://t/{name}" for name in ("a/x", "b/x", "c")]
        assert (context.metrics.requests, FlatFileSystem.found) == (1, 1)
        assert await listed(store, "flat://t/c/") == []
    finally:
        await store.close()


# -- listings that do not end ---------------------------------------------------------------------


async def test_options_bound_a_listing(server: ObjectServer) -> None:
    for number in range(20):
        server.put(f"bucket/limited/{number:03}.parquet", b"x")
    server.page_keys = 3
    for most, whole in ((20, True), (19, False)):
        limits = LimitOptions(max_listed_objects=most)
        async with Session(server.storage_options, limits=limits) as session:
            listed_store, _ = await session._runtime.store("s3://bucket/")
            listing = listed_store.list_objects("s3://bucket/limited/", context=new_context())
            if whole:
                assert len(await listing) == 20
            else:
                with pytest.raises(ResourceLimitError, match="max_listed_objects") as caught:
                    await listing
                assert caught.value.url == "s3://bucket/limited/"


async def test_a_key_outside_of_the_prefix_is_never_read(server: ObjectServer) -> None:
    """A server that ignores the prefix, or wants other objects to be read with the user's rights."""
    server.put("bucket/elsewhere/secret.parquet", b"x")

    def before(request: LoggedRequest) -> Answer | None:
        if "list-type=2" not in request.target:
            return None
        return answer_list({}, "bucket", server.objects, 1000, Fault())

    server.before = before
    async with Session(server.storage_options) as session:
        for target in ("s3://bucket/mine/", "s3://bucket/mine/*.parquet"):
            with pytest.raises(InvalidResponseError, match="does not begin with the requested prefix"):
                await session.open_dataset(target)
    assert not [request for request in server.log if "list-type=2" not in request.target]


async def test_options_bound_the_listings_of_other_stores(server: ObjectServer) -> None:
    memory = MemoryFileSystem()
    for number in range(20):
        server.put(f"bucket/limited/{number:03}.parquet", b"x")
        memory.pipe(f"/limited/{number:03}.parquet", b"x")
    s3fs = {**server.storage_options, "use_listings_cache": False, "requester_pays": True}
    obstore = {"obstore": obstore_options(server, "s3")["obstore"]}
    for url, options in (("memory://limited/", {}), ("s3://bucket/limited/", s3fs), ("s3://bucket/limited/", obstore)):
        protocol = url.partition(":")[0]
        for most in (20, 19):
            limits = replace(LIMITS, max_listed_objects=most)
            store = open_store(protocol, options, retry=FAST_RETRIES, limits=limits)
            try:
                listing = store.list_objects(url, context=new_context())
                if most == 20:
                    assert len(await listing) == 20
                else:
                    with pytest.raises(ResourceLimitError):
                        await listing
            finally:
                await store.close()
    memory.rm("/limited", recursive=True)


@pytest.mark.parametrize("kind", ["s3", "s3fs", "obstore", "memory", "file"])
async def test_first_names_of_a_folder(kind: str, server: ObjectServer, tmp_path: Path) -> None:
    keys = ["t/plain", "t/a b", "t/100%", "t/\u00e9/x", "t/k=1/x", "t/k=1/l=2/x", "t/_delta_log/0.json", "u", "t2/x"]
    through_s3fs = {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}
    options = {
        "s3": server.storage_options,
        "s3fs": {**server.storage_options, **through_s3fs},
        "obstore": obstore_options(server, "s3"),
    }
    bucket = uuid.uuid4().hex
    root = {"memory": f"memory://{bucket}/", "file": f"{tmp_path}/"}.get(kind, f"s3://{bucket}/")
    store = open_test_store(kind if kind in ("memory", "file") else "s3", options.get(kind, {}))
    for key in keys:
        server.put(f"{bucket}/{key}", b"x")
        fsspec.filesystem("memory").pipe_file(f"/{bucket}/{key}", b"x")
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"x")
    assert isinstance(store, FolderStore)
    try:
        found = await store.first_names(f"{root}t/", context=new_context())
        names = ["plain", "a b", "100%", "\u00e9/", "k=1/", "_delta_log/"]
        assert (sorted(found.urls), found.is_whole) == (sorted(f"{root}t/{name}" for name in names), True)
        assert (await store.first_names(f"{root}none/", context=new_context())).urls == []
        above = await store.first_names(root, context=new_context())
        assert sorted(above.urls) == [f"{root}t/", f"{root}t2/", f"{root}u"]
        if kind == "s3":
            server.page_keys = 2
            found = await store.first_names(f"{root}t/", context=new_context())
            assert (len(found.urls), found.is_whole) == (2, False)
    finally:
        await store.close()


@pytest.mark.parametrize("page", ["<Contents/>" * 500_000, "<a" + " b=''" * 1_000_000 + "/>", "x" * 5_000_000])
async def test_an_error_does_not_hold_the_page_that_it_is_about(server: ObjectServer, page: str) -> None:
    """Not even until the garbage collector comes: a few such answers at once would fill the memory."""
    body = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{page}</ListBucketResult>'.encode()
    server.before = lambda request: Answer(200, {"Content-Type": "application/xml"}, body)
    async with Session(server.storage_options, retry=FAST_RETRIES) as session:
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            with pytest.raises(InvalidResponseError):
                await session.open_dataset("s3://lake/")
            assert tracemalloc.get_traced_memory()[0] < len(body)
        finally:
            tracemalloc.stop()
            gc.enable()
