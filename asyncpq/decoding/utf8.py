"""Whether text is UTF-8, which pyarrow's Parquet reader does not ask."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.conform import children_of
from asyncpq.decoding.selection import take

_TEXTS = frozenset({pa.string(), pa.large_string(), pa.string_view()})


def has_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, at whatever depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_text(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return has_text(kind.value_type)
    return kind in _TEXTS or any(has_text(child.type) for child in children_of(kind))


def first_invalid(values: pa.Array) -> int | None:
    """The position of the first value with text that is no UTF-8; None if there is none.

    Text outside of the array's slice, under nulls, and in entries of a dictionary that no value uses does not count.
    """
    if _is_whole(values) or _is_valid(values):
        return None
    low, high = 0, len(values)  # the first one is in between
    while high - low > 1:
        middle = (low + high) // 2
        if _is_valid(values.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _is_whole(values: pa.Array) -> bool:
    """Whether all is valid that the array holds, asked for or not."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_valid(values: pa.Array) -> bool:
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _is_valid(values.storage)
    if isinstance(kind, pa.DictionaryType):  # each entry once: decoded, they may be as many times larger
        return _is_valid(take(values.dictionary, pc.unique(values.indices).drop_null()))
    if isinstance(kind, pa.StructType):
        return all(map(_is_valid, values.flatten()))
    if isinstance(kind, pa.MapType):
        copy = pa.concat_arrays([values])
        return _is_valid(copy.keys) and _is_valid(copy.items)
    if children_of(kind):
        return _is_valid(values.flatten())
    return kind not in _TEXTS or _is_whole(pa.concat_arrays([values]))
