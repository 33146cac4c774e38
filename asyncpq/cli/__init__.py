"""The command line ``asyncpq``, with typer and rich (extra ``cli``).

A command comes in; tables, documents, progress and pages go out. ``command_table.py`` lists the commands; each group of
commands has a module, which ``commands.py`` loads when one of them runs. ``help_page.py`` writes the first page of the
help, without typer. ``session_arguments.py`` makes the session of a command from the options that all commands share,
and opens the file or dataset at a url. ``arguments.py`` parses columns and keys. ``running.py`` runs a command and
turns an error into one line and an exit code. ``rows.py`` writes rows, ``output.py`` documents.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line with the arguments of the process."""
    try:
        _run(sys.argv[1:])
    except ModuleNotFoundError as error:
        message = missing_package(error)
        if message is None:
            raise
        sys.exit(f"asyncpq: {message}")
    except KeyboardInterrupt:  # while modules are loaded, which takes a while
        sys.stderr.write("asyncpq: interrupted\n")
        sys.exit(130)
    except OSError as error:
        if error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what stdout still holds at the end
        if not isinstance(error, BrokenPipeError):  # otherwise the reader of the pipe has gone, such as head
            sys.exit(f"asyncpq: cannot write to stdout: {error.strerror or error}.")


def _run(arguments: list[str]) -> None:
    completes = any(name.endswith("_COMPLETE") for name in os.environ)  # a shell asks typer for completions
    if not completes and arguments == ["--version"]:
        from asyncpq import __version__

        sys.stdout.write(f"asyncpq {__version__}\n")
        sys.stdout.flush()
        return
    if not completes and arguments in ([], ["--help"], ["-h"]):
        from asyncpq.cli.help_page import print_help_page

        print_help_page()
        sys.exit(0 if arguments else 2)
    from asyncpq.cli.commands import app

    app()


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return what to say of a missing package of the extra ``cli``; None if another module is missing."""
    if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
        return None
    from asyncpq.errors import install_hint

    return f"the command line requires {error.name}. {install_hint('it', 'cli')}"
