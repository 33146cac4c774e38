"""What every store promises (asyncpq/testing/store_contract.py), asked of every store; and what is each one's own."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from asyncpq.storage.base import Guarantee, Store
from asyncpq.testing import LatencyStore, RecordingStore, WrappedStore
from asyncpq.testing.store_contract import DATA, STORE_CHECKS, StoreStorage, filesystem_storage
from tests.store_backends import Backend, LocalBackend, new_context, open_test_store, running_backend

HTTP = ["http", "http-redirected"]
OBSTORE = ["s3-through-obstore", "gs-through-obstore"]
PINNING = ["s3", "s3-unsigned", "s3-through-s3fs", "s3-localstack", *OBSTORE, *HTTP, "local"]
KINDS = [*PINNING, "memory", "local-through-fsspec"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def backend(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with running_backend(kind, tmp_path, request, DATA) as made:
        yield made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_contract(backend: Backend, check: Callable[[Backend], Awaitable[None]]) -> None:
    await check(backend)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_contract_of_a_filesystem(check: Callable[[StoreStorage], Awaitable[None]]) -> None:
    async with filesystem_storage(f"memory://contract-{os.urandom(8).hex()}/", {}) as storage:
        await check(storage)


@pytest.mark.parametrize("wrap", [WrappedStore, RecordingStore, lambda inner: LatencyStore(inner, latency_s=0.001)])
@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_contract_of_a_wrapped_store(
    check: Callable[[Backend], Awaitable[None]], wrap: Callable[[Store], Store], tmp_path: Path
) -> None:
    made = LocalBackend(tmp_path, wrap(open_test_store("file", {})))
    await made.put("key", DATA)
    await check(made)
    await made.store.close()


async def test_rounds_are_recorded(backend: Backend, kind: str) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    context = new_context().step("index", 3)
    await stored.fetch_range(10, 30, context=context)
    redirects = [record for record in context.metrics.log if record.status == 302]
    assert [(record.purpose, record.round) for record in redirects] == [("index", 3)] * (kind == "http-redirected")
    (record,) = (record for record in context.metrics.log if record.method == "GET" and record not in redirects)
    stats = [record for record in context.metrics.log if record.method == "HEAD"]
    through_fsspec = stored.client == "fsspec"
    round_ = 3 + through_fsspec + len(redirects)
    assert (record.method, record.purpose, record.round, record.attempt) == ("GET", "index", round_, 1)
    assert [(stat.purpose, stat.round, stat.status) for stat in stats] == [("stat", 3, 200), ("stat", 5, 200)][
        : 2 * through_fsspec
    ]
    assert context.metrics.requests == 1 + len(stats) + len(redirects)
    assert (record.start, record.stop, record.bytes) == (10, 30, 20)
    assert record.status in (200, 206)
    assert record.seconds >= 0


async def test_guarantee_and_identity(backend: Backend, kind: str) -> None:
    stored = await backend.store.open_object(backend.url("key"))
    await stored.fetch_tail(8, context=new_context())
    assert stored.guarantee is (Guarantee.PINNED if kind in PINNING else Guarantee.BRACKETED)
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    stored.learn(pin)
    assert stored.guarantee is (Guarantee.PINNED if kind in PINNING else Guarantee.BRACKETED)
    again = await backend.store.open_object(backend.url("key"))
    await backend.put("other", DATA)
    other = await backend.store.open_object(backend.url("other"))
    assert stored.identity == again.identity != other.identity
    clients = {"s3-through-s3fs": "s3fs", "local": "file", **dict.fromkeys(OBSTORE, "obstore")}
    assert stored.client == clients.get(kind, "fsspec" if kind not in PINNING else "direct")
    assert "secret" not in (repr(stored) + repr(backend.store)).lower()


async def test_credential_identity(backend: Backend, kind: str) -> None:
    identity = await backend.store.credential_identity(backend.url("key"))
    assert identity == await backend.store.credential_identity(backend.url("other"))
    if kind == "s3-unsigned":
        assert identity == "anonymous"
    elif kind in OBSTORE:
        assert re.fullmatch("([0-9a-f]{16})?", identity)
    elif kind.startswith("s3"):
        assert re.fullmatch("[0-9a-f]{16}", identity)
    else:
        assert identity == ""
