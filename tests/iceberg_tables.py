"""Iceberg tables for tests: made by pyiceberg on a local folder, and the delete files that it does not write."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyroaring import BitMap64

from asyncpq.expressions import Expression
from tests.lakes import PlainReader
from tests.predicates import oracle

_numbers = itertools.count(1)


def iceberg_catalog(folder: Path) -> SqlCatalog:
    """An empty catalog in ``folder``, with the namespace ``db``; its tables are below ``folder / "warehouse"``."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("db")
    return catalog


def make_table(folder: Path, schema: pa.Schema, **options: Any) -> Table:
    """A new table; ``options`` as pyiceberg's ``create_table``."""
    return iceberg_catalog(folder / f"catalog{next(_numbers)}").create_table("db.events", schema, **options)


def data_files(table: Table) -> list[DataFile]:
    """pyiceberg's records of the present data files, in the order of a scan."""
    return [task.file for task in table.scan().plan_files()]


def _content(url: str) -> bytes:
    return Path(path_of(url)).read_bytes()


class LocalReader(PlainReader):
    """A :class:`asyncpq.datasets.model.CatalogReader` of local files, by pyarrow; ``read`` lists what it was asked."""

    def __init__(self) -> None:
        self.read: list[str] = []

    async def read_bytes(
        self, url: str, start: int = 0, stop: int | None = None, *, at_most: int | None = None
    ) -> bytes:
        self.read.append(url)
        return _content(url)[start:stop]

    async def read_table(
        self, url: str, columns: Sequence[str] | None = None, where: Expression | None = None
    ) -> pa.Table:
        self.read.append(url)
        filters = None if where is None else oracle(where)
        return pq.read_table(path_of(url), columns=None if columns is None else list(columns), filters=filters)

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, tuple[Any, int]]]) -> Any:
        made, _ = await make()
        return made

    async def list_names(self, url: str) -> list[str]:
        raise NotImplementedError


def path_of(location: str) -> str:
    return location.removeprefix("file://")


def position_deletes(
    table: Table,
    rows: Mapping[str, Sequence[int]],
    *,
    like: DataFile,
    bounds: tuple[str, str] | None = None,
    row_group_size: int = 1000,
) -> DataFile:
    """Write a position delete file.

    Args:
        rows: numbers of deleted rows, by path of the data file.
        like: a data file of the partition that the deletes are for.
        bounds: of the paths, as the manifest gives them; None for none.
    """
    location = f"{table.location()}/data/deletes-{next(_numbers)}.parquet"
    found = sorted((path, row) for path, numbers in rows.items() for row in numbers)
    content = pa.table(
        {"file_path": [path for path, _ in found], "pos": pa.array([row for _, row in found], pa.int64())}
    )
    pq.write_table(content, path_of(location), row_group_size=row_group_size)
    low, high = (None, None) if bounds is None else ({2147483546: end.encode()} for end in bounds)
    return _delete_file(
        location, like, DataFileContent.POSITION_DELETES, len(found), lower_bounds=low, upper_bounds=high
    )


def deletion_vectors(table: Table, rows: Mapping[str, Sequence[int]], *, like: DataFile) -> list[DataFile]:
    """Write a Puffin file with a vector for each data file; one record for each of them."""
    location = f"{table.location()}/data/vectors-{next(_numbers)}.puffin"
    content = bytearray(b"PFA1")
    blobs: list[dict[str, Any]] = []
    found = []
    for path, numbers in rows.items():
        bitmap = BitMap64(numbers)
        bitmap.run_optimize()
        vector = b"\xd1\xd3\x39\x64" + bitmap.serialize()
        blob = len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
        place = {"offset": len(content), "length": len(blob)}
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "properties": {"referenced-data-file": path, "cardinality": str(len(bitmap))},
                **place,
            }
        )
        content += blob
        found.append((path, len(bitmap), place))
    footer = json.dumps({"blobs": blobs}).encode()
    content += b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"
    Path(path_of(location)).write_bytes(content)
    return [
        _delete_file(
            location,
            like,
            DataFileContent.POSITION_DELETES,
            cardinality,
            file_format=FileFormat.PUFFIN,
            referenced_data_file=path,
            content_offset=place["offset"],
            content_size_in_bytes=place["length"],
        )
        for path, cardinality, place in found
    ]


def equality_deletes(
    table: Table, values: pa.Table, *, like: DataFile, field_ids: Sequence[int], **more: Any
) -> DataFile:
    """Write an equality delete file: rows that equal one of ``values`` in its columns.

    Args:
        values: as the file has them, field ids included (:func:`tagged`).
        like: a data file of the partition that the deletes are for.
        more: further parts of the record, such as bounds.
    """
    location = f"{table.location()}/data/equality-{next(_numbers)}.parquet"
    pq.write_table(values, path_of(location))
    return _delete_file(
        location, like, DataFileContent.EQUALITY_DELETES, values.num_rows, equality_ids=list(field_ids), **more
    )


def tagged(rows: pa.Table, schema: Schema) -> pa.Table:
    """``rows`` with the types and field ids that their columns have in ``schema``."""
    arrow = schema_to_pyarrow(schema.select(*rows.column_names))
    return rows.cast(pa.schema([arrow.field(name) for name in rows.column_names]))


def written_file(table: Table, rows: pa.Table, partition: Record | None = None, **more: Any) -> DataFile:
    """Write a data file, not committed; its field ids are those of ``rows``."""
    location = f"{table.location()}/data/rows-{next(_numbers)}.parquet"
    Path(path_of(location)).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path_of(location), row_group_size=more.pop("row_group_size", 1000))
    size = Path(path_of(location)).stat().st_size
    return data_record(
        table, location, partition or Record(), **{"record_count": rows.num_rows, "file_size_in_bytes": size, **more}
    )


def _delete_file(
    location: str,
    like: DataFile,
    content: DataFileContent,
    num_rows: int,
    file_format: FileFormat = FileFormat.PARQUET,
    **more: Any,
) -> DataFile:
    file = DataFile.from_args(
        _table_format_version=3,
        content=content,
        file_path=location,
        file_format=file_format,
        partition=like.partition,
        record_count=num_rows,
        file_size_in_bytes=Path(path_of(location)).stat().st_size,
        **more,
    )
    file.spec_id = like.spec_id
    return file


class _Writer(ManifestWriterV2):
    """Writes the fields of format version 3; the sequence number is inherited."""

    def __init__(self, *args: Any, content: ManifestContent) -> None:
        super().__init__(*args)
        self._content = content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes" if self._content == ManifestContent.DELETES else "data"}

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(3)
        return AvroOutputFile[ManifestEntry](self._output_file, schema, "manifest_entry", schema, self._meta)


def add_files(
    table: Table,
    files: Sequence[DataFile],
    content: ManifestContent = ManifestContent.DELETES,
    deleted: Sequence[DataFile] = (),
    data: Sequence[DataFile] = (),
) -> None:
    """Commit a snapshot that adds ``files``, each spec's in a manifest of its own, beside entries that are deleted,
    and data files, as an upsert does."""
    snapshot_id = table.metadata.new_snapshot_id()
    sequence_number = table.metadata.next_sequence_number()
    before = table.metadata.current_snapshot()
    manifests = [] if before is None else list(before.manifests(table.io))
    manifests += _manifests(table, files, deleted, content, snapshot_id)
    manifests += _manifests(table, data, (), ManifestContent.DATA, snapshot_id)
    parent_id = None if before is None else before.snapshot_id
    location = f"{table.location()}/metadata/snap-{snapshot_id}.avro"
    output = table.io.new_output(location)
    with write_manifest_list(2, output, snapshot_id, parent_id, sequence_number, "null") as writer:
        writer.add_manifests(manifests)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent_id,
            "sequence-number": sequence_number,
            "manifest-list": location,
            "summary": Summary(operation=Operation.OVERWRITE),
            "schema-id": table.metadata.current_schema_id,
        }
    )
    set_main = SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id})
    table.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), set_main))
    table.refresh()


def _manifests(
    table: Table, files: Sequence[DataFile], deleted: Sequence[DataFile], content: ManifestContent, snapshot_id: int
) -> Iterator[ManifestFile]:
    for spec_id in sorted({file.spec_id for file in files}):
        output = table.io.new_output(f"{table.location()}/metadata/added-{next(_numbers)}.avro")
        spec = table.metadata.specs()[spec_id]
        with _Writer(spec, table.schema(), output, snapshot_id, "null", content=content) as writer:
            for file in (*files, *deleted):
                if file.spec_id == spec_id:
                    entry = ManifestEntry.from_args(
                        _table_format_version=3,
                        status=ManifestEntryStatus.DELETED if file in deleted else ManifestEntryStatus.ADDED,
                        snapshot_id=snapshot_id,
                        sequence_number=0 if file in deleted else None,
                        data_file=file,
                    )
                    writer.add_entry(entry)
        yield writer.to_manifest_file()


def data_record(table: Table, location: str, partition: Record, **more: Any) -> DataFile:
    """A record of a data file that the test wrote itself, in the table's present partition spec."""
    known = {field.name for field in DATA_FILE_TYPE[3].fields}
    assert set(more) <= known
    arguments: dict[str, Any] = {
        "content": DataFileContent.DATA,
        "file_path": location,
        "file_format": FileFormat.PARQUET,
        "partition": partition,
        "record_count": 0,
        "file_size_in_bytes": 0,
    }
    file = DataFile.from_args(_table_format_version=3, **{**arguments, **more})
    file.spec_id = table.metadata.default_spec_id
    return file


def edited_metadata(table: Table, edit: Any) -> str:
    """A copy of the table's metadata file, its document changed in place by ``edit``; returns its url."""
    document = json.loads(Path(path_of(table.metadata_location)).read_text(encoding="utf-8"))
    edit(document)
    path = Path(path_of(table.metadata_location)).with_name(f"edited-{next(_numbers)}.metadata.json")
    path.write_text(json.dumps(document), encoding="utf-8")
    return f"file://{path}"
