"""Choose the leaves that are written with a dictionary.

A lookup reads one page of a column and the chunk's dictionary. A dictionary of many values is longer than the page. If
a dictionary exceeds 1 MiB, pyarrow stops using it in the middle of the chunk, and lookups read it for nothing.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.writing.file_layout import leaf_types
from asyncpq.writing.nan_bounds import leaf_arrays

_SLICE_ROWS: Final = 1 << 16  # counted at once; most columns of many values are known after the first slice
_LENGTH_BYTES: Final = 4  # before each string in PLAIN


def short_dictionaries(table: pa.Table, page_rows: int, page_bytes: int) -> tuple[str, ...]:
    """Return the paths of the leaves of ``table``, one row group, that are better written with a dictionary: it is
    shorter than the bytes that it saves in a page.

    Args:
        page_rows, page_bytes: most rows of a page, and most bytes of its values.
    """
    leaves = [leaf for column in table.combine_chunks().columns for leaf in leaf_arrays(_joined(column))]
    paths = [path for path, _ in leaf_types(table.schema)]
    short = dict.fromkeys(paths, True)
    for path, leaf in zip(paths, leaves, strict=True):  # paths of names with dots may be equal
        short[path] = short[path] and _is_short(leaf, page_rows, page_bytes)
    return tuple(path for path, is_short in short.items() if is_short)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _is_short(leaf: pa.Array, page_rows: int, page_bytes: int) -> bool:
    """Whether a dictionary of the leaf's values, plus a page of indices into it, takes no more bytes than a page of
    the plain values."""
    if pa.types.is_null(leaf.type) or pa.types.is_boolean(leaf.type):
        return False
    page = min(page_bytes, _plain_bytes(leaf) * min(1.0, page_rows / max(1, len(leaf))))
    distinct = leaf.slice(0, 0)
    for begin in range(0, len(leaf), _SLICE_ROWS):
        distinct = pc.unique(pa.concat_arrays([distinct, pc.unique(leaf.slice(begin, _SLICE_ROWS))]))
        if _plain_bytes(distinct) + page_rows * len(distinct).bit_length() / 8 > page:
            return False
    return True


def _plain_bytes(values: pa.Array) -> int:
    """Return the bytes that the values take in the encoding PLAIN."""
    if values.type.num_buffers == 2:
        return len(values) * int(values.type.bit_width) // 8
    return int(pc.sum(pc.binary_length(values)).as_py() or 0) + _LENGTH_BYTES * len(values)
