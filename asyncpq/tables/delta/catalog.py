"""Delta tables: one version of a table as files with bounds, partition values and deleted rows.

The session's stores and caches read the log. The ``deltalake`` library is never imported: its lists of files mention
no deletion vectors, and it brings storage options, caches and connections of its own. A ``deltalake.DeltaTable`` may
name the table and the version.

Read: reader versions 1 to 3 with the features in ``schema.READER_FEATURES``; classic, multi-part and v2 checkpoints.
Refused: other reader features, types on whose Arrow type Delta's readers disagree (intervals, geometries), data that
is not Parquet, and absolute paths into another store. A version by time follows the in-commit timestamps or, without
them, those in ``commitInfo``: the modification times of log files do not survive a copy.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from asyncpq.datasets.model import CatalogReader, DataFile, FileList, TableDataFiles
from asyncpq.errors import (
    CorruptFileError,
    InvalidOptionError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    UnsupportedFeatureError,
    located,
)
from asyncpq.expressions import Expression, columns
from asyncpq.expressions.scalars import EPOCH_UTC
from asyncpq.records import MOST_KEPT, dataclass
from asyncpq.storage.urls import safe_url, split_url
from asyncpq.tables.deleted_rows import DeletionVector
from asyncpq.tables.delta.files import DeltaRoot, DeltaStatistics, num_records, partition_value
from asyncpq.tables.delta.log import ACTIONS_PER_TURN, AddAction, DeltaListing, DeltaLog, DeltaState, PartitionTexts
from asyncpq.tables.delta.schema import ColumnMapping, DeltaLeaf, DeltaSchema, decode_schema
from asyncpq.tables.own_store import OwnStore, delta_store

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeltaCatalog:
    """One Delta table, as a :class:`asyncpq.datasets.model.Catalog`.

    Attributes:
        root: the table's folder.
        version: a version number, or a time with a zone: the newest version committed by then. None: the newest
            version when a read begins.
        store: the store that a ``deltalake.DeltaTable`` was opened in; None for a url.
    """

    root: DeltaRoot
    version: int | dt.datetime | None = None
    store: OwnStore | None = None

    @classmethod
    def of(cls, table: Any, *, version: int | dt.datetime | None = None) -> DeltaCatalog:
        """Return the catalog of a table.

        Args:
            table: url or path of the table's folder, or a ``deltalake.DeltaTable``, which also gives the default
                ``version``, and its storage options. Those of the session must not contradict them.
            version: as for the class.

        Raises:
            InvalidOptionError: ``table`` is not a Delta table, or ``version`` is neither a number nor a time.
        """
        if isinstance(version, bool) or not isinstance(version, (int, dt.datetime, type(None))):
            raise InvalidOptionError(
                f"version={version!r}: the version of a Delta table must be an int or a datetime", option="version"
            )
        if isinstance(version, int) and version < 0:
            raise InvalidOptionError(f"version={version}: a Delta version must be 0 or more", option="version")
        if isinstance(version, dt.datetime) and version.tzinfo is None:
            raise InvalidOptionError(
                f"version={version}: a time needs a zone", option="version", hint="Add tzinfo=datetime.UTC."
            )
        if isinstance(table, (str, os.PathLike)):
            return cls(DeltaRoot.of(table), version)
        if type(table).__module__.partition(".")[0] != "deltalake" or not hasattr(table, "table_uri"):
            raise InvalidOptionError(f"{table!r} is not a Delta table: expected a url, path or deltalake.DeltaTable")
        url: str = table.table_uri  # Rust's Url has encoded it
        root = DeltaRoot.of(unquote(url.removeprefix("file://") if split_url(url)[0] == "file" else url))
        load = partial(getattr, table, "_storage_options", None)
        store = delta_store(url, load(), load)
        return cls(root, table.version() if version is None else version, store)

    async def snapshot(self, reader: CatalogReader) -> DeltaSnapshot:
        """Read the table's log and return the snapshot of the catalog's version.

        Raises:
            UnsupportedFeatureError: the table has a feature that asyncpq does not support.
            InvalidOptionError: the version does not exist.
            ObjectNotFoundError: the folder has no Delta log.
            CorruptFileError: the log is incomplete or malformed.
        """
        log = DeltaLog(self.root, reader)
        try:
            return await self._of_listing(log, await log.listing())
        except (ObjectNotFoundError, ObjectChangedError) as error:
            if not (error.url or "").startswith(f"{self.root.shown}/_delta_log/"):
                raise
            first = error
        # a writer has cleaned the log since it was listed, or has a part of a checkpoint still to write
        try:
            return await self._of_listing(log, await log.listing())
        except (ObjectNotFoundError, ObjectChangedError) as error:
            error.hint = (
                "The log was listed twice, and each time a file of the listing was gone when it was read (before: "
                f"{(first.url or '').rpartition('/')[2]}). Open the table again; if its log is cleaned up that often, "
                "keep commits longer."
            )
            raise

    async def _of_listing(self, log: DeltaLog, listing: DeltaListing) -> DeltaSnapshot:
        """Return the snapshot of the catalog's version by the files of one listing of the log. A checkpoint that is not
        Parquet, such as one that a writer has just begun, is left out if the commits before it are there.

        Raises ObjectNotFoundError if a file of the listing is gone.
        """
        if not listing.commits and not listing.checkpoints:
            raise ObjectNotFoundError(
                "there is no Delta table: the folder has no _delta_log",
                url=self.root.shown,
                hint="Pass the folder that has it.",
            )
        if isinstance(self.version, dt.datetime):
            version = await _version_at(self.version, listing, log)
        else:
            version = listing.latest if self.version is None else self.version
        segment = await asyncio.to_thread(listing.segment, version)
        while True:
            try:
                state = await log.replay(segment)
            except NotParquetError as error:
                listing = listing.without(segment.checkpoint)
                try:
                    segment = await asyncio.to_thread(listing.segment, version)
                except (CorruptFileError, InvalidOptionError):
                    error.hint = "The log lacks the commits before this checkpoint: write the checkpoint again."
                    raise error from error.__cause__
                logger.warning("%s: the checkpoint is not used, as it cannot be read: %s", self.root.shown, error)
            else:
                return await _snapshot(state, self.root, version)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSnapshot(FileList):
    """One version of a Delta table. A column's statistics are parsed, in a thread, when a predicate first names the
    column: here, where the objects of the files are kept; of more files, the search for the predicate parses them."""

    _parsed: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    async def files(self, where: Expression | None, reader: CatalogReader) -> Sequence[DataFile]:
        """Return all files; the caller prunes with their bounds and partition values."""
        names = set() if where is None else set(columns(where)) - self._parsed
        if names and len(self.data_files) <= MOST_KEPT:
            await asyncio.to_thread(self._parse, names)
            self._parsed.update(names)
        return self.data_files

    def _parse(self, names: set[str]) -> None:
        for file in self.data_files:
            for name in names:
                file.bounds.get(name)


async def _version_at(time: dt.datetime, listing: DeltaListing, log: DeltaLog) -> int:
    """Return the newest version that was committed at or before ``time``.

    The commits' timestamps may go back: a version then counts as committed 1 ms after the one before it.
    """
    versions = await asyncio.to_thread(sorted, listing.commits)
    stamps = await log.commit_times(versions)
    return await asyncio.to_thread(_newest_at, time, versions, stamps, listing.url)


def _newest_at(time: dt.datetime, versions: Sequence[int], stamps: Sequence[Any], url: str) -> int:
    latest_ms = (time - EPOCH_UTC) // dt.timedelta(milliseconds=1)
    chosen, previous_ms = None, -(1 << 63)
    for version, stamp in zip(versions, stamps, strict=True):
        if type(stamp) is not int:
            raise InvalidOptionError(
                f"no version is known for {time}: commit {version} has no timestamp",
                url=url,
                hint="Pass a version number.",
            )
        previous_ms = max(stamp, previous_ms + 1)
        if previous_ms > latest_ms:
            break
        chosen = version
    if chosen is None:
        raise InvalidOptionError(f"all commits in the log are newer than {time}", url=url, hint="Choose a later time.")
    return chosen


async def _snapshot(state: DeltaState, root: DeltaRoot, version: int) -> DeltaSnapshot:
    shown = root.shown
    if state.protocol is None or state.metadata is None:
        raise CorruptFileError(f"version {version} of the Delta log has no protocol or no metadata", url=shown)
    metadata = state.metadata
    try:
        configuration = dict(metadata.get("configuration") or {})
        provider = str((metadata.get("format") or {}).get("provider", "parquet")).lower()
        text, partition_columns = metadata["schemaString"], tuple(map(str, metadata.get("partitionColumns") or ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFileError(f"malformed Delta metadata: {type(error).__name__}: {error}", url=shown) from error
    if provider != "parquet":
        raise UnsupportedFeatureError(f"asyncpq does not support Delta tables of {provider!r} files", url=shown)
    schema = decode_schema(text, ColumnMapping.of(state.protocol, configuration, shown), shown)
    decoder = _AddDecoder(root, schema, partition_columns)
    rows = list[_FileRow]()
    for number, path in enumerate(list(state.files)):
        rows.append(decoder.row(state.files.pop(path)))
        if number % ACTIONS_PER_TURN == 0:
            await asyncio.sleep(0)
    return DeltaSnapshot(
        description=f"Delta table {shown}, version {version}", fields=schema.fields, data_files=decoder.data_files(rows)
    )


#: A file's url, the position of its partition values, bytes, number of rows, statistics and deleted rows.
_FileRow: TypeAlias = tuple[str, int, int | None, int | None, str | pa.StructScalar | None, DeletionVector | None]


class _AddDecoder:
    """Decodes ``add`` actions into data files."""

    def __init__(self, root: DeltaRoot, schema: DeltaSchema, partition_columns: tuple[str, ...]) -> None:
        self._root = root
        top = {leaf.path[0]: leaf for leaf in schema.leaves if len(leaf.path) == 1}
        by_name = {leaf.name: leaf for leaf in top.values()}
        missing = [name for name in partition_columns if name not in by_name]
        if missing:
            raise CorruptFileError(
                f"the Delta table is partitioned by a column that its schema lacks: no partition column {missing[0]!r}",
                url=root.shown,
            )
        self._partition = tuple(by_name[name] for name in partition_columns)
        self._names = frozenset(leaf.path[0] for leaf in self._partition)
        self._leaves = {leaf.name: leaf for leaf in schema.leaves}
        self._values: dict[tuple[str, str | None], Any] = {}
        self._positions: dict[PartitionTexts, int] = {}  # in ``_partitions``
        self._partitions: list[dict[str, Any]] = []

    def row(self, add: AddAction) -> _FileRow:
        """Convert one ``add`` action to the row of a data file."""
        path, texts, size, stats, vector = add
        url = self._root.resolve(path)
        position = self._positions.get(texts)
        if position is None:
            with located(url=safe_url(url)):
                values = dict(texts)
                self._partitions.append({leaf.name: self._value(leaf, values) for leaf in self._partition})
            position = self._positions[texts] = len(self._positions)
        deletes = None if vector is None else vector.resolve(self._root, url)
        return url, position, size, num_records(stats), stats, deletes

    def data_files(self, rows: list[_FileRow]) -> TableDataFiles:
        """Return the data files of the rows that :meth:`row` has made."""
        self._positions.clear()
        are_described = any(self._partitions) or any(row[4] is not None for row in rows)
        return TableDataFiles(rows, self._data_file, self._partitions, are_described=are_described)

    def _data_file(self, row: _FileRow) -> DataFile:
        url, position, size, num_rows, stats, deletes = row
        return DataFile(
            url=url,
            size=size,
            num_rows=num_rows,
            partition=self._partitions[position],
            bounds=DeltaStatistics(stats, self._leaves, deletes is not None),
            deletes=deletes,
            immutable=True,
        )

    def _value(self, leaf: DeltaLeaf, values: dict[str, str | None]) -> Any:
        """Decode a partition column's value; null if the action has none, as in Spark, deltalake and DuckDB."""
        physical = leaf.path[0]
        if physical not in values and not self._names.issuperset(values):
            raise CorruptFileError(
                f"a file of the Delta table has partition values of {', '.join(values)}, but none of this column",
                column=leaf.name,
            )
        key = (physical, values.get(physical))
        if key not in self._values:
            self._values[key] = partition_value(key[1], leaf)
        return self._values[key]
