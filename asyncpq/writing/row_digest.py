"""A digest of rows in their order. Equal digests show that a written file contains exactly the rows that it should.

Rows are hashed in blocks of equal length, so how they are divided into batches does not matter. Values are hashed as
Arrow stores them; for nulls, the bytes in their slots are ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_BLOCK_ROWS: Final = 1 << 16


class RowDigest:
    """Hashes rows as they come; :meth:`hexdigest` is the same for the same rows in the same order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._hash = hashlib.blake2b(digest_size=16)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self.rows: int = 0  # number of all rows

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the next rows, whose columns must be those of the schema."""
        batch = batch.cast(self._schema)
        self.rows += batch.num_rows
        while batch.num_rows:
            taken = batch.slice(0, _BLOCK_ROWS - self._held_rows)
            batch = batch.slice(taken.num_rows)
            self._held.append(taken)
            self._held_rows += taken.num_rows
            if self._held_rows == _BLOCK_ROWS:
                self._end_block()

    def hexdigest(self) -> str:
        """Return the digest of all rows added so far, in hexadecimal digits."""
        if self._held:
            self._end_block()
        return self._hash.hexdigest()

    def _end_block(self) -> None:
        table = pa.Table.from_batches(self._held, self._schema).combine_chunks()
        for column in table.columns:
            for chunk in column.chunks:  # more than one where text exceeds 2 GiB
                for data in _canonical(chunk):
                    self._hash.update(len(data).to_bytes(8, "little"))
                    self._hash.update(data)
        self._held, self._held_rows = [], 0


def _canonical(array: pa.Array) -> Iterator[Any]:
    """Yield buffers with the content of ``array`` that are the same for equal arrays, whatever their offsets and
    null slots."""
    dtype = array.type
    if isinstance(dtype, pa.BaseExtensionType):
        yield from _canonical(array.storage)
        return
    if pa.types.is_dictionary(dtype):
        yield from _canonical(array.dictionary_decode())
        return
    if pa.types.is_map(dtype):
        array = array.cast(pa.list_(pa.struct([("key", dtype.key_type), ("value", dtype.item_type)])))
        dtype = array.type
    yield _bytes(array.is_valid().cast(pa.uint8()))
    if pa.types.is_null(dtype):
        return
    if pa.types.is_struct(dtype):
        for child in array.flatten():
            yield from _canonical(child)
    elif pa.types.is_nested(dtype):
        yield _bytes(pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0))
        yield from _canonical(array.flatten())
    elif pa.types.is_boolean(dtype):
        yield _bytes(pc.fill_null(array, False).cast(pa.uint8()))
    elif _is_bytes(dtype):
        values = pc.fill_null(array.cast(pa.large_binary()), b"")
        yield _bytes(pc.binary_length(values))
        start, stop = values.buffers()[1][values.offset * 8 :], len(values)
        ends = memoryview(start).cast("q")
        data = values.buffers()[2]
        yield b"" if data is None else memoryview(data)[ends[0] : ends[stop]]
    else:
        yield _bytes(array if not array.null_count else pc.if_else(array.is_valid(), array, _zero(dtype)))


def _is_bytes(dtype: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary)
    more = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(dtype) for test in (*tests, *more)) and not pa.types.is_decimal(dtype)


def _zero(dtype: pa.DataType) -> pa.Scalar:
    return pa.Array.from_buffers(dtype, 1, [None, pa.py_buffer(bytes(dtype.bit_width // 8))])[0]


def _bytes(array: pa.Array) -> memoryview:
    """Return the bytes of an array of fixed width."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    return memoryview(b"" if data is None else data)[array.offset * width : (array.offset + len(array)) * width]
