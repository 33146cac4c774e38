"""The one door to pyarrow's Parquet reader.

pyarrow decodes pages and says which Arrow types a footer means. It is handed only small files in
memory that this project wrote (see :mod:`asyncpq.decoding.splice`), never a path, a url or a footer
from outside.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError, UnsupportedFeatureError
from asyncpq.format.metadata import FileMetadata
from asyncpq.format.schema import Field

ARROW_SCHEMA_KEY = b"ARROW:schema"
_EXTENSION_KEY = b"ARROW:extension:name"
_HIDDEN_KEY = b"async:extension:name"  # same length: replaced in place in the flatbuffer
_CANONICAL_PREFIX = b"arrow."  # canonical extension types live under this name and are built into pyarrow


def read_table(file: bytes, *, verify_crc: bool) -> pa.Table:
    """Decode a Parquet file in memory.

    Args:
        file: the whole file.
        verify_crc: check the pages' CRCs where they have them.

    Raises:
        CorruptFileError: pyarrow cannot decode the pages.
        UnsupportedFeatureError: pyarrow does not implement an encoding, codec or type in it.
    """
    try:
        reader = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False, page_checksum_verification=verify_crc)
        return reader.read(use_threads=False)
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedFeatureError(f"pyarrow does not decode it: {error}") from error
    except pa.ArrowMemoryError as error:
        raise ResourceLimitError(f"not enough memory to decode it: {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFileError(f"pages cannot be decoded: {error}") from error


def read_schema(footer_file: bytes) -> pa.Schema:
    """The Arrow schema that pyarrow gives a file in memory that has no rows."""
    try:
        return pq.read_schema(pa.BufferReader(footer_file))
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedFeatureError(f"pyarrow has no Arrow type for it: {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFileError(f"the schema cannot be understood: {error}") from error


def compress(codec: str, data: bytes) -> bytes:
    """``data`` compressed by one of Arrow's codecs."""
    return bytes(pa.Codec(codec).compress(data, asbytes=True))


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
        except (binascii.Error, pa.ArrowException, ValueError, OSError, AsyncpqError):
            return
        names = [field.name for field in metadata.schema.fields]
        if schema.names == names:
            self._schema = schema

    def _read(self, message: bytes) -> pa.Schema:
        if _EXTENSION_KEY not in message:
            return pa.ipc.read_schema(pa.py_buffer(message))
        hidden = message.replace(_EXTENSION_KEY, _HIDDEN_KEY)
        schema = pa.ipc.read_schema(pa.py_buffer(hidden))
        return pa.schema([self._show_allowed(field) for field in schema], metadata=schema.metadata)

    def _show_allowed(self, field: pa.Field) -> pa.Field:
        """``field`` with the extension names restored that may be instantiated."""
        kind = field.type
        if pa.types.is_struct(kind):
            field = field.with_type(pa.struct([self._show_allowed(child) for child in kind]))
        elif pa.types.is_map(kind):
            key, item = self._show_allowed(kind.key_field), self._show_allowed(kind.item_field)
            field = field.with_type(pa.map_(key, item, keys_sorted=kind.keys_sorted))
        elif pa.types.is_fixed_size_list(kind):
            field = field.with_type(pa.list_(self._show_allowed(kind.value_field), kind.list_size))
        elif pa.types.is_large_list(kind):
            field = field.with_type(pa.large_list(self._show_allowed(kind.value_field)))
        elif pa.types.is_list(kind):
            field = field.with_type(pa.list_(self._show_allowed(kind.value_field)))
        metadata = dict(field.metadata or {})
        name = metadata.pop(_HIDDEN_KEY, None)
        if name is None:
            return field
        if name.startswith(_CANONICAL_PREFIX) or name in self._allowed:
            metadata[_EXTENSION_KEY] = name
        return field.with_metadata(metadata or None)

    def encoded(self, fields: Sequence[Field]) -> bytes | None:
        """The value of ``ARROW:schema`` for a file of just these fields, or None."""
        if self._schema is None:
            return None
        kept = pa.schema([self._schema.field(field.index) for field in fields])
        return base64.b64encode(kept.serialize().to_pybytes())
