"""Which Arrow types a file's fields have, and the decoders and templates made for them; kept with the footer."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from asyncpq.decoding.arrow import read_schema, read_schema_of
from asyncpq.decoding.splice import FieldTemplate, schema_file
from asyncpq.errors import AsyncpqError, FormatError, UnsupportedFeatureError
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.metadata import FileMetadata
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


ARROW_SCHEMA_KEY = b"ARROW:schema"


_EXTENSION_KEY = b"ARROW:extension:name"


_HIDDEN_KEY = b"async:extension:name"  # same length: replaced in place in the flatbuffer


# The canonical extension types that are built into pyarrow 26: nothing else can be registered under these
# names. Python code can register types under other names that begin with "arrow.".
_BUILT_IN = frozenset(
    (
        b"arrow.bool8",
        b"arrow.fixed_shape_tensor",
        b"arrow.json",
        b"arrow.opaque",
        b"arrow.uuid",
        b"arrow.variable_shape_tensor",
    )
)


def encode_schema(schema: pa.Schema) -> bytes:
    """The value of ``ARROW:schema`` that stands for ``schema``."""
    return base64.b64encode(schema.serialize().to_pybytes())


class StoredArrowSchema:
    """The Arrow schema that the writer kept under ``ARROW:schema``, made safe and cut to fields.

    A file must never choose code: extension types that Python code registered are stripped to their
    storage before pyarrow builds the schema, unless the reader allows them by name. What does not fit
    the Parquet schema is dropped whole, as if it had not been there.

    Args:
        metadata: the footer.
        allowed_extensions: names of extension types that may be instantiated.
    """

    def __init__(self, metadata: FileMetadata, allowed_extensions: frozenset[str]) -> None:
        self._allowed = frozenset(name.encode() for name in allowed_extensions)
        self._schema: pa.Schema | None = None
        text = metadata.key_value_metadata.get(ARROW_SCHEMA_KEY.decode())
        if text is None:
            return
        try:
            schema = self._read(base64.b64decode(text, validate=True))
            fits = schema.names == [field.name for field in metadata.schema.fields]
        except (binascii.Error, pa.ArrowException, ValueError, OSError, AsyncpqError):
            return  # ValueErrors are names that are not UTF-8, too
        if fits:
            self._schema = schema

    def _read(self, message: bytes) -> pa.Schema:
        if _EXTENSION_KEY not in message and _HIDDEN_KEY not in message:
            return pa.ipc.read_schema(pa.py_buffer(message))
        hidden = message.replace(_EXTENSION_KEY, _HIDDEN_KEY)
        schema = pa.ipc.read_schema(pa.py_buffer(hidden))
        shown = pa.schema([self._show_allowed(field) for field in schema])
        if _HIDDEN_KEY in shown.serialize().to_pybytes():
            raise ValueError("an extension type in a place that is not looked at")
        return shown

    def _show_allowed(self, field: pa.Field) -> pa.Field:
        """``field`` with the extension names restored that may be instantiated."""
        kind = self._show_inside(field.type)
        if kind is not field.type:
            field = field.with_type(kind)
        metadata = dict(field.metadata or {})
        name = metadata.pop(_HIDDEN_KEY, None)
        if name is None:
            return field
        if name in _BUILT_IN or name in self._allowed:
            metadata[_EXTENSION_KEY] = name
        return field.with_metadata(metadata or None)

    def _show_inside(self, kind: pa.DataType) -> pa.DataType:
        """``kind`` with :meth:`_show_allowed` done to all fields in it."""
        types = pa.types
        if types.is_dictionary(kind):
            values = self._show_inside(kind.value_type)
            return kind if values is kind.value_type else pa.dictionary(kind.index_type, values, kind.ordered)
        if types.is_run_end_encoded(kind):  # its fields carry no metadata once it is made anew
            return pa.run_end_encoded(kind.run_end_type, self._show_allowed(pa.field("", kind.value_type)).type)
        if not types.is_nested(kind):
            return kind
        if types.is_map(kind):
            key, item = self._show_allowed(kind.key_field), self._show_allowed(kind.item_field)
            return pa.map_(key, item, keys_sorted=kind.keys_sorted)
        children = [self._show_allowed(kind.field(at)) for at in range(kind.num_fields)]
        if types.is_struct(kind):
            return pa.struct(children)
        if types.is_union(kind):
            return pa.union(children, kind.mode, kind.type_codes)
        if types.is_fixed_size_list(kind):
            return pa.list_(children[0], kind.list_size)
        for is_kind, make in (
            (types.is_list, pa.list_),
            (types.is_large_list, pa.large_list),
            (types.is_list_view, pa.list_view),
            (types.is_large_list_view, pa.large_list_view),
        ):
            if is_kind(kind):
                return make(children[0])
        raise ValueError(f"a nested type that is not known: {kind}")

    def encoded(self, fields: Sequence[Field], *, as_storage: bool = False) -> bytes | None:
        """The value of ``ARROW:schema`` for a file of just these fields, or None.

        Args:
            as_storage: without any extension type.
        """
        if self._schema is None:
            return None
        kept = pa.schema([self._schema.field(field.index) for field in fields])
        message = kept.serialize().to_pybytes()
        return base64.b64encode(message.replace(_EXTENSION_KEY, _HIDDEN_KEY) if as_storage else message)
