"""Parquet files with bloom filters, and what their filters say, read without the package's own planning."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.expressions import Expression
from asyncpq.parquet.bloom_filter import BLOCK_BYTES, block_of, decode_bloom_filter_header, may_contain
from asyncpq.parquet.metadata import FileMetadata, decode_file_metadata
from asyncpq.pruning.bloom_filters import compile_probes, may_match


def write(
    table: pa.Table, columns: Iterable[str], *, rows_per_group: int, ndv: int = 100, fpp: float = 0.01, **options: Any
) -> bytes:
    """A file with filters of ``columns``; without statistics, so that nothing else prunes, unless asked for."""
    options.setdefault("write_statistics", False)
    sink = io.BytesIO()
    filters = {name: {"ndv": ndv, "fpp": fpp} for name in columns}
    pq.write_table(table, sink, row_group_size=rows_per_group, bloom_filter_options=filters, **options)
    return sink.getvalue()


def metadata_of(data: bytes) -> FileMetadata:
    length = int.from_bytes(data[-8:-4], "little")
    return decode_file_metadata(data[-8 - length : -8])


def row_groups_left(data: bytes, where: Expression) -> list[int]:
    """Ordinals of the row groups that the filters do not rule out."""
    metadata = metadata_of(data)
    leaves = {leaf.dotted: leaf for leaf in metadata.schema.leaves}
    probes = compile_probes(where, leaves)
    if probes is None:
        return list(range(len(metadata.row_groups)))

    def contains(group: int, column: str, hash_: int) -> bool:
        start = metadata.row_groups[group].chunk(leaves[column].index).bloom_filter_offset
        if start is None:
            return True
        header = decode_bloom_filter_header(data[start : start + 64])
        block = start + header.header_size + block_of(hash_, header.num_blocks) * BLOCK_BYTES
        return may_contain(data[block : block + BLOCK_BYTES], hash_)

    return [
        group
        for group in range(len(metadata.row_groups))
        if may_match(probes, lambda column, hash_, group=group: contains(group, column, hash_))  # type: ignore[misc]
    ]
