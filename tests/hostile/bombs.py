"""Hostile files that are small and would decode to much."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from asyncpq.parquet.thrift import I32, varint
from tests.fuzz.parquet_parts import ParquetParts
from tests.fuzz.thrift_trees import Struct
from tests.hostile.lies import Corrupt, Hostile, Limit, row_group
from tests.parquet_bytes import parquet_bytes

# -- bombs ------------------------------------------------------------------------------------------


def _written(table: pa.Table, **options: Any) -> ParquetParts:
    return ParquetParts(parquet_bytes(table, write_statistics=False, **options))


def _bomb(parts: ParquetParts, rows: int) -> bytes:
    """Everything claims ``rows`` rows, one row group, one column."""
    meta = parts.chunks[0].meta
    parts.footer.set(3, rows)
    row_group(parts.footer).set(3, rows)
    meta.set(5, rows)
    meta.drop(12)
    meta.drop(13)
    meta.drop(16)
    return parts.rebuilt()


def bombs() -> Iterator[Hostile]:
    many = (1 << 31) - 1

    def of(said: str, data: bytes) -> Hostile:
        return Hostile("bombs", said, data, None, Limit)

    # a run of 2^31 - 1 equal values, in a few bytes
    parts = _written(pa.table({"x": pa.array([7] * 9, pa.int64())}), compression="none")
    page = parts.chunks[0].pages[1]
    page.body = _levels(many) + b"\x01" + varint(many << 1) + b"\0"
    _resize(page.header, page.body, many)
    yield of("a run of 2^31 dictionary indices", _bomb(parts, many))
    parts = _written(pa.table({"x": pa.array([True] * 9)}), column_encoding="RLE", use_dictionary=False)
    page = parts.chunks[0].pages[0]
    run = varint(many << 1) + b"\x01"
    page.body = _levels(many) + struct.pack("<I", len(run)) + run
    parts.chunks[0].meta.set(4, 0)
    _resize(page.header, page.body, many)
    yield of("a run of 2^31 booleans", _bomb(parts, many))
    parts = _written(pa.table({"x": pa.nulls(9, pa.int64())}), compression="none", use_dictionary=False)
    page = parts.chunks[0].pages[0]
    run = varint(many << 1) + b"\0"
    page.body = struct.pack("<I", len(run)) + run
    _resize(page.header, page.body, many)
    yield of("a run of 2^31 nulls", _bomb(parts, many))
    # DELTA_BINARY_PACKED: blocks of miniblocks of width 0
    parts = _written(
        pa.table({"x": pa.array(range(9), pa.int64())}),
        compression="none",
        use_dictionary=False,
        column_encoding="DELTA_BINARY_PACKED",
    )
    page = parts.chunks[0].pages[0]
    body = varint(1 << 20) + varint(1) + varint(many) + varint(0) + (varint(2) + b"\0") * (many // (1 << 20) + 1)
    page.body = _levels(many) + body
    _resize(page.header, page.body, many)
    yield of("2^31 deltas of no bits", _bomb(parts, many))
    # compression: a page of zeros, claimed rightly and wrongly
    zeros = 100 << 20
    for codec, code in (("zstd", 6), ("gzip", 2), ("brotli", 4), ("snappy", 1), ("lz4_raw", 7)):
        small = 20 << 20  # more takes the other codecs long to write
        size = zeros if codec in ("zstd",) else small
        parts = _written(pa.table({"x": pa.array([0.0] * 9)}), compression="none", use_dictionary=False)
        page = parts.chunks[0].pages[0]
        rows = size // 8
        raw = _levels(rows) + bytes(size)
        page.body = pa.Codec(codec).compress(raw, asbytes=True)
        parts.chunks[0].meta.set(4, code)
        _resize(page.header, page.body, rows, len(raw))
        yield of(f"{size >> 20} MiB of zeros in a {codec} page", _bomb(parts, rows))
        page.header.set(2, 9 * 8 + 6)
        page.header.struct(5).set(1, 9)
        yield Hostile("bombs", f"the same, said to be 78 bytes ({codec})", _bomb(parts, 9), None, Corrupt)
    for said, values, options in (
        ("a dictionary of one long string", pa.array(["x" * 100_000] * 1000), {}),
        ("a list of one long string", pa.array([["x" * 100_000] * 2] * 500), {}),
        ("lists of many lists", pa.array([[[7] * 100] * 1000] * 100), {}),
        ("nulls in lists of 100,000", pa.nulls(200, pa.list_(pa.int64(), 100_000)), {}),
        (
            "prefixes of a long string",
            pa.array(["x" * 100_000] * 1000),
            {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        ),
    ):
        yield of(said, parquet_bytes(pa.table({"x": values}), **options))


def _levels(rows: int) -> bytes:
    """Definition levels of ``rows`` values that are all there."""
    run = varint(rows << 1) + b"\x01"
    return struct.pack("<I", len(run)) + run


def _resize(header: Struct, body: bytes, values: int, uncompressed: int | None = None) -> None:
    header.set(2, len(body) if uncompressed is None else uncompressed, I32)
    header.set(3, len(body), I32)
    header.set(4, zlib.crc32(body) - (zlib.crc32(body) >> 31 << 32), I32)
    header.struct(5).set(1, values)
