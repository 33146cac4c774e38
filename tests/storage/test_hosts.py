"""Hosts are looked up as the system does, without holding the process, and connected to."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from asyncpq.storage.aiohttp_wire import HostResolver
from asyncpq.storage.hosts import connect, look_up

find: Any = socket.getaddrinfo


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A name server that answers no question until the event is set."""
    answers = threading.Event()

    def getaddrinfo(*arguments: Any, flags: int = 0) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            answers.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "too late")
        return find(*arguments, flags=flags)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


def lookups() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "asyncpq-lookup"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_addresses_are_those_of_the_system(host: str) -> None:
    assert await look_up(host, 80) == find(host, 80, type=socket.SOCK_STREAM)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70 + ".test", ""])
async def test_errors_are_those_of_the_system(host: str) -> None:
    try:
        expected: Any = find(host, 80, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        with pytest.raises(type(error)):
            await look_up(host, 80)
    else:
        assert await look_up(host, 80) == expected


@pytest.mark.usefixtures("silent")
async def test_an_address_asks_no_name_server() -> None:
    assert (await look_up("127.0.0.1", 80))[0][4] == ("127.0.0.1", 80)


async def test_a_lookup_that_is_given_up_holds_nothing(silent: threading.Event) -> None:
    before = lookups()  # a test before may still wait for the machine's name server
    for resolve in (look_up("lake.test", 80), HostResolver(0.05).resolve("lake.test", 80)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await resolve
    begun = [thread for thread in lookups() if thread not in before]
    assert len(begun) == 2
    assert all(thread.daemon for thread in begun)
    silent.set()
    for thread in begun:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in begun)


async def test_aiohttp_gets_addresses_as_text() -> None:
    for host, family, text in (("127.0.0.1", socket.AF_INET, "127.0.0.1"), ("::1", socket.AF_INET6, "::1")):
        try:
            (found,) = await HostResolver(5.0).resolve(host, 81, family)
        except socket.gaierror:  # the machine has no such address
            continue
        assert (found["hostname"], found["host"], found["port"], found["family"]) == (host, text, 81, family)


async def test_a_socket_is_connected_to_an_address_that_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as closed:
        addresses = [*await look_up(*closed.getsockname()), *await look_up(*server.getsockname())]
        closed.close()
        with await connect(addresses) as made:
            assert made.getpeername() == server.getsockname()
        with pytest.raises(OSError, match="Connect call failed"):
            await connect(addresses[:1])
