"""The command line ``asyncpq``, with typer and rich (extra ``cli``).

A command comes in; tables, documents, progress and pages go out. The way through: ``app.py`` has the commands, each
group of them in a module of its own; ``targets.py`` gives each a session, with the options that all share, and opens
what a url names; ``arguments.py`` reads columns and keys; ``running.py`` runs a command and turns errors
into one line and an exit code, ``output.py`` writes rows and documents.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line with the arguments of the process."""
    try:
        from asyncpq.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(f"asyncpq: the command line requires {error.name}. Install it with: pip install 'asyncpq[cli]'")
    except KeyboardInterrupt:  # while modules are loaded, which takes a while
        sys.stderr.write("asyncpq: interrupted\n")
        sys.exit(130)
    app()
