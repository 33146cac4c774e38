"""The rows that an index collects from the values of one file."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from asyncpq.indexing.build.file_values import value_collector
from asyncpq.indexing.build.sorting import sorted_rows
from asyncpq.indexing.index_model import IndexTable

FILE = 7


def value_table(kind: str, columns: int = 1, **options: Any) -> IndexTable:
    return IndexTable(kind, tuple(f"c{at}" for at in range(columns)), tuple(sorted(options.items())))


def collected_rows(part: IndexTable, columns: list[pa.Array], types: list[pa.DataType], cuts: list[int]) -> pa.Table:
    """Of a file whose rows come in batches that end at ``cuts``, each a row group."""
    collector = value_collector(part, types)
    ends = sorted({0, *(min(cut, len(columns[0])) for cut in cuts), len(columns[0])})
    for group, (start, stop) in enumerate(pairwise(ends)):
        collector.add([column.slice(start, stop - start) for column in columns], start, group)
    table = collector.finish(FILE)
    table.validate(full=True)
    assert table.schema.equals(part.schema)
    if part.kind == "keys":
        table = sorted_rows(table)  # others come so
    keys = table["key"].to_pylist()
    assert keys == sorted(keys)
    return table


BATCH_ENDS = st.lists(st.integers(0, 12), max_size=3)
