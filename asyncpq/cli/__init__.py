"""The command line ``asyncpq``, with typer and rich (extra ``cli``).

A command comes in; tables, documents, progress and pages go out. ``command_table.py`` lists the commands and writes
the first page of the help; each group of commands has a module, which is loaded when one of them runs.
``parameters.py`` reads command lines that are complete and right; ``commands.py`` gives all others to typer, which
takes long to load. ``arguments.py`` has the options that commands share, and makes the session of a command;
``url_targets.py`` opens what a url names. ``running.py`` runs a command and turns an error into one line and an exit
code. ``rows.py`` writes rows, ``output.py`` documents, tables and page maps.
"""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line with the arguments of the process, and end the process."""
    gc.disable()  # until a command runs: what is loaded until then stays
    _open_closed_streams()
    code: object = 0
    try:
        _run(sys.argv[1:])
    except SystemExit as end:
        code = end.code
    except ModuleNotFoundError as error:
        message = missing_package(error)
        if message is None:
            raise
        code = f"asyncpq: {message}"
    except KeyboardInterrupt:  # while modules are loaded, which takes a while
        sys.stderr.write("asyncpq: interrupted\n")
        code = 130
    except OSError as error:
        if error.filename is not None:
            raise
        code = _cannot_write(error)
    gc.enable()
    try:
        sys.stdout.flush()
    except OSError as error:  # Python's own last flush would end the process with code 120
        code = _cannot_write(error) or code
    sys.exit(code)  # type: ignore[arg-type]  # a text is written to stderr, and the code is 1


def _cannot_write(error: OSError) -> str | None:
    """Drop what stdout still holds, and return what to say; None if the reader of a pipe has gone, such as head."""
    drop_output()
    if isinstance(error, BrokenPipeError):
        return None
    return f"asyncpq: cannot write to stdout: {error.strerror or error}."


def drop_output(descriptor: int | None = None) -> None:
    """Send what the stream of a descriptor, by default stdout, holds and gets from now on nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno() if descriptor is None else descriptor)
    os.close(nowhere)


def _open_closed_streams() -> None:
    """Open the standard streams that the process was started without, as by ``>&-``: what it opens next would have
    their numbers. Writes to stdout then fail, as they do in other programs, and stderr and stdin are empty."""
    for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _run(arguments: list[str]) -> None:
    completes = any(name.endswith("_COMPLETE") for name in os.environ)  # a shell asks typer for completions
    if not completes and arguments == ["--version"]:
        from asyncpq import __version__

        sys.stdout.write(f"asyncpq {__version__}\n")
        sys.stdout.flush()
        return
    if not completes and arguments in ([], ["--help"], ["-h"]):
        from asyncpq.cli.command_table import print_help_page

        print_help_page()
        sys.exit(0 if arguments else 2)
    if not completes and _run_complete(arguments):
        return
    from asyncpq.cli.commands import app

    app()


def _run_complete(words: list[str]) -> bool:
    """Run the command that a complete and right command line names; return whether it is one."""
    from asyncpq.cli.parameters import complete_call

    debug = words[:1] == ["--debug"]
    call = complete_call(words[1:] if debug else words)
    if call is None:
        return False
    from asyncpq.cli.running import PROCESS, CommandExit

    PROCESS.debug = debug
    try:
        call()
    except CommandExit as end:
        sys.exit(end.code)
    return True


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return what to say of a missing package of the extra ``cli``; None if another module is missing."""
    if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
        return None
    from asyncpq.errors import install_hint

    return f"the command line requires {error.name}. {install_hint('it', 'cli')}"
