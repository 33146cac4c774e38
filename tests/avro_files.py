"""The bytes of Avro files, as writers of Iceberg's manifests make them."""

from __future__ import annotations

import bz2
import struct
import zlib

import pyarrow as pa


def varint(number: int) -> bytes:
    """An int or long, of any size."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def text(value: str) -> bytes:
    """A string."""
    data = value.encode()
    return varint(len(data)) + data


def packed(block: bytes, codec: str) -> bytes:
    """A block of records, compressed."""
    match codec:
        case "deflate":
            compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
            return compressor.compress(block) + compressor.flush()
        case "zstandard":
            return bytes(pa.Codec("zstd").compress(block, asbytes=True))
        case "bzip2":
            return bz2.compress(block)
        case "snappy":
            return bytes(pa.Codec("snappy").compress(block, asbytes=True)) + struct.pack(">I", zlib.crc32(block))
    return block
