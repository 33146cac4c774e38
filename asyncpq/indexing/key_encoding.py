"""Order-preserving keys: bytes that sort as the values do (see :mod:`asyncpq.indexing.index_model`).

A key is a tag and, for a value, a body. All bodies of a column have the same width, except for strings and binary:

- integers, dates, times, timestamps, durations: 64 bits, big-endian, with the sign bit flipped; ``uint64`` unflipped;
- decimals: the unscaled value in 128 or 256 bits, in the same way;
- floats: 64 bits of the double; negative ones with all bits flipped, others with the sign; -0.0 is 0.0;
- bool: one byte, 0 or 1;
- strings and binary: their bytes; of values longer than ``PREFIX_BYTES`` the first ``PREFIX_BYTES`` and a hash of the
  value in ``HASH_BYTES``. So long values with one prefix differ, but do not sort among themselves.

The types are the dataset's; the values of each file are cast to them first. Widening integers or floats changes no key,
except for ``uint64``.

For substring and word search, keys are n-grams (runs of n bytes of UTF-8) and tokens
(:mod:`asyncpq.expressions.tokens`). A value that contains a text has all n-grams of the text, so a file that lacks one
has no such value.

Bloom filters over keys are Parquet's split-block filters (BloomFilter.md) of the keys' bytes. Nulls and NaN have keys
too, so any single key can be looked up. Only a filter's bitset is stored. pyarrow's kernels compute hashes and bits of
many keys at once.
"""

from __future__ import annotations

import hashlib
import math
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache, reduce
from typing import Final

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import is_list, plain_scalar
from asyncpq.decoding.typed_literals import storage_type, storage_values
from asyncpq.expressions import Atom
from asyncpq.expressions.analysis import Points, Truth, result_values
from asyncpq.expressions.tokens import tokens
from asyncpq.indexing.index_model import NAN_KEY, NULL_KEY, VALUE_TAG
from asyncpq.parquet.bloom_filter import (
    BLOCK_BYTES,
    MAX_BITSET_BYTES,
    SALTS,
    XXH64_PRIMES,
    block_of,
    may_contain,
    xxh64,
)
from asyncpq.pruning.literals import TEXTS

PREFIX_BYTES: Final = 64
HASH_BYTES: Final = 8
END: Final = b"\x00\x01"  # ends a string in a composite key; 0x00 in the string becomes ESCAPED
ESCAPED: Final = b"\x00\xff"

_FLIP: Final = bytes(byte ^ 0x80 for byte in range(256))
_SIGN: Final = 1 << 63
_BIT_SIGN: Final = plain_scalar(-_SIGN, pa.int64())
_DOUBLE: Final = struct.Struct(">d")
_NULL: Final = plain_scalar(NULL_KEY, pa.binary())
_NAN: Final = plain_scalar(NAN_KEY, pa.binary())
_TAG: Final = plain_scalar(VALUE_TAG, pa.binary())
_END: Final = plain_scalar(END, pa.binary())
_EMPTY: Final = plain_scalar(b"", pa.binary())
_HIGHEST: Final = plain_scalar(b"\xff" * HASH_BYTES, pa.binary())
_types = pa.types
_TEXT: Final = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})


@cache
def element_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the element type of a list; None for other types."""
    return type_.value_type if is_list(type_) else None


def is_indexable(type_: pa.DataType) -> bool:
    """Return whether values of this type can be keys. A list has a key for each element."""
    kind = storage_type(element_type(type_) or type_)
    return is_variable(kind) or _types.is_null(kind) or width_of(kind) is not None


def is_variable(type_: pa.DataType) -> bool:
    """Return whether ``type_`` is string or binary (of fixed size too), whose keys may differ in length."""
    kind = storage_type(type_)
    return kind in _TEXT or bool(_types.is_fixed_size_binary(kind))


def width_of(type_: pa.DataType) -> int | None:
    """Return the number of bytes of a key's body; None if bodies differ in length, or the type has no keys."""
    kind = storage_type(type_)
    if _types.is_boolean(kind):
        return 1
    if _types.is_decimal(kind):
        return 32 if kind.bit_width == 256 else 16
    if _types.is_integer(kind) or _types.is_float32(kind) or _types.is_float64(kind):
        return 8
    return 8 if _types.is_temporal(kind) and not _types.is_interval(kind) else None


# -- many values ----------------------------------------------------------------------------------


def normalised(array: pa.Array, type_: pa.DataType) -> pa.BinaryArray:
    """Return the key of each value in ``array``, which has at most 2**24 values of the dataset type ``type_``,
    perhaps dictionary-encoded. The key of null is ``NULL_KEY``. Lists have no keys of their own (see
    :func:`elements`)."""
    if isinstance(array.type, pa.DictionaryType):
        return _with_nulls(normalised(array.dictionary, type_).take(array.indices), array)
    kind = storage_type(type_)
    values = _stored(array, kind)
    if _types.is_null(kind):
        return _repeated(_NULL, len(values))
    if is_variable(kind):
        return _with_nulls(_text_keys(values), values)
    return _with_nulls(_fixed_keys(values, kind), values)


def bound_keys(array: pa.Array, type_: pa.DataType, *, upper: bool) -> pa.BinaryArray:
    """Return for each value a bound for keys: at most the key of every equal or greater value; with ``upper``, at least
    the key of every equal or lesser value.

    A bound is the value's own key, except for strings longer than ``PREFIX_BYTES``, whose hashes do not sort.
    """
    if isinstance(array.type, pa.DictionaryType):
        array = array.dictionary_decode()
    if not is_variable(type_):
        return normalised(array, type_)
    values = _binary(_stored(array, storage_type(type_)))
    heads = pc.binary_slice(values, 0, PREFIX_BYTES).cast(pa.binary())
    rest = pc.if_else(_is_long(values), _HIGHEST, _EMPTY) if upper else _EMPTY
    return _with_nulls(pc.binary_join_element_wise(_TAG, heads, rest, _EMPTY), values)


def elements(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the elements of a list array, and the position in ``array`` of each element's list (int64).

    A null list counts as one null element; an empty list has none.
    """
    inside = pc.list_flatten(array)
    parents = pc.list_parent_indices(array).cast(pa.int64())
    if not array.null_count:
        return inside, parents
    nulls = pc.indices_nonzero(array.is_null()).cast(pa.int64())
    if len(inside) != len(parents):  # elements under null lists
        parents = parents.filter(array.is_valid().take(parents))
    return pa.concat_arrays([inside, pa.nulls(len(nulls), inside.type)]), pa.concat_arrays([parents, nulls])


def composite(arrays: Sequence[pa.BinaryArray], types: Sequence[pa.DataType]) -> pa.BinaryArray:
    """Return for each row one key made of its keys of several columns, which sorts by the first column, then the next.

    The key of the first columns is a prefix of the whole key: a reader finds the end of fixed-width bodies from their
    type, and the end of others from ``END``; 0x00 in them is written as ``ESCAPED``.
    """
    components = [_component(keys, type_) for keys, type_ in zip(arrays, types, strict=True)]
    return components[0] if len(components) == 1 else pc.binary_join_element_wise(*components, _EMPTY)


def table_keys(arrays: Sequence[pa.Array], types: Sequence[pa.DataType]) -> pa.BinaryArray:
    """Return the keys of each row of a table over these columns; composite keys if there are several columns."""
    keys = [normalised(array, type_) for array, type_ in zip(arrays, types, strict=True)]
    return keys[0] if len(keys) == 1 else composite(keys, types)


def sort_keys(arrays: Sequence[pa.Array], types: Sequence[pa.DataType]) -> pa.BinaryArray:
    """Return the keys of each row over these columns as :func:`composite` does, but with whole strings, so that the
    order is right for strings of any length."""
    keys = [_whole_key(array, type_) for array, type_ in zip(arrays, types, strict=True)]
    return composite(keys, types)


def _whole_key(array: pa.Array, type_: pa.DataType) -> pa.BinaryArray:
    if not is_variable(type_):
        return normalised(array, type_)
    decoded = array.dictionary_decode() if isinstance(array.type, pa.DictionaryType) else array
    values = _binary(_stored(decoded, storage_type(type_)))
    return _with_nulls(pc.binary_join_element_wise(_TAG, values.cast(pa.binary()), _EMPTY), values)


def _component(keys: pa.BinaryArray, type_: pa.DataType) -> pa.BinaryArray:
    if not is_variable(type_):
        return keys
    held = pc.not_equal(keys, _NULL)
    # A value's tag is never escaped.
    bodies = pc.replace_substring(keys, b"\x00", ESCAPED) if pc.any(pc.match_substring(keys, b"\x00")).as_py() else keys
    ended = pc.binary_join_element_wise(bodies, _END, _EMPTY)
    return pc.if_else(held, ended, _NULL)


def _stored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    values = storage_values(array)
    return values if values.type == kind else values.cast(kind)


def _with_nulls(keys: pa.BinaryArray, values: pa.Array) -> pa.BinaryArray:
    if isinstance(values, pa.DictionaryArray):
        return keys.fill_null(_NULL) if keys.null_count else keys
    return pc.if_else(values.is_valid(), keys, _NULL) if values.null_count else keys


def _repeated(value: pa.Scalar, length: int) -> pa.BinaryArray:
    return pa.repeat(value, length) if length else pa.array([], pa.binary())


# -- of a fixed width -----------------------------------------------------------------------------


def _fixed_keys(values: pa.Array, kind: pa.DataType) -> pa.BinaryArray:
    if _types.is_floating(kind):
        doubles = pc.add(values.cast(pa.float64()), 0.0)  # -0.0 + 0.0 is 0.0
        bits = doubles.view(pa.int64())
        ordered = pc.if_else(pc.less(bits, 0), pc.bit_wise_not(bits), pc.bit_wise_xor(bits, _BIT_SIGN))
        keys = _big_endian(ordered, 8, 8, signed=False)
        return pc.if_else(pc.is_nan(doubles).fill_null(False), _NAN, keys)
    if _types.is_boolean(kind):
        return _big_endian(values.cast(pa.uint8()), 1, 1, signed=False)
    if _types.is_decimal(kind):
        width = values.type.bit_width // 8
        return _big_endian(values, width, width, signed=True)
    if kind == pa.uint64():
        return _big_endian(values, 8, 8, signed=False)
    if kind == pa.date64():
        values = values.cast(pa.date32(), safe=False)
    if _types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return _big_endian(values.cast(pa.int64()), 8, 8, signed=True)


def _big_endian(values: pa.Array, stride: int, width: int, *, signed: bool) -> pa.BinaryArray:
    """Return the key of each value: a tag and the value's ``width`` low bytes, big-endian. ``stride`` is the number
    of bytes, little-endian, of a value in ``values``. ``signed``: flip the sign bit."""
    number = len(values)
    if not number:
        return pa.array([], pa.binary())
    data = values.buffers()[1].slice(values.offset * stride, number * stride).to_pybytes()
    step = width + 1
    keys = bytearray(step * number)
    keys[::step] = VALUE_TAG * number
    for at in range(width):
        column = data[width - 1 - at :: stride]
        keys[at + 1 :: step] = column.translate(_FLIP) if signed and at == 0 else column
    return pa.Array.from_buffers(pa.binary(step), number, [None, pa.py_buffer(keys)]).cast(pa.binary())


# -- strings --------------------------------------------------------------------------------------


def _binary(values: pa.Array) -> pa.Array:
    """Return strings as binary, large strings as large binary."""
    return values.cast(pa.large_binary() if values.type in (pa.large_string(), pa.large_binary()) else pa.binary())


def _is_long(values: pa.Array) -> pa.BooleanArray:
    return pc.greater(pc.binary_length(values), PREFIX_BYTES).fill_null(False)


def _text_keys(array: pa.Array) -> pa.BinaryArray:
    values = _binary(array)
    is_long = _is_long(values)
    if not is_long.true_count:
        return pc.binary_join_element_wise(_TAG, values.cast(pa.binary()), _EMPTY)
    encoded = values.filter(is_long).dictionary_encode()
    hashes = pa.array([value_hash(value.as_buffer()) for value in encoded.dictionary], pa.binary()).take(
        encoded.indices
    )
    tails = pc.replace_with_mask(_repeated(_EMPTY, len(values)), is_long, hashes)
    heads = pc.binary_slice(values, 0, PREFIX_BYTES).cast(pa.binary())
    return pc.binary_join_element_wise(_TAG, heads, tails, _EMPTY)


# -- one value ------------------------------------------------------------------------------------


def value_hash(value: bytes | memoryview) -> bytes:
    """Return the hash of a long value in ``HASH_BYTES`` bytes, which tells apart values with the same prefix."""
    return hashlib.blake2b(value, digest_size=HASH_BYTES).digest()


def text_key(value: bytes) -> bytes:
    """Return the key of a string or binary value."""
    if len(value) <= PREFIX_BYTES:
        return VALUE_TAG + value
    return VALUE_TAG + value[:PREFIX_BYTES] + value_hash(value)


def integer_key(value: int, width: int, *, signed: bool) -> bytes:
    """Return the key of a value that is stored as an integer of ``width`` bytes; ``signed`` says whether it has a
    sign bit."""
    return VALUE_TAG + (value + (1 << 8 * width - 1) if signed else value).to_bytes(width, "big")


def float_key(value: float) -> bytes:
    """Return the key of a float other than NaN."""
    bits = int.from_bytes(_DOUBLE.pack(value + 0.0), "big")
    return VALUE_TAG + (bits ^ (_SIGN if bits < _SIGN else 2 * _SIGN - 1)).to_bytes(8, "big")


MAX_GRAM_BYTES: Final = 8
_SEPARATOR: Final = b"\xff"  # not in UTF-8
_CHUNK_BYTES: Final = 1 << 22  # of text at once


def ngrams(array: pa.Array, n: int) -> pa.BinaryArray:
    """Return the distinct n-grams of strings or binary values, perhaps dictionary-encoded. Each has ``n`` bytes (1 to
    ``MAX_GRAM_BYTES``). For binary values, the result may have a few n-grams that occur in no value."""
    if isinstance(array.type, pa.DictionaryType):
        array = array.dictionary
    array = storage_values(array)
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    values = pc.unique(array).drop_null().cast(pa.large_binary())
    codes = pa.array([], pa.uint64())
    for chunk in _chunks(values):
        whole = pa.LargeListArray.from_arrays(pa.array([0, len(chunk)], pa.int64()), chunk)
        text = pc.binary_join(whole, pa.scalar(_SEPARATOR, pa.large_binary()))[0].as_buffer()
        codes = pc.unique(pa.concat_arrays([codes, _codes(text, n)]))
    return _grams(codes, n, is_text)


def needed_ngrams(atom: Atom, truth: Truth, n: int) -> tuple[bytes, ...] | None:
    """Return n-grams that occur in every value for which the comparison ``atom``, on a column of strings or binary,
    has the result ``truth``; None if these values have no n-gram in common."""
    wanted = result_values(atom, truth, TEXTS)
    if wanted.null or wanted.nan:
        return None
    texts: Iterable[str | bytes] = wanted.texts
    if isinstance(wanted.values, Points) and len(wanted.values.keys) == 1 and not wanted.values.inverted:
        texts = wanted.values.keys
    try:
        raw = [text.encode() if isinstance(text, str) else text for text in texts]
    except UnicodeEncodeError:
        return None
    grams = dict.fromkeys(text[at : at + n] for text in raw for at in range(len(text) - n + 1))
    return tuple(gram for gram in grams if _SEPARATOR not in gram) or None  # which grams of strings leave out


def needed_tokens(atom: Atom, truth: Truth) -> tuple[str, ...]:
    """Return tokens that occur in every value for which the comparison ``atom``, on a column of strings, has the
    result ``truth``."""
    return result_values(atom, truth, TEXTS).tokens


# -- many values ----------------------------------------------------------------------------------


def _chunks(values: pa.LargeBinaryArray) -> list[pa.LargeBinaryArray]:
    """Return slices of ``values`` of about ``_CHUNK_BYTES`` bytes each; a longer value is a slice of its own."""
    if not len(values):
        return []
    mean = max(1, values.nbytes // len(values))
    rows = max(1, _CHUNK_BYTES // mean)
    return [values.slice(at, rows) for at in range(0, len(values), rows)]


def _codes(text: pa.Buffer, n: int) -> pa.UInt64Array:
    """Return each distinct n-gram of ``text`` as a big-endian number."""
    number = text.size - n + 1
    if number <= 0:
        return pa.array([], pa.uint64())
    kind = pa.uint32() if n <= 4 else pa.uint64()
    byte = pa.scalar(8, kind)
    codes = pa.Array.from_buffers(pa.uint8(), number, [None, text]).cast(kind)
    for at in range(1, n):
        following = pa.Array.from_buffers(pa.uint8(), number, [None, text.slice(at)]).cast(kind)
        codes = pc.bit_wise_or(pc.shift_left(codes, byte), following)
    return pc.unique(codes).cast(pa.uint64())


def _grams(codes: pa.UInt64Array, n: int, is_text: bool) -> pa.BinaryArray:
    number = len(codes)
    if not number:
        return pa.array([], pa.binary())
    data = codes.buffers()[1].slice(8 * codes.offset, 8 * number).to_pybytes()
    raw = bytearray(n * number)
    for at in range(n):
        raw[at::n] = data[n - 1 - at :: 8]
    grams = pa.Array.from_buffers(pa.binary(n), number, [None, pa.py_buffer(raw)]).cast(pa.binary())
    if not is_text:
        return grams  # a value may hold the separator's byte
    return grams.filter(pc.invert(pc.match_substring(grams, _SEPARATOR)))


_LOWERED: Final = bytes(range(128)).decode().lower().encode()
#: For each ASCII byte, its byte in a token; a space for bytes outside of tokens.
_SEPARATED: Final = bytes(byte if chr(byte).isalnum() else ord(" ") for byte in _LOWERED).ljust(256, b" ")


def token_lists(texts: pa.Array) -> pa.ListArray:
    """Return a list of the tokens of each string, null for null. Tokens are in any order, perhaps with duplicates and
    empty strings."""
    texts = texts.cast(pa.string())
    is_ascii = pc.string_is_ascii(texts).fill_null(True)
    if not is_ascii.false_count:
        return _of_ascii(texts)
    plain, others = pc.indices_nonzero(is_ascii), pc.indices_nonzero(pc.invert(is_ascii))
    lists = pa.concat_arrays([_of_ascii(texts.take(plain)), _of_any(texts.take(others))])
    return lists.take(pc.array_sort_indices(pa.concat_arrays([plain, others])))


def _of_ascii(texts: pa.StringArray) -> pa.ListArray:
    if not len(texts):
        return pa.array([], pa.list_(pa.string()))
    validity, backends, data = texts.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, backends], offset=texts.offset)
    start, stop = offsets[0].as_py(), offsets[-1].as_py()
    separated = b"" if data is None else memoryview(data)[start:stop].tobytes().translate(_SEPARATED)
    if validity is not None:
        validity = texts.is_valid().buffers()[1]
    buffers = [validity, pc.subtract(offsets, pa.scalar(start, pa.int32())).buffers()[1], pa.py_buffer(separated)]
    return pc.ascii_split_whitespace(pa.Array.from_buffers(pa.string(), len(texts), buffers))


def _of_any(texts: pa.StringArray) -> pa.ListArray:
    encoded = texts.dictionary_encode()
    texts_as_bytes = encoded.dictionary.cast(pa.binary()).to_pylist()  # a file may hold invalid UTF-8
    lists = [list(set(tokens(text.decode("utf-8", "replace")))) for text in texts_as_bytes]
    return pa.array(lists, pa.list_(pa.string())).take(encoded.indices)


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
