"""Rows are written batch by batch, in each format; tests/cli/test_rows.py writes them to files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.reports import row_writers
from asyncpq.reports.row_writers import ArrowWriter, JsonWriter, NdjsonWriter, ParquetWriter, RowWriter

TABLE = pa.table({"id": [1, 2, 3], "name": ["a", None, 'it\'s, "b"']})


def write(make: Callable[[io.BytesIO], RowWriter], table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    writer = make(sink)
    for batch in table.to_batches(max_chunksize=2):
        writer.write(batch)
    writer.finish()
    return sink.getvalue()


def test_each_format_holds_the_rows() -> None:
    schema = TABLE.schema
    assert pa.ipc.open_stream(write(lambda sink: ArrowWriter(sink, schema))).read_all() == TABLE
    assert pa.ipc.open_file(write(lambda sink: ArrowWriter(sink, schema, file=True))).read_all() == TABLE
    assert pq.read_table(io.BytesIO(write(lambda sink: ParquetWriter(sink, schema)))) == TABLE
    assert [json.loads(line) for line in write(NdjsonWriter).splitlines()] == TABLE.to_pylist()
    document = json.loads(write(lambda sink: JsonWriter(sink, {"dataset": "a"}, schema)))
    assert document == {
        "dataset": "a",
        "columns": [{"name": "id", "arrow_type": "int64"}, {"name": "name", "arrow_type": "string"}],
        "rows": TABLE.to_pylist(),
    }


def test_parquet_has_large_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_writers, "_ROW_GROUP_ROWS", 4)
    table = pa.table({"x": range(10)})
    metadata = pq.read_metadata(io.BytesIO(write(lambda sink: ParquetWriter(sink, table.schema), table)))
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [4, 4, 2]
    assert metadata.row_group(0).column(0).has_offset_index


def test_row_groups_of_parquet_have_at_most_the_bytes_of_a_batch_too_many() -> None:
    data = write(lambda sink: ParquetWriter(sink, TABLE.schema, row_group_bytes=1))
    assert pq.read_metadata(io.BytesIO(data)).num_row_groups == 2


def test_views_are_written_as_plain_strings_at_any_depth() -> None:
    types = {
        "v": pa.string_view(),
        "s": pa.struct({"x": pa.binary_view(), "l": pa.list_(pa.string_view())}),
        "m": pa.map_(pa.string(), pa.string_view()),
    }
    rows = [{"v": "a", "s": {"x": b"q", "l": ["a", None]}, "m": [("k", "v")]}, {"v": None, "s": None, "m": None}] * 2
    table = pa.Table.from_pylist(rows, pa.schema(types))
    read = pq.read_table(io.BytesIO(write(lambda sink: ParquetWriter(sink, table.schema), table)))
    assert read.to_pylist() == rows
    assert read.schema.field("s").type.field("x").type == pa.large_binary()
