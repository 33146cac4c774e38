"""Tokens of many strings at once (see :mod:`asyncpq.expressions.tokens`)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.expressions.tokens import tokens

_LOWERED: Final = bytes(range(128)).decode().lower().encode()
#: Of each ASCII byte, the one of its token, or a space where it belongs to none.
_SEPARATED: Final = bytes(byte if chr(byte).isalnum() else ord(" ") for byte in _LOWERED).ljust(256, b" ")


def token_lists(texts: pa.Array) -> pa.ListArray:
    """The tokens of each string, in any order, perhaps several times, perhaps with empty strings among them.

    Args:
        texts: strings of whatever size, or views of them.

    Returns:
        lists of strings; null where the string is.
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
    validity, places, data = texts.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, places], offset=texts.offset)
    start, stop = offsets[0].as_py(), offsets[-1].as_py()
    separated = b"" if data is None else memoryview(data)[start:stop].tobytes().translate(_SEPARATED)
    if validity is not None:
        validity = texts.is_valid().buffers()[1]
    buffers = [validity, pc.subtract(offsets, pa.scalar(start, pa.int32())).buffers()[1], pa.py_buffer(separated)]
    return pc.ascii_split_whitespace(pa.Array.from_buffers(pa.string(), len(texts), buffers))


def _of_any(texts: pa.StringArray) -> pa.ListArray:
    encoded = texts.dictionary_encode()
    texts_as_bytes = encoded.dictionary.cast(pa.binary()).to_pylist()  # a file may hold what is no UTF-8
    lists = [list(set(tokens(text.decode("utf-8", "replace")))) for text in texts_as_bytes]
    return pa.array(lists, pa.list_(pa.string())).take(encoded.indices)
