"""Encrypted files (Encryption.md of parquet-format): pyarrow decrypts and decodes them with the caller's keys.

Whole column chunks are fetched, as for any file without an OffsetIndex. pyarrow reads a sparse file that has only the
chunks and the footer.

Each handle of such a file has a cache namespace of its own (``objects/source.py``), so that readers without the keys
do not find its parts.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.decoding.arrow import join, leaf_types, typed_error
from asyncpq.decoding.decoded_size import leaf_bounds, refuse
from asyncpq.decoding.field_types import field_types, projected_field
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.nested import NestedLeaf
from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    CorruptFileError,
    InvalidOptionError,
    TransportError,
    UnsupportedFeatureError,
)
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.column_chunk import KEYS_NEEDED, Encoding, unsupported
from asyncpq.parquet.metadata import MAGIC, TRAILER_BYTES
from asyncpq.parquet.schema import Field, Projection


class SparseFile(io.RawIOBase):
    """A file object of ``size`` bytes of which only ``pieces``, (offset, bytes), are known; they do not overlap. Other
    bytes are zeros."""

    def __init__(self, size: int, pieces: Sequence[tuple[int, bytes]]) -> None:
        self._size = size
        self._pieces = sorted(pieces, key=lambda piece: piece[0])
        self._starts = [start for start, _ in self._pieces]
        self._pos = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._pos

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._pos, io.SEEK_END: self._size}[whence]
        self._pos = max(0, base + offset)
        return self._pos

    def read(self, size: int = -1) -> bytes:
        start = self._pos
        stop = self._size if size < 0 else min(self._size, start + size)
        out = bytearray(max(0, stop - start))
        for offset, data in self._pieces[max(0, bisect_right(self._starts, start) - 1) :]:
            if offset >= stop:
                break
            low, high = max(start, offset), min(stop, offset + len(data))
            if low < high:
                out[low - start : high - start] = data[low - offset : high - offset]
        self._pos = start + len(out)
        return bytes(out)


class FileDecryption:
    """The decryption keys of one file: pyarrow's FileDecryptionProperties. Raises InvalidOptionError for others."""

    def __init__(self, properties: object) -> None:
        if type(properties).__name__ != "FileDecryptionProperties":
            raise InvalidOptionError(
                f"decryption_properties= has the type {type(properties).__name__}, expected FileDecryptionProperties",
                option="decryption_properties",
                hint="Make them with pyarrow.parquet.encryption: create_decryption_properties or a CryptoFactory.",
            )
        self._properties = properties

    def footer(self, footer: bytes, size: int) -> bytes:
        """Return the file's FileMetaData, decrypted; if the footer is plaintext, its signature is verified.

        Raises:
            CorruptFileError: the keys are wrong, or the footer was changed after it was encrypted or signed.
            InvalidOptionError: the file is not encrypted, and the keys do not allow that.
            AccessDeniedError, TransportError, AsyncpqError: the KMS client failed.
        """
        metadata = open_encrypted(
            SparseFile(size, [(size - len(footer), footer)]), self._properties, verify_crc=False
        ).metadata
        if footer[-len(MAGIC) :] == MAGIC:
            return footer[:-TRAILER_BYTES]
        sink = io.BytesIO()
        metadata.write_metadata_file(sink)  # a whole file without row data, its footer not encrypted
        plain = sink.getvalue()
        length = int.from_bytes(plain[-TRAILER_BYTES:-4], "little")
        return plain[-TRAILER_BYTES - length : -TRAILER_BYTES]

    def read(
        self, file: SparseFile, row_group: int, paths: Sequence[str], *, verify_crc: bool, int96_unit: str
    ) -> pa.Table:
        """Decode the leaf columns at the dotted ``paths`` in one row group. Raises the errors of
        :func:`decryption_error`."""
        reader = open_encrypted(file, self._properties, verify_crc=verify_crc, int96_unit=int96_unit)
        try:
            return reader.read_row_group(row_group, columns=list(paths), use_threads=False)
        except Exception as error:
            raise decryption_error(error, "an encrypted column cannot be read") from error


def read_encrypted(
    version: FileVersion,
    field: Field,
    chunks: Mapping[int, NestedLeaf],
    row_group: int,
    extensions: frozenset[str],
    leaves: tuple[int, ...],
    limits: DecodeLimits,
) -> pa.Array:
    """Return all rows of a top-level field in one row group, cut to the leaf columns ``leaves``. The whole ``chunks``
    of these must have arrived.

    ``max_decoded_bytes`` is checked twice. Before decoding, against the least size of the number of values that the
    footer states, which is exact for values of fixed size. After decoding, against the result: only pyarrow can decrypt
    the pages, so sizes of dictionary indices, prefixes and nulls in fixed-size lists are unknown before.

    Raises the errors of :meth:`FileDecryption.read`, and ResourceLimitError if the rows exceed ``max_decoded_bytes``.
    """
    name, decryption, limit = field.name, version.decryption, limits.max_decoded_bytes
    read = [chunks[leaf] for leaf in leaves]
    claimed = sum(leaf.chunk.total_uncompressed_size for leaf in read)
    (field_type,) = field_types(version, [field.index], extensions)
    types = leaf_types(field_type.arrow.type)
    if len(types) == field.leaf_stop - field.first_leaf:  # the least that the footer's number of values and levels take
        bounds = [
            leaf_bounds(leaf.leaf, leaf.chunk, (), *types[leaf.leaf.index - field.first_leaf], limit) for leaf in read
        ]
        claimed = max(claimed, sum(least for least, _ in bounds))
    if claimed > limit:
        raise refuse("the values of an encrypted column", claimed, limit, name)
    if not isinstance(decryption, FileDecryption):
        raise UnsupportedFeatureError("the column is encrypted", column=name, hint=KEYS_NEEDED)
    for leaf in read:
        reason = unsupported(leaf.chunk.encodings, leaf.chunk.codec)
        if reason is None and Encoding.ALP in leaf.chunk.encodings:
            reason = "pages of the encoding ALP, which pyarrow does not decode"
        if reason is not None:
            raise UnsupportedFeatureError(f"the encrypted column has {reason}", column=leaf.leaf.dotted)
    pieces = [(leaf.chunk.start, b"".join(leaf.parts)) for leaf in read]
    pieces.append((version.footer_start, version.footer))
    try:
        table = decryption.read(
            SparseFile(version.size, pieces),
            row_group,
            [leaf.leaf.dotted for leaf in read],
            verify_crc=limits.verify_crc,
            int96_unit=version.metadata.int96_unit,
        )
    except AsyncpqError as error:
        raise error.locate(column=name) from error.__cause__
    num_rows = version.metadata.row_groups[row_group].num_rows
    if table.num_columns != 1:
        raise UnsupportedFeatureError(
            "asyncpq does not support an encrypted column whose name occurs twice", column=name
        )
    if table.num_rows != num_rows:
        raise CorruptFileError(
            f"the decrypted column has {table.num_rows} rows in a row group of {num_rows} rows", column=name
        )
    if table.nbytes > limit:
        raise refuse("the values of an encrypted column", table.nbytes, limit, name)
    column = table.column(0)
    type_ = projected_field(version, Projection(field.index, leaves), extensions).type
    if column.type != type_:  # an extension type that is not allowed
        column = column.cast(type_)
    return join(column.chunks, type_)


def open_encrypted(
    file: io.RawIOBase, properties: object, *, verify_crc: bool, int96_unit: str = "ns"
) -> pq.ParquetFile:
    """Open an encrypted file with pyarrow. Of ``file``, only the footer and the parts to read need to be there.

    The footer is decrypted, or its signature verified. Raises CorruptFileError for wrong keys or a changed footer,
    InvalidOptionError if the file is not encrypted, and the errors of :func:`decryption_error`.
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
                "the file is not encrypted (a plaintext file), but decryption_properties= are set",
                hint="Leave them out, or make them with allow_plaintext_files=True.",
            ) from error
        failure = decryption_error(error, "the file cannot be decrypted")
        if isinstance(failure, CorruptFileError):
            failure.hint = "Check that decryption_properties= are those of this file."
        raise failure from error


def decryption_error(error: Exception, what: str) -> AsyncpqError:
    """Convert an error of pyarrow, or of the caller's ``KmsClient``, to an asyncpq error. ``what`` begins its message.

    Arrow raises its own exceptions and plain OSErrors; the client may raise anything else.
    """
    if isinstance(error, AsyncpqError):
        return error
    if isinstance(error, (pa.ArrowException, MemoryError, OverflowError, UnicodeError)) or type(error) is OSError:
        return typed_error(error, what)
    message = f"{what}: the KMS client failed: {type(error).__name__}: {error}"
    if isinstance(error, PermissionError):
        return AccessDeniedError(message, hint="Check that the client may unwrap this file's keys.")
    if isinstance(error, (ConnectionError, TimeoutError)):
        return TransportError(message, hint="Check that the KMS can be reached.")
    return AsyncpqError(message, hint="The KmsClient raised an error; see this error's __cause__.")
