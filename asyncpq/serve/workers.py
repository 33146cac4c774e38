"""Several processes of the service on one port, and the one that starts, watches and ends them.

Each worker takes connections from a listening socket of its own, among which the system shares them out by
SO_REUSEPORT. The supervisor holds the sockets, too: while a worker is started again, its connections wait.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Final

from asyncpq.errors import AsyncpqError, InvalidOptionError
from asyncpq.serve.configuration import Configuration, load_configuration
from asyncpq.serve.server import END_S, address_of, cannot_listen, require_free_address, run

MOST: Final = 64
WRONG: Final = 2  # exit code of a process that was configured wrongly
_KILL_S: Final = 0.4  # a worker that has not ended after END_S is killed: all end within ``drain_s`` and 5 s
_STABLE_S: Final = 10.0  # a worker that lived so long is started again at once
_LONGEST_PAUSE_S: Final = 30.0
#: The folder in which prometheus_client's processes share their counters.
_METRICS: Final = "PROMETHEUS_MULTIPROC_DIR"

logger: logging.Logger = logging.getLogger(__name__)


def require_workers(number: int) -> None:
    """Raise InvalidOptionError if this system cannot run ``number`` processes of the service."""
    if not 1 <= number <= MOST:
        raise InvalidOptionError(f"workers={number}: must be 1 to {MOST}", option="workers")
    if number > 1 and os.name != "posix":
        raise InvalidOptionError("--workers needs Linux or macOS", hint="Start the service once for each port.")


def run_workers(configuration: Configuration, path: str | None, number: int) -> None:
    """Serve with ``number`` processes until a signal ends this one.

    SIGHUP reloads the file at ``path``, if it is not None. SIGTERM and SIGINT end all workers as each ends by itself.

    Raises:
        InvalidOptionError: nobody can listen there, or the workers cannot be configured.
    """
    with tempfile.TemporaryDirectory(prefix="asyncpq-metrics-") as folder:
        os.environ[_METRICS] = folder
        try:
            sockets = _sockets(configuration, number)
            asyncio.run(_Supervisor(configuration, path, sockets).run())
        finally:
            del os.environ[_METRICS]


def _sockets(configuration: Configuration, number: int) -> list[socket.socket]:
    """Return one bound socket for each worker, or one that all share where the system does not balance."""
    server, made = configuration.server, []
    require_free_address(server)  # without sharing: a program of this user may have the port, and would share it
    port = server.port
    family, address = address_of(server)
    try:
        for _ in range(number if sys.platform == "linux" else 1):
            bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            made.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform == "linux":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((address[0], port, *address[2:]))
            port = bound.getsockname()[1]
    except OSError as error:
        for bound in made:
            bound.close()
        raise cannot_listen(server) from error
    return made if len(made) == number else made * number


class _Worker:
    """One place among the workers: its socket, and the process that has it at present."""

    def __init__(self, number: int, listening: socket.socket) -> None:
        self.number = number
        self.listening = listening
        self.process: Any = None
        self.began_at = 0.0
        self.pause_s = 0.0
        self._alive: Connection | None = None

    async def live(self, configuration: Configuration, path: str | None) -> int:
        """Run a process until it ends; return its exit code, negative for a signal."""
        context = multiprocessing.get_context("spawn")
        watched, self._alive = context.Pipe(duplex=False)
        arguments = (configuration, path, self.listening, watched)
        self.process = context.Process(target=_work, args=arguments, name=f"worker {self.number}")
        self.began_at = time.monotonic()
        # The process inherits the mask: a reload that reaches it while it begins waits until it can be handled.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        watched.close()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self.process.sentinel)
        self.process.join()
        self._alive.close()
        return int(self.process.exitcode)

    def send(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self.process is not None and self.process.is_alive():
            os.kill(self.process.pid, number)


class _Supervisor:
    def __init__(self, configuration: Configuration, path: str | None, sockets: Sequence[socket.socket]) -> None:
        self._configuration = configuration
        self._path = path
        number = len(sockets)
        self._workers = [_Worker(place + 1, bound) for place, bound in enumerate(sockets)]
        self._ending = asyncio.Event()
        self._wrong = False
        logger.info("%d workers listen at http://%s:%d", number, *sockets[0].getsockname()[:2])

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        if self._path is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload, self._path)
        keeping = [asyncio.create_task(self._keep(worker)) for worker in self._workers]
        await self._ending.wait()
        server = self._configuration.server
        _, late = await asyncio.wait(keeping, timeout=server.unready_s + server.drain_s + END_S + _KILL_S)
        for worker in self._workers if late else ():
            worker.send(signal.SIGKILL)
        await asyncio.gather(*keeping)
        if self._wrong:
            raise InvalidOptionError("the workers cannot be started", hint="The log of the first one says why.")

    def _end(self) -> None:
        """End the workers. Their sockets close with the last one, for which this process gives up its own."""
        self._ending.set()
        for worker in self._workers:
            worker.send(signal.SIGTERM)
            worker.listening.close()

    def _reload(self, path: str) -> None:
        try:
            self._configuration = load_configuration(path).at(*self._configuration.address)
        except Exception as error:  # noqa: BLE001  # the service goes on
            logger.error("the configuration is not reloaded: %s", error)
            return
        for worker in self._workers:
            worker.send(signal.SIGHUP)

    async def _keep(self, worker: _Worker) -> None:
        """Run one worker again and again, until the service ends."""
        counters: Any = import_module("prometheus_client.multiprocess")
        while not self._ending.is_set():
            code = await worker.live(self._configuration, self._path)
            counters.mark_process_dead(worker.process.pid)
            if self._ending.is_set():
                return
            if code == WRONG:
                self._wrong = True
                self._end()
                return
            lived_s = time.monotonic() - worker.began_at
            worker.pause_s = 0.0 if lived_s >= _STABLE_S else min(_LONGEST_PAUSE_S, 2 * worker.pause_s + 0.5)
            reason = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            logger.error(
                "worker %d (process %d) %s after %.0f s: it is started again%s",
                *(worker.number, worker.process.pid, reason, lived_s),
                f" in {worker.pause_s:g} s" if worker.pause_s else "",
            )
            if worker.pause_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), worker.pause_s)


def _work(configuration: Configuration, path: str | None, listening: socket.socket, watched: Connection) -> None:
    """Be a worker: the whole life of its process."""
    start_log(logging.INFO, "%(processName)s ")
    try:
        run(configuration, path, listening, watched)
    except AsyncpqError as error:
        logger.error("%s", " ".join(str(error).split()))
        sys.exit(WRONG)
    except KeyboardInterrupt:
        sys.exit(130)


def start_log(level: int, process: str = "") -> None:
    """Log to stderr. ``process``: the part of the format that names this process, if there are several."""
    logging.basicConfig(level=level, format=f"%(levelname)s {process}%(name)s: %(message)s")
