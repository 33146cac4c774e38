"""Local files: what a handle reads after its path was given to another file, and what cannot be opened."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncpq.errors import (
    AccessDeniedError,
    ConcurrentCommitUnsupported,
    InvalidOptionError,
    InvalidResponseError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    UsageError,
)
from asyncpq.metrics import ReadMetrics
from asyncpq.storage.base import RequestContext, WritableStore, writable
from asyncpq.storage.local import INLINE_BYTES, LocalStore, write_file
from tests.store_backends import new_context, open_test_store

OLD, NEW = b"old" * 100, b"new" * 100


def replace_file(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    os.replace(beside, path)


def age(path: Path) -> None:
    """Make the file so old that its time tells its versions apart."""
    os.utime(path, (1_000_000_000, 1_000_000_000))


@pytest.mark.parametrize("scan", [False, True])
async def test_a_pinned_read_of_a_replaced_file(tmp_path: Path, scan: bool) -> None:
    path = tmp_path / "object"
    path.write_bytes(OLD)
    age(path)
    store, context = LocalStore({}), RequestContext(ReadMetrics(), scan=scan)
    handle = await store.open_object(str(path))
    pin = (await handle.fetch_tail(8, context=context)).validator
    assert handle.has_version(pin)
    replace_file(path, NEW)
    assert not handle.has_version(pin)
    if scan:  # goes on with the file it began with
        result = await handle.fetch_range(0, 3, context=context, pin=pin)
        assert (result.data, result.validates) == (b"old", False)
    else:
        with pytest.raises(ObjectChangedError, match="another file"):
            await handle.fetch_range(0, 3, context=context, pin=pin)
    newer = await handle.fetch_tail(3, context=RequestContext(ReadMetrics()))
    assert (newer.data, newer.validator.same_version(pin)) == (b"new", False)
    await store.close()


@pytest.mark.parametrize("size", [10, INLINE_BYTES + 1], ids=["on the loop", "in a thread"])
async def test_reads_are_counted_and_bounded_by_the_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "object"
    path.write_bytes(bytes(size))
    metrics = ReadMetrics()
    store = LocalStore({})
    handle = await store.open_object(path.as_uri())
    result = await handle.fetch_range(0, size, context=RequestContext(metrics))
    assert result.data == bytes(size)
    assert (metrics.requests, metrics.bytes_fetched) == (1, size)
    with pytest.raises(InvalidResponseError, match=f"ends at byte {size}"):
        await handle.fetch_range(0, size + 1, context=RequestContext(metrics))
    await handle.close()
    with pytest.raises(UsageError, match="closed"):
        await handle.fetch_range(0, 1, context=RequestContext(metrics))
    await store.close()


async def test_what_cannot_be_opened(tmp_path: Path) -> None:
    store = LocalStore({"auto_mkdir": True})
    with pytest.raises(ObjectNotFoundError, match="no such file"):
        await store.open_object(str(tmp_path / "missing"))
    with pytest.raises(ObjectNotFoundError, match="a folder, not a file"):
        await store.open_object(str(tmp_path))
    with pytest.raises(InvalidOptionError, match="have no option block_size"):
        LocalStore({"block_size": 1})
    await store.close()
    with pytest.raises(UsageError, match="closed"):
        await store.open_object(str(tmp_path / "missing"))


async def test_listed_files_are_compared_by_a_stat(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(OLD)
    age(path)
    store = LocalStore({})
    listed = await store.list_objects(f"{tmp_path}/", context=RequestContext(ReadMetrics()))
    versions = [(item.url, item.validator) for item in listed]
    assert len(versions) == 1
    assert not store.any_changed(versions)
    replace_file(path, NEW)
    assert store.any_changed(versions)
    path.unlink()
    assert store.any_changed(versions)
    assert not store.any_changed([(str(path), None)])
    await store.close()


@pytest.fixture
async def local() -> AsyncIterator[WritableStore]:
    made = writable(open_test_store("file", {}), "")
    yield made
    await made.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("create", [False, True], ids=["put", "create"])
def test_it_is_on_disk_before_it_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: bool) -> None:
    target = tmp_path / "folder" / "file"
    steps: list[str] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        steps.append(f"{'content' if name.endswith('.tmp') else name} {'seen' if target.exists() else 'not seen'}")

    monkeypatch.setattr(os, "fsync", fsync)
    assert write_file(str(target), b"data", create=create)
    assert steps == [f"{tmp_path.name} not seen", "content not seen", "folder seen"]
    assert [path.name for path in target.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace", "link"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
async def test_what_fails_leaves_what_was(
    local: WritableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    target = tmp_path / "file"
    if step == "replace":
        target.write_bytes(b"before")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fail)
    write = local.create_object if step == "link" else local.put_object
    with pytest.raises(AccessDeniedError if number == errno.EACCES else StoreError) as caught:
        await write(str(target), b"after", context=new_context())
    assert caught.value.url == str(target)
    assert contents(tmp_path) == ({"file": b"before"} if step == "replace" else {})


async def test_a_file_system_without_links(
    local: WritableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    assert await local.probe_create(f"{tmp_path}/", context=new_context()) is False
    with pytest.raises(ConcurrentCommitUnsupported, match="single_writer"):
        await local.create_object(f"{tmp_path}/file", b"1", context=new_context())
    await local.put_object(f"{tmp_path}/file", b"1", context=new_context())
    assert contents(tmp_path) == {"file": b"1"}


async def test_links_are_tried_in_few_steps(local: WritableStore, tmp_path: Path) -> None:
    """The kernel makes a link once; servers are asked by many creates at once."""
    context = new_context()
    assert await local.probe_create(f"{tmp_path}/", context=context) is True
    assert context.metrics.requests == 3  # two creates, and the delete
    assert contents(tmp_path) == {}


_FILES = 40


def _create_all(folder: str, name: str) -> None:
    """Of files that others create, too; those that this process created are told in a file of its own."""
    won = [turn for turn in range(_FILES) if write_file(f"{folder}/{turn}", name.encode(), create=True)]
    Path(folder, f"won-{name}").write_text(" ".join(map(str, won)))


@pytest.mark.heavy
def test_processes_that_create_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    names = ["a", "b"]
    workers = [context.Process(target=_create_all, args=(str(tmp_path), name)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    won = {name: (tmp_path / f"won-{name}").read_text().split() for name in names}
    assert sorted(map(int, (turn for turns in won.values() for turn in turns))) == list(range(_FILES))
    assert all((tmp_path / turn).read_text() == name for name, turns in won.items() for turn in turns)
    assert not list(tmp_path.glob(".*"))
