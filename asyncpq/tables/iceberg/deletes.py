"""Deleted rows of an Iceberg table: which delete files apply to a data file, and the rows they name.

Table spec, "Scan planning" and "Delete formats"; Puffin spec, "deletion-vector-v1".
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.model import Deletes, Reader
from asyncpq.errors import CorruptFileError, QueryError
from asyncpq.expressions import col
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.concurrency import call_each
from asyncpq.storage.urls import safe_url
from asyncpq.tables.iceberg.equality_deletes import EqualityIndex, check_parquet
from asyncpq.tables.iceberg.manifests import EQUALITY_DELETES, Entry
from asyncpq.tables.roaring import decode_roaring, unframed

_AT_ONCE = 8  # delete files of one data file
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_FILE_PATH_ID = 2147483546  # of the column file_path of every position delete file


@dataclass(frozen=True, slots=True)
class PositionDeletes:
    """Rows that position delete files name.

    Attributes:
        data_path: the data file, as the metadata writes it.
        urls: the delete files, ascending.
    """

    data_path: str
    urls: tuple[str, ...]

    @property
    def identity(self) -> Hashable:
        return ("iceberg position deletes", self.data_path, self.urls)

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Numbers of the deleted rows.

        Raises:
            CorruptFileError: a position is null or outside of the file.
        """
        found = await call_each(partial(self._positions, reader), self.urls, at_once=_AT_ONCE)
        rows = await asyncio.to_thread(_row_ranges, pa.chunked_array(found))
        if rows.stop > num_rows:
            raise CorruptFileError(
                f"row {rows.stop - 1} of {safe_url(self.data_path)} is deleted, which has {num_rows} rows",
                url=safe_url(self.urls[0]),
            )
        return rows

    async def _positions(self, reader: Reader, url: str) -> pa.Array:
        try:
            table = await reader.read_table(url, ["pos"], col("file_path") == self.data_path)
        except QueryError as error:
            raise CorruptFileError(
                "not a position delete file: no file_path of text, or no pos", url=safe_url(url)
            ) from error
        positions = table.column("pos").combine_chunks()
        if positions.type != pa.int64() or positions.null_count:
            raise CorruptFileError("a position of a deleted row is null or not a long", url=safe_url(url), column="pos")
        if len(positions) and pc.min(positions).as_py() < 0:
            raise CorruptFileError("a position of a deleted row is negative", url=safe_url(url), column="pos")
        return positions


def _row_ranges(positions: pa.ChunkedArray) -> RowRanges:
    return RowRanges.from_rows(pc.unique(positions).sort().to_pylist())


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Rows that one blob of a Puffin file names.

    Attributes:
        data_path: the data file, as the metadata writes it.
        url: the Puffin file.
        offset, size: of the blob, in bytes.
        cardinality: how many rows it names.
    """

    data_path: str
    url: str
    offset: int
    size: int
    cardinality: int

    @property
    def identity(self) -> Hashable:
        return ("iceberg deletion vector", self.url, self.offset, self.size)

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Numbers of the deleted rows.

        Raises:
            CorruptFileError: the blob is not such a vector, or not one of this file.
        """
        blob = await reader.read_bytes(self.url, self.offset, self.offset + self.size)
        try:
            rows = await asyncio.to_thread(_decode_vector, blob)
            if rows.num_rows != self.cardinality:
                raise CorruptFileError(f"deletion vector of {rows.num_rows} rows, not {self.cardinality}")
            if rows.stop > num_rows:
                raise CorruptFileError(
                    f"row {rows.stop - 1} of {safe_url(self.data_path)} is deleted, which has {num_rows} rows"
                )
        except CorruptFileError as error:
            error.locate(url=safe_url(self.url), byte_range=(self.offset, self.offset + self.size))
            raise
        return rows


def _decode_vector(blob: bytes) -> RowRanges:
    """A deletion-vector-v1 blob (Iceberg's Puffin specification): magic and bitmap, framed."""
    vector = unframed(blob)
    if vector[:4] != _VECTOR_MAGIC:
        raise CorruptFileError("deletion vector without its magic bytes")
    return decode_roaring(vector[4:])


@dataclass(frozen=True, slots=True)
class AllDeletes:
    """Rows that any of several deletes names."""

    parts: tuple[Deletes, ...]

    @property
    def identity(self) -> Hashable:
        return tuple(part.identity for part in self.parts)

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Numbers of the deleted rows."""
        deleted = RowRanges.empty()
        for part in self.parts:
            deleted |= await part.rows(reader, num_rows)
        return deleted


class DeleteIndex:
    """The delete files of a snapshot, by the data files that they may apply to."""

    def __init__(self, entries: Iterable[Entry], equality: EqualityIndex, table: str) -> None:
        """
        Args:
            entries: those of the delete manifests.
            equality: takes the equality deletes among them.
            table: names the table in errors.
        """
        self._table = table
        self._equality = equality
        self._by_path: dict[str, list[Entry]] = defaultdict(list)
        self._by_partition: dict[Hashable, list[Entry]] = defaultdict(list)
        for entry in entries:
            path = _referenced_path(entry)
            if entry.content == EQUALITY_DELETES:
                equality.add(entry)
            elif path is not None:
                self._by_path[path].append(entry)
            else:
                self._by_partition[entry.partition_key].append(entry)

    def of(self, data: Entry) -> Deletes | None:
        """What is deleted in a data file.

        Raises:
            UnsupportedFeatureError: a delete file that applies to it is not Parquet.
            CorruptFileError: two deletion vectors apply to it, or equality deletes by columns that do not exist.
        """
        parts = [part for part in (self._by_position(data), self._equality.of(data)) if part is not None]
        return AllDeletes(tuple(parts)) if len(parts) > 1 else parts[0] if parts else None

    def _by_position(self, data: Entry) -> Deletes | None:
        near = (*self._by_path.get(data.path, ()), *self._by_partition.get(data.partition_key, ()))
        applied = [entry for entry in near if _applies(entry, data)]
        vectors = [entry for entry in applied if entry.format == "PUFFIN"]
        if len(vectors) > 1:
            raise CorruptFileError(
                f"{self._table} has {len(vectors)} deletion vectors for one file", url=safe_url(data.url)
            )
        if vectors:  # it holds what position deletes before it said
            return _vector(vectors[0], data)
        if not applied:
            return None
        check_parquet(applied, self._table)
        return PositionDeletes(data.path, tuple(sorted({entry.url for entry in applied})))


def _referenced_path(entry: Entry) -> str | None:
    """The one data file that a position delete file or vector speaks of, if it says so."""
    if entry.referenced_path is not None:
        return entry.referenced_path
    low, high = entry.lower_bounds.get(_FILE_PATH_ID), entry.upper_bounds.get(_FILE_PATH_ID)
    if low is not None and low == high:
        return low.decode("utf-8", "replace")
    return None


def _applies(delete: Entry, data: Entry) -> bool:
    if data.sequence_number > delete.sequence_number:
        return False
    path = data.path.encode()
    low, high = delete.lower_bounds.get(_FILE_PATH_ID), delete.upper_bounds.get(_FILE_PATH_ID)
    return (low is None or low <= path) and (high is None or path <= high)


def _vector(entry: Entry, data: Entry) -> DeletionVector:
    if entry.content_offset is None or entry.content_size is None or entry.referenced_path is None:
        raise CorruptFileError("deletion vector without its place in the file", url=safe_url(entry.url))
    if entry.content_offset < 0 or entry.content_size < 0:
        raise CorruptFileError(
            f"deletion vector at {entry.content_offset}, {entry.content_size} bytes", url=safe_url(entry.url)
        )
    return DeletionVector(data.path, entry.url, entry.content_offset, entry.content_size, entry.num_rows)
