"""Atomic writes of local files: what the file system promises, and what is made of it."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncpq.errors import AccessDeniedError, ConcurrentCommitUnsupported, StoreError
from asyncpq.storage import local_files as local_writing
from asyncpq.storage.base import WritableStore, writable
from tests.store_backends import new_context, open_test_store


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
    assert local_writing.write_file(str(target), b"data", create=create)
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


_FILES = 40


def _create_all(folder: str, name: str) -> None:
    """Of files that others create, too; those that this process created are told in a file of its own."""
    won = [turn for turn in range(_FILES) if local_writing.write_file(f"{folder}/{turn}", name.encode(), create=True)]
    Path(folder, f"won-{name}").write_text(" ".join(map(str, won)))


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
