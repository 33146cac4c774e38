"""Run the service with uvicorn. SIGHUP reloads the configuration; SIGTERM ends after the running requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import replace
from typing import Any, Final

from asyncpq.errors import UsageError
from asyncpq.serve.app import Service
from asyncpq.serve.configuration import Configuration

IDLE_S: Final = 60.0

logger: logging.Logger = logging.getLogger(__name__)


async def run(configuration: Configuration, path: str | None = None) -> None:
    """Serve until a signal ends the process.

    Args:
        path: path of the configuration file, which SIGHUP reloads; None if there is no file.
    """
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise UsageError(
            "the service requires the package uvicorn, which is not installed",
            hint="Install uvicorn, as the extra asyncpq[serve] does.",
        ) from error
    service, server = Service(configuration), configuration.server
    settings: Any = uvicorn.Config(
        service.app,
        host=server.host,
        port=server.port,
        timeout_graceful_shutdown=max(1, round(server.drain_s)),
        access_log=False,
        server_header=False,
        ws="none",
    )
    watch_connections(settings)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ValueError):  # in another thread, signals are someone else's
        # uvicorn ends the process by the signal that ended the service: after this it ends by itself, and tidies up
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    if path is not None:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # a system without signals, or another thread
            loop.add_signal_handler(signal.SIGHUP, lambda: service.reload_file(path))
    await uvicorn.Server(settings).serve()


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


def listening(configuration: Configuration, host: str | None, port: int | None) -> Configuration:
    """Return the configuration with ``host`` and ``port`` replaced, unless they are None."""
    server = configuration.server
    server = replace(server, host=server.host if host is None else host, port=server.port if port is None else port)
    return replace(configuration, server=server)
