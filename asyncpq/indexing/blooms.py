"""Bloom filters over keys: Parquet's split-block filters (BloomFilter.md) of the keys' bytes.

Nulls and NaN have keys too, so any single key can be looked up. Only a filter's bitset is stored. pyarrow's kernels
compute hashes and bits of many keys at once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import reduce
from typing import Final

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import plain_scalar
from asyncpq.parquet.bloom_filter import (
    BLOCK_BYTES,
    MAX_BITSET_BYTES,
    SALTS,
    XXH64_PRIMES,
    block_of,
    may_contain,
    xxh64,
)

_BLOCK_BITS: Final = 8 * BLOCK_BYTES
_WINDOW_BLOCKS: Final = 1 << 12  # whose bits are set at once; that takes 4 bytes of memory a bit
_CHUNK_ROWS: Final = 1 << 16  # hashed at once: the kernels' results fit in the processor's cache


def _u64(value: int) -> pa.Scalar:
    return plain_scalar(value & (1 << 64) - 1, pa.uint64())


_P1, _P2, _P3, _P4, _P5 = XXH64_PRIMES
_S1, _S2, _S3, _S4, _S5 = map(_u64, (_P1, _P2, _P3, _P4, _P5))
_LOW: Final = _u64(0xFFFFFFFF)


def may_hold(bitset: bytes, key: bytes) -> bool:
    """Return whether the file or row group whose filter is ``bitset`` may have a value with this key."""
    num_blocks = len(bitset) // BLOCK_BYTES
    hash_ = xxh64(key)
    at = block_of(hash_, num_blocks) * BLOCK_BYTES
    return may_contain(bitset[at : at + BLOCK_BYTES], hash_)


def make_bitset(hashes: pa.UInt64Array, fpp: float) -> bytes:
    """Return the bitset of a filter of distinct hashes, with a false-positive rate of about ``fpp`` (0 to 1)."""
    bits = -8 * len(hashes) / math.log(1 - fpp**0.125)
    num_blocks = min(max(1, math.ceil(bits / _BLOCK_BITS)), MAX_BITSET_BYTES // BLOCK_BYTES)
    ordered = hashes.take(pc.sort_indices(hashes))  # the blocks that they select are sorted too
    blocks = pc.shift_right(pc.multiply(pc.shift_right(ordered, _u64(32)), _u64(num_blocks)), _u64(32))
    windows: list[bytes] = []
    start = 0
    for first in range(0, num_blocks, _WINDOW_BLOCKS):
        end = min(num_blocks, first + _WINDOW_BLOCKS)
        stop = bisect_left(range(len(blocks)), end, key=lambda at: blocks[at].as_py())
        windows.append(_bits(ordered.slice(start, stop - start), blocks.slice(start, stop - start), first, end))
        start = stop
    return b"".join(windows)


def _bits(hashes: pa.UInt64Array, blocks: pa.UInt64Array, first: int, end: int) -> bytes:
    """Return the bytes of the bitset's blocks ``first`` to ``end`` - 1. ``hashes`` are the key hashes that set bits
    in these blocks, and ``blocks`` has the number of the block of each hash."""
    size = (end - first) * BLOCK_BYTES
    if not len(hashes):
        return bytes(size)
    starts = pc.multiply(pc.subtract(blocks, _u64(first)), _u64(_BLOCK_BITS))
    low = pc.bit_wise_and(hashes, _LOW)
    positions = []
    for shift, salt in SALTS:
        bit = pc.shift_right(pc.bit_wise_and(pc.multiply(low, _u64(salt)), _LOW), _u64(27))
        positions.append(pc.add(pc.add(starts, bit), _u64(shift)).cast(pa.int32()))
    # Only these positions are valid in the result: its validity bitmap, least bit first, is the bitset.
    bits = pc.inverse_permutation(pa.chunked_array(positions).combine_chunks(), max_index=8 * size - 1)
    validity = bits.buffers()[0]
    return b"\xff" * size if validity is None else validity.slice(0, size).to_pybytes()


def key_hashes(keys: pa.BinaryArray) -> pa.UInt64Array:
    """Return the hash of each key: XXH64 with seed 0. The hashes are in another order than the keys."""
    if not len(keys):
        return pa.array([], pa.uint64())
    lengths = pc.binary_length(keys)
    if pc.min(lengths) != pc.max(lengths):
        order = pc.sort_indices(lengths)
        keys, lengths = keys.take(order), lengths.take(order)
    hashes: list[pa.UInt64Array] = []
    start = 0
    for run in pc.value_counts(lengths).to_pylist():
        size, stop = run["values"], start + run["counts"]
        slices = (keys.slice(at, min(_CHUNK_ROWS, stop - at)) for at in range(start, stop, _CHUNK_ROWS))
        hashes.extend(_hashed(piece, size) for piece in slices)
        start = stop
    return pa.concat_arrays(hashes)


def _hashed(keys: pa.BinaryArray, size: int) -> pa.UInt64Array:
    """Return XXH64 of keys that all have ``size`` bytes."""
    number, data = len(keys), b""
    if size:
        start = int.from_bytes(keys.buffers()[1].slice(4 * keys.offset, 4).to_pybytes(), "little")
        data = bytes(keys.buffers()[2].slice(start, number * size))

    def word(at: int, width: int = 8) -> pa.UInt64Array:
        """Return ``width`` bytes of each key from ``at`` on, as little-endian numbers."""
        lane = bytearray(8 * number)
        for byte in range(width):
            lane[byte::8] = data[at + byte :: size]
        return pa.Array.from_buffers(pa.uint64(), number, [None, pa.py_buffer(lane)])

    at = size & ~31
    if at:
        lanes = [pa.repeat(_u64(seed), number) for seed in (_P1 + _P2, _P2, 0, -_P1)]
        for stripe in range(0, at, 32):
            lanes = [_round(lane, word(stripe + 8 * place)) for place, lane in enumerate(lanes)]
        hash_ = reduce(pc.add, [_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)])
        for lane in lanes:
            hash_ = pc.add(pc.multiply(pc.bit_wise_xor(hash_, _round(None, lane)), _S1), _S4)
        hash_ = pc.add(hash_, _u64(size))
    else:
        hash_ = pa.repeat(_u64(_P5 + size), number)
    while at + 8 <= size:
        mixed = pc.bit_wise_xor(hash_, _round(None, word(at)))
        hash_ = pc.add(pc.multiply(_rotated(mixed, 27), _S1), _S4)
        at += 8
    if at + 4 <= size:
        mixed = pc.bit_wise_xor(hash_, pc.multiply(word(at, 4), _S1))
        hash_ = pc.add(pc.multiply(_rotated(mixed, 23), _S2), _S3)
        at += 4
    for place in range(at, size):
        mixed = pc.bit_wise_xor(hash_, pc.multiply(word(place, 1), _S5))
        hash_ = pc.multiply(_rotated(mixed, 11), _S1)
    hash_ = pc.multiply(pc.bit_wise_xor(hash_, pc.shift_right(hash_, _u64(33))), _S2)
    hash_ = pc.multiply(pc.bit_wise_xor(hash_, pc.shift_right(hash_, _u64(29))), _S3)
    return pc.bit_wise_xor(hash_, pc.shift_right(hash_, _u64(32)))


def _round(lane: pa.UInt64Array | None, word: pa.UInt64Array) -> pa.UInt64Array:
    product = pc.multiply(word, _S2)
    return pc.multiply(_rotated(product if lane is None else pc.add(lane, product), 31), _S1)


def _rotated(values: pa.UInt64Array, bits: int) -> pa.UInt64Array:
    return pc.bit_wise_or(pc.shift_left(values, _u64(bits)), pc.shift_right(values, _u64(64 - bits)))
