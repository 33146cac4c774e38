"""Small Parquet files with many pages, and the zones that this project sees in them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.parquet.metadata import FileMetadata, decode_file_metadata
from asyncpq.parquet.page_index import decode_column_index, decode_offset_index, validate_offset_index
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import order_of, page_bounds
from asyncpq.pruning.pages import PageZones
from asyncpq.pruning.row_groups import RowGroupZones


class PrunedFile:
    """A table written by pyarrow with page indexes, read back as far as pruning needs."""

    def __init__(self, table: pa.Table, *, rows_per_page: int, rows_per_group: int | None = None, **options: Any):
        sink = io.BytesIO()
        pq.write_table(
            table,
            sink,
            write_page_index=True,
            data_page_size=1,
            write_batch_size=rows_per_page,
            row_group_size=rows_per_group or max(len(table), 1),
            **options,
        )
        self._load(sink.getvalue())

    @classmethod
    def of_bytes(cls, data: bytes) -> PrunedFile:
        file = cls.__new__(cls)
        file._load(data)
        return file

    def _load(self, data: bytes) -> None:
        self.data = data
        footer = int.from_bytes(data[-8:-4], "little")
        self.metadata: FileMetadata = decode_file_metadata(data[-8 - footer : -8])
        self.num_row_groups = len(self.metadata.row_groups)

    def leaf(self, name: str) -> Leaf:
        schema = self.metadata.schema
        return schema.leaves[schema.projection(name).leaves[0]]

    def row_group_zones(self, *names: str) -> dict[str, RowGroupZones]:
        return {name: RowGroupZones(self.metadata, self.leaf(name)) for name in names}

    def page_zones(self, row_group: int, *names: str) -> dict[str, PageZones]:
        """Of those columns that have indexes: a chunk of NaN and nulls alone has none."""
        found = {name: self._pages(row_group, self.leaf(name)) for name in names}
        return {name: zones for name, zones in found.items() if zones is not None}

    def _pages(self, row_group: int, leaf: Leaf) -> PageZones | None:
        group = self.metadata.row_groups[row_group]
        chunk = group.chunk(leaf.index)
        if chunk.offset_index_range is None or chunk.column_index_range is None:
            return None
        start, stop = chunk.offset_index_range
        offsets = decode_offset_index(self.data[start:stop])
        validate_offset_index(offsets, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=group.num_rows)
        start, stop = chunk.column_index_range
        orders = self.metadata.column_orders
        order = order_of(leaf, None if orders is None else orders[leaf.index])
        index = decode_column_index(self.data[start:stop])
        bounds = page_bounds(index, leaf, order, offsets.row_counts(group.num_rows))
        return PageZones(leaf, order, bounds, offsets, group.num_rows)
