"""Deleted rows: deletion vectors, positions and their checks, as Delta, Iceberg and DuckLake share them.

A deletion vector is a magic number and a 64-bit Roaring bitmap of row numbers. In a file it stands in a frame: its
length, the vector, its CRC-32. Specs: RoaringFormatSpec, "Extension for 64-bit Implementations"; Delta's PROTOCOL.md,
"Deletion Vector Format"; Iceberg's Puffin spec, "deletion-vector-v1".
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Hashable

import pyarrow as pa

from asyncpq.datasets.model import CatalogReader
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_scalar
from asyncpq.errors import CorruptFileError, ResourceLimitError, UnsupportedFeatureError, limit_hint, located
from asyncpq.options import LimitOptions
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url

_MAGIC = b"\xd1\xd3\x39\x64"
_FRAME_BYTES = 8  # length and checksum
_RANGE_BYTES = 96  # of memory that a range takes: two integers, their places in two tuples, and in arrays before


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """The rows that one deletion vector deletes. Implements :class:`asyncpq.datasets.model.Deletes`."""

    url: str  # the file that holds the vector; for an inline vector, the table
    start: int = 0  # byte range of the framed vector in that file
    stop: int = 0
    inline: bytes | None = None  # the vector without its frame, if it is in no file
    cardinality: int  # the number of rows that the table's metadata gives
    data_url: str  # the file whose rows are deleted

    @property
    def identity(self) -> Hashable:
        """A key of the vector: its inline bytes, or url and byte range, since a file of vectors never changes."""
        return ("deletion vector", self.inline if self.inline is not None else (self.url, self.start, self.stop))

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        """Fetch and decode the vector; return the numbers of the deleted rows in a file of ``num_rows`` rows."""
        vector = self.inline
        with located(url=safe_url(self.url), byte_range=(self.start, self.stop) if vector is None else None):
            if vector is None:
                vector = unframed(await reader.read_bytes(self.url, self.start, self.stop))
            rows = await asyncio.to_thread(decode_vector, vector, reader.limits)
            if rows.num_rows != self.cardinality:
                raise CorruptFileError(
                    f"a deletion vector has {rows.num_rows} rows, but the table's metadata say {self.cardinality}"
                )
            check_deleted(rows, num_rows, self.data_url)
        return rows


def unframed(stored: bytes) -> bytes:
    """Return the deletion vector inside a frame of big-endian length and CRC-32. Raises CorruptFileError if length
    or checksum is wrong."""
    length = len(stored) - _FRAME_BYTES
    if length < 4 or int.from_bytes(stored[:4], "big") != length:
        raise CorruptFileError(f"a deletion vector has {len(stored)} bytes, but the length in its header differs")
    vector = stored[4:-4]
    if zlib.crc32(vector) != int.from_bytes(stored[-4:], "big"):
        raise CorruptFileError("a deletion vector does not match its CRC-32 checksum")
    return vector


def decode_vector(vector: bytes, limits: LimitOptions) -> RowRanges:
    """Return the row numbers in ``vector``, a deletion vector (a magic number and a bitmap) without its frame."""
    if vector[:4] != _MAGIC:
        raise UnsupportedFeatureError(
            f"a deletion vector has the magic number {vector[:4].hex()}, expected {_MAGIC.hex()}"
        )
    return decode_roaring(vector[4:], limits)


def decode_roaring(data: bytes, limits: LimitOptions) -> RowRanges:
    """Decode the values of a serialized 64-bit Roaring bitmap. Memory grows with the runs of consecutive values.

    Raises CorruptFileError if ``data`` is malformed, ResourceLimitError if the runs exceed ``max_decoded_bytes``.
    """
    from pyroaring import BitMap64  # few tables have deletion vectors

    try:
        bitmap = BitMap64.deserialize(data)
    except (ValueError, IndexError) as error:
        raise CorruptFileError(f"Roaring bitmap of {len(data)} bytes cannot be decoded: {error}") from error
    firsts = bitmap - bitmap.shift(1)  # of each run of consecutive values
    _check_ranges(len(firsts), limits)  # one bit of the bitmap may stand for a run
    lasts = bitmap - bitmap.shift(-1)
    return RowRanges.from_parallel(firsts.to_array(), (last + 1 for last in lasts.to_array()))


def decode_positions(positions: pa.ChunkedArray, url: str, limits: LimitOptions) -> RowRanges:
    """Return the rows that the delete file at ``url`` names: ``positions`` is its column ``pos``, row numbers in any
    order. Raises CorruptFileError if one is null or negative, ResourceLimitError as :func:`ranges_of`."""
    if positions.type != pa.int64() or positions.null_count:
        raise CorruptFileError("a deleted row's position is null or not an int64", url=safe_url(url), column="pos")
    ascending = pc.unique(positions).sort()
    if len(ascending) and ascending[0].as_py() < 0:
        raise CorruptFileError("a deleted row's position is negative", url=safe_url(url), column="pos")
    with located(url=safe_url(url)):
        return ranges_of(ascending, limits)


def ranges_of(ascending: pa.Array, limits: LimitOptions) -> RowRanges:
    """Return a set of row numbers, given as distinct ascending int64.

    Raises ResourceLimitError if the ranges that they form exceed ``max_decoded_bytes``.
    """
    if not len(ascending):
        return RowRanges.empty()
    before, after = ascending[:-1], ascending[1:]
    is_gap = pc.not_equal(pc.subtract(after, before), plain_scalar(1, pa.int64()))
    _check_ranges(is_gap.true_count + 1, limits)
    starts = pa.concat_arrays([ascending[:1], after.filter(is_gap)])
    lasts = pa.concat_arrays([before.filter(is_gap), ascending[-1:]])
    return RowRanges.from_parallel(starts.to_pylist(), (last + 1 for last in lasts.to_pylist()))


def _check_ranges(num_ranges: int, limits: LimitOptions) -> None:
    if num_ranges * _RANGE_BYTES > limits.max_decoded_bytes:
        raise ResourceLimitError(
            f"the deleted rows are {num_ranges} ranges, which take more than "
            f"max_decoded_bytes={limits.max_decoded_bytes} of memory",
            hint="Rewrite the table's data files (compaction). " + limit_hint("max_decoded_bytes"),
        )


def check_deleted(rows: RowRanges, num_rows: int, data_url: str) -> None:
    """Raise CorruptFileError if one of the deleted ``rows`` is not in the data file at ``data_url``, which has
    ``num_rows`` rows."""
    if rows.stop > num_rows:
        raise CorruptFileError(
            f"the table's metadata delete row {rows.stop - 1} (counted from 0) of {safe_url(data_url)}, which has only "
            f"{num_rows} rows: one of the two was replaced or restored alone",
            hint="Restore both from the same backup, or open a version of the table from before this delete.",
        )
