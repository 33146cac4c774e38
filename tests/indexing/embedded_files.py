"""Parquet files with embedded indexes: written with them, or added afterwards."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from asyncpq.indexing.build.embedding import EmbeddedIndexWriter, embed_indexes
from asyncpq.parquet.embedded_index import EmbeddedIndex

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def embedded(table: pa.Table, some: Sequence[EmbeddedIndex], **options: Any) -> bytes:
    """A file with indexes, written to a file object."""
    sink = io.BytesIO()
    row_group_size = options.pop("row_group_size", None)
    with EmbeddedIndexWriter(sink, table.schema, **options) as writer:
        for index in some:
            writer.embed(index)
        writer.write_table(table, row_group_size)
    assert not sink.closed
    return sink.getvalue()


def added(data: bytes, some: Sequence[EmbeddedIndex], *, in_place: bool = False) -> bytes:
    """The file with indexes put into it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source.parquet")
        target = source if in_place else Path(folder, "target.parquet")
        source.write_bytes(data)
        embed_indexes(source, target, some)
        assert {path.name for path in Path(folder).iterdir()} == {source.name, target.name}
        return target.read_bytes()


def chunks_of(data: bytes) -> list[tuple[int, int]]:
    """Where the column chunks are, as pyarrow reads it."""
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    found = []
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            found.append((start, start + chunk.total_compressed_size))
    return found


BASE = embedded(
    pa.table({"x": list(range(300)), "s": [f"value {row % 7}" for row in range(300)]}),
    [EmbeddedIndex(name="good", kind="k", version=1, data=b"good bytes")],
    row_group_size=100,
    write_page_index=True,
)
