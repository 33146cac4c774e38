"""Azurite and fake-gcs-server through obstore, adlfs and gcsfs: the contracts of stores, lookups, and what they ask.

fake-gcs-server has no PUT of Google's XML API, which obstore writes with: obstore's writes to Google are tested against
the tests' own server (tests/testing/test_store_write_contract.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import obstore
import obstore.store
import pytest

import asyncpq
from asyncpq.errors import AccessDeniedError, BucketNotFoundError
from asyncpq.storage.base import Guarantee, writable
from asyncpq.testing import STORE_CHECKS, STORE_WRITE_CHECKS, StoreStorage
from asyncpq.testing.store_contract import DATA
from tests.real_stores import BUCKET, Emulator, require_package, running_azurite, running_fake_google
from tests.store_backends import FAST_RETRIES, Backend, new_context, open_test_store
from tests.warm_lookups import KEYS, parquet, table, warm_lookups

pytestmark = [
    pytest.mark.services,
    # gcsfs sends large parts so
    pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning"),
]

ROWS = table()
FILE = parquet(ROWS)
#: Azurite does not answer a request for a name with a NUL, for which adlfs waits.
RETRIES = replace(FAST_RETRIES, max_attempts=2, connect_timeout_s=5.0, first_byte_timeout_s=5.0, stall_timeout_s=5.0)
WAYS = ["az-obstore", "az-adlfs", "gs-obstore", "gs-gcsfs"]
WRITING = [way for way in WAYS if way != "gs-obstore"]
PINNED = {"az-obstore": True, "az-adlfs": False, "gs-obstore": True, "gs-gcsfs": True}


@pytest.fixture(scope="module")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Emulator]]:
    """The emulator of a protocol, started at its first use."""
    started: dict[str, Emulator] = {}
    with ExitStack() as stack:
        # gcsfs reads it when it is imported: else it asks by gRPC what kind of bucket this is
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

        def emulator(protocol: str) -> Emulator:
            if protocol not in started:
                start = running_azurite if protocol == "az" else running_fake_google
                started[protocol] = stack.enter_context(start(tmp_path_factory.mktemp(protocol), os.environ))
            return started[protocol]

        yield emulator


class EmulatorBackend(Backend):
    """One folder of an emulator's bucket."""

    def __init__(self, emulator: Emulator, way: str) -> None:
        self.options = emulator.obstore if way.endswith("-obstore") else emulator.filesystem
        self.folder = f"{os.urandom(8).hex()}/"
        store = open_test_store(emulator.protocol, self.options, RETRIES)
        super().__init__(store, f"{emulator.protocol}://{BUCKET}/{self.folder}")
        self.emulator = emulator

    async def put(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self.emulator.put, self.folder + key, data)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self.emulator.delete, self.folder + key)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def backend(way: str, emulators: Callable[[str], Emulator]) -> AsyncIterator[EmulatorBackend]:
    protocol, _, client = way.partition("-")
    require_package(client)
    made = EmulatorBackend(emulators(protocol), way)
    await made.put("key", DATA)
    if client == "obstore":  # its first call starts its runtime, whose descriptors stay
        await obstore.put_async(obstore.store.MemoryStore(), "key", DATA)
    yield made
    await made.store.close()


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_contract(backend: EmulatorBackend, check: Callable[[StoreStorage], Awaitable[None]]) -> None:
    await check(backend)


@pytest.mark.parametrize("way", WRITING)
@pytest.mark.parametrize("check", STORE_WRITE_CHECKS, ids=lambda check: check.__name__)
async def test_contract_of_writes(backend: EmulatorBackend, check: Callable[[StoreStorage], Awaitable[None]]) -> None:
    await check(backend)


@pytest.mark.parametrize("way", WRITING)
async def test_objects_are_created_once(backend: EmulatorBackend) -> None:
    """The contract asks nothing about creating where the probe fails."""
    store = writable(backend.store, backend.url(""))
    assert await store.probe_create(backend.url("probed/"), context=new_context()) is True


async def test_guarantee(backend: EmulatorBackend, way: str) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    tail = await stored.fetch_tail(8, context=new_context())
    assert stored.guarantee is (Guarantee.PINNED if PINNED[way] else Guarantee.BRACKETED)
    assert tail.validates


@pytest.mark.parametrize("way", ["az-obstore"])
async def test_a_missing_container_and_a_wrong_key(backend: EmulatorBackend) -> None:
    stored = await backend.store.open_object("az://missing/key")
    with pytest.raises(BucketNotFoundError):
        await stored.fetch_range(0, 8, context=new_context())
    other = open_test_store("az", {"obstore": {**backend.options["obstore"], "account_key": "b3RoZXI="}})
    denied = await other.open_object(backend.url("key"))
    with pytest.raises(AccessDeniedError) as caught:
        await denied.fetch_tail(8, context=new_context())
    await other.close()
    assert "b3RoZXI=" not in str(caught.value)


async def test_warm_lookups_ask_for_the_same_bytes(backend: EmulatorBackend, way: str) -> None:
    await backend.put("file.parquet", FILE)
    cost = await warm_lookups(backend.url("file.parquet"), {backend.emulator.protocol: backend.options}, ROWS)
    reference = await warm_lookups(*await memory_file(), ROWS)
    if way == "gs-gcsfs":  # reads of a generation do not show that it is the present one, so that is asked beside them
        asked = [[get for get in gets if get[0] != "validate"] for gets in cost.gets]
        assert asked == [[get for get in gets if get[0] != "validate"] for gets in reference.gets]
        assert sum(map(len, cost.gets)) - sum(map(len, asked)) == cost.infos == len(KEYS)
    else:
        assert cost.gets == reference.gets
        assert cost.infos == (sum(map(len, cost.gets)) if way == "az-adlfs" else 0)


async def memory_file() -> tuple[str, dict[str, object]]:
    """The same file in this process's memory."""
    import fsspec

    fsspec.filesystem("memory").pipe_file("/cloud-emulators.parquet", FILE)
    return "memory://cloud-emulators.parquet", {}


async def test_a_dataset_of_a_folder(backend: EmulatorBackend) -> None:
    for number in range(3):
        await backend.put(f"lake/day={number}/file.parquet", FILE)
    options = {backend.emulator.protocol: backend.options}
    async with asyncpq.Session(storage_options=options) as session:
        dataset = await session.open_dataset(backend.url("lake/"))
        assert await dataset.count() == 3 * ROWS.num_rows
        found = await dataset.lookup({"id": 77, "day": 1}, columns=["user"])
        assert found["user"].to_pylist() == [ROWS["user"][77].as_py()]
