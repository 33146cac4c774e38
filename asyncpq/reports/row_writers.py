"""Write rows as JSON, NDJSON, CSV, Arrow or Parquet, batch by batch, to any object that has ``write`` and ``flush``.

A writer holds at most one batch in memory; the Parquet writer holds a row group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import OF_VIEWS
from asyncpq.reports.json_values import json_objects, json_text, json_values, unique_names

_ROW_GROUP_ROWS: Final = 1 << 20


class RowWriter(Protocol):
    """Writes batches of rows, which have one schema, in one format."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next rows."""

    def finish(self) -> None:
        """Write the end of the output, such as a closing bracket or a footer. Not called after an error."""

    def abandon(self) -> None:
        """Release resources after an error, without finishing the output. The caller drops the sink."""


def encoded(text: str) -> bytes:
    """Encode text as UTF-8. Lone surrogates, which UTF-8 cannot encode, become question marks."""
    return text.encode("utf-8", "replace")


def _write_texts(sink: Any, texts: pa.LargeStringArray) -> None:
    """Write the strings of an array without nulls, one after another, without making Python objects."""
    if len(texts):
        sink.write(memoryview(texts.buffers()[2])[: pc.sum(pc.binary_length(texts)).as_py()])


class _Abandoned:
    def abandon(self) -> None:
        """Do nothing: the output stays incomplete."""


class NdjsonWriter(_Abandoned):
    """Writes one JSON object on each line."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        _write_texts(self._sink, json_objects(batch, end="}\n"))
        self._sink.flush()

    def finish(self) -> None:
        """Do nothing: NDJSON has no end mark."""


class JsonWriter(_Abandoned):
    """Writes one JSON document: the members of ``head``, then ``columns`` and ``rows``, as in ``documents.Rows``."""

    def __init__(self, sink: Any, head: Mapping[str, Any], schema: pa.Schema) -> None:
        self._sink = sink
        self._separator = "\n"
        names = unique_names(schema.names)
        columns = [{"name": name, "arrow_type": str(field.type)} for name, field in zip(names, schema, strict=True)]
        sink.write(
            encoded(json.dumps({**head, "columns": columns}, indent=2, ensure_ascii=False)[:-2] + ',\n  "rows": [')
        )

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        _write_texts(self._sink, json_objects(batch.slice(0, 1), begin=f"{self._separator}    {{"))
        self._separator = ",\n"
        _write_texts(self._sink, json_objects(batch.slice(1), begin=",\n    {"))

    def finish(self) -> None:
        self._sink.write(b"\n  ]\n}\n" if self._separator == ",\n" else b"]\n}\n")


class CsvWriter(_Abandoned):
    """Writes CSV with a header. A null is an empty field, an empty text is ``""``."""

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        from pyarrow import csv

        self._texts = [_is_text_in_csv(field.type) for field in schema]
        names = unique_names(schema.names)
        self._schema = pa.schema(
            [
                pa.field(name, pa.string() if text else field.type)
                for name, field, text in zip(names, schema, self._texts, strict=True)
            ]
        )
        self._sink = sink
        self._writer = csv.CSVWriter(pa.PythonFile(sink, "w"), self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            pa.array(map(_csv_text, json_values(column)), pa.string()) if text else column
            for column, text in zip(batch.columns, self._texts, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._sink.flush()

    def finish(self) -> None:
        self._writer.close()


def _is_text_in_csv(kind: pa.DataType) -> bool:
    """Return whether CSV shows values of this type as :mod:`asyncpq.reports.json_values` writes them, not as
    pyarrow's CSV writer does."""
    return not is_number(kind) and not pa.types.is_boolean(kind)


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of this type are written as numbers in CSV and in tables."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _csv_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


class ArrowWriter(_Abandoned):
    """Writes an Arrow IPC stream; with ``file``, an Arrow IPC file."""

    def __init__(self, sink: Any, schema: pa.Schema, *, file: bool = False) -> None:
        make = pa.ipc.new_file if file else pa.ipc.new_stream
        self._writer = make(pa.PythonFile(sink, "w"), schema)
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._sink.flush()

    def finish(self) -> None:
        self._writer.close()


class ParquetWriter:
    """Writes Parquet with page indexes. A row group ends at a million rows or ``row_group_bytes`` bytes in memory."""

    def __init__(self, sink: Any, schema: pa.Schema, *, row_group_bytes: int = 64 << 20) -> None:
        import pyarrow.parquet as pq

        # pyarrow 26 writes no views in structs ("Slicing not implemented for BinaryView")
        self._schema = pa.schema([field.with_type(_without_views(field.type)) for field in schema], schema.metadata)
        self._row_group_bytes = row_group_bytes
        out = pa.PythonFile(sink, "w")
        self._writer = pq.ParquetWriter(out, self._schema, compression="zstd", write_page_index=True)
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch if batch.schema.equals(self._schema) else batch.cast(self._schema))
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _ROW_GROUP_ROWS or self._bytes >= self._row_group_bytes:
            self._write()

    def finish(self) -> None:
        if self._batches:
            self._write()
        self._writer.close()

    def abandon(self) -> None:
        """Mark the Parquet writer as closed after an error, so that it writes no footer."""
        self._writer.is_open = False

    def _write(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._batches, self._schema), row_group_size=_ROW_GROUP_ROWS)
        self._batches, self._rows, self._bytes = [], 0, 0


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Replace string views and binary views in a type by plain strings and binary, at any depth."""
    if kind in OF_VIEWS:
        return OF_VIEWS[kind]
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    return kind
