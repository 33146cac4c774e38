"""Complete names of columns in a shell, from the footer of the file or dataset that the command line names.

The store's options are those of the environment.
"""

from __future__ import annotations

import asyncio
from typing import Final

from asyncpq.cli.session_arguments import SessionArguments, opened
from asyncpq.errors import AsyncpqError

_WAIT_S: Final = 5.0  # for a store; a shell waits for its completions


def column_lists(url: str | None, incomplete: str) -> list[str]:
    """Return the texts to which a list of columns of the file at ``url``, such as ``id,us``, can be completed."""
    before, comma, name = incomplete.rpartition(",")
    taken = set(before.split(","))
    return [f"{before}{comma}{column}" for column in _columns(url) if column.startswith(name) and column not in taken]


def keys(url: str | None, incomplete: str) -> list[str]:
    """Return the texts to which the beginning of a ``NAME=VALUE`` can be completed: the names of the columns."""
    return [f"{column}=" for column in _columns(url) if f"{column}=".startswith(incomplete)]


def _columns(url: str | None) -> list[str]:
    if not url:
        return []

    async def names() -> list[str]:
        async with SessionArguments().session() as session, opened(session, url) as target:
            return list(target.schema.names)

    try:
        return asyncio.run(asyncio.wait_for(names(), _WAIT_S))
    except (AsyncpqError, OSError, TimeoutError):
        return []  # a shell has no place for an error: the command itself tells it
