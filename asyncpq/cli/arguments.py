"""The arguments for columns, keys and conditions: keys get the types of their columns, and shells complete names.

Names are completed from the footer of the file or dataset that the command line names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import pyarrow as pa

from asyncpq.cli.parameters import Option
from asyncpq.engine.shown_rows import key_value
from asyncpq.errors import AsyncpqError, InvalidOptionError

_WAIT_S: Final = 5.0  # for a store; a shell waits for its completions


def complete_columns(url: str | None, incomplete: str) -> list[str]:
    """Return the texts to which a list of columns of the file at ``url``, such as ``id,us``, can be completed."""
    before, comma, name = incomplete.rpartition(",")
    taken = set(before.split(","))
    return [f"{before}{comma}{column}" for column in _columns(url) if column.startswith(name) and column not in taken]


def complete_key(url: str | None, incomplete: str) -> list[str]:
    """Return the texts to which the beginning of a ``NAME=VALUE`` can be completed: the names of the columns."""
    return [f"{column}=" for column in _columns(url) if f"{column}=".startswith(incomplete)]


def _columns(url: str | None) -> list[str]:
    """Return the names of the columns of the file or dataset at ``url``, with the store's options in the
    environment."""
    if not url:
        return []
    import asyncio

    from asyncpq.cli.session_arguments import SessionArguments
    from asyncpq.cli.url_targets import ReadSource, opened

    async def names() -> list[str]:
        async with SessionArguments().session() as session, opened(session, ReadSource(url)) as target:
            return list(target.schema.names)

    try:
        return asyncio.run(asyncio.wait_for(names(), _WAIT_S))
    except (AsyncpqError, OSError, TimeoutError):
        return []  # a shell has no place for an error: the command itself tells it


Keys = Annotated[
    list[str],
    Option(
        "--key",
        metavar="NAME=VALUE",
        help="A key column and its value, such as id=42. Again for the same column: one of several values; "
        "for other columns: values that belong together.",
        show_default=False,
        completes=complete_key,
    ),
]
OptionalKeys = Annotated[
    list[str] | None,
    Option(
        "--key",
        metavar="NAME=VALUE",
        help="Look up a key, such as id=42; as in asyncpq lookup.",
        show_default=False,
        completes=complete_key,
    ),
]
Columns = Annotated[
    str | None,
    Option(
        "--columns",
        metavar="A,B,...",
        help="Names of columns, with commas between them. All without it.",
        completes=complete_columns,
    ),
]

Where = Annotated[
    str | None,
    Option(
        "--where", metavar="SQL", help="The condition after WHERE in SQL, such as: \"id = 42 AND day >= '2024-05-01'\"."
    ),
]
Limit = Annotated[int | None, Option("-n", "--limit", metavar="N", help="At most this many rows.", min=0)]


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows that a command reads: the first that match a condition."""

    columns: Columns = None
    where: Where = None
    limit: Limit = None


def parse_columns(text: str | None) -> list[str] | None:
    """Split a text such as ``a,b.c`` into names of columns. Returns None, which means all columns, if ``text`` is None.

    Raises InvalidOptionError if there is no name in ``text``.
    """
    names = None if text is None else [name for part in text.split(",") if (name := part.strip())]
    if names == []:
        raise InvalidOptionError("--columns has no column name", hint="Leave the option out to read all columns.")
    return names


def parse_keys(texts: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    """Convert arguments ``name=value`` to the ``keys`` of a lookup, each value in the type of its column in ``schema``.

    A column that occurs several times has the list of its values. Times without a zone are UTC where the column has a
    zone; bytes are text, or hexadecimal after ``0x``.

    Raises:
        InvalidOptionError: an argument has no ``=``, or its value does not fit the column's type.
        ColumnNotFoundError: ``schema`` has no such column.
    """
    values: dict[str, list[Any]] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidOptionError(f"--key {text}: must be NAME=VALUE, such as id=42")
        try:
            values.setdefault(name, []).append(key_value(name, value, schema))
        except InvalidOptionError as error:
            raise InvalidOptionError(f"--key {text}: {error.message}") from error
    return {name: several if len(several) > 1 else several[0] for name, several in values.items()}
