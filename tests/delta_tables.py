"""Delta tables in a local folder: a reader for their snapshots, and a writer of what deltalake cannot write.

The oracle here reads whole files with pyarrow: it knows snapshots, but nothing of pruning or plans.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.datasets.model import DataFile, FileList, TableField
from asyncpq.errors import ColumnNotFoundError, ObjectNotFoundError
from asyncpq.expressions import Expression
from asyncpq.tables.delta.catalog import DeltaCatalog
from tests.lakes import PlainReader

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


class FolderReader(PlainReader):
    """A :class:`asyncpq.datasets.model.CatalogReader` on local files; ``urls`` are those that were asked for."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    async def read_bytes(
        self, url: str, start: int = 0, stop: int | None = None, *, at_most: int | None = None
    ) -> bytes:
        self.urls.append(url)
        return _read(Path(url))[start:stop]

    async def read_table(
        self, url: str, columns: Sequence[str] | None = None, where: Expression | None = None
    ) -> pa.Table:
        self.urls.append(url)
        schema = pq.read_schema(url)
        for column in columns or ():
            kind: Any = pa.struct(schema)
            for name in column.split("."):
                if kind.get_field_index(name) < 0:
                    raise ColumnNotFoundError("no such column", column=column)
                kind = kind.field(name).type
        return pq.ParquetFile(url).read(columns)

    async def list_names(self, url: str) -> list[str]:
        return _names(Path(url))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ObjectNotFoundError("no such object", url=str(path)) from error


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


async def snapshot_of(table: object, version: Any = None) -> FileList:
    found = await DeltaCatalog.of(table, version=version).snapshot(FolderReader())
    assert isinstance(found, FileList)
    return found


async def rows_of(snapshot: FileList) -> pa.Table:
    """All rows of a snapshot: each file read whole, its deleted rows taken out, its columns named and typed."""
    assert snapshot.fields is not None
    tables = [await _file_rows(file, snapshot.fields) for file in snapshot.data_files]
    schema = pa.schema([pa.field(field.name, field.type, field.nullable) for field in snapshot.fields])
    return pa.concat_tables([schema.empty_table(), *tables])


async def _file_rows(file: DataFile, fields: Sequence[TableField]) -> pa.Table:
    content = _read(Path(file.url))
    stored = pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us").read()
    assert file.num_rows in (None, stored.num_rows)
    assert file.size in (None, len(content))
    if file.deletes is not None:
        deleted = await file.deletes.rows(FolderReader(), stored.num_rows)
        stored = stored.filter(pa.array([row not in deleted for row in range(stored.num_rows)], pa.bool_()))
    columns = []
    for field in fields:
        if field.name in file.partition:
            columns.append(pa.array([file.partition[field.name]] * stored.num_rows, field.type))
        else:
            columns.append(_column(stored.to_struct_array().combine_chunks(), field))
    schema = pa.schema([pa.field(field.name, field.type, field.nullable) for field in fields])
    return pa.Table.from_arrays(columns, schema=schema)


def _column(parent: Any, field: TableField) -> Any:
    """The part of a struct array that a field means, null where there is none."""
    for index, found in enumerate(parent.type):
        names = field.names or (field.name,)
        stored_id = int((found.metadata or {}).get(b"PARQUET:field_id", -1))
        if stored_id == field.field_id if field.field_id is not None and stored_id >= 0 else found.name in names:
            return _typed(parent.flatten()[index], field)
    return pa.nulls(len(parent), field.type)


def _typed(array: Any, field: TableField) -> Any:
    if pa.types.is_struct(field.type):
        parts = [_column(array, child) for child in field.children]
        return pa.StructArray.from_arrays(parts, fields=list(field.type), mask=array.is_null())
    if pa.types.is_list(field.type):
        values = _typed(array.flatten(), field.children[0])
        lengths = array.value_lengths().to_pylist()
        offsets: list[int | None] = [0]
        for length in lengths:
            offsets.append(int(offsets[-1] or 0) + (length or 0))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, field.type, mask=array.is_null())
    return array.cast(field.type)


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 1})
    module = importlib.resources.files("duckdb_extension_delta")
    connection.execute(f"LOAD '{module}/extensions/v{duckdb.__version__}/delta.duckdb_extension'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


async def assert_same_as_duckdb(folder: Path) -> list[dict[str, Any]]:
    """The rows of a table, which DuckDB's Delta reader gives, too."""
    found: list[dict[str, Any]] = (await rows_of(await snapshot_of(folder))).to_pylist()
    expected = _duckdb().execute("SELECT * FROM delta_scan(?)", [str(folder)]).to_arrow_table().to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    return found


# -- writing ------------------------------------------------------------------------------------


class DeltaWriter:
    """Writes a log, action by action, in a folder that need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "_delta_log"
        self.log.mkdir(parents=True)
        self.version = -1

    def commit(self, *actions: Mapping[str, Any], timestamp: int | None = None) -> int:
        self.version += 1
        info = [] if timestamp is None else [{"commitInfo": {"timestamp": timestamp}}]
        lines = "".join(json.dumps(action) + "\n" for action in (*info, *actions))
        (self.log / f"{self.version:020}.json").write_text(lines)
        return self.version

    def file(self, name: str, table: pa.Table, **more: Any) -> dict[str, Any]:
        """Write a data file; its ``add`` action."""
        pq.write_table(table, self.folder / name)
        return add(name, size=(self.folder / name).stat().st_size, num_rows=table.num_rows, **more)

    def vector_file(self, *vectors: Iterable[int], prefix: str = "") -> list[dict[str, Any]]:
        """Write deletion vectors to a file; what actions say of each."""
        name = uuid.uuid4()
        content = b"\x01"
        found = []
        for rows in vectors:
            rows = list(rows)
            data = vector_bytes(rows)
            found.append(
                {
                    "storageType": "u",
                    "pathOrInlineDv": prefix + encode_z85(name.bytes),
                    "offset": len(content),
                    "sizeInBytes": len(data),
                    "cardinality": len(rows),
                }
            )
            content += len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
        (self.folder / prefix).mkdir(exist_ok=True)
        (self.folder / prefix / f"deletion_vector_{name}.bin").write_bytes(content)
        return found


def protocol(*features: str, reader: int | None = None) -> dict[str, Any]:
    version = reader if reader is not None else 3 if features else 1
    said: dict[str, Any] = {"minReaderVersion": version, "minWriterVersion": 7 if version == 3 else 2}
    if version == 3:
        said |= {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": said}


def metadata(
    *fields: Mapping[str, Any], partition_columns: Sequence[str] = (), configuration: Mapping[str, str] | None = None
) -> dict[str, Any]:
    return {
        "metaData": {
            "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(fields)}),
            "partitionColumns": list(partition_columns),
            "configuration": dict(configuration or {}),
        }
    }


def column(
    name: str,
    kind: Any,
    *,
    nullable: bool = True,
    physical: str | None = None,
    id_: int = 0,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    mapped = {} if physical is None else {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": id_}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": mapped | dict(more or {})}


ID = column("id", "long")


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def add(
    path: str,
    *,
    size: int = 1,
    num_rows: int | None = None,
    partition: Mapping[str, str | None] | None = None,
    stats: Mapping[str, Any] | None = None,
    vector: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    said: dict[str, Any] = {
        "path": path,
        "partitionValues": dict(partition or {}),
        "size": size,
        "modificationTime": 0,
        "dataChange": True,
    }
    if num_rows is not None or stats is not None:
        said["stats"] = json.dumps(({} if num_rows is None else {"numRecords": num_rows}) | dict(stats or {}))
    if vector is not None:
        said["deletionVector"] = dict(vector)
    return {"add": said}


def remove(added: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: added["add"][name] for name in ("path", "deletionVector") if name in added["add"]}
    return {"remove": kept | {"dataChange": True}}


def vector_bytes(rows: Sequence[int]) -> bytes:
    """A serialized RoaringBitmapArray, of array containers (so of at most 4,096 rows in each 65,536)."""
    containers: dict[int, list[int]] = {}
    for row in sorted(rows):
        containers.setdefault(row >> 16, []).append(row & 0xFFFF)
    header = b"".join(struct.pack("<HH", key, len(values) - 1) for key, values in containers.items())
    bodies = [struct.pack(f"<{len(values)}H", *values) for values in containers.values()]
    at = 8 + 8 * len(containers)
    offsets = b""
    for body in bodies:
        offsets += struct.pack("<I", at)
        at += len(body)
    bitmap = struct.pack("<II", 12346, len(containers)) + header + offsets + b"".join(bodies)
    return struct.pack("<IQI", 1681511377, 1, 0) + bitmap


def inline_vector(rows: Sequence[int]) -> dict[str, Any]:
    data = vector_bytes(rows)
    padded = data + b"\x00" * (-len(data) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": encode_z85(padded),
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


def encode_z85(data: bytes) -> str:
    text = ""
    for at in range(0, len(data), 4):
        value = int.from_bytes(data[at : at + 4], "big")
        text += "".join(Z85[value // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text
