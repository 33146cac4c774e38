"""The typer application with all commands of the command line. A command's module is loaded when it runs."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Final

import typer

import asyncpq
from asyncpq.cli.command_table import ABOUT, OPTIONS, PANELS
from asyncpq.cli.running import Application, Commands, State

_MODULES: Final = {name: module for commands in PANELS.values() for name, module, _ in commands}


class ListedCommands(Commands):
    """The commands of the table. Each stands for its real command, which is loaded when a command line names it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name and the loaded command of ``args``, and the arguments that are left for it."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import a command's module; return the command as typer runs it."""
    module = import_module(f"asyncpq.cli.{_MODULES[name]}")
    group = getattr(module, "app", None)
    if group is None:
        group = Application()
        group.command()(getattr(module, name))
    return typer.main.get_command(group)


app: Application = Application(
    name="asyncpq",
    cls=ListedCommands,
    help=ABOUT,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"asyncpq {asyncpq.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help=OPTIONS["--debug"])] = False,
    version: Annotated[
        bool, typer.Option("--version", help=OPTIONS["--version"], callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all commands."""
    context.obj = State(debug=debug)


def _listed() -> None:
    """Stands in the list of commands until its real command is loaded."""


for _panel, _commands in PANELS.items():
    for _name, _module, _about in _commands:
        app.command(_name, help=_about, rich_help_panel=_panel)(_listed)
