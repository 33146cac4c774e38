"""What the log says of a shared tier that fails or refuses: which server, why, how often; and no secret."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
    """One line for each command, which is then paused."""
    cache = SharedCache(replace(options, prefix="team:"))
    for _ in range(5):
        await cache.put_many({KEY: b"value", KEY._replace(start=1): b"other"})
        assert await cache.get_many([KEY]) == [None]
        await cache.drop_pointer(POINTER_KEY)
    assert (cache.errors, cache.skipped) == (4, 12)
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


REFUSALS = {
    "replica": ("SET", "READONLY: it is a replica"),
    "full": ("SET", "OOM: it has no memory left"),
    "no permission to write": ("SET", "NOPERM: its user may not run it"),
    "no permission to read": ("GETRANGE", "NOPERM: its user may not run it"),
    "cluster": ("GETRANGE", "MOVED: it is a cluster"),
}


@contextlib.contextmanager
def refusing(how: str, server: ValkeyServer, folder: Path) -> Iterator[ValkeyServer]:
    """A real server that refuses commands for good; ``server`` itself, if it can take that back."""
    admin = server.admin
    if how == "cluster":
        with clustered(folder) as node:
            yield node
        return
    commands: dict[str, tuple[list[tuple[str, ...]], list[tuple[str, ...]]]] = {
        "replica": ([("REPLICAOF", "127.0.0.1", "1")], [("REPLICAOF", "NO", "ONE")]),
        "full": (
            [("CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction")],
            [("CONFIG", "SET", "maxmemory", str(1 << 30), "maxmemory-policy", "allkeys-lfu")],
        ),
        "no permission to write": ([("ACL", "SETUSER", "asyncpq", "-set")], [("ACL", "SETUSER", "asyncpq", "+set")]),
        "no permission to read": (
            [("ACL", "SETUSER", "asyncpq", "-getrange")],
            [("ACL", "SETUSER", "asyncpq", "+getrange")],
        ),
    }
    begin, end = commands[how]
    for command in begin:
        admin.execute_command(*command)
    try:
        yield server
    finally:
        for command in end:
            admin.execute_command(*command)


@contextlib.contextmanager
def clustered(folder: Path) -> Iterator[ValkeyServer]:
    """A node of a cluster whose slots are all at another node."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                bus = probe.getsockname()[1]
            options = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-require-full-coverage", "no")
            nodes.append((stack.enter_context(ValkeyServer(folder / name, *options)), bus))
        (owner, bus), (node, _) = nodes
        owner.admin.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        node.admin.execute_command("CLUSTER", "MEET", "127.0.0.1", str(owner.port), str(bus))
        for _ in range(1000):
            if dict(node.admin.execute_command("CLUSTER INFO"))["cluster_state"] == "ok":
                break
            time.sleep(0.02)
        yield node


@pytest.mark.parametrize("how", REFUSALS)
async def test_a_server_that_refuses_for_good_is_left_alone(
    how: str, server: ValkeyServer, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """What it refuses is sent once in a pause, what it does not refuse goes on; one line names the cause."""
    command, meaning = REFUSALS[how]
    with refusing(how, server, tmp_path) as node:
        cache = SharedCache(SharedCacheOptions(url=node.url, timeout_s=PATIENT_S, connect_timeout_s=PATIENT_S))
        calls_before = calls(node, command)
        for number in range(20):
            if command == "SET":
                await cache.put_many({KEY._replace(start=number): b"value"})
            assert await cache.get_many([KEY._replace(start=number)]) == [None]
        refused = calls(node, command) - calls_before
        assert refused == 1
        assert (cache.errors, cache.skipped) == (1, 19)
        (line,) = [line for line in warnings(log) if f"refuses {command}" in line]
        assert f"with {meaning}" in line
        assert "paused for 5.0 s" in line
        await cache.close()
    assert len(warnings(log)) == 1


async def test_a_command_is_sent_again_when_the_server_takes_it_again(
    server: ValkeyServer, options: SharedCacheOptions
) -> None:
    cache = SharedCache(replace(options, retry_after_s=0.05))
    with refusing("replica", server, Path()):
        await cache.put_many({KEY: b"value"})
    assert cache.errors == 1
    async with asyncio.timeout(PATIENT_S):
        while await cache.get_many([KEY]) == [None]:
            await asyncio.sleep(0.02)
            await cache.put_many({KEY: b"value"})
    skipped = cache.skipped
    for _ in range(5):
        await cache.put_many({KEY: b"value"})
    assert (cache.errors, cache.skipped) == (1, skipped)
    await cache.close()


def test_after_a_pause_one_exchange_tries() -> None:
    now = [0.0]
    refusals = Refusals("host:1", 5.0, lambda: now[0])
    early = refusals.begin(("SET",))
    assert early is not None
    refusals.add("SET", "READONLY")
    assert refusals.begin(("GETRANGE", "SET")) is None
    assert refusals.begin(("GETRANGE",)) is not None
    refusals.end(("SET",), early)  # of an exchange that began before
    assert refusals.begin(("SET",)) is None
    now[0] = 5.0
    probe = refusals.begin(("SET",))
    assert probe is not None
    assert refusals.begin(("SET",)) is None
    refusals.end(("SET",), probe)
    assert refusals.begin(("SET",)) is not None


def calls(server: ValkeyServer, command: str) -> int:
    """How often the server ran or refused a command."""
    stats = server.admin.info("commandstats").get(f"cmdstat_{command.lower()}", {})
    return int(stats.get("calls", 0)) + int(stats.get("rejected_calls", 0))


def test_once_a_minute_and_how_often(log: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    refusals = Refusals("host:1", 5.0, lambda: now[0])
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
    refusals = Refusals("host:1", 5.0)
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
