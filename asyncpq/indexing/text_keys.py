"""Keys for substring and word search: n-grams (runs of n bytes of UTF-8) and tokens of strings.

A value that contains a text has all n-grams of the text. If a file lacks one of them, no value of it contains the text.
For tokens see :mod:`asyncpq.expressions.tokens`.

Words of ASCII texts are split for all strings at once, since most of a build's time was there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.typed_literals import storage_values
from asyncpq.expressions import Atom
from asyncpq.expressions.analysis import Points, Truth, result_values
from asyncpq.expressions.tokens import tokens
from asyncpq.pruning.literals import Domain, ValueKind, domain_of

MAX_GRAM_BYTES: Final = 8
_SEPARATOR: Final = b"\xff"  # not in UTF-8
_CHUNK_BYTES: Final = 1 << 22  # of text at once
_TEXTS: Final = domain_of(ValueKind(Domain.BYTES))


def ngrams(array: pa.Array, n: int) -> pa.BinaryArray:
    """Return the distinct n-grams of strings or binary values; of binary ones perhaps a few more.

    Args:
        array: of any size, perhaps a dictionary.
        n: bytes of a gram, 1 to ``MAX_GRAM_BYTES``.
    """
    if isinstance(array.type, pa.DictionaryType):
        array = array.dictionary
    array = storage_values(array)
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    values = pc.unique(array).drop_null().cast(pa.large_binary())
    codes = pa.array([], pa.uint64())
    for chunk in _chunks(values):
        codes = pc.unique(pa.concat_arrays([codes, _codes(_joined(chunk), n)]))
    return _grams(codes, n, is_text)


def needed_ngrams(atom: Atom, truth: Truth, n: int) -> tuple[bytes, ...] | None:
    """n-grams in every value for which ``atom``, on a column of strings or binary, has the result ``truth``.

    None: such values have none in common.
    """
    wanted = result_values(atom, truth, _TEXTS)
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
    """Tokens of every value for which ``atom``, on a column of strings, has the result ``truth``."""
    return result_values(atom, truth, _TEXTS).tokens


# -- many values ----------------------------------------------------------------------------------


def _chunks(values: pa.LargeBinaryArray) -> list[pa.LargeBinaryArray]:
    """Return slices of about ``_CHUNK_BYTES``; a longer value is a slice of its own."""
    if not len(values):
        return []
    mean = max(1, values.nbytes // len(values))
    rows = max(1, _CHUNK_BYTES // mean)
    return [values.slice(at, rows) for at in range(0, len(values), rows)]


def _joined(values: pa.LargeBinaryArray) -> pa.Buffer:
    """Return the values with separators between them."""
    one = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
    return pc.binary_join(one, pa.scalar(_SEPARATOR, pa.large_binary()))[0].as_buffer()


def _codes(text: pa.Buffer, n: int) -> pa.UInt64Array:
    """Return each distinct n-gram as a big-endian number."""
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
    """Return the tokens of each string in any order, perhaps with duplicates and empty strings.

    Args:
        texts: strings of whatever size, or views of them.

    Returns:
        Lists of strings; null for null.
    """
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
