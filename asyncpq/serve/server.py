"""Run the service with uvicorn. SIGHUP reloads the configuration; SIGTERM ends after the running requests.

The callbacks of its event loop run in fair order: first those of the token that has used the loop least. asyncio runs
whatever is ready in the order in which it became ready. If sixteen requests of one token become ready at once, as when
a listing ends that all of them wait for, another token's request waits for all of them, again and again on its way.
Here it waits for one callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from contextvars import Context
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVarTuple

import pyarrow as pa

from asyncpq.engine.foreign_predicates import parse_condition
from asyncpq.engine.work import loop_first, owner_in
from asyncpq.errors import InvalidOptionError
from asyncpq.serve import needed_packages
from asyncpq.serve.app import Service
from asyncpq.serve.configuration import Configuration, ServerConfiguration
from asyncpq.serve.responses import Receive, Scope, Send

IDLE_S: Final = 60.0
SWITCH_S: Final = 0.0001
GC_THRESHOLDS: Final = (2_000, 10, 100)
NICENESS: Final = 5  # of threads that decode: as many as processors leave the event loop too little
UNUSED_BYTES: Final = 32 << 20
END_S: Final = 4.5  # after ``drain_s``, the time until the process ends in any case

logger: logging.Logger = logging.getLogger(__name__)


def _load() -> None:
    """Load what the first requests need, and set the process up for fast answers and little memory."""
    parse_condition("a = 1 AND b LIKE 'x%'")
    for module in ("pyarrow.compute", "pyarrow.parquet", "asyncpq.scan.file_scan"):
        import_module(module)
    # The one of Arrow's pools that gives all of its unused memory back. The others keep what each thread has freed.
    pa.set_memory_pool(pa.system_memory_pool())
    gc.collect()
    gc.freeze()
    # Full collections stop all threads, and there is little for them: nothing that a request makes has cycles.
    gc.set_threshold(*GC_THRESHOLDS)


def run(
    configuration: Configuration,
    path: str | None = None,
    listening: socket.socket | None = None,
    watched: Connection | None = None,
) -> None:
    """Serve until a signal ends the process, in an event loop that comes before the threads that decode.

    Args:
        path: path of the configuration file, which SIGHUP reloads; None if there is no file.
        listening: a bound socket; None to bind one to the configuration's address.
        watched: a pipe whose other end the supervisor of this process holds: the process ends with it.
    """
    with loop_first(NICENESS) as selector, asyncio.Runner(loop_factory=lambda: FairEventLoop(selector)) as runner:
        runner.run(_run(configuration, path, listening, watched))


async def _run(
    configuration: Configuration, path: str | None, listening: socket.socket | None, watched: Connection | None
) -> None:
    with needed_packages():
        import uvicorn
    service, server = Service(configuration), configuration.server
    settings: Any = uvicorn.Config(
        _closing_when_draining(service),
        host=server.host,
        port=server.port,
        timeout_graceful_shutdown=max(1, round(server.drain_s)),
        log_config=_log_config(uvicorn.config.LOGGING_CONFIG, is_worker=watched is not None),
        access_log=False,
        server_header=False,
        ws="none",
    )
    watch_connections(settings)
    loop = asyncio.get_running_loop()
    # While threads decode, the event loop waits for Python's lock after each call of the system. Beside two threads of
    # Python code, three such calls take 1 ms of 100 in place of 8, for a twentieth of the threads' work.
    sys.setswitchinterval(SWITCH_S)
    with contextlib.suppress(ValueError):  # in another thread, signals are someone else's
        # uvicorn ends the process by the signal that ended the service: after this it ends by itself, and tidies up
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    if path is not None:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # a system without signals, or another thread
            loop.add_signal_handler(signal.SIGHUP, lambda: service.reload_file(path))
    if watched is not None:  # the supervisor has held it back until now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    if watched is not None:
        loop.add_reader(watched.fileno(), _end_with_supervisor, loop, watched)
    _load()
    running = _server(uvicorn.Server, settings, service)
    giving = asyncio.create_task(_give_back_memory())
    try:
        await running.serve(None if listening is None else [listening])
    except SystemExit:  # uvicorn has logged why; its exit code would mean something else
        if running.started:
            raise
        raise cannot_listen(server) from None
    finally:
        giving.cancel()


def _log_config(default: dict[str, Any], *, is_worker: bool) -> dict[str, Any]:
    """Return uvicorn's configuration of its log, by which each line of a worker names it."""
    if not is_worker:
        return default
    form = {**default["formatters"]["default"], "fmt": "%(levelprefix)s %(processName)s %(message)s"}
    return {**default, "formatters": {**default["formatters"], "default": form}}


def _closing_when_draining(service: Service) -> Any:
    """Return the service's application, which ends each connection with its next answer once the service drains: a
    client that did not know would send its next request into the end of the connection."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: MutableMapping[str, Any]) -> None:
            if service.is_draining and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            await service.app(scope, receive, sending)
        except asyncio.CancelledError:
            if not service.is_draining:
                raise
            # drain_s is over: uvicorn closes the connection, and would log a traceback for each cancelled request

    return app


def cannot_listen(server: ServerConfiguration) -> InvalidOptionError:
    """Return the error of a service whose address is not free."""
    return InvalidOptionError(
        f"the service cannot listen at {server.host}, port {server.port}",
        hint="If another process has the port, end it or choose another port; 0 takes a free one.",
    )


def address_of(server: ServerConfiguration) -> tuple[socket.AddressFamily, Any]:
    """Return the address that the service listens at, of all interfaces if ``host`` is empty, as in uvicorn. Raises
    InvalidOptionError if the host has none."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            server.host or None, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:  # of a name whose parts are empty or too long
        raise cannot_listen(server) from error
    return family, address


def require_free_address(server: ServerConfiguration) -> None:
    """Raise InvalidOptionError if the service's address is not free."""
    family, address = address_of(server)
    try:
        socket.create_server(address, family=family).close()
    except OSError as error:
        raise cannot_listen(server) from error


def _end_with_supervisor(loop: asyncio.AbstractEventLoop, watched: Connection) -> None:
    loop.remove_reader(watched.fileno())
    logger.error("the supervisor has ended, and this process ends, too")
    os.kill(os.getpid(), signal.SIGTERM)


async def _give_back_memory() -> None:
    """Give memory that answers have freed back to the system, every second while there may be much of it. That takes
    a millisecond in a thread."""
    pool, least = pa.default_memory_pool(), _resident()
    while True:
        await asyncio.sleep(1)
        if _resident() > least + UNUSED_BYTES:
            await asyncio.to_thread(pool.release_unused)
            least = min(least, _resident())


def _resident() -> int:
    """Return the bytes of memory of this process; 0 if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _server(server_class: Any, settings: Any, service: Service) -> Any:
    """Return a uvicorn server whose process ends after a signal: for ``unready_s`` it still answers, while /readyz says
    503; then it ends in ``drain_s`` and ``END_S``, whatever runs. A second signal takes the first time away."""
    loop, server = asyncio.get_running_loop(), service.configuration.server
    unready_s, seconds = server.unready_s, server.drain_s + END_S

    class EndingServer(server_class):  # type: ignore[misc]  # uvicorn's
        _ending: threading.Timer | None = None

        def handle_exit(self, sig: int, frame: Any) -> None:
            if self._ending is None:
                self._ending = threading.Timer(unready_s + seconds, _end_process)
                self._ending.daemon = True
                self._ending.start()
                service.is_draining = True
                if unready_s:
                    end = super().handle_exit
                    loop.call_soon_threadsafe(loop.call_later, unready_s, end, sig, frame)
                    return
            super().handle_exit(sig, frame)

    return EndingServer(settings)


def _end_process() -> None:
    logger.error("work that does not stop is given up: the process ends now")
    logging.shutdown()
    os._exit(1)


def watch_connections(settings: Any, seconds: float = IDLE_S) -> None:
    """Close connections of a uvicorn server whose client takes longer than ``seconds`` to send the head of a
    request, or to take the rest of an answer. ``settings``: uvicorn's. While a request runs, the time limit of its
    token applies instead."""
    settings.load()

    class WatchedProtocol(settings.http_protocol_class):  # type: ignore[misc]  # uvicorn chooses the class
        _idle_since = 0.0
        _watching: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._idle_since = self.loop.time()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._watching is not None:
                self._watching.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            now = self.loop.time()
            # one that is closing waits for its client to take what is left
            under_way = self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing()
            if under_way:
                self._idle_since = now
            elif now - self._idle_since >= seconds:
                self.transport.abort()
                return
            self._watching = self.loop.call_later(seconds / 4, self._watch)

    settings.http_protocol_class = WatchedProtocol


# -- turns of the event loop ----------------------------------------------------------------------


Ts = TypeVarTuple("Ts")

TURN_S: Final = 0.001  # an owner's callbacks, one after the other
ITERATION_S: Final = 0.003  # all owners' callbacks, before sockets, timers and what has no owner
BEHIND_S: Final = 0.01  # what an owner may have used less than all others, however long it had nothing to do
_MOST_REMEMBERED: Final = 256  # owners that have nothing to do


class FairEventLoop(asyncio.SelectorEventLoop):
    """A selector's event loop in which callbacks whose context has an owner (:func:`asyncpq.engine.work.set_owner`)
    have their turns by the time that their owners have used: the one with the least comes first. Each owner's callbacks
    keep their order.

    An owner that had nothing to do comes back with the time of the one that has used least, less :data:`BEHIND_S`: so
    it comes first with a little work, and never keeps the others waiting for much.
    """

    def __init__(self, selector: Any = None) -> None:
        super().__init__(selector)
        self._waiting: dict[object, deque[asyncio.Handle]] = {}
        self._used_s: dict[object, float] = {}
        self._no_owner = Context()
        self._least_s = 0.0  # used by any owner that has something to do; never falls
        self._is_due = False  # whether _run_turns is among the callbacks of the next iteration

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call ``callback`` as soon as possible; see the class."""
        owner = owner_in(context)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        if self.is_closed():
            raise RuntimeError("Event loop is closed")  # as asyncio's own says it
        handle = asyncio.Handle(callback, args, self, context)
        waiting = self._waiting.get(owner)
        if waiting is None:
            waiting = self._waiting[owner] = deque()
            self._used_s[owner] = max(self._used_s.get(owner, 0.0), self._least_s - BEHIND_S)
        waiting.append(handle)
        self._call_turns()
        return handle

    def close(self) -> None:
        """Close the loop; callbacks that have not run never do."""
        self._waiting.clear()
        super().close()

    def _call_turns(self) -> None:
        if not self._is_due:
            self._is_due = True
            super().call_soon(self._run_turns, context=self._no_owner)

    def _run_turns(self) -> None:
        """Run callbacks for :data:`ITERATION_S` at most, unless one alone takes longer."""
        self._is_due = False
        now_s = time.monotonic()
        ends_s = now_s + ITERATION_S
        try:
            while self._waiting and now_s < ends_s:
                now_s = self._run_turn(min(self._waiting, key=self._used_s.__getitem__), now_s)
        finally:
            if self._waiting:
                self._call_turns()
            elif len(self._used_s) > _MOST_REMEMBERED:
                self._used_s.clear()
                self._least_s = 0.0

    def _run_turn(self, owner: object, began_s: float) -> float:
        self._least_s = max(self._least_s, self._used_s[owner])
        waiting, now_s = self._waiting[owner], began_s
        try:
            while waiting and now_s < began_s + TURN_S:
                handle = waiting.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001  # as any event loop runs it
                    now_s = time.monotonic()
        finally:
            self._used_s[owner] += time.monotonic() - began_s
            if not waiting:
                del self._waiting[owner]
        return now_s
