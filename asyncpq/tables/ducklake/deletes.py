"""Rows of a DuckLake data file that are not in a snapshot: deleted rows, and later rows of merged files."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.model import Reader
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.urls import safe_url
from asyncpq.tables.deleted_rows import check_deleted, decode_positions, decode_vector, unframed
from asyncpq.tables.ducklake.sql_catalog import DuckLakeState

SNAPSHOT_COLUMN = "_ducklake_internal_snapshot_id"
_PUFFIN_MAGIC = b"PFA1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeDeleteFile:
    """A file of deleted rows."""

    url: str
    # "parquet" for a file with the column ``pos`` and maybe a snapshot id; "puffin" for one deletion vector
    format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckLakeDeletes:
    """Rows of one data file that are not in a snapshot. Implements :class:`asyncpq.datasets.model.Deletes`."""

    data_url: str  # the data file. Its rows may carry the ids of their snapshots.
    snapshot: int  # id of the snapshot. Rows that were deleted after it are still there; rows added after it are not.
    files: tuple[DuckLakeDeleteFile, ...] = ()
    inlined: RowRanges  # deleted rows that the catalog names
    later_rows: bool = False  # the data file also holds rows of later snapshots
    visible_rows: int | None = None  # number of leading rows that belong to the snapshot; None for all

    @property
    def identity(self) -> Hashable:
        """All fields: files are immutable, but the snapshot decides which of their rows count."""
        return self

    async def rows(self, reader: Reader, num_rows: int) -> RowRanges:
        """Numbers of the rows that are not in the snapshot.

        Raises CorruptFileError if a delete file is malformed, or names a row that the file does not have;
        UnsupportedFeatureError if a deletion vector has a format that is not read.
        """
        deleted = self.inlined
        for file in self.files:
            try:
                deleted |= await self._deleted(reader, file)
            except AsyncpqError as error:
                error.locate(url=safe_url(file.url))
                raise
        if self.later_rows:
            deleted |= await self._later(reader, num_rows)
        try:
            check_deleted(deleted, num_rows, self.data_url)
        except CorruptFileError as error:
            error.locate(url=safe_url(self.data_url))
            raise
        if self.visible_rows is not None:
            deleted |= RowRanges([(self.visible_rows, num_rows)])
        return deleted

    async def _deleted(self, reader: Reader, file: DuckLakeDeleteFile) -> RowRanges:
        if file.format == "puffin":
            blob = await reader.read_bytes(file.url)
            if blob[:4] == _PUFFIN_MAGIC:
                raise UnsupportedFeatureError("DuckLake deletion vectors of several snapshots are not read")
            return await asyncio.to_thread(decode_vector, unframed(blob))
        table = await reader.read_table(file.url)
        return await asyncio.to_thread(self._positions, table, file.url)

    def _positions(self, table: pa.Table, url: str) -> RowRanges:
        if "pos" not in table.column_names:
            raise CorruptFileError("a delete file has no column pos", column="pos")
        if SNAPSHOT_COLUMN in table.column_names:
            snapshots = table[SNAPSHOT_COLUMN]
            if snapshots.null_count:
                raise CorruptFileError("a deleted row has no snapshot", column=SNAPSHOT_COLUMN)
            table = table.filter(pc.less_equal(snapshots, self.snapshot))
        return decode_positions(table["pos"], url)

    async def _later(self, reader: Reader, num_rows: int) -> RowRanges:
        table = await reader.read_table(self.data_url, columns=[SNAPSHOT_COLUMN])
        snapshots = table[SNAPSHOT_COLUMN]
        if snapshots.null_count or len(snapshots) != num_rows:
            raise CorruptFileError(
                "a row of a merged file has no snapshot", url=safe_url(self.data_url), column=SNAPSHOT_COLUMN
            )
        later = pc.indices_nonzero(pc.greater(snapshots, self.snapshot))
        return await asyncio.to_thread(lambda: RowRanges.from_rows(later.to_pylist()))


def deletes_by_file(state: DuckLakeState) -> dict[int, DuckLakeDeletes]:
    """The deletes of each data file, by its id. A file whose rows are all in the snapshot has none."""
    files: dict[int, list[DuckLakeDeleteFile]] = {}
    for row in state.delete_files:
        file = DuckLakeDeleteFile(url=state.url_of(row), format=str(row["format"]).lower())
        files.setdefault(row["data_file_id"], []).append(file)
    deletes = {}
    for row in state.data_files:
        key, url = row["data_file_id"], state.url_of(row)
        partial_max = row.get("partial_max")
        visible = None
        info = row.get("partial_file_info")
        if info is not None and partial_max is None:
            partial_max, visible = _partial(str(info), state.snapshot_id, url)
        later = partial_max is not None and partial_max > state.snapshot_id
        if not (key in files or key in state.inlined_deletes or later or visible is not None):
            continue
        deletes[key] = DuckLakeDeletes(
            data_url=url,
            snapshot=state.snapshot_id,
            files=tuple(files.get(key, ())),
            inlined=RowRanges.from_rows(sorted(state.inlined_deletes.get(key, ()))),
            later_rows=later,
            visible_rows=visible,
        )
    return deletes


def _partial(info: str, snapshot: int, url: str) -> tuple[int | None, int | None]:
    """Decode the ``partial_file_info`` of a merged file, before format 0.4.

    Returns the snapshot id of the last row (``partial_max:<snapshot>``), or the number of visible rows
    (``<snapshot>:<rows up to it>``, joined by ``|``); None for the other, and where all rows are visible.
    """
    try:
        pairs = [(name, int(number)) for name, _, number in (part.partition(":") for part in info.split("|"))]
        if pairs[0][0] == "partial_max":
            return pairs[0][1], None
        visible = [rows for begin, rows in pairs if int(begin) <= snapshot]
        return None, (None if len(visible) == len(pairs) else max(visible, default=0))
    except ValueError:
        raise CorruptFileError(f"partial_file_info {info!r} is not understood", url=safe_url(url)) from None
