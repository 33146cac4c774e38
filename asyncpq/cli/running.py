"""Run a command in an event loop. An error ends the process with one line on stderr and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage (options, names, expressions), 3 not found, 4 not allowed (credentials,
rights), 5 ``lint --strict`` has findings other than notes, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import difflib
import errno
import logging
import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from asyncpq.cli import drop_output, missing_package
from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    InvalidOptionError,
    ObjectNotFoundError,
    QueryError,
    UsageError,
    printable,
)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_FOUND: Final = 3
NOT_ALLOWED: Final = 4
FINDINGS: Final = 5
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class State:
    """The options that a user writes before the command, such as ``--debug``."""

    debug: bool = False


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
    """A command of :class:`Application`."""

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
        except typer.Abort:
            sys.exit(_tell("there is no answer", FAILED))
        except _UsageError as error:
            sys.exit(_tell_usage(error))
        sys.exit(done if isinstance(done, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Load and call the command of the context."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # while modules are loaded: typer would end the process without a word
            fail("interrupted", INTERRUPTED)


class Application(typer.Typer):
    """A typer application of :class:`Commands` and :class:`Command`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Commands, "add_completion": False, "pretty_exceptions_enable": False, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Return a decorator that registers a function as a command."""
        return super().command(name, cls=Command, **options)


def _tell_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help; with rich, it is printed already
        if error.message:
            typer.echo(error.message)
        return WRONG_USAGE
    message = _meant(error) or error.format_message().replace("Value error, ", "").rstrip(".")
    end = "" if message.endswith("?") else "."
    place = "asyncpq" if error.ctx is None else error.ctx.command_path
    return _tell(f"{message[:1].lower()}{message[1:]}{end} See `{place} --help`.", WRONG_USAGE)


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


def _meant(error: Any) -> str | None:
    """Return a message with the option or command that other tools call as the user did; None if there is none."""
    command = getattr(error.ctx, "command", None)
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        known = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
        meant = _OPTIONS.get(option)
        if option == "--limit" and "--rows" in known:  # of head
            meant = "--rows"
        value = f" {option[2:]}" if meant == "--format" and option in _FORMATS else ""
        return f"No such option: {option}. Did you mean {meant}{value}?" if meant in known else None
    named = _NO_COMMAND.match(error.message)
    if named is None:
        return None
    known = {*getattr(command, "commands", ()), *_COMMANDS}
    close = next(iter(difflib.get_close_matches(named[1], known, n=1)), "")  # also of mistyped words of other tools
    meant = _COMMANDS.get(close)
    return f"{named[0]}. Did you mean '{meant}'?" if meant in getattr(command, "commands", ()) else None


@contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """Print ``hint`` if Ctrl-C interrupts the block and so ends the process. Must be used in the task that
    :func:`run` runs."""
    try:
        yield
    except asyncio.CancelledError:
        fail(f"interrupted. {hint}", INTERRUPTED)


@contextmanager
def to_any_reader() -> Iterator[None]:
    """Write output whose reader may have gone, such as head: the command goes on to its exit code."""
    try:
        yield
    except BrokenPipeError:
        drop_output()


def run(state: State, command: Coroutine[Any, Any, T]) -> T:
    """Run a command to its end and return its result; an error ends the process with one line and an exit code."""
    logging.basicConfig(level=logging.DEBUG if state.debug else logging.WARNING, format="%(name)s: %(message)s")
    try:
        return asyncio.run(command)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of the pipe has gone, such as head: nothing is wrong
        drop_output()
        raise typer.Exit from None
    except (typer.Exit, typer.Abort, typer.BadParameter):  # the command's own end
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, it ends the process with one line
        if state.debug:
            traceback.print_exc()
        if isinstance(error, OSError) and not isinstance(error, AsyncpqError) and error.filename is None:
            try:
                sys.stdout.flush()
            except OSError:  # the error that is told here
                drop_output()
        fail(_message(error), exit_code(error))


def _message(error: Exception) -> str:
    if isinstance(error, AsyncpqError):
        from asyncpq.cli.wording import in_options

        return in_options(str(error))
    if isinstance(error, OSError):  # of the output: all others are errors of asyncpq
        hint = " Make its folder first." if error.errno == errno.ENOENT else ""
        return f"cannot write {printable(str(error.filename or 'to stdout'))}: {error.strerror or error}.{hint}"
    if isinstance(error, ModuleNotFoundError) and (missing := missing_package(error)):
        return missing
    return f"{type(error).__name__}: {error}. This is a bug of asyncpq; --debug shows where it happened"


def exit_code(error: Exception) -> int:
    """Return the exit code of an error."""
    if isinstance(error, (InvalidOptionError, QueryError, UsageError)):
        return WRONG_USAGE
    if isinstance(error, ObjectNotFoundError):
        return NOT_FOUND
    return NOT_ALLOWED if isinstance(error, AccessDeniedError) else FAILED


def fail(message: str, code: int) -> NoReturn:
    """Write one line to stderr and end the process with ``code``."""
    raise typer.Exit(_tell(message, code))


def _tell(message: str, code: int) -> int:
    try:
        typer.echo(f"asyncpq: {' '.join(message.split())}", err=True)
    except OSError:  # the code says what there is no place to say; what stderr still holds must not change it
        drop_output(sys.stderr.fileno())
    return code
