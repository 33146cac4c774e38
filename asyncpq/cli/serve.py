"""``asyncpq serve``: start the HTTP service from the command line."""

from __future__ import annotations

from typing import Annotated

from asyncpq.cli.parameters import Argument, Option
from asyncpq.cli.running import CommandExit


def serve(
    configuration: Annotated[
        str | None, Argument(metavar="CONFIG", help="A TOML file (docs/serve-configuration.md).", show_default=False)
    ] = None,
    demo: Annotated[bool, Option("--demo", help="Serve data that is made for it.")] = False,
    check: Annotated[
        bool, Option("--check", help="Open all datasets, check the rights of all tokens, and end.")
    ] = False,
    new_token: Annotated[bool, Option("--new-token", help="Print a new token and its sha256, and end.")] = False,
    host: Annotated[
        str | None, Option("--host", help="Address to listen at, instead of that of the configuration.")
    ] = None,
    port: Annotated[
        int | None, Option("--port", help="Port to listen at, instead of that of the configuration.")
    ] = None,
    workers: Annotated[int, Option("--workers", help="Processes that serve the port.")] = 1,
) -> None:
    """Serve datasets over HTTP: lookups, scans and counts as JSON, NDJSON, CSV, Arrow and Parquet."""
    from asyncpq.serve.__main__ import start

    raise CommandExit(
        start(configuration, demo=demo, check=check, new_token=new_token, host=host, port=port, workers=workers)
    )
