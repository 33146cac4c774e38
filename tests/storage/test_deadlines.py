"""Servers and filesystems that are slow or silent: every client gives up in time, and says so.

The times are short, and only bounds that are far away are asserted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from asyncpq.errors import TransportError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import Store, StoredObject, Validator
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import DATA, new_context, open_test_store

pytestmark = pytest.mark.faults

PATIENT = RetryOptions(max_attempts=2, backoff_base_s=0.001, connect_timeout_s=30.0)
SILENT = Fault(stall_headers=True, times=None)
STALLED = Fault(stall_body=True, truncate=500, times=None)
DRIPPING = Fault(drip_s=0.5, times=None)
WAYS = ["s3", "s3fs", "http"]


async def opened(way: str, server: ObjectServer, retry: RetryOptions) -> tuple[Store, StoredObject, Validator]:
    options = server.storage_options | (
        {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if way == "s3fs" else {}
    )
    store = open_test_store("http", {}, retry) if way == "http" else open_test_store("s3", options, retry)
    stored = await store.open_object(f"{server.endpoint}/bucket/key" if way == "http" else "s3://bucket/key")
    return store, stored, (await stored.fetch_tail(9, context=new_context())).validator


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", [SILENT, STALLED, DRIPPING], ids=["silent", "stalled", "dripping"])
async def test_the_whole_read(server: ObjectServer, way: str, fault: Fault) -> None:
    store, stored, pin = await opened(way, server, PATIENT)
    server.faults = [fault]
    async with asyncio.timeout(10):
        for reading in (
            stored.fetch_range(0, 2000, context=new_context(), pin=pin),
            stored.fetch_tail(2000, context=new_context()),
        ):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reading, 0.3)
        server.faults = []
        assert (await stored.fetch_range(0, 2000, context=new_context(), pin=pin)).data == DATA[:2000]
    await store.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fault", "limits", "said"),
    [
        (SILENT, {"first_byte_timeout_s": 0.2, "connect_timeout_s": 0.1}, "no response within"),
        (STALLED, {"stall_timeout_s": 0.2}, "stopped for"),
        (DRIPPING, {"stall_timeout_s": 0.7, "min_throughput_bytes_s": 1000.0}, "bytes/s"),
    ],
    ids=["silent", "stalled", "dripping"],
)
async def test_one_attempt(server: ObjectServer, way: str, fault: Fault, limits: dict[str, Any], said: str) -> None:
    store, stored, pin = await opened(way, server, replace(PATIENT, **limits))
    server.faults = [fault]
    context = new_context()
    async with asyncio.timeout(20):
        with pytest.raises(TransportError, match=said) as caught:
            await stored.fetch_range(0, 20_000, context=context, pin=pin)
    assert caught.value.url == stored.url
    assert context.metrics.requests == PATIENT.max_attempts
    server.faults = [replace(fault, times=1)]
    assert (await stored.fetch_range(0, 2000, context=new_context(), pin=pin)).data == DATA[:2000]
    await store.close()


@pytest.mark.parametrize("way", ["s3", "s3fs", "http"])
async def test_connecting(way: str) -> None:
    """A port that accepts nobody: its backlog is full."""
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        waiting = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            waiting.append(filler)
        options: dict[str, Any] = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
        retry = replace(PATIENT, connect_timeout_s=0.2, first_byte_timeout_s=0.2)
        if way == "http":
            store = open_test_store("http", {}, retry)
            stored = await store.open_object(f"http://127.0.0.1:{port}/bucket/key")
        else:
            store = open_test_store(
                "s3",
                options | ({"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if way == "s3fs" else {}),
                retry,
            )
            stored = await store.open_object("s3://bucket/key")
        async with asyncio.timeout(20):
            with pytest.raises(TransportError):
                await stored.fetch_tail(9, context=new_context())
        await store.close()
        for filler in waiting:
            filler.close()


# -- filesystems of fsspec --------------------------------------------------------------------------


class Slow:
    """Whether the next calls hang; threads that hang are let go at the end."""

    hanging = False
    released = threading.Event()


class SlowAsync(AsyncFileSystem):  # type: ignore[misc]  # fsspec is not typed
    protocol = "slowasync"

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": len(DATA), "mtime": 1.0}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if Slow.hanging:
            await asyncio.Event().wait()
        return DATA[start:end]


class SlowSync(MemoryFileSystem):  # type: ignore[misc]  # fsspec is not typed
    protocol = "slowsync"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": len(DATA), "mtime": 1.0}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if Slow.hanging:
            Slow.released.wait(60)
        return DATA[start:end]


@pytest.fixture(params=[SlowAsync, SlowSync])
async def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StoredObject]:
    kind = request.param
    monkeypatch.setitem(_registry, kind.protocol, kind)
    monkeypatch.setattr(Slow, "hanging", False)
    monkeypatch.setattr(Slow, "released", threading.Event())
    retry = replace(
        PATIENT, connect_timeout_s=0.1, first_byte_timeout_s=0.1, stall_timeout_s=0.1, min_throughput_bytes_s=1e6
    )
    store = open_test_store(kind.protocol, {}, retry)
    yield await store.open_object(f"{kind.protocol}://key")
    Slow.released.set()
    await store.close()


async def test_filesystems_that_hang(slow: StoredObject) -> None:
    pin = (await slow.fetch_tail(9, context=new_context())).validator
    Slow.hanging = True
    async with asyncio.timeout(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.fetch_range(0, 9, context=new_context(), pin=pin), 0.1)
        context = new_context()
        with pytest.raises(TransportError, match="did not answer in time"):
            await slow.fetch_range(0, 9, context=context, pin=pin)
        assert sum(record.method == "GET" for record in context.metrics.log) == PATIENT.max_attempts
        Slow.hanging = False
        assert (await slow.fetch_range(0, 9, context=new_context(), pin=pin)).data == DATA[:9]


async def test_a_deadline_that_has_passed(server: ObjectServer) -> None:
    for way in WAYS:
        store, stored, pin = await opened(way, server, PATIENT)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(-1.0):
                await stored.fetch_range(0, 9, context=new_context(), pin=pin)
        assert (await stored.fetch_range(0, 9, context=new_context(), pin=pin)).data == DATA[:9]
        await store.close()
