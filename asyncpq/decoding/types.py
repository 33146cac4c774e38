"""Which Arrow types a file's fields have, and the decoders made for them; kept with the footer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from asyncpq.decoding.arrow import StoredArrowSchema, read_schema
from asyncpq.decoding.leaf import LeafDecoder
from asyncpq.decoding.splice import schema_file
from asyncpq.errors import FormatError
from asyncpq.fetching.version import FileVersion
from asyncpq.format.schema import Field

_FIELD_WEIGHT = 1500


class FieldType(NamedTuple):
    """A top-level field as pyarrow sees it in this file.

    Attributes:
        arrow: name, type, nullability, metadata.
        arrow_schema: value of ``ARROW:schema`` for a file of this field alone; None where the type
            is the same without it.
    """

    arrow: pa.Field
    arrow_schema: bytes | None


def field_types(version: FileVersion, fields: Sequence[int], allowed_extensions: frozenset[str]) -> list[FieldType]:
    """Types of top-level fields (ordinals), as pyarrow gives them.

    Raises:
        UnsupportedFeatureError, CorruptFileError: pyarrow has no type for one of them.
    """
    known: dict[int, FieldType] = version.derived(("field types", allowed_extensions), dict)
    missing = [field for field in fields if field not in known]
    if missing:
        known.update(_read_types(version, missing, allowed_extensions))
    return [known[field] for field in fields]


def _read_types(version: FileVersion, missing: Sequence[int], allowed: frozenset[str]) -> dict[int, FieldType]:
    metadata = version.metadata
    stored = version.derived(
        ("stored schema", allowed),
        lambda: StoredArrowSchema(metadata, allowed),
        weight=1000 + len(metadata.key_value_metadata.get("ARROW:schema") or ""),
    )
    asked = [metadata.schema.fields[field] for field in missing]
    try:
        plain = read_schema(schema_file(metadata, asked, None))
        encoded = stored.encoded(asked)
        schema = plain if encoded is None else read_schema(schema_file(metadata, asked, encoded))
    except FormatError as error:
        raise error.locate(url=version.url) from error.__cause__
    types: dict[int, FieldType] = {}
    for field, bare, full in zip(asked, plain, schema, strict=True):
        needed = encoded is not None and not bare.equals(full)
        types[field.index] = FieldType(full, stored.encoded([field]) if needed else None)
    return types


def file_schema(version: FileVersion, fields: Sequence[int], allowed_extensions: frozenset[str]) -> pa.Schema:
    """The Arrow schema of a table of these fields, with the file's key-value metadata."""
    return version.derived(
        ("schema", tuple(fields), allowed_extensions),
        lambda: pa.schema(
            [kind.arrow for kind in field_types(version, fields, allowed_extensions)], metadata=_metadata(version)
        ),
        weight=_FIELD_WEIGHT * len(fields),
    )


def _metadata(version: FileVersion) -> dict[bytes, bytes] | None:
    pairs = version.metadata.key_value_metadata
    kept = {key: value for key, value in pairs.items() if key != "ARROW:schema"}
    if not kept:
        return None
    return {key.encode(): (value or "").encode("utf-8", "surrogateescape") for key, value in kept.items()}


def leaf_decoder(version: FileVersion, field: Field, allowed_extensions: frozenset[str]) -> LeafDecoder:
    """The decoder of a flat top-level field."""

    def make() -> LeafDecoder:
        (kind,) = field_types(version, [field.index], allowed_extensions)
        leaf = version.metadata.schema.leaves[field.first_leaf]
        return LeafDecoder(version.metadata, leaf, kind.arrow.type, kind.arrow_schema)

    return version.derived(("decoder", field.index, allowed_extensions), make, weight=4000)
