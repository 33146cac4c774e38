"""The data files of an Iceberg table's manifests, as a dataset knows files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, PrimitiveType

from asyncpq.datasets.model import DataFile, Deletes
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError, printable
from asyncpq.storage.urls import safe_url
from asyncpq.tables.iceberg_deletes import DeleteIndex
from asyncpq.tables.iceberg_equality import EqualityIndex
from asyncpq.tables.iceberg_filter import PartitionFilter
from asyncpq.tables.iceberg_manifests import DATA, Entry
from asyncpq.tables.iceberg_values import column_bounds, partition_value


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
