"""Decode Iceberg's table metadata, manifest lists and manifests with pyiceberg (table spec, "Manifests").

The session's stores fetch the bytes. Decoding is slow enough to block an event loop: call it in a thread.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.avro.reader import Reader as AvroReader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.io import InputFile, InputStream
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, ManifestEntry, ManifestFile, read_manifest_list
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.serializers import Compressor, FromByteStream
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, IcebergType

from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2  # DataFile.content
_ADDED, _DELETED = 1, 2  # ManifestEntry.status
_NEWEST_FORMAT = 3
_VERSION_3_POSITIONS = (17, 18, 19)  # in DataFile: referenced_data_file, content_offset, content_size_in_bytes
_RECORDS: dict[int, Any] = {-1: ManifestEntry, 2: IcebergFile}  # by field id of the struct, -1 for the whole
_PRIMITIVE = re.compile(
    r"boolean|int|long|float|double|date|time|timestamp(tz)?(_ns)?|string|uuid|binary|fixed\[.*|decimal\(.*|unknown"
    r"|geometry.*|geography.*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFileEntry:
    """A live data or delete file in a manifest."""

    content: int  # DATA, POSITION_DELETES or EQUALITY_DELETES
    path: str  # as the manifest writes it; delete files refer to data files by it
    url: str  # the path as a url of a store
    format: str  # in capitals, such as "PARQUET"
    spec_id: int  # id of the partition spec. ``partition`` holds values in the order of the spec's fields.
    partition: tuple[Any, ...]
    sequence_number: int  # sequence number of the snapshot that added the file
    num_rows: int  # rows, deleted ones included; for a delete file, its deletes
    size: int
    referenced_path: str | None  # data file and byte range of a deletion vector
    content_offset: int | None
    content_size: int | None
    equality_ids: tuple[int, ...]  # field ids of the key columns of an equality delete file
    file: IcebergFile  # pyiceberg's record, for its statistics

    @property
    def lower_bounds(self) -> Mapping[int, bytes]:
        return self.file.lower_bounds or {}

    @property
    def upper_bounds(self) -> Mapping[int, bytes]:
        return self.file.upper_bounds or {}

    @property
    def partition_key(self) -> Hashable:
        """A key that is equal for all files of a partition; in keys, NaN equals NaN."""
        return (self.spec_id, *("nan" if value != value else value for value in self.partition))


def decode_table_metadata(data: bytes, url: str) -> TableMetadata:
    """Decode a ``.metadata.json`` file, which is gzipped if its name says so."""
    try:
        with Compressor.get_compressor(url).stream_decompressor(io.BytesIO(data)) as stream:
            text = stream.read()
        document = json.loads(text)
        version = document["format-version"]
        types = list(_column_types(document.get("schemas") or [document["schema"]]))
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError) as error:
        raise CorruptFileError(
            f"the file is not the metadata of an Iceberg table: {error}", url=safe_url(url)
        ) from error
    if version not in range(1, _NEWEST_FORMAT + 1):
        raise UnsupportedFeatureError(f"asyncpq does not support Iceberg format version {version}", url=safe_url(url))
    for column, column_type in types:
        if _PRIMITIVE.fullmatch(column_type) is None:
            raise UnsupportedFeatureError(
                f"asyncpq does not support Iceberg type {column_type}", url=safe_url(url), column=column
            )
    try:
        return FromByteStream.table_metadata(io.BytesIO(text))
    except Exception as error:
        raise CorruptFileError(f"pyiceberg cannot read the metadata: {error}", url=safe_url(url)) from error


def _column_types(schemas: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Iterate over names and types of the primitive parts of each schema, as pairs of texts."""
    parts = [("", part) for schema in schemas for part in schema["fields"]]
    while parts:
        prefix, part = parts.pop()
        name, column_type = prefix + part["name"], part["type"]
        if isinstance(column_type, str):
            yield name, column_type
        elif column_type["type"] == "struct":
            parts += [(f"{name}.", child) for child in column_type["fields"]]
        elif column_type["type"] == "list":
            parts.append((f"{name}.", {"name": "element", "type": column_type["element"]}))
        elif column_type["type"] == "map":
            parts += [(f"{name}.", {"name": side, "type": column_type[side]}) for side in ("key", "value")]
        else:
            yield name, str(column_type["type"])


def decode_manifest_list(data: bytes, url: str) -> list[ManifestFile]:
    """Decode a manifest list; return the manifests that may contain live files."""
    try:
        manifests = list(read_manifest_list(_InMemory(url, data)))
    except Exception as error:
        raise CorruptFileError(f"pyiceberg cannot read the manifest list: {error}", url=safe_url(url)) from error
    for manifest in manifests:
        if manifest.key_metadata:
            raise UnsupportedFeatureError(
                "asyncpq does not support encrypted Iceberg manifests", url=safe_url(store_url(manifest.manifest_path))
            )
    return [manifest for manifest in manifests if manifest.has_added_files() or manifest.has_existing_files()]


def decode_manifest(data: bytes, manifest: ManifestFile) -> tuple[ManifestFileEntry, ...]:
    """Decode a manifest; return its live files in the order of the manifest."""
    url = store_url(manifest.manifest_path)
    try:
        # read with the newest schema: fields that the manifest lacks are None
        with AvroFile[ManifestEntry](_InMemory(url, data), MANIFEST_ENTRY_SCHEMAS[_NEWEST_FORMAT], _RECORDS) as records:
            records.reader = _exact_reader(records.schema, MANIFEST_ENTRY_SCHEMAS[_NEWEST_FORMAT])
            return tuple(_entry(record, manifest, url) for record in records if record.status != _DELETED)
    except (CorruptFileError, UnsupportedFeatureError):
        raise
    except Exception as error:
        raise CorruptFileError(f"pyiceberg cannot read the manifest: {error}", url=safe_url(url)) from error


class _ExactDoubleReader(DoubleReader):
    """A reader of exact doubles: pyiceberg 0.12.0 rounds doubles to single precision (iceberg-python #3808)."""

    def read(self, decoder: BinaryDecoder) -> float:
        (value,) = struct.unpack("<d", decoder.read(8))
        return value  # type: ignore[no-any-return]  # a float by its format


class _Resolver(ReadSchemaResolver):
    def visit_double(self, double_type: DoubleType, partner: IcebergType | None) -> AvroReader:
        return _ExactDoubleReader()  # type: ignore[no-untyped-call]  # pyiceberg's, without types


def _exact_reader(written: Schema, wanted: Schema) -> AvroReader:
    visit: Callable[..., AvroReader] = visit_with_partner  # its generic type is too wide for mypy
    return visit(written, wanted, _Resolver(_RECORDS), SchemaPartnerAccessor())


def _entry(record: ManifestEntry, manifest: ManifestFile, url: str) -> ManifestFileEntry:
    file = record.data_file
    sequence_number = record.sequence_number
    if sequence_number is None:  # inherited from the manifest that added the file
        if record.status != _ADDED and manifest.sequence_number != 0:
            raise CorruptFileError(
                f"{safe_url(file.file_path)} has no sequence number in its manifest", url=safe_url(url)
            )
        sequence_number = manifest.sequence_number
    if file.key_metadata:
        raise UnsupportedFeatureError(
            "asyncpq does not support encrypted files of an Iceberg table", url=safe_url(store_url(file.file_path))
        )
    # the record has no attributes for the fields of format version 3, only positions
    referenced_path, content_offset, content_size = (file[position] for position in _VERSION_3_POSITIONS)
    return ManifestFileEntry(
        content=int(file.content),
        path=file.file_path,
        url=store_url(file.file_path),
        format=str(file.file_format).upper(),
        spec_id=manifest.partition_spec_id,
        partition=tuple(file.partition[position] for position in range(len(file.partition))),
        sequence_number=sequence_number,
        num_rows=file.record_count,
        size=file.file_size_in_bytes,
        referenced_path=referenced_path,
        content_offset=content_offset,
        content_size=content_size,
        equality_ids=tuple(file.equality_ids or ()),
        file=file,
    )


def store_url(path: str) -> str:
    """Return the url of a location in Iceberg's metadata; translates ``s3n://`` and Hadoop's ``file:/path``."""
    if path.startswith("s3n://"):
        return "s3" + path[3:]
    if path.startswith("file:") and not path.startswith("file://"):
        return path.removeprefix("file:")
    return path


class _InMemory(InputFile):
    """Bytes in memory that pyiceberg reads like a file."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._data)
