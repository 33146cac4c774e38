"""``asyncpq serve``: datasets over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from asyncpq.cli.running import WRONG_USAGE, fail


def serve(
    configuration: Annotated[
        str | None, typer.Argument(metavar="CONFIG", help="A TOML file (docs/serve.md).", show_default=False)
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve data that is made for it.")] = False,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen at, instead of that of the configuration.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port to listen at, instead of that of the configuration.")
    ] = None,
) -> None:
    """Serve datasets over HTTP: lookups, scans and counts as JSON, NDJSON, Arrow and Parquet."""
    if demo == (configuration is not None):
        fail("name a configuration, or pass --demo", WRONG_USAGE)
    try:
        from asyncpq.serve.__main__ import serve as run_service
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        fail(f"the service requires {error.name}. Install it with: pip install 'asyncpq[serve]'", WRONG_USAGE)
    raise typer.Exit(run_service(configuration, host, port))
