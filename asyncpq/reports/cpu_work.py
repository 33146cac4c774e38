"""Count the work of decoding and of planning, with which the measured seconds of a read are divided among its parts.

The unit is the second of a common processor. Only shares matter: the seconds of a cause are the measured ones, times
the share of the work that its cure takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from asyncpq.parquet.column_chunk import Codec

if TYPE_CHECKING:
    from asyncpq.reports.story import ColumnRead

SLOW_CODECS: Final = (Codec.GZIP, Codec.BROTLI)
CODEC_BYTES_S: Final[dict[int, float]] = {  # decompressed
    Codec.SNAPPY: 1.2e9, Codec.GZIP: 0.25e9, Codec.BROTLI: 0.3e9, Codec.ZSTD: 0.8e9, Codec.LZ4: 2e9, Codec.LZ4_RAW: 2e9,
}  # fmt: skip
_DECODED_BYTES_S: Final = 1.5e9
_TEXT_S: Final = 8e-9  # of each value whose length differs
_PAGE_S: Final = 100e-6
_FILE_S: Final = 1e-3
_FOOTER_BYTE_S: Final = 10e-9


def decompression_work(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the work of decompressing the pages with these ordinals."""
    rate = CODEC_BYTES_S.get(column.codec)
    return 0.0 if rate is None else column.plain * share_of(column, pages) / rate


def decode_work(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the work of decompressing and decoding the pages with these ordinals, and the dictionary."""
    if not pages:
        return 0.0
    share = share_of(column, pages)
    values = column.num_rows * share * _TEXT_S if column.has_texts else 0.0
    return (
        decompression_work(column, pages)
        + dictionary_work(column)
        + column.plain * share / _DECODED_BYTES_S
        + values
        + len(pages) * _PAGE_S
    )


def dictionary_work(column: ColumnRead) -> float:
    """Return the work of decoding the column's dictionary."""
    return column.dictionary * (column.plain / max(column.bytes, 1)) / (_DECODED_BYTES_S / 10)


def planning_work(files: int, footer_bytes: int) -> float:
    """Return the work of opening and planning so many files whose footers have so many bytes together."""
    return files * _FILE_S + footer_bytes * _FOOTER_BYTE_S


def filter_work(columns: Iterable[ColumnRead], pages_of: Callable[[ColumnRead], Sequence[int]]) -> float:
    """Return the number of rows in the pages of the filter's columns."""
    return sum([column.num_rows * share_of(column, pages_of(column)) for column in columns if column.predicate])


def share_of(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the share of the chunk's data that the pages with these ordinals have."""
    if len(pages) == len(column.sizes):
        return 1.0
    return sum([column.sizes[page] for page in pages]) / max(sum(column.sizes), 1)
