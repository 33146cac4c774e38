"""What every store that writes promises (asyncpq/testing/store_contract.py), asked of every store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from asyncpq.errors import UnsupportedStoreError
from asyncpq.storage.base import Store, writable
from asyncpq.testing import STORE_WRITE_CHECKS, StoreStorage, StoreWrite, WrappedStore
from tests.store_backends import Backend, LocalBackend, new_context, open_test_store, running_backend

T = TypeVar("T")

OBSTORE = ["s3-through-obstore", "gs-through-obstore"]
KINDS = ["s3", "s3-unsigned", "s3-through-s3fs", "s3-extras", "s3-localstack", "local", "memory", *OBSTORE]
READ_ONLY = ["http", "local-through-fsspec"]


@pytest.fixture(params=[*KINDS, *READ_ONLY])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    async with running_backend(str(request.param), tmp_path, request, b"data") as made:
        yield made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("check", STORE_WRITE_CHECKS, ids=lambda check: check.__name__)
async def test_contract(backend: Backend, check: Callable[[StoreStorage], Awaitable[None]]) -> None:
    await check(backend)


async def test_all_that_write_create(backend: Backend, request: pytest.FixtureRequest) -> None:
    """The contract asks nothing about creating where the probe fails."""
    if request.node.callspec.params["backend"] in KINDS:
        store = writable(backend.store, backend.url(""))
        assert await store.probe_create(backend.url("probed/"), context=new_context()) is True
    else:
        with pytest.raises(UnsupportedStoreError):
            writable(backend.store, backend.url(""))


class Watched(WrappedStore):
    """Remembers what is written."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.writes: list[StoreWrite] = []

    async def around_write(self, call: StoreWrite, write: Callable[[], Awaitable[T]]) -> T:
        self.writes.append(call)
        return await write()


@pytest.mark.parametrize("check", STORE_WRITE_CHECKS, ids=lambda check: check.__name__)
async def test_contract_of_a_wrapped_store(check: Callable[[StoreStorage], Awaitable[None]], tmp_path: Path) -> None:
    made = LocalBackend(tmp_path, Watched(open_test_store("file", {})))
    await made.put("key", b"data")
    await check(made)
    await made.store.close()


async def test_a_wrapped_store_that_only_reads() -> None:
    store = Watched(open_test_store("http", {}))
    with pytest.raises(UnsupportedStoreError, match="Write to S3"):
        await store.put_object("http://127.0.0.1/t", b"1", context=new_context())
    assert store.writes == []
    await store.close()


async def test_a_wrapped_store_is_told_each_write(tmp_path: Path) -> None:
    store = Watched(open_test_store("file", {}))
    one, two = f"{tmp_path}/1", f"{tmp_path}/2"
    await store.put_object(one, b"123", context=new_context())
    assert await store.create_object(one, b"1", context=new_context()) is False
    await store.put_file(two, Path(one), context=new_context())
    await store.delete_objects([one, two], context=new_context())
    assert store.writes == [
        StoreWrite("put_object", (one,), 3),
        StoreWrite("create_object", (one,), 1),
        StoreWrite("put_file", (two,)),
        StoreWrite("delete_objects", (one, two)),
    ]
    await store.close()
