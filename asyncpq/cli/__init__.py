"""The command line ``asyncpq``, with typer and rich (extra ``cli``).

A command comes in; tables, documents, progress and pages go out. ``commands.py`` lists the commands; each group of
commands has a module. ``session_arguments.py`` makes the session of a command from the options that all commands share,
and opens the file or dataset at a url. ``arguments.py`` parses columns and keys. ``running.py`` runs a command and
turns an error into one line and an exit code. ``rows.py`` writes rows, ``output.py`` documents.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line with the arguments of the process."""
    try:
        from asyncpq.cli.commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(f"asyncpq: the command line requires {error.name}. Install it, as the extra asyncpq[cli] does.")
    except KeyboardInterrupt:  # while modules are loaded, which takes a while
        sys.stderr.write("asyncpq: interrupted\n")
        sys.exit(130)
    app()
