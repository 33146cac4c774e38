"""Find the newest metadata file of an Iceberg table that is opened without a catalog, and decode metadata files with
pyiceberg (table spec, "Table Metadata"). Decoding blocks: use a thread.

Tables of Hadoop's kind number their files ``v1.metadata.json`` and name the last number in ``version-hint.text``, which
may lag behind. Catalogs write ``00001-<uuid>.metadata.json``. The highest number is the newest commit. If two files
have the highest number, two commits raced, and only the catalog knows which one won.

pyiceberg refuses a whole table for a type that it does not know, and for a default that it cannot decode, such as those
of timestamps with nanoseconds. Such types and all defaults are set aside before it decodes the file, so that the
table's other columns can be read.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyiceberg.serializers import FromByteStream
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, TruncateTransform

from asyncpq.datasets.model import CatalogReader, MetadataBudget
from asyncpq.errors import (
    CorruptFileError,
    InvalidOptionError,
    NotParquetError,
    ObjectNotFoundError,
    ResourceLimitError,
    UnsupportedFeatureError,
    located,
    printable,
)
from asyncpq.options import LimitOptions
from asyncpq.storage.urls import ICEBERG_METADATA, safe_url
from asyncpq.tables.iceberg.avro import Inflater

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
_FILE_NAME: Final = re.compile(r"(v?)(\d{1,18})(-[^/]+)?(?:(?:\.gz)?\.metadata\.json|\.metadata\.json\.gz)")
_HINT: Final = "version-hint.text"
_HINT_BYTES: Final = 64 << 10  # of a number or a name


class SetAside(NamedTuple):
    """Parts of a table's schemas that pyiceberg does not decode, by the ids of their fields."""

    types: Mapping[int, str]  # names of types that pyiceberg does not know
    defaults: Mapping[int, Any]  # initial defaults, as in JSON


async def newest_metadata(folder: str, reader: CatalogReader, empty: frozenset[str] = frozenset()) -> str:
    """Return the url of the newest metadata file in ``metadata/`` below ``folder``, other than those of ``empty``.

    Raises:
        ObjectNotFoundError: there is no such file.
        InvalidOptionError: two files have the highest number.
    """
    below = f"{folder.rstrip('/')}/metadata/"
    names = await reader.list_names(below)
    hinted = await _hinted(below, names, reader) if _HINT in names else None
    if hinted is not None and (_FILE_NAME.fullmatch(hinted) is None or below + hinted in empty):
        return below + hinted  # a name without a number, or what a writer says that it has committed
    matches = {
        name: match for name in names if (match := _FILE_NAME.fullmatch(name)) is not None and below + name not in empty
    }
    numbered = [(int(match[2]), name) for name, match in matches.items()]
    if not numbered:
        raise ObjectNotFoundError(
            "there is no Iceberg table: the folder has no metadata/*.metadata.json",
            url=safe_url(folder),
            hint="Pass the folder that has it, or load the table from its catalog with pyiceberg.",
        )
    highest = max(number for number, _ in numbered)
    newest = sorted(name for number, name in numbered if number == highest)
    if len(newest) > 1 and hinted not in newest:
        raise InvalidOptionError(
            f"two commits wrote metadata of number {highest}, and only the table's catalog knows which of them counts: "
            f"{', '.join(map(printable, newest[:2]))}",
            url=safe_url(folder),
            hint="Name one of the files, or load the table from its catalog with pyiceberg.",
        )
    return below + (hinted if hinted is not None and hinted in newest else newest[0])


async def _hinted(below: str, names: list[str], reader: CatalogReader) -> str | None:
    """Return the name of the metadata file in ``names`` that ``version-hint.text``, in the folder ``below``, gives
    by number or name; None if there is no such file, or the hint is empty, or longer than a name."""
    try:
        data = await reader.read_bytes(below + _HINT, at_most=_HINT_BYTES)
    except (NotParquetError, ResourceLimitError):  # empty, or too long
        return None
    text = data.decode("utf-8", "replace").strip()
    numbered = (f"v{text}.metadata.json", f"v{text}.gz.metadata.json", f"v{text}.metadata.json.gz")
    wanted = (*numbered, f"{text}.metadata.json", text)
    return next((name for name in wanted if name in names and name.endswith(ICEBERG_METADATA)), None)


def decode_table_metadata(data: bytes, url: str, limits: LimitOptions) -> tuple[TableMetadata, SetAside]:
    """Decode a metadata file, which is gzipped if its name says so.

    Return it with the parts of its schemas that are set aside. Fields of types that pyiceberg does not know have the
    type ``unknown`` in the metadata, and no field has a default.
    """
    try:
        with located(url=safe_url(url)):
            text = _inflated(data, limits) if url.endswith(_COMPRESSED) else data
            document = json.loads(text)
            version = document["format-version"]
            schemas = document.get("schemas") or [document["schema"]]
            if isinstance(document.get("schema"), dict):  # format 1 may have both
                schemas = [*schemas, document["schema"]]
            set_aside, is_changed = _set_aside(schemas)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise CorruptFileError(
            f"the file is not the metadata of an Iceberg table: {short_text(error)}", url=safe_url(url)
        ) from error
    if version not in range(1, NEWEST_FORMAT + 1):
        raise UnsupportedFeatureError(
            f"asyncpq does not support Iceberg format version {str(version)[:_CHARACTERS_SHOWN]}", url=safe_url(url)
        )
    try:
        metadata = FromByteStream.table_metadata(io.BytesIO(json.dumps(document).encode() if is_changed else text))
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
    return metadata, set_aside


def _set_aside(schemas: list[dict[str, Any]]) -> tuple[SetAside, bool]:
    """Replace the types in ``schemas`` that pyiceberg does not know by ``unknown``, and remove all defaults.

    Return what was replaced or removed and is read, and whether ``schemas`` were changed.
    """
    foreign: dict[int, str] = {}
    defaults: dict[int, Any] = {}
    is_changed = False
    fields = [field for schema in schemas for field in schema["fields"]]
    parts: list[tuple[dict[str, Any], str, Any]] = []  # a dict, the key of a type in it, and the id of the type's field
    while fields or parts:
        if fields:
            field = fields.pop()
            is_changed |= field.pop("write-default", None) is not None
            if (default := field.pop("initial-default", None)) is not None:
                defaults[int(field["id"])] = default
            parts.append((field, "type", field["id"]))
        parent, key, field_id = parts.pop()
        column_type = parent[key]
        if not isinstance(column_type, str):
            name = column_type["type"]
            if name == "struct":
                fields += column_type["fields"]
            parts += [(column_type, part, column_type[part_id]) for part, part_id in _PARTS.get(name, ())]
        elif _KNOWN.fullmatch(column_type) is None:
            foreign[int(field_id)] = column_type[:_CHARACTERS_SHOWN]
            parent[key] = "unknown"
    return SetAside(foreign, defaults), is_changed or bool(foreign or defaults)


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
