"""Write rows as JSON, NDJSON, CSV, Arrow or Parquet, batch by batch, to any object that has ``write`` and ``flush``.

docs/cli.md ("Values") lists the forms of JSON values: each type has one, which is the same in JSON, NDJSON, CSV and on
terminals. ``--key`` and ``--where`` accept bytes, UUIDs, dates and times in these forms.

A writer holds at most one batch in memory; the Parquet writer holds a row group, the writer of Arrow files 64 batches.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Final, Protocol

import pyarrow as pa

from asyncpq.checkpoints import checkpoint
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import OF_VIEWS, children_of, plain_array, plain_scalar, with_children
from asyncpq.decoding.compact import compact, compact_batch, has_dictionary
from asyncpq.decoding.kernels import kernel

_ROW_GROUP_ROWS: Final = 1 << 20
_UNITED: Final = 64  # batches whose dictionaries are united at a time


class RowWriter(Protocol):
    """Writes batches of rows, which have one schema, in one format. The constructors take ``sink``, an object whose
    ``write`` takes bytes and which has ``flush``: the caller closes it."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the next rows."""

    def finish(self) -> None:
        """Write the end of the output, such as a closing bracket or a footer. Not called after an error."""

    def abandon(self) -> None:
        """Release resources after an error, without finishing the output. The caller drops the sink."""


class CountingSink(io.RawIOBase):
    """A file object that passes what is written to ``deliver``, and counts it, because pyarrow's writers need a
    position. What ``deliver`` gets may change afterwards."""

    def __init__(self, deliver: Callable[[Any], object]) -> None:
        self._deliver = deliver
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._deliver(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of all bytes written."""
        return self._written


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
    """A :class:`RowWriter` of one JSON object on each line (UTF-8)."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        _write_texts(self._sink, json_objects(batch, end="}\n"))
        self._sink.flush()

    def finish(self) -> None:
        """Do nothing: NDJSON has no end mark."""


class JsonWriter(_Abandoned):
    """A :class:`RowWriter` of one JSON document: the members of ``head``, then ``columns`` and ``rows``, as in
    ``documents.Rows``."""

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
    """A :class:`RowWriter` of CSV with a header. A null is an empty field, an empty text is ``""``."""

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
    """Return whether CSV shows values of this type as :mod:`asyncpq.reports.row_writers` writes them, not as
    pyarrow's CSV writer does."""
    return not is_number(kind) and not pa.types.is_boolean(kind)


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of this type are written as numbers in CSV and in tables."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _csv_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


class ArrowWriter(_Abandoned):
    """A :class:`RowWriter` of an Arrow IPC stream of compact batches (:mod:`asyncpq.decoding.compact`, which has
    ``hidden_rows``)."""

    def __init__(self, sink: Any, schema: pa.Schema, *, hidden_rows: bool = False) -> None:
        self._writer = pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema)
        self._sink = sink
        self._hidden_rows = hidden_rows

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(compact_batch(batch, hidden_rows=self._hidden_rows))
        self._sink.flush()

    def finish(self) -> None:
        self._writer.close()


class ArrowFileWriter:
    """A :class:`RowWriter` of an Arrow IPC file.

    Such a file has one dictionary for each column, while those of batches differ. So batches with dictionaries go to a
    temporary stream first, and to the file at the end, with the values of all. (Polars 2.1 and others do not read files
    whose dictionaries grow.) If these are more than the type of the indices counts, the file gets plain values.
    """

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = pa.ipc.new_file(pa.PythonFile(sink, "w"), schema) if not _has_dictionaries(schema) else None
        self._sink = sink
        self._spool: IO[bytes] | None = None
        if self._file is None:
            pa.ipc.new_file(pa.BufferOutputStream(), schema).close()  # raises if the format cannot hold the columns
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115  # finish and abandon close it
            self._stream = pa.ipc.new_stream(pa.PythonFile(self._spool, "w"), schema)
            self._dictionaries: list[pa.RecordBatch] = []  # batches without rows; the first has the values so far
            self._is_plain = False  # the file gets plain values

    def write(self, batch: pa.RecordBatch) -> None:
        if self._file is not None:
            self._file.write_batch(batch)
            self._sink.flush()
            return
        replaced = self._stream.stats.num_replaced_dictionaries
        self._stream.write_batch(batch)
        if self._is_plain:
            return
        if not self._dictionaries or self._stream.stats.num_replaced_dictionaries > replaced:
            self._dictionaries.append(batch.slice(0, 0))
            if len(self._dictionaries) == _UNITED:
                self._unite()

    def finish(self) -> None:
        if self._file is None:
            self._copy()
        else:
            self._file.close()

    def abandon(self) -> None:
        """Remove the temporary file."""
        if self._spool is not None:
            self._spool.close()

    def _unite(self) -> None:
        """Unite the dictionaries so far."""
        try:
            self._dictionaries = _united(self._dictionaries)[:1]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # more values than the indices' type counts
            plain = [field.with_type(_with_plain(field.type, _dictionary_values)) for field in self._schema]
            self._schema, self._is_plain = pa.schema(plain, self._schema.metadata), True
            self._dictionaries = []

    def _copy(self) -> None:
        """Write the batches of the temporary stream to the file."""
        assert self._spool is not None
        replaced = self._stream.stats.num_replaced_dictionaries
        self._stream.close()
        if replaced and not self._is_plain:
            self._unite()
        self._spool.seek(0)
        with self._spool, pa.ipc.new_file(pa.PythonFile(self._sink, "w"), self._schema) as file:
            batches = iter(pa.ipc.open_stream(self._spool))
            while some := list(itertools.islice(batches, _UNITED)):
                if self._is_plain:
                    some = [batch.cast(self._schema) for batch in some]
                elif replaced:
                    some = _united([*self._dictionaries, *some])[1:]
                for batch in some:
                    file.write_batch(batch)


def _united(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the batches with the dictionaries of all, those of the first batch first. Raises ArrowInvalid if their
    values are more than the type of the indices counts."""
    table = pa.Table.from_batches(batches).unify_dictionaries()
    columns = zip(*[column.chunks for column in table.columns], strict=True)
    return [pa.RecordBatch.from_arrays(list(arrays), schema=table.schema) for arrays in columns]


def _has_dictionaries(schema: pa.Schema) -> bool:
    return any(has_dictionary(field.type) for field in schema)


def _dictionary_values(kind: pa.DataType) -> pa.DataType | None:
    return kind.value_type if pa.types.is_dictionary(kind) else None


def _plain_of_view(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return kind  # Arrow casts no values of these
    return OF_VIEWS.get(kind)


def _with_plain(kind: pa.DataType, plain: Callable[[pa.DataType], pa.DataType | None]) -> pa.DataType:
    """Return a type with what ``plain`` returns in place of the types that it knows, at any depth. Extension types
    remain."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    replaced = plain(kind)
    if replaced is not None:
        return replaced
    children = [field.with_type(_with_plain(field.type, plain)) for field in children_of(kind)]
    return with_children(kind, children) if children else kind


class ParquetWriter:
    """A :class:`RowWriter` of Parquet with page indexes. A row group ends at a million rows or ``row_group_bytes``
    bytes in memory. Its dictionaries are compact (:mod:`asyncpq.decoding.compact`, which has ``hidden_rows``); nothing
    else that an array holds beyond its rows is written to Parquet."""

    def __init__(
        self, sink: Any, schema: pa.Schema, *, row_group_bytes: int = 64 << 20, hidden_rows: bool = False
    ) -> None:
        import pyarrow.parquet as pq

        # pyarrow 26 writes no views in structs ("Slicing not implemented for BinaryView")
        plain = [field.with_type(_with_plain(field.type, _plain_of_view)) for field in schema]
        self._schema = pa.schema(plain, schema.metadata)
        self._row_group_bytes = row_group_bytes
        self._hidden_rows = hidden_rows
        out = pa.PythonFile(sink, "w")
        self._writer = pq.ParquetWriter(out, self._schema, compression="zstd", write_page_index=True)
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch if batch.schema.equals(self._schema) else batch.cast(self._schema))
        self._rows += batch.num_rows
        self._bytes += sum(_own_bytes(column) for column in batch.columns)
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
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self._rows, self._bytes = [], 0, 0
        self._write_rows(table)

    def _write_rows(self, table: pa.Table) -> None:
        """Write a row group; several if a dictionary would have more values than its indices can count."""
        try:
            columns = [self._compact(column) if has_dictionary(column.type) else column for column in table.columns]
        except pa.ArrowInvalid:
            half = table.num_rows // 2
            self._write_rows(table.slice(0, half))
            self._write_rows(table.slice(half))
            return
        if columns:
            table = pa.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)

    def _compact(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column with one dictionary. Raises pa.ArrowInvalid if the indices' type cannot count its values."""
        hidden_rows = self._hidden_rows
        try:
            whole = compact(column.combine_chunks(), hidden_rows=hidden_rows)  # in the order of the dictionary
        except pa.ArrowInvalid:
            if column.num_chunks == 1:
                raise
            whole = pa.concat_arrays([compact(chunk, hidden_rows=hidden_rows) for chunk in column.chunks])
        return pa.chunked_array([whole], column.type)


def _own_bytes(column: pa.Array) -> int:
    """Return the bytes of a column's rows, of the dictionaries only those that the rows use."""
    own = compact(column, hidden_rows=True) if has_dictionary(column.type) else column
    return int(own.nbytes)


_ESCAPED: Final = r'["\\\x00-\x1f]'
_SLICE_BYTES: Final = 16 << 10  # of an array, as Arrow holds it
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def json_values(array: pa.Array) -> list[Any]:
    """Convert an array to a list with one JSON value for each element: None, a bool, number, string, list or dict."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return json_values(array.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        values = json_values(array.storage)
        if not isinstance(kind, pa.UuidType):
            return values
        return [None if value is None else str(uuid.UUID(value[2:])) for value in values]
    if pa.types.is_nested(kind):
        return _nested(array)
    return _plain(array)


def _plain(array: pa.Array) -> list[Any]:
    kind, name = array.type, str(array.type)
    values: list[Any]
    if pa.types.is_floating(kind):
        # 0.1 of 32 bits is written 0.1, as the shortest number that 32 bits hold as this one
        narrow = array.cast(pa.string()).to_pylist() if not pa.types.is_float64(kind) else array.to_pylist()
        return [None if value is None else _float(float(value)) for value in narrow]
    if "string" in name:
        return _texts(array)
    if "binary" in name:
        return [None if value is None else f"0x{value.hex()}" for value in array.to_pylist()]
    if pa.types.is_timestamp(kind):
        zoned = kind.tz is not None
        plain = array.cast(pa.timestamp(kind.unit, "UTC")) if zoned else array  # an instant, however it is shown
        texts = plain.cast(pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T", 1) for text in texts]
    if pa.types.is_duration(kind):
        values = array.cast(pa.int64()).to_pylist()
        return [None if value is None else _duration(value, _PER_SECOND[kind.unit]) for value in values]
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
    if pa.types.is_temporal(kind) and "interval" not in name:
        values = array.cast(pa.string()).to_pylist()
        return values
    values = array.to_pylist()
    plain_types = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return values if plain_types else [None if value is None else str(value) for value in values]


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _duration(value: int, per_second: int) -> str:
    """Return a duration as ISO 8601 text in seconds, such as ``PT1.5S``. ``value`` counts units of which ``per_second``
    make one second."""
    seconds, fraction = divmod(abs(value), per_second)
    digits = len(str(per_second)) - 1
    text = f"PT{seconds}.{fraction:0{digits}}S" if fraction else f"PT{seconds}S"
    return f"-{text}" if value < 0 else text


def _texts(array: pa.Array) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:  # files may hold other bytes than UTF-8
        raw = array.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]
    return values


def _nested(array: pa.Array) -> list[Any]:
    kind = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = unique_names(field.name for field in kind)
        fields = [json_values(child) for child in array.flatten()]
        rows = zip(*fields, strict=True) if fields else ((),) * len(array)
        return [dict(zip(names, row, strict=True)) if one else None for row, one in zip(rows, valid, strict=True)]
    if pa.types.is_map(kind):
        bounds = array.offsets.to_pylist()
        keys, items = json_values(array.keys), json_values(array.items)
        entries = [{"key": key, "value": item} for key, item in zip(keys, items, strict=True)]
        return [
            entries[start:stop] if one else None for start, stop, one in zip(bounds, bounds[1:], valid, strict=False)
        ]
    values = json_values(array.flatten())
    lists: list[Any] = []
    start = 0
    for size in pc.list_value_length(array).to_pylist():
        lists.append(None if size is None else values[start : start + size])
        start += size or 0
    return lists


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique: append ``_2``, ``_3``, ... to repetitions of a name."""
    taken: dict[str, None] = {}
    for name in names:
        number, new = 1, name
        while new in taken:
            number += 1
            new = f"{name}_{number}"
        taken[new] = None
    return list(taken)


def json_objects(batch: pa.RecordBatch, begin: str = "{", end: str = "}") -> pa.LargeStringArray:
    """Return each row of a batch as the text of a JSON object, with ``begin`` and ``end`` instead of its braces.

    Arrow's kernels format and join the columns: objects of three columns take a sixth of the CPU time of json.dumps.
    """
    pieces: list[Any] = []
    for number, (name, column) in enumerate(zip(unique_names(batch.schema.names), batch.columns, strict=True)):
        pieces += [_scalar(f"{', ' if number else begin}{json_text(name)}: "), _json_texts(column)]
    if not pieces:
        return plain_array([f"{begin}{end}"] * batch.num_rows, pa.large_string())
    return _join([*pieces, _scalar(end), _scalar("")])


def json_text(value: Any) -> str:
    """Return a value that :func:`json_values` made as JSON text on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _scalar(text: str) -> pa.Scalar:
    return plain_scalar(text, pa.large_string())


def _or_null(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    return kernel("coalesce")([texts, _scalar("null")])


def _join(pieces: list[Any]) -> pa.LargeStringArray:
    """Join texts row by row; the last of ``pieces`` stands between the others."""
    return kernel("binary_join_element_wise")(pieces)


def _json_texts(array: pa.Array) -> pa.LargeStringArray:
    """Return the JSON text of each value, "null" for null."""
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _or_null(pc.cast(array, pa.large_string()))
    if kind in (pa.string(), pa.large_string()):
        texts = _unescaped(array)
        if texts is not None:
            return texts
    # Python's objects are made with Python's lock held
    rows = max(1, len(array) * _SLICE_BYTES // max(1, array.nbytes))
    pieces: list[pa.Array] = []
    for start in range(0, len(array), rows):
        checkpoint()
        pieces.append(plain_array(_python_texts(array.slice(start, rows)), pa.large_string()))
    return pa.concat_arrays(pieces) if pieces else plain_array([], pa.large_string())


def _python_texts(array: pa.Array) -> list[str]:
    if pa.types.is_float64(array.type) and array.null_count == 0 and pc.all(pc.is_finite(array)).as_py():
        return list(map(repr, array.to_pylist()))
    return [json_text(value) for value in json_values(array)]


def _unescaped(array: pa.Array) -> pa.LargeStringArray | None:
    """Return strings in double quotes; None if a string has a character that JSON must escape, or is not UTF-8."""
    try:
        texts = pc.cast(pc.cast(array, pa.large_binary()), pa.large_string())
    except pa.ArrowInvalid:
        return None
    if pc.any(pc.match_substring_regex(texts, pattern=_ESCAPED)).as_py():
        return None
    quote = _scalar('"')
    return _or_null(_join([quote, texts, quote, _scalar("")]))
