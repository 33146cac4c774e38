"""The one door to pyarrow's Parquet reader.

pyarrow decodes pages and says which Arrow types a footer means. It is handed only small files in
memory that this project wrote (see :mod:`asyncpq.decoding.splice`), never a path, a url or a footer
from outside, but for encrypted files, whose footers only pyarrow can read.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    CorruptFileError,
    InvalidOptionError,
    ResourceLimitError,
    TransportError,
    UnsupportedFeatureError,
)
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.schema import Field

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


def typed_error(error: Exception, what: str) -> AsyncpqError:
    """What ``error``, raised by pyarrow over a file's bytes, means; ``what`` says what was tried."""
    if isinstance(error, pa.ArrowNotImplementedError) or "Not yet implemented" in str(error):
        return UnsupportedFeatureError(f"{what}; pyarrow does not implement it: {error}")
    if isinstance(error, (MemoryError, pa.ArrowCapacityError)) or "offset overflow" in str(error):
        return ResourceLimitError(f"{what}, it is too large: {error}")
    return CorruptFileError(f"{what}: {error}")


def parquet_bytes(table: pa.Table) -> bytes:
    """``table`` as a Parquet file in memory, for rows that come from elsewhere and are few."""
    content = io.BytesIO()
    pq.write_table(table, content, compression="none")
    return content.getvalue()


def plain_pages(array: pa.Array, *, nullable: bool) -> bytes:
    """Data pages of an array that has one leaf, PLAIN and not compressed, with their headers."""
    content = io.BytesIO()
    table = pa.table([array], schema=pa.schema([pa.field("x", array.type, nullable)]))
    pq.write_table(table, content, row_group_size=max(1, len(array)), compression="none", use_dictionary=False)
    chunk = pq.read_metadata(content).row_group(0).column(0)
    start = chunk.data_page_offset
    return content.getvalue()[start : start + chunk.total_compressed_size]


def read_column(file: bytes, *, verify_crc: bool, int96_unit: str = "ns") -> pa.ChunkedArray:
    """Decode a Parquet file in memory that has one leaf, as :func:`read_leaves` does."""
    return read_leaves(file, [(0,)], verify_crc=verify_crc, int96_unit=int96_unit)[0]


def read_leaves(
    file: bytes,
    groups: Sequence[Sequence[int]],
    *,
    verify_crc: bool,
    as_dictionary: Sequence[str] = (),
    int96_unit: str = "ns",
) -> list[pa.ChunkedArray]:
    """Decode leaves of a Parquet file in memory whose schema is one top-level field.

    Args:
        file: the whole file.
        groups: ordinals of the leaves that make one array, for each array.
        verify_crc: check the pages' CRCs where they have them.
        as_dictionary: dotted paths of byte array leaves that are to come as dictionary arrays.
        int96_unit: of timestamps stored as INT96.

    Returns:
        For each group the field cut to its leaves.

    Raises:
        CorruptFileError: pyarrow cannot decode the pages.
        UnsupportedFeatureError: pyarrow does not implement an encoding, codec or type in them.
    """
    try:
        reader = pq.ParquetFile(
            pa.BufferReader(file),
            pre_buffer=False,
            page_checksum_verification=verify_crc,
            read_dictionary=as_dictionary or None,
            coerce_int96_timestamp_unit=int96_unit,
        ).reader
        tables = [reader.read_all(column_indices=list(leaves), use_threads=False) for leaves in groups]
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise typed_error(error, "pages cannot be decoded") from error
    if any(table.num_columns != 1 for table in tables):  # pyarrow skips schema fields of an unexpected Thrift type
        raise CorruptFileError("the column's schema elements are malformed")
    return [table.column(0) for table in tables]


def open_encrypted(
    file: io.RawIOBase, properties: object, *, verify_crc: bool, int96_unit: str = "ns"
) -> pq.ParquetFile:
    """pyarrow's reader of an encrypted file, its footer decrypted or its signature verified.

    Args:
        file: the file, or as much of it as is to be read.
        properties: ``FileDecryptionProperties``.
        verify_crc: check the pages' CRCs where they have them.

    Raises:
        CorruptFileError: other keys, or not the footer that was encrypted or signed.
        InvalidOptionError: the file is not encrypted.
        AsyncpqError: as of :func:`decryption_error`.
    """
    try:
        return pq.ParquetFile(
            pa.PythonFile(file, mode="r"),
            decryption_properties=properties,
            pre_buffer=False,
            page_checksum_verification=verify_crc,
            coerce_int96_timestamp_unit=int96_unit,
        )
    except Exception as error:
        if type(error) is OSError and "plaintext file" in str(error):
            raise InvalidOptionError(
                "decryption_properties= were given for a file that is not encrypted (a plaintext file)",
                hint="Leave them out, or make them with allow_plaintext_files=True.",
            ) from error
        failure = decryption_error(error, "the file cannot be decrypted")
        if isinstance(failure, CorruptFileError):
            failure.hint = "Are decryption_properties those of this file?"
        raise failure from error


def decryption_error(error: Exception, what: str) -> AsyncpqError:
    """As :func:`typed_error`, of what may come out of the caller's ``KmsClient``, too, and as it was raised there.

    Arrow's own are its exceptions and plain OSErrors; the client's may be anything else.
    """
    if isinstance(error, AsyncpqError):
        return error
    if isinstance(error, (pa.ArrowException, MemoryError, OverflowError, UnicodeError)) or type(error) is OSError:
        return typed_error(error, what)
    message = f"{what}: the KMS client failed: {type(error).__name__}: {error}"
    if isinstance(error, PermissionError):
        return AccessDeniedError(message, hint="May the client unwrap this file's keys?")
    if isinstance(error, (ConnectionError, TimeoutError)):
        return TransportError(message, hint="Can the KMS be reached?")
    return AsyncpqError(message, hint="The error of the KmsClient is this one's __cause__.")


def read_schema(footer_file: bytes, int96_unit: str = "ns") -> pa.Schema:
    """The Arrow schema that pyarrow gives a file in memory that has no rows."""
    try:
        return pq.ParquetFile(pa.BufferReader(footer_file), coerce_int96_timestamp_unit=int96_unit).schema_arrow
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise typed_error(error, "the schema cannot be understood") from error


def read_schema_of(footer_file: bytes, leaves: Sequence[int], int96_unit: str = "ns") -> pa.Schema:
    """The same, cut to some leaf columns."""
    try:
        reader = pq.ParquetFile(pa.BufferReader(footer_file), coerce_int96_timestamp_unit=int96_unit).reader
        return reader.read_all(column_indices=list(leaves), use_threads=False).schema
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise typed_error(error, "the schema cannot be understood") from error


def encode_schema(schema: pa.Schema) -> bytes:
    """The value of ``ARROW:schema`` that stands for ``schema``."""
    return base64.b64encode(schema.serialize().to_pybytes())


def compress(codec: str, data: bytes | pa.Buffer) -> bytes:
    """``data`` compressed by one of Arrow's codecs, quickly."""
    level = 1 if codec in ("brotli", "gzip", "zstd") else None
    return bytes(pa.Codec(codec, compression_level=level).compress(data, asbytes=True))


def decompress(codec: str, data: memoryview | bytes, size: int, *, column: str) -> bytes:
    """``data`` decompressed by one of Arrow's codecs to ``size`` bytes.

    Where less comes out, the rest is not filled, and nothing says so.

    Raises:
        CorruptFileError: it cannot be decompressed.
    """
    try:
        return cast("bytes", pa.Codec(codec).decompress(data, decompressed_size=size, asbytes=True))
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise CorruptFileError(f"a page cannot be decompressed: {error}", column=column) from error


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
