"""Delta tables: one version of a table as files, bounds, partition values and deleted rows.

The log is read here, through the session's stores and caches. The ``deltalake`` library is not needed for that, and
is never imported: its lists of files mention no deletion vectors, and it has storage options, caches and connections
of its own. A ``deltalake.DeltaTable`` may say which table and which version is meant.

What is read: reader versions 1 to 3, with the features in ``delta_schema.READER_FEATURES``; classic, multi-part and
v2 checkpoints. What is refused: every other reader feature, types without an Arrow type that Delta's readers agree on
(intervals, geometries), data that is not Parquet, and absolute paths that lead to another store. Versions by time
follow the in-commit timestamps or, without them, the timestamps in ``commitInfo``: modification times of log files do
not outlive a copy.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from asyncpq.datasets.model import Catalog, DataFile, FileList, Reader
from asyncpq.errors import (
    AsyncpqError,
    CorruptFileError,
    InvalidOptionError,
    ObjectNotFoundError,
    UnsupportedFeatureError,
)
from asyncpq.expressions import Expression, columns
from asyncpq.storage.urls import safe_url, split_url
from asyncpq.tables.delta.deletes import deletes_of
from asyncpq.tables.delta.log import ACTIONS_AT_ONCE, Add, Listing, Log, TableState
from asyncpq.tables.delta.paths import TableRoot
from asyncpq.tables.delta.schema import ColumnMapping, Leaf, Schema, decode_schema
from asyncpq.tables.delta.values import Statistics, num_records, partition_value

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def catalog_of(table: Any, *, version: int | dt.datetime | None = None) -> Catalog:
    """The catalog of one table.

    Args:
        table: url or path of the table's folder, or a ``deltalake.DeltaTable``, whose own version is read.
            Objects are read with the session's storage options.
        version: a version, or a time with a zone: the newest version that was committed by then. None: the newest
            when a read begins; of a ``DeltaTable`` the one that it is at.

    Raises:
        InvalidOptionError: a version that cannot be.
    """
    if isinstance(version, bool) or not isinstance(version, (int, dt.datetime, type(None))):
        raise InvalidOptionError(f"version={version!r}: must be a number or a datetime")
    if isinstance(version, int) and version < 0:
        raise InvalidOptionError(f"version={version}: must be 0 or more")
    if isinstance(version, dt.datetime) and version.tzinfo is None:
        raise InvalidOptionError(f"version={version}: a time needs a zone", hint="Such as tzinfo=datetime.UTC.")
    if isinstance(table, (str, os.PathLike)):
        return DeltaCatalog(TableRoot.of(table), version)
    if type(table).__module__.partition(".")[0] != "deltalake" or not hasattr(table, "table_uri"):
        raise InvalidOptionError(f"{table!r} is no Delta table: give a url, a path, or a deltalake.DeltaTable")
    url: str = table.table_uri  # encoded, as it comes from Rust's Url
    root = TableRoot.of(unquote(url.removeprefix("file://") if split_url(url)[0] == "file" else url))
    return DeltaCatalog(root, table.version() if version is None else version)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSnapshot(FileList):
    """A version of a table. Statistics of a column are parsed when a predicate first names it, off the event loop."""

    _parsed: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    async def files(self, where: Expression | None, reader: Reader) -> Sequence[DataFile]:
        """All of them: bounds and partition values are looked at by whoever asks."""
        names = set() if where is None else set(columns(where)) - self._parsed
        if names:
            await asyncio.to_thread(self._parse, names)
            self._parsed.update(names)
        return self.data_files

    def _parse(self, names: set[str]) -> None:
        for file in self.data_files:
            for name in names:
                file.bounds.get(name)


@dataclass(frozen=True, slots=True)
class DeltaCatalog:
    """One Delta table.

    Attributes:
        root: its folder.
        version: which is read, by number or time; None for the newest.
    """

    root: TableRoot
    version: int | dt.datetime | None = None

    async def snapshot(self, reader: Reader) -> DeltaSnapshot:
        """The table at its version.

        Raises:
            UnsupportedFeatureError: the table has a feature that is not read.
            InvalidOptionError: there is no such version.
            ObjectNotFoundError: there is no Delta log.
            CorruptFileError: the log is incomplete or malformed.
        """
        log = Log(self.root, reader)
        listing = await log.listing()
        if not listing.commits and not listing.checkpoints:
            raise ObjectNotFoundError("no Delta table: it has no log", url=self.root.shown)
        if isinstance(self.version, dt.datetime):
            version = await _version_at(self.version, listing, log)
        else:
            version = listing.latest if self.version is None else self.version
        state = await log.replay(listing.segment(version))
        return await _snapshot(state, self.root, version)


async def _version_at(time: dt.datetime, listing: Listing, log: Log) -> int:
    """The newest version committed by ``time``, which follows every older one by at least a millisecond."""
    asked = (time - _EPOCH) // dt.timedelta(milliseconds=1)
    versions = sorted(listing.commits)
    infos = await log.commit_infos([f"{version:020}.json" for version in versions])
    chosen, last = None, -(1 << 63)
    for version, info in zip(versions, infos, strict=True):
        stamp = info.get("inCommitTimestamp", info.get("timestamp"))
        if type(stamp) is not int:
            raise InvalidOptionError(
                f"version={time}: commit {version} has no timestamp", url=listing.url, hint="Give the version's number."
            )
        last = max(stamp, last + 1)
        if last > asked:
            break
        chosen = version
    if chosen is None:
        raise InvalidOptionError(f"version={time}: no commit that is kept is so old", url=listing.url)
    return chosen


async def _snapshot(state: TableState, root: TableRoot, version: int) -> DeltaSnapshot:
    shown = root.shown
    if state.protocol is None or state.metadata is None:
        raise CorruptFileError(f"version {version} of the Delta log has no protocol or no metadata", url=shown)
    metadata = state.metadata
    try:
        configuration = dict(metadata.get("configuration") or {})
        provider = str((metadata.get("format") or {}).get("provider", "parquet")).lower()
        text, partition_columns = metadata["schemaString"], tuple(map(str, metadata.get("partitionColumns") or ()))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFileError(f"Delta metadata: {type(error).__name__}: {error}", url=shown) from error
    if provider != "parquet":
        raise UnsupportedFeatureError(f"Delta tables of {provider!r} files are not read", url=shown)
    schema = decode_schema(text, ColumnMapping.of(state.protocol, configuration, shown), shown)
    files = _Files(root, schema, partition_columns)
    data_files = []
    for number, added in enumerate(state.files.values()):
        data_files.append(files.data_file(added))
        if number % ACTIONS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return DeltaSnapshot(
        description=f"Delta table {shown}, version {version}",
        fields=schema.fields,
        data_files=tuple(data_files),
    )


class _Files:
    """Turns ``add`` actions into data files."""

    def __init__(self, root: TableRoot, schema: Schema, partition_columns: tuple[str, ...]) -> None:
        self._root = root
        top = {leaf.path[0]: leaf for leaf in schema.leaves if len(leaf.path) == 1}
        by_name = {leaf.name: leaf for leaf in top.values()}
        missing = [name for name in partition_columns if name not in by_name]
        if missing:
            raise CorruptFileError(f"Delta metadata: no partition column {missing[0]!r}", url=root.shown)
        self._partition = tuple(by_name[name] for name in partition_columns)
        self._names = frozenset(leaf.path[0] for leaf in self._partition)
        self._leaves = {leaf.name: leaf for leaf in schema.leaves}
        self._values: dict[tuple[str, str | None], Any] = {}

    def data_file(self, add: Add) -> DataFile:
        """
        Raises:
            CorruptFileError, UnsupportedFeatureError: what the action says of a file cannot be used.
        """
        url = self._root.resolve(add.path)
        try:
            partition = {leaf.name: self._value(leaf, add.partition_values) for leaf in self._partition}
        except AsyncpqError as error:
            error.locate(url=safe_url(url))
            raise
        deletes = None if add.vector is None else deletes_of(add.vector, self._root, url)
        return DataFile(
            url=url,
            size=add.size,
            num_rows=num_records(add.stats),
            partition=partition,
            bounds=Statistics(add.stats, self._leaves, deletes is not None),
            deletes=deletes,
            immutable=True,
        )

    def _value(self, leaf: Leaf, values: Mapping[str, str | None]) -> Any:
        """
        Null where the action does not say, as Spark, deltalake and DuckDB have it.

        Raises:
            CorruptFileError: it is no value of the column, or the action names other columns instead.
        """
        physical = leaf.path[0]
        if physical not in values and not self._names.issuperset(values):
            raise CorruptFileError(
                f"a file of the Delta table has values of {', '.join(values)}, and none of a partition column",
                column=leaf.name,
            )
        key = (physical, values.get(physical))
        if key not in self._values:
            self._values[key] = partition_value(key[1], leaf)
        return self._values[key]
