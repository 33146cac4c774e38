"""Write index bytes into Parquet files, which other readers still can read (:mod:`asyncpq.parquet.embedded_index`).

The bytes follow the last data page, so offsets of page indexes and Bloom filters do not change. All calls block: from a
coroutine, use ``asyncio.to_thread``.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.errors import AsyncpqError, InvalidOptionError, UnsupportedFeatureError
from asyncpq.options import LimitOptions
from asyncpq.parquet.embedded_index import KEY_PREFIX, EmbeddedIndex
from asyncpq.parquet.metadata import MAGIC, FooterDecoder, NeedBytes, decode_file_metadata, set_key_values


class EmbeddedIndexWriter:
    """Writes a Parquet file with embedded indexes: pyarrow's ``ParquetWriter`` with the method :meth:`embed`.

    Use the writer in a ``with`` statement. If the block raises an error, the file has no indexes.

    Args:
        where: path of the file; or a file object open for writing bytes, which stays open.
        schema: schema of the rows. Index keys in its metadata, which come from another file's footer, are dropped.
        options: further arguments of ``pyarrow.parquet.ParquetWriter``.
    """

    def __init__(
        self, where: str | os.PathLike[str] | IO[bytes] | pa.NativeFile, schema: pa.Schema, **options: Any
    ) -> None:
        self._is_own = isinstance(where, (str, os.PathLike))
        if isinstance(where, (str, os.PathLike)):
            self._sink = pa.OSFile(os.fspath(where), "wb")
        else:
            # pyarrow counts the bytes of its sink, so the indexes go through it too
            self._sink = where if isinstance(where, pa.NativeFile) else pa.PythonFile(where, "w")
        self._indexes: dict[str, EmbeddedIndex] = {}
        metadata = schema.metadata or {}
        kept = {key: value for key, value in metadata.items() if not key.startswith(KEY_PREFIX.encode())}
        if len(kept) < len(metadata):
            schema = schema.with_metadata(kept)
        try:
            self._writer = pq.ParquetWriter(self._sink, schema, **options)
        except BaseException:
            self._close_sink()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._indexes.clear()
        self.close()

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Write a table's rows, as pyarrow's ``ParquetWriter.write_table`` does."""
        self._writer.write_table(table, row_group_size)

    def write_batch(self, batch: pa.RecordBatch, row_group_size: int | None = None) -> None:
        """Write a batch's rows, as pyarrow's ``ParquetWriter.write_batch`` does."""
        self._writer.write_batch(batch, row_group_size)

    def embed(self, index: EmbeddedIndex) -> None:
        """Add an index, which is written when the file is closed. Raises InvalidOptionError if the file already has an
        index with this name."""
        if index.name in self._indexes:
            raise InvalidOptionError(
                f"the file already has an embedded index named {index.name!r}", hint="Embed each index once."
            )
        self._indexes[index.name] = index

    def close(self) -> None:
        """Write the indexes and the footer. Later calls do nothing."""
        try:
            if self._writer.is_open:
                keys = _write(self._indexes.values(), self._sink)
                if keys:
                    self._writer.add_key_value_metadata(keys)
                self._writer.close()
        finally:
            self._close_sink()

    def _close_sink(self) -> None:
        if self._is_own:
            self._sink.close()


def embed_indexes(
    source: str | os.PathLike[str], target: str | os.PathLike[str], indexes: Iterable[EmbeddedIndex]
) -> None:
    """Copy a Parquet file, and add indexes to the copy. An index replaces an existing one with the same name.

    Only the footer's key-value metadata changes. ``target`` may be the same path as ``source``; the file at ``target``
    is created or replaced atomically, once the copy is complete.

    Raises:
        FormatError: the source is not a Parquet file.
        UnsupportedFeatureError: the source's footer is encrypted or signed.
        InvalidOptionError: two of the indexes have the same name.
    """
    named: dict[str, EmbeddedIndex] = {}
    for index in indexes:
        if named.setdefault(index.name, index) is not index:
            raise InvalidOptionError(
                f"two of the indexes have the same name, {index.name!r}", hint="Give each index a name of its own."
            )
    target = Path(target)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        shutil.copyfile(source, unfinished)
        with unfinished.open("r+b") as file:
            try:
                start, metadata = _footer(file)
            except AsyncpqError as error:
                raise error.locate(url=os.fspath(source)) from error.__cause__
            file.truncate(start)
            file.seek(start)
            keys = _write(named.values(), file)
            footer = set_key_values(metadata, keys, max_elements=LimitOptions().max_footer_elements)
            file.write(footer + len(footer).to_bytes(4, "little") + MAGIC)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(source, unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(indexes: Iterable[EmbeddedIndex], sink: IO[bytes] | pa.NativeFile) -> dict[str, str]:
    """Write the bytes of the indexes to ``sink``; return the footer's key-value pairs by which readers find them."""
    keys = {}
    for index in indexes:
        entry = index.entry(sink.tell())
        sink.write(index.data)
        keys[entry.key] = entry.value
    return keys


def _footer(file: IO[bytes]) -> tuple[int, bytes]:
    """Return the offset and the bytes of the file's FileMetaData. Raises FormatError if it cannot be decoded,
    UnsupportedFeatureError if the footer is encrypted or signed."""
    limits = LimitOptions()
    size = file.seek(0, os.SEEK_END)
    decoder = FooterDecoder(max_footer_bytes=limits.max_footer_bytes)
    footer = decoder.next(b"", size, size)
    while isinstance(footer, NeedBytes):
        file.seek(footer.start)
        footer = decoder.next(file.read(footer.stop - footer.start), footer.start, size)
    metadata = decode_file_metadata(
        footer.metadata_bytes, max_elements=limits.max_footer_elements, max_schema_elements=limits.max_schema_elements
    )
    if metadata.has_encryption:
        raise UnsupportedFeatureError(
            "the file's footer is signed, so no index can be added to it",
            hint="Write the file again, unsigned, with EmbeddedIndexWriter.",
        )
    return footer.start, footer.metadata_bytes
