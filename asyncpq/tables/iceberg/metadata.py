"""Decode the metadata file of an Iceberg table with pyiceberg (table spec, "Table Metadata"). It blocks: use a thread.

pyiceberg refuses a whole table for a type that it does not know. Such types are set aside before it decodes the file,
so that the table's other columns can be read.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from typing import Any

from pyiceberg.serializers import FromByteStream
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, TruncateTransform

from asyncpq.datasets.metadata_budget import MetadataBudget
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError, located
from asyncpq.options import LimitOptions
from asyncpq.storage.urls import safe_url
from asyncpq.tables.iceberg.decompression import Inflater

NEWEST_FORMAT = 3
_COMPRESSED = (".gz.metadata.json", ".metadata.json.gz")  # Java writes the first, and reads both
_CHARACTERS_SHOWN = 200  # of an error's text, or of a type's name
_VALUE_BYTES = 64  # of memory that a value of a JSON document takes, about
_KNOWN = re.compile(
    r"boolean|int|long|float|double|date|time|timestamp(tz)?(_ns)?|string|uuid|binary|fixed\[.*|decimal\(.*|unknown"
    r"|geometry.*|geography.*"
)
#: The parts of nested types: the name of the part's type, and of its id.
_PARTS = {"list": (("element", "element-id"),), "map": (("key", "key-id"), ("value", "value-id"))}


def decode_table_metadata(data: bytes, url: str, limits: LimitOptions) -> tuple[TableMetadata, Mapping[int, str]]:
    """Decode a metadata file, which is gzipped if its name says so.

    Return it with the names of types that pyiceberg does not know, by the ids of their fields, which have the type
    ``unknown`` in the metadata.
    """
    try:
        with located(url=safe_url(url)):
            text = _inflated(data, limits) if url.endswith(_COMPRESSED) else data
            document = json.loads(text)
            version = document["format-version"]
            schemas = document.get("schemas") or [document["schema"]]
            if isinstance(document.get("schema"), dict):  # format 1 may have both
                schemas = [*schemas, document["schema"]]
            foreign = _set_aside(schemas)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise CorruptFileError(
            f"the file is not the metadata of an Iceberg table: {short_text(error)}", url=safe_url(url)
        ) from error
    if version not in range(1, NEWEST_FORMAT + 1):
        raise UnsupportedFeatureError(
            f"asyncpq does not support Iceberg format version {str(version)[:_CHARACTERS_SHOWN]}", url=safe_url(url)
        )
    try:
        metadata = FromByteStream.table_metadata(io.BytesIO(json.dumps(document).encode() if foreign else text))
    except Exception as error:
        raise CorruptFileError(f"pyiceberg cannot read the metadata: {short_text(error)}", url=safe_url(url)) from error
    for part in (part for spec in metadata.partition_specs for part in spec.fields):
        if (
            isinstance(part.transform, (BucketTransform, TruncateTransform))
            and not 0 < _parameter(part.transform) < 1 << 31
        ):
            raise CorruptFileError(
                f"the table is partitioned by {part.transform}, which is impossible", url=safe_url(url)
            )
    return metadata, foreign


def _set_aside(schemas: list[dict[str, Any]]) -> dict[int, str]:
    """Replace the types in ``schemas`` that pyiceberg does not know by ``unknown``; return their names by field id."""
    foreign: dict[int, str] = {}
    # a dict, the key of a type in it, and the id of the field with that type
    parts: list[tuple[dict[str, Any], str, Any]] = [
        (field, "type", field["id"]) for schema in schemas for field in schema["fields"]
    ]
    while parts:
        parent, key, field_id = parts.pop()
        column_type = parent[key]
        if not isinstance(column_type, str):
            name = column_type["type"]
            if name == "struct":
                parts += [(field, "type", field["id"]) for field in column_type["fields"]]
            parts += [(column_type, part, column_type[part_id]) for part, part_id in _PARTS.get(name, ())]
        elif _KNOWN.fullmatch(column_type) is None:
            foreign[int(field_id)] = column_type[:_CHARACTERS_SHOWN]
            parent[key] = "unknown"
    return foreign


def _parameter(transform: BucketTransform[Any] | TruncateTransform[Any]) -> int:
    return transform.num_buckets if isinstance(transform, BucketTransform) else transform.width


def short_text(error: Exception) -> str:
    """Return the beginning of an error's text, which may quote metadata of any length."""
    return str(error)[:_CHARACTERS_SHOWN]


def _inflated(data: bytes, limits: LimitOptions) -> bytes:
    """Decompress gzipped JSON. Raises ResourceLimitError if it, or what it describes, takes too much memory."""
    budget = MetadataBudget(len(data), limits)
    text = Inflater(budget).stream(data, "gzip")
    budget.spend((text.count(b",") + text.count(b"[") + text.count(b"{")) * _VALUE_BYTES)
    return text
