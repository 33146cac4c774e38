"""Decompress table metadata and blocks of manifests, with a bound on what a small file may become."""

from __future__ import annotations

import zlib
from typing import Final, Literal

import pyarrow as pa

from asyncpq.datasets.model import MetadataBudget

_PIECE_BYTES: Final = 256 << 10
_VARINT_BYTES: Final = 5  # of a size below 4 GiB
_RAW: Final = -15  # zlib's code for deflate without header and checksum


class Inflater:
    """Decompresses the parts of one file. All methods raise ValueError, OSError or zlib.error if the bytes are
    malformed, and ResourceLimitError if all parts together exceed ``budget``."""

    def __init__(self, budget: MetadataBudget) -> None:
        self._budget = budget

    def deflate(self, data: bytes) -> bytes:
        """Decompress raw deflate data."""
        decompressor = zlib.decompressobj(_RAW)
        content = self._kept(decompressor.decompress(data, self._budget.left + 1))
        if not decompressor.eof:
            raise ValueError("deflated bytes are cut off")
        return content

    def stream(self, data: bytes, codec: Literal["gzip", "zstd", "bz2"]) -> bytes:
        """Decompress a stream of a codec that marks its end."""
        pieces: list[bytes] = []
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while piece := stream.read(_PIECE_BYTES):
                pieces.append(self._kept(piece))
        return b"".join(pieces)

    def snappy(self, data: bytes) -> bytes:
        """Decompress a snappy block, which begins with its decompressed size as a varint."""
        size = 0
        for position, byte in enumerate(data[:_VARINT_BYTES]):
            size |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                break
        self._budget.spend(size)
        return bytes(pa.Codec("snappy").decompress(data, size))

    def _kept(self, content: bytes) -> bytes:
        self._budget.spend(len(content))
        return content
