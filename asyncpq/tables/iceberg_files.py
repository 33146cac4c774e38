"""The data files of an Iceberg table's manifests, as a dataset knows files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, PrimitiveType

from asyncpq.datasets.model import DataFile
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.storage.urls import safe_url
from asyncpq.tables.iceberg_deletes import DeleteIndex
from asyncpq.tables.iceberg_filter import PartitionFilter
from asyncpq.tables.iceberg_manifests import DATA, Entry
from asyncpq.tables.iceberg_values import as_literal, column_bounds


class ManifestFiles:
    """The files of some manifests of a snapshot, with the bounds of some columns; asked often."""

    def __init__(
        self,
        manifests: Iterable[tuple[ManifestFile, Sequence[Entry]]],
        schema: Schema,
        specs: Mapping[int, PartitionSpec],
        asked: Mapping[str, NestedField],
        table: str,
    ) -> None:
        """
        Args:
            manifests: with their live files.
            schema, specs: the snapshot's columns, and the table's partition specs.
            asked: the leaves whose bounds are wanted, by dotted path.
            table: names the table in errors.
        """
        data: list[Entry] = []
        deletes: list[Entry] = []
        for manifest, found in manifests:
            (data if manifest.content == ManifestContent.DATA else deletes).extend(found)
        self._table = table
        self._asked = asked
        self._deletes = DeleteIndex(deletes, table)
        self._identities = {spec_id: _identities(schema, spec) for spec_id, spec in specs.items()}
        self._entries = [(entry, specs[entry.spec_id]) for entry in data if entry.content == DATA]
        self._specs = {spec.spec_id: spec for _, spec in self._entries}
        self._files: list[DataFile] = []
        self._refused: list[int] = []
        for at, (entry, _) in enumerate(self._entries):
            try:
                self._files.append(self._data_file(entry))
            except (UnsupportedFeatureError, CorruptFileError):  # raised where this file is asked for
                self._files.append(DataFile(url=entry.url))
                self._refused.append(at)

    def select(self, partitions: PartitionFilter) -> Sequence[DataFile]:
        """Those that a filter keeps. What is equal is the same object, for whoever keeps what follows from it.

        Raises:
            UnsupportedFeatureError: a file is not Parquet, or has deletes that are not applied.
            CorruptFileError: a file has two deletion vectors.
        """
        if all(partitions.keeps_all(spec) for spec in self._specs.values()):
            kept: Sequence[int] = range(len(self._files))
        else:
            kept = [at for at, (entry, spec) in enumerate(self._entries) if partitions.keeps_file(entry.file, spec)]
        chosen = set(kept) if self._refused else set()
        for at in self._refused:
            if at in chosen:
                self._data_file(self._entries[at][0])
        return self._files if len(kept) == len(self._files) else [self._files[at] for at in kept]

    def _data_file(self, entry: Entry) -> DataFile:
        if entry.format != "PARQUET":
            raise UnsupportedFeatureError(
                f"{self._table} has data files in {entry.format}, not read", url=safe_url(entry.url)
            )
        partition: dict[str, Any] = {}
        for at, name, kind in self._identities[entry.spec_id]:
            if entry.partition[at] is None:
                continue  # a column that the file lacks then has its default
            try:
                partition[name] = as_literal(kind, entry.partition[at])
            except (ValueError, TypeError, ArithmeticError):
                raise UnsupportedFeatureError(
                    f"{self._table}: partition value {entry.partition[at]!r} is not read",
                    url=safe_url(entry.url),
                    column=name,
                ) from None
        return DataFile(
            url=entry.url,
            size=entry.size,
            num_rows=entry.num_rows if entry.num_rows >= 0 else None,
            partition=partition,
            bounds={
                name: column_bounds(leaf, entry.file) for name, leaf in self._asked.items() if name not in partition
            },
            deletes=self._deletes.of(entry),
            immutable=True,
        )


def _identities(schema: Schema, spec: PartitionSpec) -> list[tuple[int, str, PrimitiveType]]:
    """Position, column name and type of each partition field that is a column's own value."""
    top = {column.field_id: column for column in schema.fields}
    found = []
    for at, part in enumerate(spec.fields):
        source = top.get(part.source_id) if isinstance(part.transform, IdentityTransform) else None
        if source is not None and isinstance(source.field_type, PrimitiveType):
            found.append((at, source.name, source.field_type))
    return found
