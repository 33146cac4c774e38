"""What the log says of a shared tier that fails or refuses: which server, why, how often; and no secret."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey
from asyncpq.caching.shared import Refusals, SharedCache
from asyncpq.errors import InvalidOptionError
from asyncpq.options import SharedCacheOptions
from asyncpq.storage.base import Validator
from tests.servers import PASSWORD, PASSWORD_QUOTED, ValkeyServer

KEY = ContentKey(b"v" * 16, "page", 0, 100)
POINTER_KEY = PointerKey("namespace", "s3|endpoint|bucket|key")
PATIENT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def options(server: ValkeyServer) -> SharedCacheOptions:
    return SharedCacheOptions(url=server.url, timeout_s=PATIENT_S, connect_timeout_s=PATIENT_S)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.DEBUG, "asyncpq")
    yield caplog
    for secret in (PASSWORD, PASSWORD_QUOTED, "hunter2"):
        assert secret not in caplog.text


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


async def test_nobody_listens(log: pytest.LogCaptureFixture) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        cache = SharedCache(SharedCacheOptions(url=f"valkey://someone:hunter2@127.0.0.1:{port}", timeout_s=PATIENT_S))
        assert await cache.get_many([KEY]) == [None]
        await cache.close()
    (line,) = warnings(log)
    assert line == f"the shared cache at 127.0.0.1:{port} failed (ConnectionRefusedError) and is paused for 5.0 s"


async def test_what_the_caller_was_handling_is_not_the_cause(log: pytest.LogCaptureFixture) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        cache = SharedCache(SharedCacheOptions(url=f"valkey://127.0.0.1:{port}", timeout_s=PATIENT_S))
        try:
            raise KeyError("hunter2")
        except KeyError:
            assert await cache.get_many([KEY]) == [None]
        await cache.close()
    (line,) = warnings(log)
    assert "failed (IncompleteReadError)" in line or "failed (ConnectionResetError)" in line


async def test_a_wrong_password(
    server: ValkeyServer, options: SharedCacheOptions, log: pytest.LogCaptureFixture
) -> None:
    cache = SharedCache(replace(options, url=server.url.replace("asyncpq:", "asyncpq:hunter2")))
    assert await cache.get_many([KEY]) == [None]
    await cache.close()
    (line,) = warnings(log)
    assert f"at 127.0.0.1:{server.port} failed (ResponseError WRONGPASS)" in line


async def test_a_database_needs_the_right_to_select_it(
    server: ValkeyServer, options: SharedCacheOptions, log: pytest.LogCaptureFixture
) -> None:
    """As cache/valkey/README.md says."""
    options = replace(options, url=f"{server.url}/1")
    cache = SharedCache(options)
    assert await cache.get_many([KEY]) == [None]
    await cache.close()
    (line,) = warnings(log)
    assert "(ResponseError NOPERM)" in line
    server.admin.execute_command("ACL", "SETUSER", "asyncpq", "+select")
    try:
        cache = SharedCache(options)
        await cache.put_many({KEY: b"value"})
        assert await cache.get_many([KEY]) == [b"value"]
        await cache.close()
    finally:
        server.admin.execute_command("ACL", "SETUSER", "asyncpq", "-select")
    assert len(warnings(log)) == 1


async def test_another_prefix_than_the_users(options: SharedCacheOptions, log: pytest.LogCaptureFixture) -> None:
    """One line for each command, however often it is refused."""
    cache = SharedCache(replace(options, prefix="team:"))
    for _ in range(5):
        await cache.put_many({KEY: b"value", KEY._replace(start=1): b"other"})
        assert await cache.get_many([KEY]) == [None]
        await cache.drop_pointer(POINTER_KEY)
    assert (cache.errors, cache.skipped) == (20, 0)
    await cache.close()
    lines = warnings(log)
    assert len(lines) == 3
    assert all("refuses" in line and "NOPERM" in line and "users.acl" in line for line in lines)
    assert [line.split(" refuses ")[1].split()[0] for line in lines] == ["SET", "GETRANGE", "DEL"]


async def test_a_server_without_memory(
    server: ValkeyServer, options: SharedCacheOptions, log: pytest.LogCaptureFixture
) -> None:
    server.admin.config_set("maxmemory-policy", "noeviction")
    server.admin.config_set("maxmemory", 1)
    try:
        cache = SharedCache(options)
        await cache.put_many({KEY: b"value"})
        await cache.put_pointer(POINTER_KEY, Pointer(Validator(1, '"e"'), 0.0))
        await cache.close()
    finally:
        server.admin.config_set("maxmemory", 1 << 30)
        server.admin.config_set("maxmemory-policy", "allkeys-lfu")
    (line,) = warnings(log)
    assert "refuses SET with OOM: it has no memory left" in line


def test_once_a_minute_and_how_often(log: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    refusals = Refusals("host:1", lambda: now[0])
    for _ in range(3):
        refusals.add("SET", "OOM command not allowed when used memory > 'maxmemory'.")
    refusals.add("SET", "READONLY You can't write against a read only replica.")
    now[0] += 59.0
    refusals.add("SET", "OOM")
    assert len(warnings(log)) == 2
    now[0] += 1.5
    refusals.add("SET", "OOM")
    assert len(warnings(log)) == 3
    assert "(3 times more before)" in warnings(log)[-1]


def test_a_server_that_says_anything(log: pytest.LogCaptureFixture) -> None:
    """Its words are not shown, and do not fill the log."""
    refusals = Refusals("host:1")
    for first in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
        for second in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
            refusals.add("SET", f"{first}{second} hunter2")
            refusals.add("SET", f"hunter2 {first}{second}\x1b[2J")
    assert len(warnings(log)) <= 33
    assert any("refuses SET with an error" in line for line in warnings(log))


@pytest.mark.parametrize(
    "url",
    [
        "valkey://user:1234/5@host",
        "valkey://:hunter2/@host/0",
        "valkey://user:1234#hunter2@host:6379",
        "unix://user:hunter2/@/run/valkey.sock",
        "unix://user:hunter2#@/run/valkey.sock",
    ],
)
def test_half_a_password_is_no_port(url: str) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        SharedCache(SharedCacheOptions(url=url))
