"""What a read of a dataset gives, whatever its files have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyarrow as pa

from asyncpq.decoding.conform import lacking
from asyncpq.decoding.file_view import FileView
from asyncpq.decoding.resolution import ColumnNames
from asyncpq.fetching.version import FileVersion


def output_schema(
    schema: pa.Schema, columns: ColumnNames | None, keys: Sequence[str], read_dictionary: Sequence[str]
) -> pa.Schema:
    """The fields asked for, and behind them those of ``keys``.

    Args:
        schema: the dataset's.
        columns: names, dotted paths of parts, or ordinals; None for all.
        keys: names, or dotted paths of parts.
        read_dictionary: names of columns that come as dictionary arrays.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: no such column, several, or one asked for twice.
    """
    nothing = cast("FileVersion", None)  # the view of no file: every column is lacking
    view = FileView(schema, {}, b"", lambda _, ordinals: [lacking(schema.field(at)) for at in ordinals])
    dictionaries = frozenset(view.ordinals(read_dictionary))
    found = view.columns(nothing, view.ordinals(columns), frozenset(), dictionaries=dictionaries)
    for key in keys:
        found += view.columns(nothing, view.ordinals([key]), frozenset(), dictionaries=dictionaries)
    return pa.schema([column.field for column in found])
