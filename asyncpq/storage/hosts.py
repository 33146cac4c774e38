"""Look up the addresses of hosts, and connect to them.

Lookups run in daemon threads, so a silent name server does not hold the end of the process: ``loop.getaddrinfo`` uses
the event loop's own threads, for which Python waits at exit, and so does ``asyncio.run``.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import aiohappyeyeballs

from asyncpq.storage.threads import start_thread

Address: TypeAlias = tuple[socket.AddressFamily | int, socket.SocketKind | int, int, str, tuple[Any, ...]]
"""An address as ``socket.getaddrinfo`` returns it."""

#: How long to wait for a connection to one address before another address is tried as well.
_OTHER_ADDRESS_S = 0.25


async def look_up(host: str, port: int, *, family: int = socket.AF_UNSPEC, flags: int = 0) -> list[Address]:
    """Return the addresses of a host, as ``socket.getaddrinfo`` does. The caller limits the time; the thread of a
    lookup that is cancelled ends when the name server has answered, or with the process.

    Raises:
        OSError: the host has no address, or no name server answers.
        UsageError: no thread can start, since the interpreter ends.
    """
    # Usual names are passed as bytes: for those, Python does not load the codec of international names, for 3 ms.
    is_usual = host.isascii() and all(0 < len(label) < 64 for label in host.split("."))
    name = host.encode() if is_usual else host
    find: Callable[..., list[Any]] = partial(socket.getaddrinfo, name, port, family, socket.SOCK_STREAM)
    with suppress(OSError, UnicodeError):
        return find(flags=flags | socket.AI_NUMERICHOST)  # of an address; asks no name server
    found: Future[list[Any]] = Future()

    def work() -> None:
        try:
            found.set_result(find(flags=flags))
        except BaseException as error:  # noqa: BLE001  # every error is the caller's
            found.set_exception(error)

    found.set_running_or_notify_cancel()  # a caller that is cancelled does not cancel it
    start_thread(threading.Thread(target=work, name="asyncpq-lookup", daemon=True))
    return await asyncio.wrap_future(found)


async def connect(addresses: list[Address]) -> socket.socket:
    """Return a socket that is connected to one of the addresses. Raises OSError if none accepts."""
    return await aiohappyeyeballs.start_connection(
        addresses, happy_eyeballs_delay=_OTHER_ADDRESS_S, loop=asyncio.get_running_loop()
    )
