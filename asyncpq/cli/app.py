"""All commands of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

import asyncpq
from asyncpq.cli import cache, index
from asyncpq.cli.doctor import doctor
from asyncpq.cli.inspect import inspect
from asyncpq.cli.lint import lint
from asyncpq.cli.optimize import optimize
from asyncpq.cli.reads import count, lookup, query, take
from asyncpq.cli.running import State
from asyncpq.cli.why import explain, why

app = typer.Typer(
    name="asyncpq",
    help="Read the few pages a query needs out of Parquet files, and see why that is fast or slow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"asyncpq {asyncpq.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show debug logs, and tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all commands."""
    context.obj = State(debug=debug)


app.command()(inspect)
app.command()(lint)
app.add_typer(index.app)
app.command()(optimize)
app.command()(query)
app.command()(lookup)
app.command()(take)
app.command()(count)
app.command()(explain)
app.command()(why)
app.command()(doctor)
app.add_typer(cache.app)
