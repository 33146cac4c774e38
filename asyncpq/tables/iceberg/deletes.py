"""Deleted rows of an Iceberg table: which delete files apply to a data file, and the positions in them.

Table spec, "Scan planning" and "Delete formats". :mod:`asyncpq.tables.iceberg.equality_deletes` handles equality
deletes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterable
from functools import partial

from asyncpq.datasets.model import CatalogReader, Deletes
from asyncpq.errors import CorruptFileError, QueryError, located
from asyncpq.expressions import col
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.storage.threads import call_each
from asyncpq.storage.urls import safe_url
from asyncpq.tables.deleted_rows import DeletionVector, check_deleted, decode_positions
from asyncpq.tables.iceberg.equality_deletes import EqualityIndex, check_parquet
from asyncpq.tables.iceberg.manifests import EQUALITY_DELETES, ManifestFileEntry

_CONCURRENT_FILES = 8  # delete files of one data file
_FILE_PATH_ID = 2147483546  # field id of the column file_path in every position delete file


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """The rows of a data file that position delete files delete."""

    data_path: str  # the data file, as the metadata writes it
    urls: tuple[str, ...]  # the delete files, ascending

    @property
    def identity(self) -> Hashable:
        return ("iceberg position deletes", self.data_path, self.urls)

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        """Read the delete files; return the numbers of the deleted rows in a data file of ``num_rows`` rows."""
        rows = RowRanges.empty()
        for deleted in await call_each(partial(self._positions, reader), self.urls, at_once=_CONCURRENT_FILES):
            rows |= deleted
        with located(url=safe_url(self.urls[0])):
            check_deleted(rows, num_rows, self.data_path)
        return rows

    async def _positions(self, reader: CatalogReader, url: str) -> RowRanges:
        try:
            table = await reader.read_table(url, ["pos"], col("file_path") == self.data_path)
        except QueryError as error:
            raise CorruptFileError(
                "the file is not a position delete file: it has no column pos, or no column file_path of text",
                url=safe_url(url),
            ) from error
        return await asyncio.to_thread(decode_positions, table["pos"], url, reader.limits)


@dataclass(frozen=True, slots=True)
class CombinedDeletes:
    """The rows of a data file that at least one of several kinds of deletes removes."""

    parts: tuple[Deletes, ...]

    @property
    def identity(self) -> Hashable:
        return tuple(part.identity for part in self.parts)

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        """Return the numbers of the deleted rows in a data file of ``num_rows`` rows."""
        deleted = RowRanges.empty()
        for part in self.parts:
            deleted |= await part.rows(reader, num_rows)
        return deleted


class DeleteIndex:
    """The delete files of a snapshot, keyed by the data file or partition that they may apply to."""

    def __init__(self, entries: Iterable[ManifestFileEntry], equality: EqualityIndex, table: str) -> None:
        """Sort the ``entries`` of the delete manifests by what they apply to; equality deletes are added to
        ``equality``."""
        self._table = table
        self._equality = equality
        self._by_path: dict[str, list[ManifestFileEntry]] = defaultdict(list)
        self._by_partition: dict[Hashable, list[ManifestFileEntry]] = defaultdict(list)
        for entry in entries:
            path = _referenced_path(entry)
            if entry.content == EQUALITY_DELETES:
                equality.add(entry)
            elif path is not None:
                self._by_path[path].append(entry)
            else:
                self._by_partition[entry.partition_key].append(entry)

    def deletes_of(self, data: ManifestFileEntry) -> Deletes | None:
        """Return the deletes that apply to a data file; None if no delete applies."""
        parts = [part for part in (self._by_position(data), self._equality.deletes_of(data)) if part is not None]
        return CombinedDeletes(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None

    def _by_position(self, data: ManifestFileEntry) -> Deletes | None:
        candidates = (*self._by_path.get(data.path, ()), *self._by_partition.get(data.partition_key, ()))
        applied = [entry for entry in candidates if _applies(entry, data)]
        vectors = [entry for entry in applied if entry.format == "PUFFIN"]
        if len(vectors) > 1:
            raise CorruptFileError(
                f"{self._table} has {len(vectors)} deletion vectors for one data file, at most one is allowed",
                url=safe_url(data.url),
            )
        if vectors:  # a vector replaces the position deletes before it
            return _vector(vectors[0], data)
        if not applied:
            return None
        check_parquet(applied, self._table)
        return PositionDeletes(data.path, tuple(sorted({entry.url for entry in applied})))


def _referenced_path(entry: ManifestFileEntry) -> str | None:
    """Return the path of the only data file that a delete file applies to; None if it may apply to several."""
    if entry.referenced_path is not None:
        return entry.referenced_path
    low, high = entry.lower_bounds.get(_FILE_PATH_ID), entry.upper_bounds.get(_FILE_PATH_ID)
    if low is not None and low == high:
        return low.decode("utf-8", "replace")
    return None


def _applies(delete: ManifestFileEntry, data: ManifestFileEntry) -> bool:
    if data.sequence_number > delete.sequence_number:
        return False
    path = data.path.encode()
    low, high = delete.lower_bounds.get(_FILE_PATH_ID), delete.upper_bounds.get(_FILE_PATH_ID)
    return (low is None or low <= path) and (high is None or path <= high)


def _vector(entry: ManifestFileEntry, data: ManifestFileEntry) -> DeletionVector:
    missing = [
        name
        for name, value in [
            ("content_offset", entry.content_offset),
            ("content_size_in_bytes", entry.content_size),
            ("referenced_data_file", entry.referenced_path),
        ]
        if value is None
    ]
    if entry.content_offset is None or entry.content_size is None or entry.referenced_path is None:
        raise CorruptFileError(
            f"the manifest's entry for this deletion vector lacks {' and '.join(missing)}",
            url=safe_url(entry.url),
            hint="The manifest is at fault, not the file of vectors: report it to the maker of the table's writer.",
        )
    if entry.content_offset < 0 or entry.content_size < 0:
        raise CorruptFileError(
            f"the manifest places a deletion vector at byte {entry.content_offset} with {entry.content_size} bytes:"
            " neither may be negative",
            url=safe_url(entry.url),
        )
    return DeletionVector(
        url=entry.url,
        start=entry.content_offset,
        stop=entry.content_offset + entry.content_size,
        cardinality=entry.num_rows,
        data_url=data.path,
    )
