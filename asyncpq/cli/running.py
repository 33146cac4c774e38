"""Run a command in an event loop. An error ends the process with one line on stderr and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage (options, names, expressions), 3 not found, 4 not allowed (credentials,
rights), 5 ``lint --strict`` has findings other than notes, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import sys
import traceback
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from asyncpq.cli import drop_output, missing_package
from asyncpq.cli.output import write_line
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

FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_FOUND: Final = 3
NOT_ALLOWED: Final = 4
FINDINGS: Final = 5
INTERRUPTED: Final = 130


@dataclass(slots=True)
class Process:
    """Options before the command, such as ``--debug``."""

    debug: bool = False


PROCESS: Final = Process()


class CommandExit(Exception):  # noqa: N818  # no error: it also ends a command that is done
    """A command ends with an exit code, after it has said why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """Print ``hint`` if Ctrl-C interrupts the ``with`` block and so ends the process. Must be used in the task that
    :func:`run` runs."""
    try:
        yield
    except asyncio.CancelledError:
        fail(f"interrupted. {hint}", INTERRUPTED)


@contextmanager
def to_any_reader() -> Iterator[None]:
    """Ignore in the ``with`` block that the reader of the output has gone, such as head: the command goes on to its
    exit code."""
    try:
        yield
    except BrokenPipeError:
        drop_output()


def run(command: Coroutine[Any, Any, T], options: Mapping[str, str] | None = None) -> T:
    """Run a command to its end and return its result; an error ends the process with one line and an exit code.
    ``options``: those of the command by the names of its parameters, as errors spell them."""
    logging.basicConfig(level=logging.DEBUG if PROCESS.debug else logging.WARNING, format="%(name)s: %(message)s")
    if not gc.isenabled():  # since the process began
        gc.freeze()
        gc.enable()
    try:
        return asyncio.run(command)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of the pipe has gone, such as head: nothing is wrong
        drop_output()
        raise CommandExit(0) from None
    except CommandExit:
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, it ends the process with one line
        if PROCESS.debug:
            traceback.print_exc()
        if isinstance(error, OSError) and not isinstance(error, AsyncpqError) and error.filename is None:
            try:
                sys.stdout.flush()
            except OSError:  # the error that is told here
                drop_output()
        fail(_message(error, options or {}), exit_code(error))


def _message(error: Exception, options: Mapping[str, str]) -> str:
    if isinstance(error, AsyncpqError):
        return error.command_text(options)
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
    raise CommandExit(tell(message, code))


def tell(message: str, code: int) -> int:
    """Write one line to stderr and return ``code``."""
    try:
        write_line(f"asyncpq: {' '.join(message.split())}", err=True)
    except OSError:  # the code says what there is no place to say; what stderr still holds must not change it
        drop_output(sys.stderr.fileno())
    return code
