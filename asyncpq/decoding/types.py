"""Which Arrow types a file's fields have, and the decoders and templates made for them; kept with the footer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from asyncpq.decoding.arrow import StoredArrowSchema, encode_schema, read_schema, read_schema_of
from asyncpq.decoding.decoded_size import leaf_types
from asyncpq.decoding.leaf import LeafDecoder, path_type
from asyncpq.decoding.splice import FieldTemplate, schema_file
from asyncpq.errors import FormatError, UnsupportedFeatureError
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.schema import Field, Projection

_FIELD_WEIGHT = 1500
_STRINGS = frozenset({pa.string(), pa.large_string(), pa.string_view()})
_BINARIES = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})


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


def share_types(version: FileVersion, types: dict[int, FieldType], allowed_extensions: frozenset[str]) -> None:
    """Have :func:`field_types` keep its answers in ``types``, which files with the same schema share; unless it has
    answered before."""
    version.derived(("field types", allowed_extensions), lambda: types)


def _read_types(version: FileVersion, missing: Sequence[int], allowed: frozenset[str]) -> dict[int, FieldType]:
    metadata = version.metadata
    asked = [metadata.schema.fields[field] for field in missing]
    for field in asked:
        if metadata.schema.has_empty_group(field):
            raise UnsupportedFeatureError(
                "the column holds a group without fields, which pyarrow does not read",
                url=version.url,
                column=field.name,
                hint="Leave the column out.",
            )
    stored = _stored_schema(version, allowed)
    try:
        plain = read_schema(schema_file(metadata, asked, None), metadata.int96_unit)
        encoded = stored.encoded(asked)
        schema = plain
        if encoded is not None:
            schema = read_schema(schema_file(metadata, asked, encoded), metadata.int96_unit)
    except FormatError as error:
        raise error.locate(url=version.url) from error.__cause__
    types: dict[int, FieldType] = {}
    for field, bare, full in zip(asked, plain, schema, strict=True):
        needed = encoded is not None and not bare.equals(full)
        types[field.index] = FieldType(full, stored.encoded([field]) if needed else None)
    return types


def _stored_schema(version: FileVersion, allowed: frozenset[str]) -> StoredArrowSchema:
    metadata = version.metadata
    return version.derived(
        ("stored schema", allowed),
        lambda: StoredArrowSchema(metadata, allowed),
        weight=1000 + len(metadata.key_value_metadata.get("ARROW:schema") or ""),
    )


def projected_field(version: FileVersion, projection: Projection, allowed_extensions: frozenset[str]) -> pa.Field:
    """A top-level field, or what pyarrow gives of it for some of its leaves.

    Raises:
        UnsupportedFeatureError, CorruptFileError: pyarrow has no type for it.
    """
    (whole,) = field_types(version, [projection.field], allowed_extensions)
    field = version.metadata.schema.fields[projection.field]
    if len(projection.leaves) == field.leaf_stop - field.first_leaf:
        return whole.arrow

    def make() -> _Part:
        file = schema_file(version.metadata, [field], whole.arrow_schema)
        leaves = [leaf - field.first_leaf for leaf in projection.leaves]
        try:
            return _Part(read_schema_of(file, leaves, version.metadata.int96_unit).field(0), _FIELD_WEIGHT)
        except FormatError as error:  # the whole column was understood
            raise UnsupportedFeatureError(
                f"pyarrow has no type for this part of the column: {error.message}",
                url=version.url,
                column=field.name,
                hint="Ask for the whole column.",
            ) from error.__cause__

    return version.recent(("projected field", projection, allowed_extensions), make).arrow


class _Part(NamedTuple):
    """A field cut to some of its leaves, and its weight in bytes."""

    arrow: pa.Field
    weight: int


def file_schema(
    version: FileVersion, projections: Sequence[Projection], allowed_extensions: frozenset[str]
) -> pa.Schema:
    """The Arrow schema of a table of these columns, with the file's key-value metadata.

    That of the whole file is kept with the version; others are as many as questions, and kept with those.
    """

    def make() -> pa.Schema:
        field_types(version, [projection.field for projection in projections], allowed_extensions)  # all at once
        fields = [projected_field(version, projection, allowed_extensions) for projection in projections]
        return pa.schema(fields, metadata=_metadata(version))

    if projections is not version.metadata.schema.whole_fields:
        return make()
    return version.derived(("schema", allowed_extensions), make, weight=_FIELD_WEIGHT * len(projections))


def field_template(
    version: FileVersion,
    field: Field,
    allowed_extensions: frozenset[str],
    *,
    as_storage: bool = False,
    bare: bool = False,
) -> FieldTemplate:
    """The template of spliced files of a top-level field.

    Args:
        as_storage: without extension types.
        bare: without any Arrow types but Parquet's own, and byte arrays without logical type.
    """

    def make() -> FieldTemplate:
        (kind,) = field_types(version, [field.index], allowed_extensions)
        arrow_schema = kind.arrow_schema
        if arrow_schema is not None and as_storage:
            arrow_schema = _stored_schema(version, allowed_extensions).encoded([field], as_storage=True)
        return FieldTemplate(version.metadata, field, None if bare else arrow_schema, bare=bare)

    weight = 1000 + 300 * (field.leaf_stop - field.first_leaf)
    return version.derived(("field template", field.index, allowed_extensions, as_storage, bare), make, weight)


def _metadata(version: FileVersion) -> dict[bytes, bytes] | None:
    pairs = version.metadata.key_value_metadata
    kept = {key: value for key, value in pairs.items() if key != "ARROW:schema"}
    if not kept:
        return None
    return {key.encode(): (value or "").encode("utf-8", "surrogateescape") for key, value in kept.items()}


def dictionary_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column of ``kind`` has where it is read as a dictionary: as pyarrow's ``read_dictionary``
    gives it to strings and binary, of whatever size; others keep their type."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    for like, plain in ((_STRINGS, pa.string()), (_BINARIES, pa.binary())):
        if value in like:
            return pa.dictionary(pa.int32(), plain)
    return kind


def reads_alone(version: FileVersion, leaf: int, allowed_extensions: frozenset[str]) -> bool:
    """Whether a leaf has a decoder of its own: flat columns, and leaves that have just structs above them.

    Args:
        leaf: its ordinal.
    """
    if version.metadata.schema.leaves[leaf].is_flat:
        return True
    return version.derived(
        ("alone", leaf, allowed_extensions), lambda: _path_type(version, leaf, allowed_extensions) is not None, 200
    )


def _path_type(version: FileVersion, ordinal: int, allowed_extensions: frozenset[str]) -> pa.DataType | None:
    """The type of a leaf's field cut to the leaf, where the leaf reads alone."""
    schema = version.metadata.schema
    leaf = schema.leaves[ordinal]
    (kind,) = field_types(version, [leaf.field_index], allowed_extensions)
    if leaf.is_flat:
        return kind.arrow.type
    field = schema.fields[leaf.field_index]
    if len(leaf_types(kind.arrow.type)) != field.leaf_stop - field.first_leaf:
        return None
    return path_type(kind.arrow.type, field.first_leaf, leaf)


def leaf_decoder(
    version: FileVersion, leaf: int, allowed_extensions: frozenset[str], *, as_dictionary: bool = False
) -> LeafDecoder:
    """The decoder of a leaf that :func:`reads_alone`.

    Args:
        leaf: its ordinal.
        as_dictionary: values of a flat column come as :func:`dictionary_type` says.
    """

    def make() -> LeafDecoder:
        schema_leaf = version.metadata.schema.leaves[leaf]
        (kind,) = field_types(version, [schema_leaf.field_index], allowed_extensions)
        type_ = _path_type(version, leaf, allowed_extensions)
        arrow_schema = kind.arrow_schema
        if arrow_schema is not None and not schema_leaf.is_flat:
            arrow_schema = encode_schema(pa.schema([pa.field(schema_leaf.path[0], type_, kind.arrow.nullable)]))
        kind_asked = dictionary_type(type_) if as_dictionary else type_
        drop = partial(version.drop, leaf)
        return LeafDecoder(version.metadata, schema_leaf, kind_asked, arrow_schema, drop=drop)

    return version.derived(("decoder", leaf, allowed_extensions, as_dictionary), make, weight=4000)
