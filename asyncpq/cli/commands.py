"""The commands as typer has them: for help, completion, and command lines that are not complete or not right.

A command's module is loaded when a command line names it. Wrong usage is told like every other error: in one line.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, cast, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

import asyncpq
from asyncpq.cli.command_table import ABOUT, OPTIONS, PANELS
from asyncpq.cli.output import write_line
from asyncpq.cli.parameters import Group, Option, load, signature_of
from asyncpq.cli.running import INTERRUPTED, PROCESS, WRONG_USAGE, CommandExit, fail, tell

_UsageError: Final = cast("type[Exception]", typer.BadParameter.__base__)  # typer names only this subclass of it


class _PlainFlags:
    """Part of a command: in its help, options that take no value show none. typer would write <bool>."""

    def get_params(self, context: Any) -> list[Any]:
        """Return all parameters of the command."""
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]  # of the command
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = " "
        return parameters


class Command(_PlainFlags, TyperCommand):
    """A command of :class:`Commands`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command. An error names the command, whose help says what it takes."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            error.ctx = ctx  # type: ignore[attr-defined]  # typer leaves it out where an option lacks its value
            raise


class Commands(_PlainFlags, TyperGroup):
    """A group of commands that reports wrong usage like every other error: with one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **options: Any) -> Any:  # type: ignore[override]  # typer calls it by keyword
        """Run the command in ``args``. With ``standalone_mode`` the process ends afterwards."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **options)
        try:
            done = super().main(args, standalone_mode=False, **options)
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # the reader of the help has gone, such as head
                sys.exit(0)
            raise
        except CommandExit as end:
            sys.exit(end.code)
        except _UsageError as error:
            sys.exit(_tell_usage(error))
        sys.exit(done if isinstance(done, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Load and call the command of the context."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # while modules are loaded: typer would end the process without a word
            fail("interrupted", INTERRUPTED)


def _tell_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help; with rich, it is printed already
        if error.message:
            write_line(error.message)
        return WRONG_USAGE
    message = _meant(error) or _plain(error.format_message()).rstrip(".")
    end = "" if message.endswith("?") else "."
    place = "asyncpq" if error.ctx is None else error.ctx.command_path
    return tell(f"{message[:1].lower()}{message[1:]}{end} See `{place} --help`.", WRONG_USAGE)


#: What pydantic, or click, with which typer checks values, says of them, and what a user reads instead.
_PLAIN: Final[Mapping[str, str]] = {
    r"Value error, ": "",
    r"Input should be a valid integer.*|'[^']*' is not a valid integer": "it must be a whole number",
    r"Input should be greater than or equal to (\d+)": r"it must be at least \1",
    r"-?\d+ is not in the range x>=(\d+)": r"it must be at least \1",
}


def _plain(message: str) -> str:
    for technical, plain in _PLAIN.items():
        message = re.sub(technical, plain, message)
    return message


_FORMATS: Final = ("--json", "--csv", "--ndjson", "--parquet", "--arrow")

#: What other tools call options and commands of this one.
_OPTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("--filter", "--filters", "--predicate", "--condition", "-w"), "--where"),
    **dict.fromkeys(("-n", "-l", "--rows", "--head", "--lines", "--max-rows", "--top"), "--limit"),
    **dict.fromkeys(_FORMATS, "--format"),
    **dict.fromkeys(("-c", "--column", "--select", "--projection", "--fields"), "--columns"),
    **dict.fromkeys(("-k", "--keys", "--id"), "--key"),
    **dict.fromkeys(("-o", "--out", "--output-file"), "--output"),
    **dict.fromkeys(("-f", "--output-format"), "--format"),
    **dict.fromkeys(("--endpoint", "--url", "--host"), "--endpoint-url"),
    **dict.fromkeys(("--anon", "--anonymous", "--public", "--no-sign"), "--no-sign-request"),
    **dict.fromkeys(("--cache", "--cache-dir"), "--disk-cache"),
    **dict.fromkeys(("--metrics", "--timing", "--cost"), "--stats"),
}
_COMMANDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("select", "sql", "cat", "read", "show", "print", "scan", "dump", "filter"), "query"),
    **dict.fromkeys(("get", "find"), "lookup"),
    **dict.fromkeys(("info", "metadata", "describe", "stat", "footer"), "inspect"),
    **dict.fromkeys(("wc", "rows", "size"), "count"),
    **dict.fromkeys(("check", "validate"), "lint"),
    **dict.fromkeys(("rewrite", "compact", "sort"), "optimize"),
}
_NO_COMMAND: Final = re.compile(r"No such command '([^']*)'")
_EXTRA: Final = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
_EXTRA_SHOWN: Final = 3
#: Options that stand behind a command, and what a user may write before it.
_OF_COMMANDS: Final = frozenset({*_OPTIONS.values(), "--profile", "--region", "--index", "--at", "--kind"})


def _meant(error: Any) -> str | None:
    """Return a message that says what the user meant: the option or command that other tools call so, the place of an
    option, or quotes; None if nothing is known of it."""
    command = getattr(error.ctx, "command", None)
    option = getattr(error, "option_name", None)
    if extra := _EXTRA.match(error.message):
        words = extra[1].split(" ")
        rest = f" ... {len(words)} in all" if len(words) > _EXTRA_SHOWN else ""
        known = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
        place = "Put a pattern of many files, and what has spaces, in quotes; put commas between names of columns"
        if "--where" in known and re.search("[=<>]", extra[1]):
            place = "Write a condition behind --where, in quotes"
        elif "--rows" in known and extra[1].isdigit():
            place = "Write the number of rows behind --rows"
        return f"There is no place for: {' '.join(words[:_EXTRA_SHOWN])}{rest}. {place}"
    if option is not None and hasattr(error, "possibilities"):
        if option in _OF_COMMANDS and hasattr(command, "commands"):
            return f"{option} stands before the command. Write it behind the command that takes it"
        if option == "--debug":
            return f"{option} stands behind the command. Write it before: asyncpq {option} ..."
        known = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
        meant = _OPTIONS.get(option)
        if option == "--limit" and "--rows" in known:  # of head
            meant = "--rows"
        if option[1:].isdigit() and getattr(command, "name", None) == "take":
            return f"There is no row {option}: rows are counted from 0"
        value = f" {option[2:]}" if meant == "--format" and option in _FORMATS else ""
        meant = f"{meant}{value}" if meant in known else " or ".join(error.possibilities or ())
        return f"No such option: {option}. Did you mean {meant}?" if meant else None
    named = _NO_COMMAND.match(error.message)
    if named is None:
        return None
    known = {*getattr(command, "commands", ()), *_COMMANDS}
    close = next(iter(difflib.get_close_matches(named[1], known, n=1)), "")  # also of mistyped words of other tools
    meant = _COMMANDS.get(close)
    if "inspect" in getattr(command, "commands", ()) and re.search(r"[./]", named[1]):  # a url, where a command stands
        return f"{named[0]}. Name the command before the url, such as: asyncpq inspect {named[1]}"
    return f"{named[0]}. Did you mean '{meant}'?" if meant in getattr(command, "commands", ()) else None


class ListedCommands(Commands):
    """The commands of the table. Each stands for its real command, which is loaded when a command line names it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. A flag of completion stands alone: typer would ignore what follows it, such as the name
        of another shell."""
        flag, word = (*args, "", "")[:2]
        flags = {name for option in self.get_params(ctx) if getattr(option, "is_flag", False) for name in option.opts}
        if word and flag in flags.intersection(("--install-completion", "--show-completion")):
            raise _UsageError(f"{flag} takes no value, such as {word}: it is for the current shell", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name and the loaded command of ``args``, and the arguments that are left for it."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import a command's module; return the command as typer runs it."""
    command = load(name)
    if isinstance(command, Group):
        return typer.main.get_command(group_of(command))
    group = _application()
    group.command(cls=Command)(_function(command))
    return typer.main.get_command(group)


def _application(**options: Any) -> typer.Typer:
    return typer.Typer(**{"cls": Commands, "add_completion": False, "pretty_exceptions_enable": False, **options})


def group_of(group: Group) -> typer.Typer:
    """Return the application with the commands of a group."""
    application = _application(name=group.name, help=group.about, no_args_is_help=True)
    for name, command in group.commands.items():
        application.command(name, cls=Command)(_function(command))
    return application


def _function(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the signature that typer reads."""
    parameters = [
        one.replace(annotation=_annotation(one.annotation)) for one in signature_of(command).parameters.values()
    ]

    def run_command(**given: Any) -> None:
        command(**given)

    run_command.__name__ = command.__name__
    run_command.__doc__ = command.__doc__
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {one.name: one.annotation for one in parameters}
    return run_command


def _annotation(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    type_, declared = get_args(annotation)
    if not isinstance(declared, Option):
        return Annotated[type_, typer.Argument(**declared.settings)]
    completes = declared.completes

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        # Of a command line whose last option lacks its value, typer leaves the url among the arguments that it could
        # not assign.
        url = ctx.params.get("url") or next(iter(ctx.args), None)
        return [] if completes is None else completes(url, incomplete)

    option = typer.Option(*declared.names, autocompletion=None if completes is None else complete, **declared.settings)
    return Annotated[type_, option]


app: typer.Typer = _application(
    name="asyncpq",
    cls=ListedCommands,
    help=ABOUT,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        write_line(f"asyncpq {asyncpq.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help=OPTIONS["--debug"])] = False,
    version: Annotated[
        bool, typer.Option("--version", help=OPTIONS["--version"], callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of all commands."""
    PROCESS.debug = debug


def _listed() -> None:
    """Stands in the list of commands until its real command is loaded."""


for _panel, _commands in PANELS.items():
    for _name, _module, _about in _commands:
        app.command(_name, cls=Command, help=_about, rich_help_panel=_panel)(_listed)
