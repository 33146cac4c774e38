"""Files of table metadata are decompressed within the memory that they may take."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from asyncpq.datasets.model import MetadataBudget
from asyncpq.errors import ResourceLimitError
from asyncpq.options import LimitOptions
from asyncpq.tables.iceberg.decompression import Inflater

DATA = b"metadata" * 100_000


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[Inflater, bytes], bytes]]] = {
    "deflate": (raw_deflate, Inflater.deflate),
    "gzip": (gzip.compress, lambda inflater, data: inflater.stream(data, "gzip")),
    "bz2": (bz2.compress, lambda inflater, data: inflater.stream(data, "bz2")),
    "zstd": (lambda data: bytes(pa.Codec("zstd").compress(data)), lambda inflater, data: inflater.stream(data, "zstd")),
    "snappy": (lambda data: bytes(pa.Codec("snappy").compress(data)), Inflater.snappy),
}


def budget(max_decoded_bytes: int) -> MetadataBudget:
    return MetadataBudget(0, LimitOptions(max_decoded_bytes=max_decoded_bytes))


@pytest.mark.parametrize("codec", CODECS)
def test_all_parts_together_stay_within_the_budget(codec: str) -> None:
    pack, unpack = CODECS[codec]
    inflater = Inflater(budget(2 * len(DATA)))
    for _ in range(2):
        assert unpack(inflater, pack(DATA)) == DATA
    with pytest.raises(ResourceLimitError, match="decodes to more than max_decoded_bytes"):
        unpack(inflater, pack(b"x"))


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_that_are_cut_off_are_an_error(codec: str) -> None:
    pack, unpack = CODECS[codec]
    data = pack(DATA)
    with pytest.raises((ValueError, OSError, zlib.error)):
        unpack(Inflater(budget(2 * len(DATA))), data[: len(data) // 2])
