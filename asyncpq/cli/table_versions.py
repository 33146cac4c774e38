"""The version of a table that a command reads: ``--version`` and ``--at``."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

from asyncpq.cli.parameters import Option
from asyncpq.errors import InvalidOptionError

if TYPE_CHECKING:
    from asyncpq.typing import TableVersion

VersionName = Annotated[
    str | None,
    Option(
        "--version",
        metavar="VERSION",
        help="Of a table: a version of Delta; a snapshot id, branch or tag of Iceberg; a snapshot of DuckLake.",
        show_default=False,
    ),
]
AtTime = Annotated[
    str | None,
    Option(
        "--at",
        metavar="TIME",
        help="Of a table: its version at this time, such as 2026-05-01T12:00:00; UTC without an offset.",
        show_default=False,
    ),
]


def version_of(version: str | None, at: str | None) -> TableVersion | None:
    """Return the version that the two options name; None for the current one.

    Raises InvalidOptionError if both are given, or ``at`` is no time in ISO 8601.
    """
    if version is not None and at is not None:
        raise InvalidOptionError("both --version and --at name a version of the table", hint="Pass only one of them.")
    if at is None:
        return int(version) if version is not None and version.isascii() and version.isdigit() else version
    try:
        time = dt.datetime.fromisoformat(at)
    except ValueError:
        raise InvalidOptionError(
            f"--at {at} is not a time", hint="Write it in ISO 8601, such as 2026-05-01 or 2026-05-01T12:00:00+02:00."
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
