"""The least bytes that answer a lookup: the pages that hold the row, and their dictionaries.

No reader can fetch less without keeping data from before. One round trip cannot know the row, only the
key's page, and has to take every page of the other columns that overlaps it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from asyncpq.parquet.metadata import FileMetadata, decode_file_metadata
from asyncpq.parquet.page_index import OffsetIndex, decode_offset_index


class Pages:
    """Which bytes of a file hold which rows, from its OffsetIndexes."""

    def __init__(self, file: Path) -> None:
        self._content = file.read_bytes()
        length = int.from_bytes(self._content[-8:-4], "little")
        self._metadata: FileMetadata = decode_file_metadata(self._content[-8 - length : -8])
        self._first_rows = [group.first_row for group in self._metadata.row_groups]
        self._indexes: dict[tuple[int, int], OffsetIndex] = {}
        self.num_rows = self._metadata.num_rows

    def bytes_of_row(self, row: int, columns: Sequence[str]) -> int:
        """Bytes of the pages of ``columns`` that hold ``row``, dictionaries included."""
        ordinal = bisect_right(self._first_rows, row) - 1
        in_group = row - self._first_rows[ordinal]
        total = 0
        for column in columns:
            leaf = self._metadata.schema.projection(column).leaves[0]
            index = self._index(ordinal, leaf)
            total += index.sizes[bisect_right(index.first_rows, in_group) - 1]
            total += index.offsets[0] - self._metadata.row_groups[ordinal].chunk(leaf).start  # the dictionary
        return total

    def _index(self, ordinal: int, leaf: int) -> OffsetIndex:
        index = self._indexes.get((ordinal, leaf))
        if index is None:
            chunk = self._metadata.row_groups[ordinal].chunk(leaf)
            start, length = chunk.offset_index_offset, chunk.offset_index_length
            if start is None or length is None:
                raise ValueError("the file has no OffsetIndex")
            index = decode_offset_index(self._content[start : start + length])
            self._indexes[ordinal, leaf] = index
        return index


def lookup_bytes(file: Path, rows: Sequence[int], columns: Sequence[str]) -> float:
    """Mean over ``rows`` of the least bytes that a lookup of one of them needs.

    Args:
        file: or a folder of files, in the order of their names, of equal numbers of rows but for the last.
    """
    if not file.is_dir():
        pages = Pages(file)
        return fmean(pages.bytes_of_row(row, columns) for row in rows)
    files = sorted(file.iterdir())
    size = Pages(files[0]).num_rows
    return fmean(Pages(files[row // size]).bytes_of_row(row % size, columns) for row in rows)
