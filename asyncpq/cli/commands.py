"""The typer application that registers all commands of the command line."""

from __future__ import annotations

from typing import Annotated, Final

import typer

import asyncpq
from asyncpq.cli import cache, index_commands
from asyncpq.cli.doctor import doctor
from asyncpq.cli.inspect import inspect
from asyncpq.cli.lint_command import lint
from asyncpq.cli.optimize_command import optimize
from asyncpq.cli.reads import count, lookup, query, take
from asyncpq.cli.running import FLAG, Commands, State
from asyncpq.cli.serve import serve
from asyncpq.cli.why_commands import explain, why

app: typer.Typer = typer.Typer(
    name="asyncpq",
    cls=Commands,
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
    debug: Annotated[
        bool, typer.Option("--debug", metavar=FLAG, help="Show debug logs, and tracebacks of errors.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", metavar=FLAG, help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all commands."""
    context.obj = State(debug=debug)


_READ: Final = "Read rows"
_SEE: Final = "See why reads are fast or slow"
_KEEP: Final = "Make and keep files fast"
_HELP: Final = "Help"

app.command(rich_help_panel=_READ)(query)
app.command(rich_help_panel=_READ)(lookup)
app.command(rich_help_panel=_READ)(take)
app.command(rich_help_panel=_READ)(count)
app.command(rich_help_panel=_READ)(serve)
app.command(rich_help_panel=_SEE)(inspect)
app.command(rich_help_panel=_SEE)(lint)
app.command(rich_help_panel=_SEE)(explain)
app.command(rich_help_panel=_SEE)(why)
app.add_typer(index_commands.app, rich_help_panel=_KEEP)
app.command(rich_help_panel=_KEEP)(optimize)
app.add_typer(cache.app, rich_help_panel=_KEEP)
app.command(rich_help_panel=_HELP)(doctor)
