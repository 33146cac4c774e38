"""How a command runs: one event loop, one line for an error, one exit code for each kind of end.

Exit codes: 0 done, 1 failed, 2 wrong usage (options, names, expressions), 3 not found, 4 not allowed (credentials,
rights), 5 ``lint --strict`` has findings, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import typer

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    InvalidOptionError,
    ObjectNotFoundError,
    QueryError,
    UsageError,
)

T = TypeVar("T")

FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_FOUND: Final = 3
NOT_ALLOWED: Final = 4
FINDINGS: Final = 5
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class State:
    """The options that stand before the command."""

    debug: bool = False


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
    if isinstance(error, (AsyncpqError, OSError)):  # an OSError is of the output file
        return str(error)
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
    typer.echo(f"asyncpq: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)
