"""The shared tier's connections: writing leaves half of them to reading, and none outlives ``close``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop

from asyncpq.caching.entry_format import ContentKey
from asyncpq.caching.shared import SharedCache
from asyncpq.caching.valkey_connections import ValkeyConnections, Wire
from asyncpq.options import SharedCacheOptions
from tests.servers import TcpProxy, ValkeyServer

KEYS = [ContentKey(b"v" * 16, "page", start, start + 100) for start in range(40)]
PATIENT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
async def proxy(server: ValkeyServer) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(server.port) as proxy:
        yield proxy


@pytest.mark.parametrize(("connections", "writing"), [(6, 3), (2, 1), (1, 1)])
async def test_writing_leaves_half_of_the_connections(
    connections: int, writing: int, server: ValkeyServer, proxy: TcpProxy
) -> None:
    """Many writes that a slow server does not answer: reading has connections of its own, as far as there are."""
    cache = SharedCache(
        SharedCacheOptions(
            url=server.url.replace(str(server.port), str(proxy.port)),
            timeout_s=PATIENT_S,
            connect_timeout_s=PATIENT_S,
            max_connections=connections,
        )
    )
    await asyncio.gather(*(cache.get_many(KEYS[:1]) for _ in range(connections)))  # all connections are made
    proxy.requests.clear()
    proxy.let_through.clear()
    writes = [asyncio.ensure_future(cache.put_many({key: b"value"})) for key in KEYS]
    async with asyncio.timeout(PATIENT_S):
        await proxy.until_asked(b"SET", writing)
        reads = [asyncio.ensure_future(cache.get_many(KEYS[:1])) for _ in range(connections)]
        if connections > 1:
            await proxy.until_asked(b"GETRANGE", connections - writing)
    assert proxy.requests.count(b"SET") == writing
    proxy.let_through.set()
    await asyncio.gather(*writes, *reads)
    assert await cache.get_many(KEYS) == [b"value"] * len(KEYS)
    assert cache.errors == 0
    await cache.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_closing_ends_when_the_sockets_are_closed(loop: str, server: ValkeyServer) -> None:
    """Not a turn of the loop later: whoever counts descriptors after ``close`` finds none."""

    async def use_and_count() -> tuple[int, int, int]:
        before = open_sockets()
        cache = SharedCache(SharedCacheOptions(url=server.url, timeout_s=PATIENT_S, connect_timeout_s=PATIENT_S))
        await asyncio.gather(*(cache.put_many({key: bytes(1000)}) for key in KEYS))
        await asyncio.gather(*(cache.get_many([key]) for key in KEYS))
        during = open_sockets()
        await cache.close()
        return before, during, open_sockets()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        before, during, after = runner.run(use_and_count())
    assert during > before
    assert after == before


async def test_closing_waits_for_each_connection(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many turns of the loop a transport takes to be closed."""
    ended: list[asyncio.StreamWriter] = []
    wait_closed = asyncio.StreamWriter.wait_closed

    async def slowly(writer: asyncio.StreamWriter) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        await wait_closed(writer)
        ended.append(writer)

    monkeypatch.setattr(asyncio.StreamWriter, "wait_closed", slowly)
    cache = SharedCache(
        SharedCacheOptions(url=server.url, timeout_s=PATIENT_S, connect_timeout_s=PATIENT_S, max_connections=4)
    )
    await asyncio.gather(*(cache.get_many([key]) for key in KEYS))
    await cache.close()
    assert len(set(ended)) == 4


def open_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            pass  # the listing's own descriptor
    return count


async def test_whoever_waits_for_a_connection_that_is_given_up_gets_another(server: ValkeyServer) -> None:
    connections = ValkeyConnections(server.url, max_connections=1, connect_timeout_s=PATIENT_S, max_reply_bytes=1000)
    lent = asyncio.Event()

    async def hold() -> None:
        async with connections.lend():
            lent.set()
            await asyncio.Event().wait()

    async def ask() -> object:
        async with connections.lend() as wire:
            await wire.send([(b"GETRANGE", b"asyncpq:absent", 0, 9)])
            return await wire.reply()

    async with asyncio.timeout(PATIENT_S):
        holding = asyncio.ensure_future(hold())
        await lent.wait()
        asking = asyncio.ensure_future(ask())
        await asyncio.sleep(0)
        holding.cancel()
        assert await asking == b""
        await connections.close()


async def test_a_connection_with_more_bytes_than_were_asked_for_is_not_used_again(server: ValkeyServer) -> None:
    connections = ValkeyConnections(server.url, max_connections=1, connect_timeout_s=PATIENT_S, max_reply_bytes=1000)

    async def ask() -> tuple[Wire, object]:
        async with connections.lend() as wire:
            await wire.send([(b"GETRANGE", b"asyncpq:absent", 0, 9)])
            return wire, await wire.reply()

    async with asyncio.timeout(PATIENT_S):
        first, _ = await ask()
        same, _ = await ask()
        assert same is first
        first._reader.feed_data(b"+OK\r\n")  # as if the server sent it
        assert not first.is_clean
        other, reply = await ask()
        assert other is not first
        assert reply == b""
        await connections.close()
