"""Nested columns of tables: their dotted paths, and the type of VARIANT columns, structs of the bytes of Parquet's
variant encoding.

Paths are bounded: each repeats the names above it, so a small schema could fill the memory.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from asyncpq.datasets.model import TableField
from asyncpq.errors import ResourceLimitError

_MAX_CHARACTERS = 64 << 20  # of all paths of a schema: 256 for each of as many columns as LimitOptions allows a file
VARIANT_PARTS: Final = tuple(TableField(name=name, type=pa.binary(), nullable=False) for name in ("metadata", "value"))
VARIANT_TYPE: Final = pa.struct([pa.field(part.name, part.type, part.nullable) for part in VARIANT_PARTS])


class ColumnPaths:
    """Joins the names of one schema's nested columns to paths."""

    def __init__(self) -> None:
        self._left = _MAX_CHARACTERS

    def join(self, parent: str, name: str) -> str:
        """Return the path of the column ``name`` in the column ``parent``, which is empty for a top-level column.

        Raises ResourceLimitError if the schema's paths take too much memory.
        """
        if not parent:
            return name
        self._left -= len(parent) + len(name)
        if self._left < 0:
            raise ResourceLimitError(
                f"the paths of the table's nested columns have more than {_MAX_CHARACTERS} characters",
                hint="Shorten the names of columns that have others inside.",
            )
        return f"{parent}.{name}"
