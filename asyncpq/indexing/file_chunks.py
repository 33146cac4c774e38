"""Column chunks of one file, parsed once for all parts of an index that are made of its footer."""

from __future__ import annotations

from typing import Final

from asyncpq.format.column_chunk import ColumnChunk
from asyncpq.format.row_group import RowGroup

#: So many are kept, of about 1 KB each: a footer may have 100,000.
_MAX_KEPT: Final = 4096


class FileChunks:
    """Those of one version; dropped with what is made of them, as reads of it want few."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], ColumnChunk] = {}

    def parse(self, group: RowGroup, leaf: int) -> ColumnChunk:
        """As :meth:`asyncpq.format.row_group.RowGroup.parse_chunk`."""
        place = group.ordinal, leaf
        chunk = self._kept.get(place)
        if chunk is None:
            chunk = group.parse_chunk(leaf)
            if len(self._kept) < _MAX_KEPT:
                self._kept[place] = chunk
        return chunk
