"""Run a command in an event loop. An error ends the process with one line on stderr and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage (options, names, expressions), 3 not found, 4 not allowed (credentials,
rights), 5 ``lint --strict`` has findings, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
import traceback
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar, cast

import typer
from typer.core import TyperGroup

from asyncpq.cli.wording import in_options
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

FLAG: Final = " "  # metavar of options without a value: typer would write <bool>
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


class Commands(TyperGroup):
    """A group of commands that reports wrong usage like every other error: with one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **options: Any) -> Any:  # type: ignore[override]  # typer calls it by keyword
        """Run the command in ``args``. With ``standalone_mode`` the process ends afterwards."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **options)
        try:
            done = super().main(args, standalone_mode=False, **options)
        except typer.Abort:
            sys.exit(_tell("there is no answer", FAILED))
        except _UsageError as error:
            sys.exit(_tell_usage(error))
        sys.exit(done if isinstance(done, int) else 0)


def _tell_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        typer.echo(error.ctx.get_help())
        return WRONG_USAGE
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    place = "asyncpq" if error.ctx is None else error.ctx.command_path
    return _tell(f"{message[:1].lower()}{message[1:]}. `{place} --help` describes it.", WRONG_USAGE)


@contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """Print ``hint`` if Ctrl-C interrupts the block and so ends the process. Must be used in the task that
    :func:`run` runs."""
    try:
        yield
    except asyncio.CancelledError:
        fail(f"interrupted. {hint}", INTERRUPTED)


def run(state: State, command: Coroutine[Any, Any, T]) -> T:
    """Run a command to its end and return its result; an error ends the process with one line and an exit code."""
    logging.basicConfig(level=logging.DEBUG if state.debug else logging.WARNING, format="%(name)s: %(message)s")
    try:
        return asyncio.run(command)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of the pipe has gone, such as head: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
    except (typer.Exit, typer.Abort, typer.BadParameter):  # the command's own end
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, it ends the process with one line
        if state.debug:
            traceback.print_exc()
        fail(_message(error), exit_code(error))


def _message(error: Exception) -> str:
    if isinstance(error, AsyncpqError):
        return in_options(str(error))
    if isinstance(error, OSError):  # of the output: all others are errors of asyncpq
        hint = " Make its folder first." if error.errno == errno.ENOENT else ""
        return f"cannot write {printable(str(error.filename or 'to stdout'))}: {error.strerror or error}.{hint}"
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
    typer.echo(f"asyncpq: {' '.join(message.split())}", err=True)
    return code
