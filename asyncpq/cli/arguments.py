"""Parsing of the arguments for columns and keys: values of keys get the types of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa

from asyncpq.cli.parameters import Option
from asyncpq.engine.shown_rows import key_value
from asyncpq.errors import InvalidOptionError


def _column_lists(url: str | None, incomplete: str) -> list[str]:
    """Complete the last name of ``--columns a,b,``."""
    from asyncpq.cli.completion import column_lists

    return column_lists(url, incomplete)


def _keys(url: str | None, incomplete: str) -> list[str]:
    """Complete the name of a ``--key``."""
    from asyncpq.cli.completion import keys

    return keys(url, incomplete)


Keys = Annotated[
    list[str],
    Option(
        "--key",
        metavar="NAME=VALUE",
        help="A key column and its value, such as id=42. Again for the same column: one of several values; "
        "for other columns: values that belong together.",
        show_default=False,
        completes=_keys,
    ),
]
OptionalKeys = Annotated[
    list[str] | None,
    Option(
        "--key",
        metavar="NAME=VALUE",
        help="Look up a key, such as id=42; as in asyncpq lookup.",
        show_default=False,
        completes=_keys,
    ),
]
Columns = Annotated[
    str | None,
    Option(
        "--columns",
        metavar="A,B,...",
        help="Names of columns, with commas between them. All without it.",
        completes=_column_lists,
    ),
]


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
