"""The shared tier on a server that is slow, dead, restarted or lying: never an error, never another's bytes, never a
long wait; and nothing left behind by whoever is cancelled or closes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey
from asyncpq.caching.shared import SharedCache
from asyncpq.caching.valkey_connections import ValkeyConnections
from asyncpq.options import SharedCacheOptions
from asyncpq.storage.base import Validator
from tests.servers import TcpProxy, ValkeyServer

pytestmark = [pytest.mark.faults, pytest.mark.sampled(2)]

KEYS = [ContentKey(b"v" * 16, "page", start, start + 100) for start in range(8)]
VALUES = [b"value %d" % number * (1 + 1000 * number) for number in range(8)]
POINTER_KEY = PointerKey("namespace", "identity")
PATIENT_S = 20.0  # no exchange that can succeed fails, on however busy a machine
SHORT_S = 0.3
HANGS_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
async def proxy(server: ValkeyServer) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(server.port) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def nothing_unseen() -> AsyncIterator[None]:
    """No exception of a task or future that nobody waited for."""
    loop = asyncio.get_running_loop()
    unseen: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    yield
    gc.collect()
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert not unseen


@pytest.fixture(autouse=True)
async def _nothing_unseen() -> AsyncIterator[None]:
    async with nothing_unseen():
        yield


def options(server: ValkeyServer, proxy: TcpProxy | None = None, timeout_s: float = PATIENT_S) -> SharedCacheOptions:
    url = server.url if proxy is None else server.url.replace(str(server.port), str(proxy.port))
    return SharedCacheOptions(url=url, timeout_s=timeout_s, connect_timeout_s=PATIENT_S, retry_after_s=0.05)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(HANGS_S):
        while not await condition():  # noqa: ASYNC110 - the condition is a question to the server
            await asyncio.sleep(0.02)


async def fill(server: ValkeyServer) -> None:
    cache = SharedCache(options(server))
    await cache.put_many(dict(zip(KEYS, VALUES, strict=True)))
    await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"e"'), time.monotonic()))
    assert cache.errors == 0
    await cache.close()


# -- dead and slow --------------------------------------------------------------------------------


async def test_killed_and_started_again_while_in_use(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path) as server:
        cache = SharedCache(options(server))
        stop = False

        async def use() -> None:
            while not stop:
                await cache.put_many({KEYS[0]: VALUES[0]})
                assert (await cache.get_many(KEYS[:2]))[0] in (None, VALUES[0])
                await asyncio.sleep(0.001)

        users = [asyncio.ensure_future(use()) for _ in range(8)]
        for _ in range(3):
            hits = cache.hits

            async def hit_again(hits: int = hits) -> bool:
                return cache.hits > hits

            await until(hit_again)
            server.kill()
            errors = cache.errors

            async def failed(errors: int = errors) -> bool:
                return cache.errors > errors and cache.skipped > 0

            await until(failed)
            server.start()
        stop = True
        await asyncio.gather(*users)

        async def found() -> bool:
            await cache.put_many({KEYS[0]: VALUES[0]})
            return await cache.get_many(KEYS[:1]) == VALUES[:1]

        await until(found)
        await cache.close()


async def test_a_server_that_does_not_answer_is_left_alone_and_tried_again(server: ValkeyServer) -> None:
    await fill(server)
    cache = SharedCache(replace(options(server, timeout_s=SHORT_S), retry_after_s=0.5))
    await until(lambda: _found(cache))
    server.pause()
    try:
        async with asyncio.timeout(HANGS_S):
            assert await cache.get_many(KEYS) == [None] * 8
        assert cache.errors == 1
        # the next ones do not wait for it, nor even send anything
        for _ in range(20):
            assert await cache.get_many(KEYS) == [None] * 8
        skipped = cache.skipped
        assert skipped > 0
        await asyncio.sleep(0.5)
        # one goes ahead
        await asyncio.gather(*(cache.get_many(KEYS) for _ in range(20)))
        assert cache.errors <= 3
        # bounded, too, when more is to be sent than the sockets take
        await cache.put_many({key: bytes(4_000_000) for key in KEYS})
    finally:
        server.resume()
    await until(lambda: _found(cache))
    await cache.close()


async def _found(cache: SharedCache) -> bool:
    return await cache.get_many(KEYS) == VALUES


async def test_what_the_server_takes_late_is_as_old_as_it_is(server: ValkeyServer) -> None:
    server.admin.flushall()
    cache = SharedCache(options(server, timeout_s=SHORT_S))
    await until(lambda: _asked(cache))
    validated_at = time.monotonic()
    putting = asyncio.ensure_future(cache.put_pointer(POINTER_KEY, Pointer(Validator(1), validated_at)))
    for _ in range(3):
        await asyncio.sleep(0)
    server.pause()  # it may have read nothing, the first commands, or all
    await putting
    await asyncio.sleep(0.5)
    server.resume()
    other = SharedCache(options(server))
    found = await other.get_pointer(POINTER_KEY)
    assert found is None or found.validated_at <= validated_at + 0.001
    await other.close()
    await cache.close()


async def _asked(cache: SharedCache) -> bool:
    await cache.get_many(KEYS)
    return cache.hits + cache.misses > 0


async def test_a_busy_loop_is_not_the_servers_fault(server: ValkeyServer) -> None:
    await fill(server)
    cache = SharedCache(options(server, timeout_s=SHORT_S))
    await until(lambda: _found(cache))
    errors = cache.errors
    server.pause()
    try:
        reading = asyncio.ensure_future(cache.get_many(KEYS))
        for _ in range(5):
            await asyncio.sleep(0)
    finally:
        server.resume()
    time.sleep(2 * SHORT_S)  # noqa: ASYNC251 - the replies come, and the loop does not look
    assert await reading == VALUES
    assert cache.errors == errors
    await cache.close()


@pytest.mark.parametrize("idle", [True, False])
async def test_connections_that_are_reset(idle: bool, server: ValkeyServer, proxy: TcpProxy) -> None:
    await fill(server)
    cache = SharedCache(options(server, proxy))
    assert await _found(cache)
    if idle:
        proxy.reset()
        async with asyncio.timeout(HANGS_S):
            await proxy.until_closed()
        assert await _found(cache)  # noticed before it is used again
        assert cache.errors == 0
    else:
        proxy.let_through.clear()
        reading = [asyncio.ensure_future(cache.get_many(KEYS)) for _ in range(5)]
        await proxy.until_asked(b"GETRANGE", 2 * len(KEYS))
        await proxy.until_asked(b"AUTH", 5)
        proxy.reset()
        assert await asyncio.gather(*reading) == [[None] * 8] * 5
        assert cache.errors == 5
        proxy.let_through.set()
        await until(lambda: _found(cache))
    await cache.close()


async def test_nobody_listens() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        cache = SharedCache(SharedCacheOptions(url=f"valkey://127.0.0.1:{port}", timeout_s=PATIENT_S))
        answers = await asyncio.gather(*(cache.get_many(KEYS) for _ in range(20)))
        assert answers == [[None] * 8] * 20
        assert cache.errors == 20
        assert await cache.get_pointer(POINTER_KEY) is None
        assert cache.skipped == 1
        await cache.close()


async def test_a_slow_connect_is_not_begun_anew(server: ValkeyServer, proxy: TcpProxy) -> None:
    """No call waits for it, but the connection is there when the next one comes."""
    await fill(server)
    proxy.let_through.clear()
    cache = SharedCache(options(server, proxy, timeout_s=0.05))
    for _ in range(5):
        assert await cache.get_many(KEYS) == [None] * 8
        await asyncio.sleep(0.06)
    assert 1 <= proxy.connections <= 5
    proxy.let_through.set()
    await until(lambda: _found(cache))
    assert proxy.connections <= 5
    await cache.close()


# -- replies and their commands -------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_reply_given_up_is_nobody_elses(how: str, server: ValkeyServer, proxy: TcpProxy) -> None:
    await fill(server)
    cache = SharedCache(replace(options(server, proxy, timeout_s=SHORT_S), max_connections=1))
    await until(lambda: _found(cache))
    for number in range(8):
        proxy.let_through.clear()
        given_up = asyncio.ensure_future(cache.get_many([KEYS[number]]))
        if how == "cancel":
            await asyncio.sleep(0.02)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
        else:
            assert await given_up == [None]
            await asyncio.sleep(0.06)
        asking = asyncio.ensure_future(cache.get_many(KEYS[::-1]))
        await asyncio.sleep(0)
        proxy.let_through.set()
        for got, value in zip(await asking, VALUES[::-1], strict=True):
            assert got in (None, value)
        await until(lambda: _found(cache))
    await cache.close()


Operation = Callable[[SharedCache], Awaitable[object]]
OPERATIONS: dict[str, Operation] = {
    "get_many": lambda cache: cache.get_many(KEYS),
    "put_many": lambda cache: cache.put_many(dict(zip(KEYS, VALUES, strict=True))),
    "get_pointer": lambda cache: cache.get_pointer(POINTER_KEY),
    "put_pointer": lambda cache: cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"e"'), time.monotonic())),
    "drop_pointer": lambda cache: cache.drop_pointer(POINTER_KEY),
}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("connected", [False, True], ids=["connecting", "connected"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_cancelled_at_each_await(name: str, connected: bool, loop: str, server: ValkeyServer) -> None:
    if loop == "uvloop":
        factory = pytest.importorskip("uvloop", reason="uvloop has no build for this system").new_event_loop
    else:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_cancel_at_each_await(name, connected, server))


@nothing_unseen()
async def _cancel_at_each_await(name: str, connected: bool, server: ValkeyServer) -> None:
    await fill(server)
    steps = 0
    finished = False
    while not finished:
        steps += 1
        tasks, files = len(asyncio.all_tasks()), _open_sockets()
        cache = SharedCache(options(server))
        if connected:
            assert await _found(cache)
        task = asyncio.ensure_future(OPERATIONS[name](cache))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        finished = not task.cancelled()
        # the reply that was given up is read by nobody
        assert await cache.get_many(KEYS) == VALUES
        assert cache.errors == 0
        await cache.close()
        assert len(asyncio.all_tasks()) == tasks
        assert _open_sockets() == files
    assert steps > 2


async def test_closed_while_in_use(server: ValkeyServer, proxy: TcpProxy) -> None:
    await fill(server)
    for steps in (*range(12), 100):
        tasks = len(asyncio.all_tasks()) - 2 * proxy.open_connections
        cache = SharedCache(options(server, proxy))
        proxy.let_through.set()
        if steps % 2:
            assert await _found(cache)
        proxy.let_through.clear()
        running = [asyncio.ensure_future(operation(cache)) for operation in OPERATIONS.values() for _ in range(8)]
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(HANGS_S):
            await asyncio.gather(cache.close(), cache.close())
            await cache.close()
            done = await asyncio.gather(*running)
        assert done[0] == [None] * 8
        assert cache.errors == 0
        assert await cache.get_many(KEYS) == [None] * 8
        proxy.let_through.set()
        async with asyncio.timeout(HANGS_S):
            await proxy.until_closed()
        assert len(asyncio.all_tasks()) == tasks


def test_closing_leaves_no_socket_behind_a_server_that_takes_nothing(server: ValkeyServer) -> None:
    async def write_and_close() -> None:
        cache = SharedCache(options(server, timeout_s=SHORT_S))
        await until(lambda: _asked(cache))
        server.pause()
        writing = asyncio.ensure_future(cache.put_many({key: bytes(4_000_000) for key in KEYS}))
        await asyncio.sleep(0.1)
        await cache.close()
        await writing

    before = _open_sockets()
    try:
        asyncio.run(write_and_close())
    finally:
        server.resume()
    gc.collect()
    assert _open_sockets() == before


def test_another_loop_is_given_nothing_and_breaks_nothing(server: ValkeyServer) -> None:
    loop = asyncio.new_event_loop()
    cache = SharedCache(options(server))
    loop.run_until_complete(fill(server))
    assert loop.run_until_complete(cache.get_many(KEYS)) == VALUES
    assert asyncio.run(cache.get_many(KEYS)) == [None] * 8
    asyncio.run(cache.close())
    loop.run_until_complete(cache.close())
    loop.close()


def _open_sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            pass  # the listing's own descriptor
    return count


# -- a server that lies ---------------------------------------------------------------------------


LIES = {
    "a huge length": b"$%d\r\n" % (1 << 40) + b"x" * 1000,
    "a length above the limit": b"$%d\r\n" % (9 << 20) + bytes(1000),
    "a negative length": b"$-7\r\n",
    "no length": b"$\r\n",
    "a length that is none": b"$1e3\r\n",
    "null": b"$-1\r\n",
    "an integer": b":7\r\n",
    "an integer that is none": b":seven\r\n",
    "a status": b"+OK\r\n",
    "an error": b"-ERR no\r\n",
    "an empty error": b"-\r\n",
    "a list": b"*1\r\n$1\r\nx\r\n",
    "a long list": b"*1000000000\r\n",
    "a deep list": b"*1\r\n" * 5000,
    "a push": b">1\r\n+x\r\n",
    "a map": b"%1\r\n+x\r\n+y\r\n",
    "a line without end": b"+" + b"x" * 200_000,
    "zeros": bytes(5000),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an end": b"",
    "half a reply": b"$100\r\nxxx",
    "an entry of zeros": b"$48\r\n" + bytes(48) + b"\r\n",
    "two replies for one": b"$1\r\nx\r\n" * 20,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lie", LIES)
async def test_lies(lie: str, server: ValkeyServer, proxy: TcpProxy) -> None:
    await fill(server)
    cache = SharedCache(options(server, proxy, timeout_s=0.1))
    await until(lambda: _found(cache))
    for operation in OPERATIONS.values():
        proxy.replies = LIES[lie]
        async with asyncio.timeout(HANGS_S):
            answer = await operation(cache)
        assert answer in (None, [None] * 8)
        proxy.replies = None
        await until(lambda: _found(cache))
    await cache.close()


@pytest.mark.parametrize(
    "lie",
    [
        "a huge length",
        "a length above the limit",
        "a negative length",
        "no length",
        "a length that is none",
        "null",
        "an integer",
        "an integer that is none",
        "a list",
        "a long list",
        "a deep list",
        "a push",
        "a map",
        "a line without end",
        "HTTP",
        "an end",
    ],
)
async def test_what_cannot_be_a_reply_is_not_waited_for(lie: str, server: ValkeyServer, proxy: TcpProxy) -> None:
    cache = SharedCache(options(server, proxy, timeout_s=10 * HANGS_S))
    await until(lambda: _asked(cache))
    if lie == "an end":
        server.admin.execute_command("CLIENT", "KILL", "USER", "asyncpq")
    else:
        proxy.replies = LIES[lie]
    async with asyncio.timeout(HANGS_S):
        assert await cache.get_many(KEYS) == [None] * 8
    assert cache.errors == 1 or lie == "an end"
    await cache.close()


@pytest.mark.parametrize("how", ["left", "error"])
async def test_a_reply_that_nobody_read_is_nobody_elses(how: str, server: ValkeyServer, proxy: TcpProxy) -> None:
    settings = options(server, proxy)
    connections = ValkeyConnections(settings.url, max_connections=1, connect_timeout_s=PATIENT_S, max_reply_bytes=1000)
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError):
            async with connections.lend() as wire:
                await wire.send([(b"TIME",)])
                assert isinstance(await wire.reply(), list)
                proxy.let_through.clear()
                await wire.send([(b"TIME",)])
                if how == "error":
                    raise ZeroDivisionError
        asyncio.get_running_loop().call_later(0.05, proxy.let_through.set)
        async with connections.lend() as wire:
            await wire.send([(b"GETRANGE", b"asyncpq:nothing", 0, 1)])
            assert await wire.reply() == b""
    await connections.close()


async def test_a_lie_while_connecting(server: ValkeyServer, proxy: TcpProxy) -> None:
    await fill(server)
    cache = SharedCache(options(server, proxy, timeout_s=SHORT_S))
    for lie in LIES.values():
        proxy.replies = lie
        assert await cache.get_many(KEYS) == [None] * 8
    proxy.replies = None
    await until(lambda: _found(cache))
    await cache.close()
