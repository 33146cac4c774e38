"""Local files: what a handle reads after its path was given to another file, and what cannot be opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncpq.errors import InvalidOptionError, InvalidResponseError, ObjectChangedError, ObjectNotFoundError, UsageError
from asyncpq.metrics import ReadMetrics
from asyncpq.storage.base import RequestContext
from asyncpq.storage.local import INLINE_BYTES, LocalStore

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
