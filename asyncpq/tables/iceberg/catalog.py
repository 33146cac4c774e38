"""Iceberg tables: one snapshot's columns, files and deleted rows, from its metadata files.

Manifests are pruned by the partition summaries of the manifest list, files by their partition values; the bounds
that manifests have of columns go along with the files.

The data files of an Iceberg table's manifests, as a dataset knows files.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cachetools import LRUCache
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.snapshots import Snapshot as TableSnapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, PrimitiveType

from asyncpq.datasets.model import DataFile, Deletes, Reader, TableField
from asyncpq.errors import AsyncpqError, CorruptFileError, InvalidOptionError, UnsupportedFeatureError, printable
from asyncpq.expressions import Expression, columns
from asyncpq.storage.concurrency import call_each
from asyncpq.storage.urls import safe_url
from asyncpq.tables.iceberg.deletes import DeleteIndex
from asyncpq.tables.iceberg.equality_deletes import EqualityIndex, KeyColumns
from asyncpq.tables.iceberg.manifests import (
    DATA,
    Entry,
    decode_manifest,
    decode_manifest_list,
    decode_table_metadata,
    store_url,
)
from asyncpq.tables.iceberg.partition_filter import PartitionFilter
from asyncpq.tables.iceberg.schema import column_bounds, doubtful_fields, partition_value, struct_leaves, table_fields


class ManifestFiles:
    """The files of some manifests of a snapshot, with the bounds of some columns; asked often."""

    def __init__(
        self,
        manifests: Iterable[tuple[ManifestFile, Sequence[Entry]]],
        schema: Schema,
        specs: Mapping[int, PartitionSpec],
        asked: Mapping[str, NestedField],
        equality: EqualityIndex,
        table: str,
    ) -> None:
        """
        Args:
            manifests: with their live files.
            schema, specs: the snapshot's columns, and the table's partition specs.
            asked: the leaves whose bounds are wanted, by dotted path.
            equality: takes the equality deletes.
            table: names the table in errors.
        """
        data: list[Entry] = []
        deletes: list[Entry] = []
        for manifest, found in manifests:
            (data if manifest.content == ManifestContent.DATA else deletes).extend(found)
        self._table = table
        self._asked = asked
        index = DeleteIndex(deletes, equality, table)
        self._identities = {spec_id: _identities(schema, spec) for spec_id, spec in specs.items()}
        self._entries = [(entry, specs[entry.spec_id]) for entry in data if entry.content == DATA]
        self._specs = {spec.spec_id: spec for _, spec in self._entries}
        self._files = [self._data_file(entry, index) for entry, _ in self._entries]

    def select(self, partitions: PartitionFilter) -> Sequence[DataFile]:
        """Those that a filter keeps. What is equal is the same object, for whoever keeps what follows from it."""
        if all(partitions.keeps_all(spec) for spec in self._specs.values()):
            return self._files
        kept = [at for at, (entry, spec) in enumerate(self._entries) if partitions.keeps_file(entry.file, spec)]
        return self._files if len(kept) == len(self._files) else [self._files[at] for at in kept]

    def _data_file(self, entry: Entry, index: DeleteIndex) -> DataFile:
        """What is known of a file. One that cannot be read has the error with it: reads may do without the file."""
        unreadable: AsyncpqError | None = None
        partition: dict[str, Any] = {}
        deletes: Deletes | None = None
        num_rows = entry.num_rows if entry.num_rows >= 0 else None
        try:
            if entry.format != "PARQUET":
                raise UnsupportedFeatureError(
                    f"{self._table} has data files in {printable(entry.format)}: only Parquet is read",
                    url=safe_url(entry.url),
                )
            partition = self._partition(entry)
        except (UnsupportedFeatureError, CorruptFileError) as error:
            unreadable = error
        try:
            deletes = index.of(entry)
        except (UnsupportedFeatureError, CorruptFileError) as error:
            unreadable, num_rows = error, None  # how many of its rows are deleted is not known
        return DataFile(
            url=entry.url,
            size=entry.size,
            num_rows=num_rows,
            partition=partition,
            bounds={
                name: column_bounds(leaf, entry.file) for name, leaf in self._asked.items() if name not in partition
            },
            deletes=deletes,
            immutable=True,
            unreadable=unreadable,
        )

    def _partition(self, entry: Entry) -> dict[str, Any]:
        """Values of columns that are the same in all rows of a file.

        Raises:
            UnsupportedFeatureError: a value that is not read.
        """
        return {
            column.name: partition_value(column, entry.partition[at], self._table, entry.url)
            for at, column in self._identities[entry.spec_id]
            if entry.partition[at] is not None  # a column that the file lacks then has its default
        }


def _identities(schema: Schema, spec: PartitionSpec) -> list[tuple[int, NestedField]]:
    """Position and column of each partition field that is a column's own value."""
    top = {column.field_id: column for column in schema.fields}
    found = []
    for at, part in enumerate(spec.fields):
        source = top.get(part.source_id) if isinstance(part.transform, IdentityTransform) else None
        if source is not None and isinstance(source.field_type, PrimitiveType):
            found.append((at, source))
    return found


logger = logging.getLogger(__name__)

_AT_ONCE = 16  # manifests
_KEPT_ENTRIES = 50_000  # live files of manifests that were read, kept for the next read
_KEPT_QUESTIONS = 4  # sets of manifests and columns for which files are kept


_METADATA_HINT = "Give the newest metadata/*.metadata.json, or load the table from its catalog with pyiceberg."


class IcebergCatalog:
    """An Iceberg table, at its present snapshot or at the one asked for."""

    def __init__(
        self,
        table: Table | str,
        *,
        snapshot_id: int | None = None,
        ref: str | None = None,
        as_of: dt.datetime | None = None,
    ) -> None:
        """As :func:`catalog_of`.

        Raises:
            InvalidOptionError: no table, more than one snapshot, or a time without zone.
        """
        if not isinstance(table, (Table, str)):
            raise InvalidOptionError(f"an Iceberg table is a pyiceberg Table or a url, not a {type(table).__name__}")
        if isinstance(table, str) and not table.endswith(".metadata.json"):
            raise InvalidOptionError(
                "the url of an Iceberg table is that of its metadata file", url=safe_url(table), hint=_METADATA_HINT
            )
        if sum(choice is not None for choice in (snapshot_id, ref, as_of)) > 1:
            raise InvalidOptionError("snapshot_id, ref and as_of each choose a snapshot: give one of them")
        if as_of is not None and as_of.tzinfo is None:
            raise InvalidOptionError(
                f"the time {as_of} has no time zone", hint="Write datetime(..., tzinfo=datetime.UTC)."
            )
        self._table = table
        self._snapshot_id = snapshot_id
        self._ref = ref
        self._as_of = as_of
        self._metadata: TableMetadata | None = None  # of a url: the file never changes
        self._entries: LRUCache[str, tuple[Entry, ...]] = LRUCache(_KEPT_ENTRIES, lambda entries: len(entries) + 1)

    async def snapshot(self, reader: Reader) -> IcebergSnapshot:
        """The present state, or the one that was asked for.

        Raises:
            InvalidOptionError: there is no such snapshot.
            UnsupportedFeatureError: the table has a feature that is not read.
        """
        metadata = await self._load(reader)
        table = self._table
        name = safe_url(metadata.location) if isinstance(table, str) else ".".join(table.name())
        name = f"Iceberg table {name}"
        snapshot = self._find(metadata, name)
        schema = metadata.schema()
        if snapshot is not None and self._is_chosen and snapshot.schema_id is not None:
            try:
                schema = metadata.schema_by_id(snapshot.schema_id) or schema
            except ValueError as error:
                raise CorruptFileError(f"{name}: snapshot {snapshot.snapshot_id} has an unknown schema") from error
        mapping = _name_mapping(metadata, name)
        return IcebergSnapshot(
            description=f"{name}, {'no snapshot' if snapshot is None else f'snapshot {snapshot.snapshot_id}'}",
            fields=table_fields(schema, mapping, name),
            name=name,
            schema=schema,
            doubtful=doubtful_fields(metadata.schemas, mapping),
            keys=KeyColumns(_by_age(metadata.schemas, schema), mapping, name),
            specs=metadata.specs(),
            manifest_list=None if snapshot is None else snapshot.manifest_list,
            entries=self._entries,
        )

    async def _load(self, reader: Reader) -> TableMetadata:
        if not isinstance(self._table, str):
            return self._table.metadata
        if self._metadata is None:
            url = self._table
            data = await reader.read_bytes(url)
            self._metadata = await asyncio.to_thread(decode_table_metadata, data, url)
        return self._metadata

    @property
    def _is_chosen(self) -> bool:
        return not (self._snapshot_id is None and self._ref is None and self._as_of is None)

    def _find(self, metadata: TableMetadata, name: str) -> TableSnapshot | None:
        found: TableSnapshot | None = None
        if self._snapshot_id is not None:
            found = metadata.snapshot_by_id(self._snapshot_id)
            asked = f"snapshot {self._snapshot_id}"
        elif self._ref is not None:
            found = metadata.snapshot_by_name(self._ref)
            asked = f"branch or tag {self._ref!r}"
        elif self._as_of is not None:
            at_ms = self._as_of.timestamp() * 1000
            past = [entry for entry in metadata.snapshot_log if entry.timestamp_ms <= at_ms]
            found = metadata.snapshot_by_id(past[-1].snapshot_id) if past else None
            asked = f"snapshot of {self._as_of.isoformat()}"
        else:
            return metadata.current_snapshot()
        if found is None:
            raise InvalidOptionError(f"{name} has no {asked}", hint="It may have expired: see the table's history.")
        return found


def _by_age(schemas: Sequence[Schema], first: Schema) -> list[Schema]:
    """``first``, then the others from new to old."""
    others = [schema for schema in schemas if schema.schema_id != first.schema_id]
    return [first, *sorted(others, key=lambda schema: -schema.schema_id)]


def _name_mapping(metadata: TableMetadata, name: str) -> NameMapping | None:
    """Names of columns in files without field ids; None where the table has none that can be read.

    Files without field ids are then refused. Files with field ids do not need it.
    """
    try:
        return metadata.name_mapping()
    except (ValueError, TypeError, RecursionError) as error:
        logger.warning("%s: property schema.name-mapping.default is ignored: %s", name, printable(str(error)))
        return None


def catalog_of(
    table: Table | str,
    *,
    snapshot_id: int | None = None,
    ref: str | None = None,
    as_of: dt.datetime | None = None,
) -> IcebergCatalog:
    """The catalog of a table.

    Args:
        table: as pyiceberg has loaded it (call its ``refresh()`` to see newer snapshots), or the url of a
            ``.metadata.json`` file. Files are read through the session's stores, with its ``storage_options``.
        snapshot_id, ref, as_of: a snapshot by number, by branch or tag, or by time; its schema is used then, else
            the table's present one, as pyiceberg does.

    Raises:
        InvalidOptionError: more than one snapshot is asked for, or a time without zone.
    """
    return IcebergCatalog(table, snapshot_id=snapshot_id, ref=ref, as_of=as_of)


@dataclass(kw_only=True)
class IcebergSnapshot:
    """A snapshot of a table (a :class:`asyncpq.datasets.model.Snapshot`).

    Attributes:
        description: table and snapshot.
        fields: the columns.
        name: of the table, for messages.
        schema, specs: the snapshot's columns, and the table's partition specs by id.
        doubtful: ids of fields of which manifests may tell another column's values.
        keys: columns of equality deletes.
        manifest_list: where it is; None for a table without a snapshot.
        entries: live files of manifests, by path.
    """

    description: str
    fields: tuple[TableField, ...]
    name: str
    schema: Schema
    doubtful: frozenset[int]
    keys: KeyColumns
    specs: dict[int, PartitionSpec]
    manifest_list: str | None
    entries: LRUCache[str, tuple[Entry, ...]]
    _manifests: list[ManifestFile] | None = field(default=None, init=False)
    _made: LRUCache[Hashable, ManifestFiles] = field(default_factory=lambda: LRUCache(_KEPT_QUESTIONS), init=False)

    async def files(self, where: Expression | None, reader: Reader) -> Sequence[DataFile]:
        """The Parquet files that may hold rows for which ``where`` is true, in the order of the manifests.

        Raises:
            UnsupportedFeatureError: metadata have a feature that is not read.
            CorruptFileError: metadata cannot be read.
        """
        if self.manifest_list is None:
            return ()
        manifests = self._manifests
        if manifests is None:
            url = store_url(self.manifest_list)
            data = await reader.read_bytes(url)
            self._manifests = manifests = await asyncio.to_thread(decode_manifest_list, data, url)
        leaves = struct_leaves(self.schema, self.doubtful)
        partitions = PartitionFilter(where, self.schema, leaves)
        kept = [manifest for manifest in manifests if partitions.keeps_manifest(manifest, self._spec_of(manifest))]
        asked = {name: leaves[name] for name in (() if where is None else columns(where)) if name in leaves}
        key = (tuple(asked), *[manifest.manifest_path for manifest in kept])
        made = self._made.get(key)
        if made is None:
            entries = await call_each(partial(self._read, reader), kept, at_once=_AT_ONCE)
            doubtful = self.doubtful if reader.trust_statistics else None
            equality = EqualityIndex(self.keys, self.specs, doubtful, self.name)
            made = await asyncio.to_thread(
                ManifestFiles, zip(kept, entries, strict=True), self.schema, self.specs, asked, equality, self.name
            )
            self._made[key] = made
        return await asyncio.to_thread(made.select, partitions)

    def _spec_of(self, manifest: ManifestFile) -> PartitionSpec:
        try:
            return self.specs[manifest.partition_spec_id]
        except KeyError:
            raise CorruptFileError(
                f"{self.name} has no partition spec {manifest.partition_spec_id}",
                url=safe_url(store_url(manifest.manifest_path)),
            ) from None

    async def _read(self, reader: Reader, manifest: ManifestFile) -> tuple[Entry, ...]:
        entries = self.entries.get(manifest.manifest_path)
        if entries is None:
            data = await reader.read_bytes(store_url(manifest.manifest_path))
            entries = await asyncio.to_thread(decode_manifest, data, manifest)
            if len(entries) < _KEPT_ENTRIES:
                self.entries[manifest.manifest_path] = entries
        return entries
