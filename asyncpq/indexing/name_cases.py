"""Columns of files that differ from a dataset's by the case of letters alone.

To asyncpq they are other columns, to Spark by default the same ones. What an index says of such a file would be right
for one of them only, so it says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import pyarrow as pa

from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.decoding.conform import children_of
from asyncpq.decoding.types import field_types
from asyncpq.errors import AmbiguousColumnError, AsyncpqError

_MOST_KEPT: Final = 64
_NONE: Final[frozenset[str]] = frozenset()


class NameCases:
    """What files of one dataset have to say; most have the columns of others.

    Args:
        schema: the dataset's.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._known: dict[tuple[object, ...], str | None] = {}

    def check(self, opened: OpenedFile) -> AmbiguousColumnError | None:
        """Why nothing is to be said of the file; None: there is no such column."""
        partitions = opened.file.partition.keys()
        key = (*opened.schema_bytes, *sorted(partitions))
        if key not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = self._find(opened, partitions)
        name = self._known[key]
        if name is None:
            return None
        return AmbiguousColumnError(
            "the dataset has the column in another case: Spark takes both for the same, so the index leaves the file to"
            " its footer",
            url=opened.version.url,
            column=name,
            hint="Write the file anew with the dataset's names.",
        )

    def _find(self, opened: OpenedFile, partitions: Collection[str]) -> str | None:
        opened.share_types(_NONE)
        fields = opened.version.metadata.schema.fields
        names = [field.name for field in fields]
        found = _other_case(self._schema.names, names, partitions)
        if found is not None:
            return found
        for field in fields:
            at = self._schema.get_field_index(field.name)
            if at < 0 or not pa.types.is_nested(self._schema.field(at).type):
                continue
            try:
                (own,) = field_types(opened.version, [field.index], _NONE)
            except AsyncpqError:  # whoever reads it is told
                continue
            inner = _inside(self._schema.field(at).type, own.arrow.type)
            if inner is not None:
                return f"{field.name}.{inner}"
        return None


def _inside(known: pa.DataType, own: pa.DataType) -> str | None:
    if isinstance(known, pa.StructType) and isinstance(own, pa.StructType):
        found = _other_case([one.name for one in known], [one.name for one in own], ())
        if found is not None:
            return found
        pairs = [(one.name, one.type, own.field(one.name).type) for one in known if own.get_field_index(one.name) >= 0]
    elif isinstance(known, pa.MapType) is isinstance(own, pa.MapType):
        both = zip(children_of(known), children_of(own), strict=False)  # none where one is of another shape
        pairs = [(one.name, one.type, other.type) for one, other in both]
    else:
        return None
    for name, here, there in pairs:
        inner = _inside(here, there)
        if inner is not None:
            return f"{name}.{inner}"
    return None


def _other_case(known: Iterable[str], own: Iterable[str], skip: Collection[str]) -> str | None:
    exact = {*known}
    lower = {name.lower() for name in exact if name not in skip}
    return next((name for name in own if name not in exact and name.lower() in lower), None)
