"""Random tables and writers' options, for tests that compare whole reads with pyarrow's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tests.predicates import COLUMNS, LIST, array

CODECS = ["none", "snappy", "zstd", "gzip", "lz4", "brotli"]


@dataclass(frozen=True)
class WriterOptions:
    """One way to write a file."""

    row_group_size: int
    data_page_size: int
    max_rows_per_page: int
    codec: str
    dictionary: bool
    dictionary_limit: int
    version: str
    page_index: bool
    statistics: bool
    checksums: bool
    store_schema: bool
    batch_size: int | None = None  # levels written between two looks at the page's size; default: a page's rows

    def write(self, table: pa.Table) -> bytes:
        """The file's bytes."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=self.row_group_size, **self.arguments())
        return bytes(sink.getvalue())

    def arguments(self) -> dict[str, Any]:
        """Of pyarrow's ``ParquetWriter``."""
        return {
            "data_page_size": self.data_page_size,
            "max_rows_per_page": self.max_rows_per_page,
            "write_batch_size": self.batch_size or max(1, min(self.max_rows_per_page, 64)),
            "compression": self.codec,
            "use_dictionary": self.dictionary,
            "dictionary_pagesize_limit": self.dictionary_limit,
            "data_page_version": self.version,
            "write_page_index": self.page_index,
            "write_statistics": self.statistics,
            "write_page_checksum": self.checksums,
            "store_schema": self.store_schema,
        }


writer_options = st.builds(
    WriterOptions,
    row_group_size=st.sampled_from([7, 50, 1000]),
    data_page_size=st.sampled_from([1, 64, 1024, 1 << 20]),
    max_rows_per_page=st.sampled_from([1, 3, 10, 20_000]),
    codec=st.sampled_from(CODECS),
    dictionary=st.booleans(),
    dictionary_limit=st.sampled_from([8, 64, 1 << 20]),
    version=st.sampled_from(["1.0", "2.0"]),
    page_index=st.sampled_from([True, True, False]),
    statistics=st.sampled_from([True, True, True, False]),
    checksums=st.booleans(),
    store_schema=st.sampled_from([True, True, False]),
)

# Nested columns, by name: type and values.
NESTED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(0, 9), max_size=4)),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.none() | st.sampled_from(["a", "b"])}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int32()),
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)).map(lambda d: list(d.items())),
    ),
    "lists": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.sampled_from(["p", "q"]), max_size=2), max_size=3)),
    "list_of_struct": (
        pa.list_(pa.struct([("k", pa.int32())])),
        st.lists(st.fixed_dictionaries({"k": st.integers(0, 9)}), max_size=3),
    ),
}


@st.composite
def tables(draw: st.DrawFn, *, max_rows: int = 120, nested: bool = True) -> tuple[pa.Table, dict[str, str]]:
    """A table, and the kinds of the columns that predicates may name. Values repeat and are often sorted."""
    kinds = {f"c{at}": draw(st.sampled_from(list(COLUMNS))) for at in range(draw(st.integers(1, 4)))}
    num_rows = draw(st.integers(0, max_rows))
    columns: dict[str, pa.Array] = {}
    for name, kind in kinds.items():
        columns[name] = array(kind, _stretched(draw, st.none() | COLUMNS[kind][1], num_rows))
    if nested:
        for name in draw(st.lists(st.sampled_from(list(NESTED)), unique=True, max_size=2)):
            kind_, values = NESTED[name]
            columns[name] = pa.array(_stretched(draw, st.none() | values, num_rows), kind_)
            if name == LIST:
                kinds[name] = LIST
    return pa.table(columns), kinds


def _stretched(draw: st.DrawFn, values: st.SearchStrategy[Any], num_rows: int) -> list[Any]:
    """``num_rows`` values out of few drawn ones, in runs: sorted columns and constant pages are common."""
    few = draw(st.lists(values, min_size=1, max_size=8))
    if draw(st.booleans()):
        return [few[row * len(few) // max(1, num_rows)] for row in range(num_rows)]
    step = draw(st.integers(1, 7))
    return [few[row * step // 3 % len(few)] for row in range(num_rows)]
