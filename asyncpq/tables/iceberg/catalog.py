"""Iceberg tables: one snapshot's columns, files, bounds and deleted rows.

Partition summaries in the manifest list prune manifests, partition values prune files. The manifests' column bounds
go along with the files.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

from cachetools import LRUCache
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot as TableSnapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, PrimitiveType

from asyncpq.datasets.model import CatalogReader, ColumnBounds, DataFile, Deletes, TableDataFiles, TableField
from asyncpq.errors import (
    AsyncpqError,
    CorruptFileError,
    FormatError,
    InvalidOptionError,
    NotParquetError,
    ObjectNotFoundError,
    UnsupportedFeatureError,
    nearest,
    printable,
    shown,
)
from asyncpq.expressions import Expression, columns
from asyncpq.storage.threads import call_each
from asyncpq.storage.urls import ICEBERG_METADATA, safe_url, split_url
from asyncpq.tables.iceberg.deletes import DeleteIndex, EqualityIndex, KeyColumns
from asyncpq.tables.iceberg.manifests import (
    DATA,
    ManifestFileEntry,
    PartitionFilter,
    decode_manifest,
    decode_manifest_list,
    store_url,
)
from asyncpq.tables.iceberg.metadata import SetAside, decode_table_metadata, newest_metadata
from asyncpq.tables.iceberg.schema import (
    column_bounds,
    partition_value,
    struct_leaves,
    table_fields,
    untrusted_fields,
    with_own_zeros,
)
from asyncpq.tables.own_store import OwnStore, TableStore, iceberg_store, store_protocol

logger: logging.Logger = logging.getLogger(__name__)

_CONCURRENT_MANIFESTS = 16
_CACHED_ENTRIES = 50_000  # live files of decoded manifests
_REFS_SHOWN = 8  # names of branches and tags in a message
_BOUND_NAMES = ColumnBounds.__slots__
_BOUNDS = attrgetter(*_BOUND_NAMES)
_CACHED_SELECTIONS = 4  # sets of manifests and columns
_METADATA_HINT = (
    "Pass its folder, or the newest metadata/*.metadata.json; or load the table from its catalog with pyiceberg."
)


class IcebergCatalog:
    """An Iceberg table at its current or a chosen snapshot, as a :class:`asyncpq.datasets.model.Catalog`.

    Args:
        table: a table that pyiceberg has loaded (its ``refresh()`` shows newer snapshots), the url of a
            ``.metadata.json`` or ``.metadata.json.gz`` file, or the url of the table's folder, whose newest such file
            is then read (see ``newest``). The session's stores read the files, with its ``storage_options`` and the
            properties of the table's ``io``, which must not contradict each other.
        snapshot_id, ref, as_of: at most one; selects a snapshot by its id, by branch or tag, or by time. The read then
            uses the snapshot's schema. A branch is read with the table's current schema, as the table is without a
            choice (Iceberg's documentation, "Schema selection with branches and tags").

    Raises:
        InvalidOptionError: ``table`` is neither a table nor such a url, two snapshots are selected, or the time lacks a
            zone.
    """

    def __init__(
        self,
        table: Table | str,
        *,
        snapshot_id: int | None = None,
        ref: str | None = None,
        as_of: dt.datetime | None = None,
    ) -> None:
        if not isinstance(table, (Table, str)):
            raise InvalidOptionError(f"an Iceberg table is a pyiceberg Table or a url, not {type(table).__name__}")
        if isinstance(table, str) and table.endswith(".json") and not table.endswith(".metadata.json"):
            raise InvalidOptionError(
                "the url of an Iceberg table must name its folder or its metadata file, *.metadata.json",
                url=safe_url(table),
                hint=_METADATA_HINT,
            )
        if sum(choice is not None for choice in (snapshot_id, ref, as_of)) > 1:
            raise InvalidOptionError(
                "snapshot_id, ref and as_of each choose a snapshot, but several were passed",
                hint="Pass only one of them.",
            )
        if as_of is not None and as_of.tzinfo is None:
            raise InvalidOptionError(
                f"the time {as_of} has no time zone", hint="Write datetime(..., tzinfo=datetime.UTC)."
            )
        self._table = table
        self._snapshot_id = snapshot_id
        self._ref = ref
        self._as_of = as_of
        # with the url of its file, which never changes, and the types that pyiceberg does not know, by field id
        self._metadata: tuple[str, TableMetadata, SetAside] | None = None
        self._entries: LRUCache[str, tuple[ManifestFileEntry, ...]] = LRUCache(
            _CACHED_ENTRIES, lambda entries: len(entries) + 1
        )

    @property
    def store(self) -> OwnStore | None:
        """The store that the loaded table names; None for a url."""
        if isinstance(self._table, str):
            return None
        table = self._table
        properties = getattr(table.io, "properties", {})
        url = table.metadata_location or table.metadata.location
        catalog, name = table.catalog, table.name()
        if isinstance(catalog, NoopCatalog):
            return iceberg_store(url, properties)

        def load() -> Mapping[str, Any]:
            properties: Mapping[str, Any] = catalog.load_table(name).io.properties
            return properties

        # who has loaded the table may not see what others see
        owner = repr((catalog.name, sorted(map(str, catalog.properties.items())), name, table.metadata.location))
        return iceberg_store(url, properties, load, f"Iceberg table {'.'.join(name)}", owner)

    async def snapshot(self, reader: CatalogReader) -> IcebergSnapshot:
        """Return the selected snapshot, by default the current one.

        Raises:
            InvalidOptionError: the snapshot does not exist.
            UnsupportedFeatureError: the table has a feature that asyncpq does not support.
        """
        metadata, set_aside = await self._load(reader)
        table = self._table
        name = safe_url(metadata.location) if isinstance(table, str) else ".".join(table.name())
        name = f"Iceberg table {name}"
        own = table if isinstance(table, str) else table.metadata_location or metadata.location
        snapshot = self._find(metadata, name)
        schema = metadata.schema()
        if snapshot is not None and snapshot.schema_id is not None and self._is_fixed(metadata):
            try:
                schema = metadata.schema_by_id(snapshot.schema_id) or schema
            except ValueError as error:
                raise CorruptFileError(
                    f"{name}: snapshot {snapshot.snapshot_id} refers to a schema that the metadata does not have"
                ) from error
        mapping = _name_mapping(metadata, name)
        others = [other for other in metadata.schemas if other.schema_id != schema.schema_id]
        return IcebergSnapshot(
            description=f"{name}, {'no snapshot' if snapshot is None else f'snapshot {snapshot.snapshot_id}'}",
            fields=table_fields(schema, mapping, name, *set_aside),
            name=name,
            schema=schema,
            untrusted=untrusted_fields(metadata.schemas, mapping),
            keys=KeyColumns(
                [schema, *sorted(others, key=lambda other: -other.schema_id)], mapping, name, set_aside.defaults
            ),
            specs=metadata.specs(),
            store=TableStore.of(name, store_url(own)),
            manifest_list=None if snapshot is None else snapshot.manifest_list,
            moved=None if self._metadata is None else _moved(metadata.location, self._metadata[0]),
            entries=self._entries,
        )

    async def _load(self, reader: CatalogReader) -> tuple[TableMetadata, SetAside]:
        """Return the table's metadata, and the parts of its schemas that pyiceberg does not decode."""
        if not isinstance(self._table, str):
            return self._table.metadata, SetAside({}, {})
        if self._table.endswith(ICEBERG_METADATA):
            return await self._decoded(self._table, reader)
        url = await newest_metadata(self._table, reader)
        try:
            return await self._decoded(url, reader)
        except (FormatError, ObjectNotFoundError):
            # a writer may be at work on the newest file; by now it may have written it, or the next one
            again = await newest_metadata(self._table, reader)
        try:
            return await self._decoded(again, reader)
        except NotParquetError as error:  # still empty, so not committed: the table is as the file before it says
            try:
                url = await newest_metadata(self._table, reader, frozenset({again}))
            except ObjectNotFoundError:
                raise error from None
            if url == again:  # version-hint.text names it
                raise
            logger.warning(
                "%s is empty: a writer is at work on it, or has failed. %s is read", safe_url(again), safe_url(url)
            )
            return await self._decoded(url, reader)

    async def _decoded(self, url: str, reader: CatalogReader) -> tuple[TableMetadata, SetAside]:
        known = self._metadata
        if known is None or known[0] != url:
            data = await reader.read_bytes(url)
            self._metadata = known = url, *await asyncio.to_thread(decode_table_metadata, data, url, reader.limits)
        return known[1:]

    def _is_fixed(self, metadata: TableMetadata) -> bool:
        """Return whether the choice is one snapshot for ever, and not the newest of the table or of a branch."""
        if self._ref is not None:
            return metadata.refs[self._ref].snapshot_ref_type is SnapshotRefType.TAG
        return self._snapshot_id is not None or self._as_of is not None

    def _find(self, metadata: TableMetadata, name: str) -> TableSnapshot | None:
        snapshot: TableSnapshot | None = None
        hint: str | None = "Choose another one from the table's history: it may have expired."
        if self._snapshot_id is not None:
            snapshot = metadata.snapshot_by_id(self._snapshot_id)
            wanted = f"snapshot {self._snapshot_id}"
        elif self._ref is not None:
            snapshot = metadata.snapshot_by_name(self._ref)
            wanted = f"branch or tag {self._ref!r}"
            hint = nearest(self._ref, metadata.refs, _all_refs(metadata))
        elif self._as_of is not None:
            latest_ms = self._as_of.timestamp() * 1000
            past = [entry for entry in metadata.snapshot_log if entry.timestamp_ms <= latest_ms]
            snapshot = metadata.snapshot_by_id(past[-1].snapshot_id) if past else None
            wanted = f"snapshot of {self._as_of.isoformat()}"
        else:
            return metadata.current_snapshot()
        if snapshot is None:
            raise InvalidOptionError(f"{name} has no {wanted}", hint=hint)
        return snapshot


def _all_refs(metadata: TableMetadata) -> str:
    names = sorted(metadata.refs)
    rest = f", ... {len(names)} in all" if len(names) > _REFS_SHOWN else ""
    return f"Its branches and tags are {', '.join(map(shown, names[:_REFS_SHOWN]))}{rest}." if names else "It has none."


def _moved(location: str, url: str) -> str | None:
    """Return what to say of a table that names the ``location``, while its metadata file is at ``url``, if files are
    missing; None if both are one place."""
    folder = url.rpartition("/metadata/")[0]
    if _place(location) == _place(folder):
        return None
    return (
        f"The table was moved or copied: its metadata is in {safe_url(folder)}, and names files in "
        f"{safe_url(location)}. Open the table where it was; or have its paths rewritten, as by Spark's procedure "
        "rewrite_table_path."
    )


def _place(url: str) -> tuple[str, str]:
    protocol, rest = split_url(url)
    return store_protocol(protocol), f"/{rest.strip('/')}"


def _name_mapping(metadata: TableMetadata, name: str) -> NameMapping | None:
    """Return the mapping of column names for files without field ids; None if the table has no readable mapping.

    Without a mapping, files without field ids are refused. Files with field ids do not need a mapping.
    """
    try:
        return metadata.name_mapping()
    except (ValueError, TypeError, RecursionError) as error:
        logger.warning("%s: property schema.name-mapping.default is ignored: %s", name, printable(str(error)))
        return None


@dataclass(kw_only=True)
class IcebergSnapshot:
    """A snapshot of a table, as a :class:`asyncpq.datasets.model.Snapshot`."""

    description: str  # table and snapshot
    fields: tuple[TableField, ...]
    name: str  # the table's name, for messages
    schema: Schema
    untrusted: frozenset[int]  # ids of fields whose values in manifests may be those of another column
    keys: KeyColumns  # of equality deletes
    specs: dict[int, PartitionSpec]
    store: TableStore  # in which all files must be
    manifest_list: str | None  # location of the manifest list; None for a table without a snapshot
    moved: str | None  # what to say if files are missing; None if the metadata file is where the table says it is
    entries: LRUCache[str, tuple[ManifestFileEntry, ...]]  # cache of decoded manifests: their live files, by path
    _manifests: list[ManifestFile] | None = field(default=None, init=False)
    _decoded: LRUCache[Hashable, _ManifestFiles] = field(
        default_factory=lambda: LRUCache(_CACHED_SELECTIONS), init=False
    )

    async def files(self, where: Expression | None, reader: CatalogReader) -> Sequence[DataFile]:
        """Return the files that may contain rows for which ``where`` is true, in the order of the manifests."""
        if self.manifest_list is None:
            return ()
        manifests = self._manifests
        if manifests is None:
            url = store_url(self.manifest_list)
            try:
                self.store.check(url)
                data = await reader.read_bytes(url)
            except (UnsupportedFeatureError, ObjectNotFoundError) as error:
                error.hint = self.moved or error.hint
                raise
            self._manifests = manifests = await asyncio.to_thread(decode_manifest_list, data, url, reader.limits)
        leaves = struct_leaves(self.schema, self.untrusted)
        partitions = PartitionFilter(where, self.schema, leaves)
        kept = [manifest for manifest in manifests if partitions.keeps_manifest(manifest, self._spec_of(manifest))]
        bounded = {name: leaves[name] for name in (() if where is None else columns(where)) if name in leaves}
        key = (tuple(bounded), *[manifest.manifest_path for manifest in kept])
        decoded = self._decoded.get(key)
        if decoded is None:
            read = await call_each(partial(self._read, reader), kept, at_once=_CONCURRENT_MANIFESTS)
            pairs = list(zip(kept, read, strict=True))
            del read  # the thread drops the entries
            untrusted = self.untrusted if reader.trust_statistics else None
            equality = EqualityIndex(self.keys, self.specs, untrusted, self.name)
            decoded = await asyncio.to_thread(
                _ManifestFiles, pairs, self.schema, self.fields, self.specs, bounded, equality, self.name, self.store
            )
            self._decoded[key] = decoded
        return await asyncio.to_thread(decoded.select, partitions)

    def _spec_of(self, manifest: ManifestFile) -> PartitionSpec:
        try:
            return self.specs[manifest.partition_spec_id]
        except KeyError:
            raise CorruptFileError(
                f"{self.name} has no partition spec {manifest.partition_spec_id}, which a manifest refers to",
                url=safe_url(store_url(manifest.manifest_path)),
            ) from None

    async def _read(self, reader: CatalogReader, manifest: ManifestFile) -> tuple[ManifestFileEntry, ...]:
        entries = self.entries.get(manifest.manifest_path)
        if entries is None:
            url = store_url(manifest.manifest_path)
            self.store.check(url)
            data = await reader.read_bytes(url)
            entries = await asyncio.to_thread(decode_manifest, data, manifest, reader.limits)
            if len(entries) < _CACHED_ENTRIES:
                self.entries[manifest.manifest_path] = entries
        return entries


class _ManifestFiles:
    """The data files of manifests, with the bounds of some columns. Made once, then filtered for each read."""

    def __init__(
        self,
        manifests: list[tuple[ManifestFile, tuple[ManifestFileEntry, ...]]],
        schema: Schema,
        fields: tuple[TableField, ...],
        specs: Mapping[int, PartitionSpec],
        bounded: Mapping[str, NestedField],
        equality: EqualityIndex,
        table: str,
        store: TableStore,
    ) -> None:
        """Convert the entries of manifests to data files. Raises UnsupportedFeatureError if delete files are not in
        ``store``; data files that are not are unreadable.

        Args:
            manifests: pairs of a manifest and its entries, of data and delete files; the list is emptied.
            schema: schema of the snapshot.
            fields: the columns of ``schema``.
            specs: the table's partition specs, by id.
            bounded: the leaves whose bounds are decoded, by dotted path.
            equality: the index that equality deletes are added to.
            table: the table's name, for messages.
            store: the table's own store.
        """
        data: list[ManifestFileEntry] = []
        deletes: list[ManifestFileEntry] = []
        for manifest, entries in manifests:
            (data if manifest.content == ManifestContent.DATA else deletes).extend(entries)
        manifests.clear()
        for entry in deletes:
            store.check(entry.url)
        self._table = table
        self._store = store
        self._fields = fields
        self._bounded = bounded
        index = DeleteIndex(deletes, equality, table)
        self._identities = {spec_id: _identities(schema, spec) for spec_id, spec in specs.items()}
        self._specs = {entry.spec_id: specs[entry.spec_id] for entry in data if entry.content == DATA}
        for entry in (*data, *deletes):
            if len(entry.partition) < len(specs[entry.spec_id].fields):
                raise CorruptFileError(
                    f"{table}: a file has {len(entry.partition)} partition values, but partition spec {entry.spec_id} "
                    f"has {len(specs[entry.spec_id].fields)} fields",
                    url=safe_url(entry.url),
                )
        self._partitions: list[Mapping[str, Any]] = [{}]
        self._defaulted: list[tuple[TableField, ...] | None] = [None]  # columns of the files with each partition
        positions: dict[Hashable, int] = {}  # in ``_partitions``
        self._files = self._data_files([self._row(entry, index, positions) for entry in data if entry.content == DATA])

    def select(self, partitions: PartitionFilter) -> Sequence[DataFile]:
        """Return the files that ``partitions`` keeps. If it keeps all, the result is always the same object, so that
        caches recognise it."""
        if all(partitions.keeps_all(spec) for spec in self._specs.values()):
            return self._files
        specs = self._specs
        kept = [row for row in self._files.rows if partitions.keeps_partition(row[2], specs[row[3]], row[0])]
        return self._files if len(kept) == len(self._files) else self._data_files(kept)

    def _row(self, entry: ManifestFileEntry, index: DeleteIndex, positions: dict[Hashable, int]) -> tuple[Any, ...]:
        """Convert one manifest entry to the row of a data file: its url, the position of its partition values, these
        as the manifest has them, the spec's id, and the rest of what :meth:`_data_file` takes.

        If the file cannot be read, the row has the error, which is raised only if a read needs the file. ``index`` has
        the snapshot's deletes."""
        unreadable: AsyncpqError | None = None
        position = 0
        deletes: Deletes | None = None
        num_rows = entry.num_rows if entry.num_rows >= 0 else None
        try:
            self._store.check(entry.url)
            if entry.format != "PARQUET":
                raise UnsupportedFeatureError(
                    f"{self._table} has data files in {printable(entry.format)}: only Parquet is read",
                    url=safe_url(entry.url),
                )
            key = entry.partition_key
            position = positions.get(key, 0)
            if not position and (partition := self._partition(entry)):
                position = positions[key] = len(self._partitions)
                partition, fields = with_own_zeros(partition, self._fields)
                self._partitions.append(partition)
                self._defaulted.append(None if fields is self._fields else fields)
        except (UnsupportedFeatureError, CorruptFileError) as error:
            unreadable = error
        try:
            deletes = index.deletes_of(entry)
        except (UnsupportedFeatureError, CorruptFileError) as error:
            unreadable, num_rows = error, None  # the number of deleted rows is unknown
        constant = self._partitions[position]
        bounds = tuple(
            [None if name in constant else _BOUNDS(column_bounds(leaf, entry)) for name, leaf in self._bounded.items()]
        )
        return entry.url, position, entry.partition, entry.spec_id, entry.size, num_rows, bounds, deletes, unreadable

    def _data_files(self, rows: list[tuple[Any, ...]]) -> TableDataFiles:
        are_described = bool(self._bounded) or len(self._partitions) > 1
        return TableDataFiles(rows, self._data_file, self._partitions, are_described=are_described)

    def _data_file(self, row: tuple[Any, ...]) -> DataFile:
        """Make the data file of a row of :meth:`_row`."""
        url, position, _, _, size, num_rows, bounds, deletes, unreadable = row
        return DataFile(
            url=url,
            size=size,
            num_rows=num_rows,
            partition=self._partitions[position],
            fields=self._defaulted[position],
            bounds={
                name: ColumnBounds(**dict(zip(_BOUND_NAMES, values, strict=True)))
                for name, values in zip(self._bounded, bounds, strict=True)
                if values is not None
            },
            deletes=deletes,
            immutable=True,
            unreadable=unreadable,
        )

    def _partition(self, entry: ManifestFileEntry) -> Mapping[str, Any]:
        """Return the values of the columns that have one value in the whole file (identity partitions), keyed by
        column name."""
        return {
            column.name: partition_value(column, entry.partition[position], self._table, entry.url)
            for position, column in self._identities[entry.spec_id]
            if entry.partition[position] is not None  # a column that the file lacks then has its default
        }


def _identities(schema: Schema, spec: PartitionSpec) -> list[tuple[int, NestedField]]:
    """Return a pair for each identity partition of ``spec``: its position among the partition values, its column."""
    top = {column.field_id: column for column in schema.fields}
    identities = []
    for position, part in enumerate(spec.fields):
        source = top.get(part.source_id) if isinstance(part.transform, IdentityTransform) else None
        if source is not None and isinstance(source.field_type, PrimitiveType):
            identities.append((position, source))
    return identities
