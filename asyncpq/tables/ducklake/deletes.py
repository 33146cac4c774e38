"""Which rows of a DuckLake's data file are not in a snapshot: deleted ones, and later ones of merged files."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.model import Reader
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.urls import safe_url
from asyncpq.tables.roaring import decode_roaring, unframed

SNAPSHOT_COLUMN = "_ducklake_internal_snapshot_id"
_MAGIC = b"\xd1\xd3\x39\x64"  # of a deletion-vector-v1 blob (Iceberg's Puffin specification)
_PUFFIN = b"PFA1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A file of deleted rows.

    Attributes:
        url: where it is.
        format: "parquet" (columns ``pos``, perhaps a snapshot id), or "puffin" (one deletion vector).
    """

    url: str
    format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeDeletes:
    """See :class:`asyncpq.datasets.model.Deletes`.

    Attributes:
        data_url: the data file, whose rows may say of which snapshot they are.
        snapshot: rows deleted, or added, after it do not count.
        files: delete files.
        inlined: deleted rows that the catalog names.
        later_rows: the data file also holds rows of later snapshots.
        visible_rows: only so many of the first rows are of the snapshot; None for all.
    """

    data_url: str
    snapshot: int
    files: tuple[DeleteFile, ...] = ()
    inlined: RowRanges
    later_rows: bool = False
    visible_rows: int | None = None

    @property
    def identity(self) -> Hashable:
        """Files are immutable, but what of them counts depends on the snapshot."""
        return self

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Numbers of the rows that are not in the snapshot."""
        gone = self.inlined
        for file in self.files:
            gone = gone | await self._deleted(reader, file)
        if self.later_rows:
            gone = gone | await self._later(reader, num_rows)
        if gone.stop > num_rows:
            raise CorruptFileError(
                f"row {gone.stop - 1} is deleted, of a file of {num_rows} rows", url=safe_url(self.data_url)
            )
        if self.visible_rows is not None:
            gone = gone | RowRanges([(self.visible_rows, num_rows)])
        return gone

    async def _deleted(self, reader: Reader, file: DeleteFile) -> RowRanges:
        shown = safe_url(file.url)
        if file.format == "puffin":
            return await asyncio.to_thread(_of_vector, await reader.read_bytes(file.url), shown)
        table = await reader.read_table(file.url)
        return await asyncio.to_thread(self._positions, table, shown)

    def _positions(self, table: pa.Table, url: str) -> RowRanges:
        if "pos" not in table.column_names or not pa.types.is_int64(table.schema.field("pos").type):
            raise CorruptFileError("a delete file without positions", url=url, column="pos")
        if SNAPSHOT_COLUMN in table.column_names:
            snapshots = table[SNAPSHOT_COLUMN]
            if snapshots.null_count:
                raise CorruptFileError("a deleted row without a snapshot", url=url, column=SNAPSHOT_COLUMN)
            table = table.filter(pc.less_equal(snapshots, self.snapshot))
        positions = table["pos"]
        if positions.null_count or (table.num_rows and pc.min(positions).as_py() < 0):
            raise CorruptFileError("a deleted row without a number", url=url, column="pos")
        return RowRanges.from_rows(sorted(positions.to_pylist()))

    async def _later(self, reader: Reader, num_rows: int) -> RowRanges:
        table = await reader.read_table(self.data_url, columns=[SNAPSHOT_COLUMN])
        snapshots = table[SNAPSHOT_COLUMN]
        if snapshots.null_count or len(snapshots) != num_rows:
            raise CorruptFileError(
                "a merged file whose rows do not all say of which snapshot they are",
                url=safe_url(self.data_url),
                column=SNAPSHOT_COLUMN,
            )
        later = pc.indices_nonzero(pc.greater(snapshots, self.snapshot))
        return await asyncio.to_thread(lambda: RowRanges.from_rows(later.to_pylist()))


def _of_vector(blob: bytes, url: str) -> RowRanges:
    """The rows of a deletion-vector-v1 blob: magic and bitmap, framed."""
    if blob[:4] == _PUFFIN:
        raise UnsupportedFeatureError("DuckLake deletion vectors of several snapshots are not read", url=url)
    try:
        vector = unframed(blob)
        if vector[:4] != _MAGIC:
            raise CorruptFileError("not a deletion vector")
        return decode_roaring(vector[4:])
    except CorruptFileError as error:
        raise error.locate(url=url) from None
