"""The Arrow types that pyarrow reads for a file's top-level fields, and the templates of the small Parquet files in
which their pages are decoded (:mod:`asyncpq.decoding.splice`).

Both are cached with the :class:`asyncpq.objects.version.FileVersion`. An extension type of the stored Arrow schema is
used only if pyarrow has it built in, or if the options allow its name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import field as attribute
from functools import partial
from typing import Final

import pyarrow as pa

from asyncpq.decoding.arrow import BINARIES, TEXTS, children_of, maps_as_lists, read_schema, with_children
from asyncpq.decoding.splice import FieldTemplate, schema_file
from asyncpq.errors import CorruptFileError, FormatError, Hint, UnsupportedFeatureError, printable
from asyncpq.events import Operation
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.schema import Field, Projection
from asyncpq.records import NamedTuple, dataclass

_FIELD_WEIGHT = 1500
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

GEOMETRY_TYPE: Final = "geoarrow.wkb"
"""The extension type that pyarrow makes from GEOMETRY and GEOGRAPHY, if it is registered."""

#: How pyarrow's messages about Arrow types that are newer than pyarrow begin.
_NEWER: Final = ("Unrecognized type", "Unsupported future MetadataVersion")


class FieldType(NamedTuple):
    """A top-level field's Arrow type in one file.

    Attributes:
        arrow: name, type, nullability, metadata.
        arrow_schema: ``ARROW:schema`` of a file of this field alone; None if the type needs none.
    """

    arrow: pa.Field
    arrow_schema: bytes | None


class IgnoredSchema(NamedTuple):
    """Why a footer's ``ARROW:schema`` is not used, so that columns have the types of the Parquet schema alone."""

    reason: str
    is_damaged: bool  # False: it is healthy, but has types that asyncpq or pyarrow does not know


@dataclass(slots=True, eq=False)
class FileTypes:
    """Known facts about the Arrow types of a file. Files with the same schema share it.

    Attributes:
        fields: by ordinal, as far as they were needed.
        ignored: once ``is_checked``.
        is_checked: whether ``ARROW:schema`` has been read.
        is_logged: whether the log says that it is ignored.
    """

    fields: dict[int, FieldType] = attribute(default_factory=dict)
    ignored: IgnoredSchema | None = None
    is_checked: bool = False
    is_logged: bool = False


def field_types(version: FileVersion, fields: Sequence[int], allowed_extensions: frozenset[str]) -> list[FieldType]:
    """Return the types that pyarrow reads for the top-level fields with these ordinals.

    Raises UnsupportedFeatureError or CorruptFileError if pyarrow has no type for one of the fields.
    """
    known = _file_types(version, allowed_extensions).fields
    missing = [field for field in fields if field not in known]
    if missing:
        known.update(_read_types(version, missing, allowed_extensions))
    return [known[field] for field in fields]


def share_types(version: FileVersion, types: FileTypes, allowed_extensions: frozenset[str]) -> None:
    """Let :func:`field_types` use ``types`` for this version, if it has none yet."""
    version.derived(allowed_extensions, lambda: types)


def _file_types(version: FileVersion, allowed: frozenset[str]) -> FileTypes:
    return version.derived(allowed, FileTypes)  # no key of each version's own, which the garbage collector would visit


async def check_arrow_schema(version: FileVersion, runtime: Runtime, operation: Operation) -> None:
    """Report to ``operation`` if the footer's ``ARROW:schema`` is not used, at most once for each operation. Callers
    may leave it out for a version with ``arrow_schema_checked``.

    Raises CorruptFileError if it is damaged, and the session's options have ``validate_arrow_schema``.
    """
    options = runtime.options.read
    types = _file_types(version, options.extension_types)
    if not types.is_checked:
        read = partial(_stored_schema, version, options.extension_types)
        types.ignored = (await runtime.off_loop(read, len(version.metadata.schema.leaves))).ignored
        types.is_checked = True
    if types.ignored is None:
        version.arrow_schema_checked = True
        return
    reason, is_damaged = types.ignored
    if is_damaged and options.validate_arrow_schema:
        raise CorruptFileError(
            reason,
            url=version.url,
            hint="Write the file again"
            + Hint("; ReadOptions(validate_arrow_schema=False) reads it with the types of its Parquet schema.", "."),
        )
    reason = f"{reason}: columns have the types of the Parquet schema alone"
    if reason not in operation.metrics.fallbacks:
        operation.ignores_arrow_schema(reason, log=not types.is_logged)
        types.is_logged = True


def _read_types(version: FileVersion, missing: Sequence[int], allowed: frozenset[str]) -> dict[int, FieldType]:
    metadata = version.metadata
    asked = [metadata.schema.fields[field] for field in missing]
    for field in asked:
        if metadata.schema.has_empty_group(field):
            raise UnsupportedFeatureError(
                "the column contains a group without fields, which pyarrow does not read",
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
        annotated = schema
        if GEOMETRY_TYPE in allowed:
            annotated = read_schema(schema_file(metadata, asked, encoded, geometries=True), metadata.int96_unit)
    except FormatError as error:
        if len(asked) > 1:  # which of them?
            for field in asked:
                _read_types(version, [field.index], allowed)
            raise error.locate(url=version.url) from error.__cause__
        raise error.locate(url=version.url, column=asked[0].name) from error.__cause__
    types: dict[int, FieldType] = {}
    for field, bare, full in zip(asked, plain, schema, strict=True):
        needed = encoded is not None and not bare.equals(full)
        types[field.index] = FieldType(full, stored.encoded([field]) if needed else None)
    for field, full in zip(asked, annotated, strict=True):
        if not full.equals(types[field.index].arrow):
            types[field.index] = FieldType(full, encode_schema(pa.schema([full])))
    return types


def _stored_schema(version: FileVersion, allowed: frozenset[str]) -> StoredArrowSchema:
    metadata = version.metadata
    return version.derived(
        ("stored schema", allowed),
        lambda: StoredArrowSchema(metadata, allowed),
        weight=1000 + len(metadata.key_value_metadata.get("ARROW:schema") or ""),
    )


def projected_field(version: FileVersion, projection: Projection, allowed_extensions: frozenset[str]) -> pa.Field:
    """Return a top-level field cut to some of its leaves. Raises the errors of :func:`field_types`."""
    (whole,) = field_types(version, [projection.field], allowed_extensions)
    field = version.metadata.schema.fields[projection.field]
    if len(projection.leaves) == field.leaf_stop - field.first_leaf:
        return whole.arrow

    def make() -> _Part:
        file = schema_file(version.metadata, [field], whole.arrow_schema)
        leaves = [leaf - field.first_leaf for leaf in projection.leaves]
        try:
            return _Part(read_schema(file, version.metadata.int96_unit, leaves).field(0), _FIELD_WEIGHT)
        except FormatError as error:  # the whole column was understood
            raise UnsupportedFeatureError(
                f"pyarrow has no type for this part of the column: {error.message}",
                url=version.url,
                column=field.name,
                hint="Select the whole column.",
            ) from error.__cause__

    return version.recent(("projected field", projection, allowed_extensions), make).arrow


class _Part(NamedTuple):
    """A top-level field cut to some of its leaf columns, and its approximate bytes in memory."""

    arrow: pa.Field
    weight: int


def file_schema(
    version: FileVersion, projections: Sequence[Projection], allowed_extensions: frozenset[str]
) -> pa.Schema:
    """Return the Arrow schema of a table of these columns, with the file's key-value metadata.

    Only the schema of the whole file is cached with the version.
    """

    def make() -> pa.Schema:
        types = field_types(version, [projection.field for projection in projections], allowed_extensions)  # at once
        if is_whole:
            fields = [field_type.arrow for field_type in types]
        else:
            fields = [projected_field(version, projection, allowed_extensions) for projection in projections]
        return pa.schema(fields, metadata=_metadata(version))

    schema = version.metadata.schema
    is_whole = len(projections) == len(schema.fields) and projections is schema.whole_fields
    if not is_whole:
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
    """Return the template (:class:`FieldTemplate`) from which spliced files of a top-level field are made.

    ``as_storage`` replaces extension types by their storage types, and is required for a field in which the key of a
    map is OPTIONAL; ``bare`` leaves out Arrow's own types and byte
    arrays' logical types.
    """

    def make() -> FieldTemplate:
        (field_type,) = field_types(version, [field.index], allowed_extensions)
        arrow_schema = field_type.arrow_schema
        if arrow_schema is not None and as_storage:
            arrow_schema = _stored_schema(version, allowed_extensions).encoded([field], as_storage=True)
        return FieldTemplate(version.metadata, field, None if bare else arrow_schema, bare=bare)

    weight = 1000 + 300 * (field.leaf_stop - field.first_leaf)
    return version.derived(("field template", field.index, allowed_extensions, as_storage, bare), make, weight)


def _metadata(version: FileVersion) -> dict[bytes, bytes] | None:
    pairs = version.metadata.key_value_metadata
    kept = {key: value for key, value in pairs.items() if key != "ARROW:schema"}
    if version.metadata.calendar_mode == "rebase" and version.metadata.calendars:
        from asyncpq.parquet.calendars import CALENDAR_KEYS  # few files need them

        for key in CALENDAR_KEYS:  # else a file that these rows are written to would be rebased again
            kept.pop(key, None)
    if not kept:
        return None
    return {key.encode(): (value or "").encode("utf-8", "surrogateescape") for key, value in kept.items()}


def dictionary_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column of ``type_`` that is read as a dictionary, as with pyarrow's ``read_dictionary``.

    Types other than strings and binary are returned unchanged.
    """
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    for like, plain in ((TEXTS, pa.string()), (BINARIES, pa.binary())):
        if value in like:
            return pa.dictionary(pa.int32(), plain)
    return type_


def encode_schema(schema: pa.Schema) -> bytes:
    """Encode ``schema`` as a value of the footer's key ``ARROW:schema``."""
    return base64.b64encode(schema.serialize().to_pybytes())


class StoredArrowSchema:
    """The Arrow schema that a writer stored in the footer (``ARROW:schema``), made safe.

    A file must not choose code to run: extension types that Python code registered are replaced by their storage before
    pyarrow builds the schema, unless the reader allows them by name. A schema that does not fit is ignored.

    Attributes:
        ignored: why the file's ``ARROW:schema`` is not used; None if it is used or missing.
    """

    def __init__(self, metadata: FileMetadata, allowed_extensions: frozenset[str]) -> None:
        self._allowed = frozenset(name.encode() for name in allowed_extensions)
        self._parquet = metadata.schema
        self._schema: pa.Schema | None = None
        self.ignored: IgnoredSchema | None = None
        pairs = metadata.key_value_metadata
        if ARROW_SCHEMA_KEY.decode() not in pairs:
            return
        try:
            schema = self._read(_decoded(pairs[ARROW_SCHEMA_KEY.decode()] or ""))
            if schema.names != [field.name for field in metadata.schema.fields]:
                raise ValueError("its fields are not the columns of the file")
            self._schema = schema
        except UnsupportedFeatureError as error:
            self.ignored = _not_understood(error.message)
        except pa.ArrowNotImplementedError as error:
            self.ignored = _not_understood(str(error))
        except (pa.ArrowException, ValueError, OSError) as error:  # ValueErrors include names that are not UTF-8
            is_newer = str(error).startswith(_NEWER)
            self.ignored = _not_understood(str(error)) if is_newer else _damaged(str(error))

    def _read(self, message: bytes) -> pa.Schema:
        if _EXTENSION_KEY not in message and _HIDDEN_KEY not in message:
            return pa.ipc.read_schema(pa.py_buffer(message))
        hidden = message.replace(_EXTENSION_KEY, _HIDDEN_KEY)
        schema = pa.ipc.read_schema(pa.py_buffer(hidden))
        shown = pa.schema([self._show_allowed(field) for field in schema])
        if _HIDDEN_KEY in shown.serialize().to_pybytes():
            raise UnsupportedFeatureError("it has an extension type in a place where asyncpq cannot check it")
        return shown

    def _show_allowed(self, field: pa.Field) -> pa.Field:
        """Return ``field`` with the names of allowed extension types restored."""
        type_ = self._show_inside(field.type)
        if type_ is not field.type:
            field = field.with_type(type_)
        metadata = dict(field.metadata or {})
        name = metadata.pop(_HIDDEN_KEY, None)
        if name is None:
            return field
        if name in _BUILT_IN or name in self._allowed:
            metadata[_EXTENSION_KEY] = name
        return field.with_metadata(metadata or None)

    def _show_inside(self, type_: pa.DataType) -> pa.DataType:
        """Return ``type_`` with :meth:`_show_allowed` applied to all fields inside it."""
        types = pa.types
        if types.is_dictionary(type_):
            values = self._show_inside(type_.value_type)
            return type_ if values is type_.value_type else pa.dictionary(type_.index_type, values, type_.ordered)
        if types.is_run_end_encoded(type_):  # its fields carry no metadata once it is made anew
            return pa.run_end_encoded(type_.run_end_type, self._show_allowed(pa.field("", type_.value_type)).type)
        if not types.is_nested(type_):
            return type_
        if types.is_union(type_):
            members = [self._show_allowed(type_.field(index)) for index in range(type_.num_fields)]
            return pa.union(members, type_.mode, type_.type_codes)
        children = [self._show_allowed(child) for child in children_of(type_)]
        if type_.num_fields and not children:
            raise UnsupportedFeatureError(f"asyncpq does not know the nested type {type_}")
        return with_children(type_, children)

    def encoded(self, fields: Sequence[Field], *, as_storage: bool = False) -> bytes | None:
        """Return the ``ARROW:schema`` value of a file of only these fields; None if this file has none. ``as_storage``
        drops extension types, and turns maps with an OPTIONAL key to lists, as :class:`FieldTemplate` does."""
        if self._schema is None:
            return None
        kept = pa.schema([self._schema.field(field.index) for field in fields])
        message = kept.serialize().to_pybytes()
        if as_storage:
            message = message.replace(_EXTENSION_KEY, _HIDDEN_KEY)
            if any(map(self._parquet.has_optional_map_key, fields)):
                stored = pa.ipc.read_schema(pa.py_buffer(message))
                message = pa.schema([maps_as_lists(field) for field in stored]).serialize().to_pybytes()
        return base64.b64encode(message)


def _decoded(text: str) -> bytes:
    """Decode base64 as strictly as pyarrow. Raises ValueError."""
    if not text:
        raise ValueError("it is empty")
    if len(text) % 4:  # b64decode accepts one = too many
        raise ValueError("it is not base64: its length is not a multiple of 4")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"it is not base64: {error}") from error


def _damaged(why: str) -> IgnoredSchema:
    return IgnoredSchema(f"the footer's ARROW:schema is damaged ({_first_line(why)})", is_damaged=True)


def _not_understood(why: str) -> IgnoredSchema:
    return IgnoredSchema(f"the footer's ARROW:schema is not understood ({_first_line(why)})", is_damaged=False)


def _first_line(text: str) -> str:
    return printable(text.strip().partition("\n")[0].rstrip("."))
