"""Split-block bloom filters: the header, the hash and the test of one block (BloomFilter.md).

A filter is a header and a bitset of blocks of 32 bytes. A value's hash selects one block and eight bits of it; if a
bit is not set, no row of the chunk has the value. So a lookup needs the header and one block for each value.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.parquet.thrift import CompactReader, varint
from asyncpq.records import NamedTuple

BLOCK_BYTES: Final = 32
MAX_HEADER_BYTES: Final = 64  # writers write 15 to 19 bytes
MAX_BITSET_BYTES: Final = 1 << 28

# The usual header without its number of bytes: three unions, each with its first member, an empty struct.
_USUAL_REST_BYTES: Final = 14

_MASK: Final = (1 << 64) - 1
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5
XXH64_PRIMES: Final = (_P1, _P2, _P3, _P4, _P5)
_stripes = struct.Struct("<4Q").iter_unpack
_lanes = struct.Struct("<Q").iter_unpack

SALTS: Final = tuple(
    (32 * word, salt)
    for word, salt in enumerate(
        (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
    )
)


class BloomFilterHeader(NamedTuple):
    """The header in front of a filter's bitset.

    Attributes:
        header_size: bytes of the header.
        num_bytes: of the bitset.
    """

    header_size: int
    num_bytes: int

    @property
    def num_blocks(self) -> int:
        return self.num_bytes // BLOCK_BYTES


def decode_bloom_filter_header(data: bytes) -> BloomFilterHeader:
    """Decode the BloomFilterHeader at the start of ``data``.

    Raises EndOfDataError if ``data`` ends inside the header, CorruptFileError if ``data`` is not a header or the bitset
    is not whole blocks, UnsupportedFeatureError if the algorithm, hash or compression is unknown.
    """
    reader = CompactReader(data[:MAX_HEADER_BYTES], max_elements=MAX_HEADER_BYTES)
    fields = reader.struct()
    num_bytes = fields.get(1)
    if type(num_bytes) is not int or not 0 < num_bytes <= MAX_BITSET_BYTES or num_bytes % BLOCK_BYTES:
        raise CorruptFileError(
            f"a bloom filter's header gives the bitset size {num_bytes!r}, expected a positive multiple of "
            f"{BLOCK_BYTES} bytes, at most {MAX_BITSET_BYTES}"
        )
    for field_id, name in ((2, "algorithm"), (3, "hash"), (4, "compression")):
        union = fields.get(field_id)
        if not isinstance(union, dict) or set(union) != {1}:
            raise UnsupportedFeatureError(f"asyncpq does not support the {name} {union!r} of a bloom filter")
    return BloomFilterHeader(reader.pos, num_bytes)


def usual_header(length: int) -> BloomFilterHeader | None:
    """Guess the header of a filter of ``length`` bytes, header included; None if no common header fits this length."""
    for size in range(1, 6):
        header = BloomFilterHeader(_USUAL_REST_BYTES + size, length - _USUAL_REST_BYTES - size)
        if header.num_bytes > 0 and header.num_bytes % BLOCK_BYTES == 0 and len(varint(2 * header.num_bytes)) == size:
            return header
    return None


def block_of(hash_: int, num_blocks: int) -> int:
    """Return which of the ``num_blocks`` blocks of a filter the hash of a value selects, from 0."""
    return ((hash_ >> 32) * num_blocks) >> 32


@lru_cache(maxsize=8192)
def block_mask(hash_: int) -> int:
    """Return the eight bits that a hash selects in its block, as a mask for the block read as a little-endian
    integer."""
    low = hash_ & 0xFFFFFFFF
    mask = 0
    for shift, salt in SALTS:
        mask |= 1 << (shift + ((low * salt & 0xFFFFFFFF) >> 27))
    return mask


def may_contain(block: bytes, hash_: int) -> bool:
    """Return whether the column chunk may contain a value with this hash; ``block`` is the 32-byte block that the hash
    selects."""
    mask = block_mask(hash_)
    return int.from_bytes(block, "little") & mask == mask


def xxh64(data: bytes) -> int:
    """Return the XXH64 hash of ``data`` with seed 0 (the xxHash specification)."""
    size = len(data)
    position = size & ~31
    if position:
        a, b, c, d = _P1 + _P2 & _MASK, _P2, 0, -_P1 & _MASK
        for w, x, y, z in _stripes(data[:position]):
            a = a + w * _P2 & _MASK
            a = (a << 31 | a >> 33) * _P1 & _MASK
            b = b + x * _P2 & _MASK
            b = (b << 31 | b >> 33) * _P1 & _MASK
            c = c + y * _P2 & _MASK
            c = (c << 31 | c >> 33) * _P1 & _MASK
            d = d + z * _P2 & _MASK
            d = (d << 31 | d >> 33) * _P1 & _MASK
        h = (a << 1 | a >> 63) + (b << 7 | b >> 57) + (c << 12 | c >> 52) + (d << 18 | d >> 46)
        for lane in (a, b, c, d):
            lane = lane * _P2 & _MASK
            lane = (lane << 31 | lane >> 33) * _P1 & _MASK
            h = ((h & _MASK) ^ lane) * _P1 + _P4
    else:
        h = _P5
    h = h + size & _MASK
    for (lane,) in _lanes(data[position : size & ~7]):
        lane = lane * _P2 & _MASK
        h ^= (lane << 31 | lane >> 33) * _P1 & _MASK
        h = (h << 27 | h >> 37) * _P1 + _P4 & _MASK
    position = size & ~7
    if size & 4:
        h ^= int.from_bytes(data[position : position + 4], "little") * _P1 & _MASK
        h = (h << 23 | h >> 41) * _P2 + _P3 & _MASK
        position += 4
    for byte in data[position:]:
        h ^= byte * _P5 & _MASK
        h = (h << 11 | h >> 53) * _P1 & _MASK
    h = (h ^ h >> 33) * _P2 & _MASK
    h = (h ^ h >> 29) * _P3 & _MASK
    return h ^ h >> 32
