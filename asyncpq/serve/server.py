"""Run the service with uvicorn. SIGHUP reloads the configuration; SIGTERM ends after the running requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import replace
from typing import Any

from asyncpq.errors import UsageError
from asyncpq.serve.app import Service
from asyncpq.serve.configuration import Configuration

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
            "the service requires the package uvicorn, which is not installed", hint="Run pip install 'asyncpq[serve]'."
        ) from error
    service, server = Service(configuration), configuration.server
    settings: Any = uvicorn.Config(
        service.app,
        host=server.host,
        port=server.port,
        timeout_graceful_shutdown=max(1, round(server.drain_s)),
        access_log=False,
        server_header=False,
    )
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ValueError):  # in another thread, signals are someone else's
        # uvicorn ends the process by the signal that ended the service: after this it ends by itself, and tidies up
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    if path is not None:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # a system without signals, or another thread
            loop.add_signal_handler(signal.SIGHUP, lambda: service.reload_file(path))
    await uvicorn.Server(settings).serve()


def listening(configuration: Configuration, host: str | None, port: int | None) -> Configuration:
    """Return the configuration with ``host`` and ``port`` replaced, unless they are None."""
    server = configuration.server
    server = replace(server, host=server.host if host is None else host, port=server.port if port is None else port)
    return replace(configuration, server=server)
