"""Rows are written batch by batch, in each format; tests/cli/test_rows.py writes them to files."""

from __future__ import annotations

import datetime as dt
import io
import json
import threading
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq import checkpoints
from asyncpq.reports import row_writers
from asyncpq.reports.row_writers import (
    ArrowFileWriter,
    ArrowWriter,
    JsonWriter,
    NdjsonWriter,
    ParquetWriter,
    RowWriter,
    json_objects,
    json_values,
    unique_names,
)

OF_KEYS = pa.map_(pa.string(), pa.string())
TABLE = pa.table({"id": [1, 2, 3], "name": ["a", None, 'it\'s, "b"']})


def write(make: Callable[[io.BytesIO], RowWriter], table: pa.Table = TABLE, chunk: int = 2) -> bytes:
    sink = io.BytesIO()
    writer = make(sink)
    for batch in table.to_batches(max_chunksize=chunk):
        writer.write(batch)
    writer.finish()
    return sink.getvalue()


def test_each_format_holds_the_rows() -> None:
    schema = TABLE.schema
    assert pa.ipc.open_stream(write(lambda sink: ArrowWriter(sink, schema))).read_all() == TABLE
    assert pa.ipc.open_file(write(lambda sink: ArrowFileWriter(sink, schema))).read_all() == TABLE
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


_PAIRS: Final = [[{"x": "a"}, {"x": "b"}], [{"x": "c"}, {"x": None}]]
_REQUIRED: Final = pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))


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


@pytest.mark.parametrize(
    ("kind", "written", "rows"),
    [
        (pa.list_(pa.struct({"x": pa.string_view()}), 2), pa.list_(pa.struct({"x": pa.large_string()}), 2), _PAIRS),
        (_REQUIRED, _REQUIRED, [[("a", 1)], [("b", 2)]]),
        (pa.struct({"m": _REQUIRED}), pa.struct({"m": _REQUIRED}), [{"m": [("a", 1)]}, {"m": [("b", 2)]}]),
        (pa.map_(pa.string(), pa.int32(), keys_sorted=True), None, [[("a", 1)], [("b", 2)]]),
        (pa.list_view(pa.string_view()), None, [["a"], ["b", None]]),
        (pa.list_view(pa.int32()), None, [[1], [2, None]]),
    ],
)
def test_types_are_written_as_they_are_but_for_views(
    kind: pa.DataType, written: pa.DataType | None, rows: list[Any]
) -> None:
    table = pa.table({"c": pa.array(rows, kind)})
    read = pq.read_table(io.BytesIO(write(lambda sink: ParquetWriter(sink, table.schema), table)))
    assert read.to_pylist() == table.to_pylist()
    assert read.schema.field("c").type == (written or kind)


def categories(batches: Sequence[Sequence[str | None]], whole: list[str], *, ordered: bool = False) -> pa.Table:
    """A column of one dictionary in several batches."""
    indices = [pa.array([None if one is None else whole.index(one) for one in batch], pa.int8()) for batch in batches]
    values = pa.array(whole)
    return pa.table(
        {"x": pa.chunked_array([pa.DictionaryArray.from_arrays(one, values, ordered=ordered) for one in indices])}
    )


LEVELS = ["hidden", "low", "mid", "never", "high", *[f"hidden {number}" for number in range(20)]]
BATCHES: list[list[str | None]] = [["high", "low"], ["mid", None], ["low", "high"], ["mid", "low"]]


@pytest.mark.parametrize("ordered", [False, True])
def test_each_batch_of_a_stream_has_its_own_dictionary(ordered: bool) -> None:
    """The readers of streams that there are know that dictionaries change."""
    table = categories(BATCHES, LEVELS, ordered=ordered)
    data = write(lambda sink: ArrowWriter(sink, table.schema, hidden_rows=True), table)
    assert b"hidden" not in data
    read = pa.ipc.open_stream(data).read_all()
    assert read.schema == table.schema
    assert read.to_pylist() == table.to_pylist()
    # the whole dictionary's order says nothing of hidden rows only where it is the type's
    first, last = (["low", "high"], ["low", "mid"]) if ordered else (["high", "low"], ["mid", "low"])
    assert [chunk.dictionary.to_pylist() for chunk in read["x"].chunks] == [first, ["mid"], ["low", "high"], last]
    polars = pytest.importorskip("polars")
    assert polars.read_ipc_stream(data)["x"].to_list() == table["x"].to_pylist()
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.from_arrow(pa.ipc.open_stream(data)).fetchall() == [(row["x"],) for row in table.to_pylist()]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_row_group_of_parquet_has_one_dictionary(ordered: bool) -> None:
    table = categories(BATCHES, LEVELS, ordered=ordered)
    data = write(lambda sink: ParquetWriter(sink, table.schema, hidden_rows=True), table)
    assert b"hidden" not in data
    read = pq.read_table(io.BytesIO(data))
    assert read.schema == table.schema
    assert read.to_pylist() == table.to_pylist()
    order = ["low", "mid", "high"] if ordered else ["high", "low", "mid"]
    assert [chunk.dictionary.to_pylist() for chunk in read["x"].chunks] == [order]


def test_row_groups_of_parquet_do_not_depend_on_values_that_no_row_has() -> None:
    table = categories(BATCHES, [*LEVELS, "hidden" * 100_000])
    data = write(lambda sink: ParquetWriter(sink, table.schema, row_group_bytes=100_000, hidden_rows=True), table)
    assert pq.read_metadata(io.BytesIO(data)).num_row_groups == 1


@pytest.mark.parametrize("hidden_rows", [False, True])
def test_dictionaries_that_no_index_type_unites_are_written_to_parquet(tmp_path: Path, hidden_rows: bool) -> None:
    """In row groups of their own: pyarrow 26 cannot read a row group with several dictionaries."""
    duckdb = pytest.importorskip("duckdb")
    names = [[f"{name}{number}" for number in range(100)] for name in "ab"]
    table = pa.concat_tables([categories([part], part) for part in names])
    table = table.append_column(
        "n", pa.chunked_array([pa.StructArray.from_arrays([one], ["x"]) for one in table["x"].chunks])
    )
    data = write(lambda sink: ParquetWriter(sink, table.schema, hidden_rows=hidden_rows), table)
    assert pq.read_metadata(io.BytesIO(data)).num_row_groups == 2
    assert pq.read_table(io.BytesIO(data)).to_pylist() == table.to_pylist()
    (tmp_path / "a.parquet").write_bytes(data)
    read = duckdb.read_parquet(str(tmp_path / "a.parquet")).fetchall()
    assert [row for row, _ in read] == table["x"].to_pylist()


def test_a_scan_of_many_batches_sends_a_dictionary_once_where_no_rows_are_hidden() -> None:
    table = categories([LEVELS * 40] * 30, LEVELS)
    data = write(lambda sink: ArrowWriter(sink, table.schema), table, 1000)
    assert data.count(b"never") == 1


def test_an_arrow_file_keeps_its_dictionary() -> None:
    """An IPC file has one dictionary for all batches."""
    table = categories(BATCHES, LEVELS)
    data = write(lambda sink: ArrowFileWriter(sink, table.schema), table)
    assert pa.ipc.open_file(data).read_all() == table


def in_pieces(pieces: Sequence[Sequence[str | None]], index: pa.DataType, *, ordered: bool = False) -> pa.Table:
    """A table with a batch for each piece: the values as a dictionary of the piece's own, alone, in structs, lists and
    maps."""
    kind = pa.dictionary(index, pa.string(), ordered)
    batches = []
    for piece in pieces:
        encoded = pa.array(piece, pa.string()).dictionary_encode()
        column = pa.DictionaryArray.from_arrays(encoded.indices.cast(index), encoded.dictionary, ordered=ordered)
        offsets = pa.array(range(len(piece) + 1), pa.int32())
        struct = pa.StructArray.from_arrays([column], fields=[pa.field("s", kind)])
        keys = pa.array(["k"] * len(piece), pa.string())
        arrays = [
            column,
            struct,
            pa.ListArray.from_arrays(offsets, column),
            pa.MapArray.from_arrays(offsets, keys, column),
        ]
        batches.append(pa.RecordBatch.from_arrays(arrays, ["d", "st", "l", "m"]))
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("pieces", [[["a", "b"], ["c", None, "a"], ["b"]], [["a"], ["a"]], [[None], ["x"], []], []])
def test_an_arrow_file_has_one_dictionary_for_all_batches(pieces: list[list[str | None]], ordered: bool) -> None:
    table = in_pieces(pieces, pa.int8(), ordered=ordered) if pieces else in_pieces([["a"]], pa.int8()).slice(0, 0)
    data = write(lambda sink: ArrowFileWriter(sink, table.schema), table)
    found = pa.ipc.open_file(data).read_all()
    assert found.schema == table.schema
    assert found.to_pylist() == table.to_pylist()
    assert pl.read_ipc(data, columns=["d", "l"]).to_dicts() == table.select(["d", "l"]).to_pylist()


@pytest.mark.heavy
@pytest.mark.parametrize(("index", "values"), [(pa.int8(), 200), (pa.uint8(), 300), (pa.int16(), 40_000)])
def test_an_arrow_file_with_more_values_than_its_indices_count_has_no_dictionary(
    index: pa.DataType, values: int
) -> None:
    pieces = [[str(value) for value in range(start, min(start + 100, values))] for start in range(0, values, 100)]
    table = in_pieces(pieces, index)
    data = write(lambda sink: ArrowFileWriter(sink, table.schema), table, 100)
    found = pa.ipc.open_file(data).read_all()
    assert found.to_pylist() == table.to_pylist()
    assert found.schema.types == [pa.string(), pa.struct({"s": pa.string()}), pa.list_(pa.string()), OF_KEYS]


def test_an_abandoned_arrow_file_leaves_nothing() -> None:
    table = in_pieces([["a"], ["b"]], pa.int32())
    sink = io.BytesIO()
    writer = ArrowFileWriter(sink, table.schema)
    for batch in table.to_batches():
        writer.write(batch)
    writer.abandon()
    assert writer._spool is not None
    assert writer._spool.closed
    assert sink.getvalue() == b""


UTC = dt.UTC
NAN, INF = float("nan"), float("inf")
VALUES: list[tuple[pa.DataType, list[Any], list[Any]]] = [
    (pa.null(), [None], [None]),
    (pa.bool_(), [True, None], [True, None]),
    (pa.int64(), [-(2**63), None], [-(2**63), None]),
    (pa.uint64(), [2**64 - 1], [2**64 - 1]),
    (pa.float64(), [0.1, NAN, INF, -INF, None], [0.1, "NaN", "Infinity", "-Infinity", None]),
    (pa.float32(), [0.1, NAN, 1e30, None], [0.1, "NaN", 1e30, None]),
    (pa.float16(), [1.5, None], [1.5, None]),
    (pa.string(), ["é\n", "", None], ["é\n", "", None]),
    (pa.large_string(), ["a"], ["a"]),
    (pa.string_view(), ["a", None], ["a", None]),
    (pa.binary(), [b"\x00\xff", b"", None], ["0x00ff", "0x", None]),
    (pa.binary(2), [b"ab", None], ["0x6162", None]),
    (pa.decimal128(10, 2), [Decimal("-1.50"), None], ["-1.50", None]),
    (pa.decimal128(38, 20), [Decimal("1E-20")], ["0.00000000000000000001"]),
    (pa.date32(), [dt.date(2024, 2, 29), None], ["2024-02-29", None]),
    (pa.time64("us"), [dt.time(12, 30, 0, 1), None], ["12:30:00.000001", None]),
    (pa.timestamp("s"), [dt.datetime(2024, 5, 1, 12), None], ["2024-05-01T12:00:00", None]),
    (pa.timestamp("ns"), [1], ["1970-01-01T00:00:00.000000001"]),
    (
        pa.timestamp("ms", "Europe/Paris"),
        [dt.datetime(2024, 5, 1, 12, tzinfo=UTC), None],
        ["2024-05-01T12:00:00.000Z", None],
    ),
    (pa.duration("us"), [dt.timedelta(hours=1, microseconds=5), None], ["PT3600.000005S", None]),
    (pa.duration("s"), [dt.timedelta(seconds=-90)], ["-PT90S"]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"], ["a", None, "a"]),
    (pa.list_(pa.float64()), [[1.0, NAN], [], None], [[1.0, "NaN"], [], None]),
    (pa.list_(pa.int64(), 2), [[1, 2], None, [3, None]], [[1, 2], None, [3, None]]),
    (pa.large_list(pa.binary()), [[b"a", None]], [["0x61", None]]),
    (pa.list_(pa.list_(pa.int8())), [[[1], None], None, [[]]], [[[1], None], None, [[]]]),
    (
        pa.struct({"a": pa.binary(), "b": pa.struct({"c": pa.date32()})}),
        [{"a": b"x", "b": {"c": None}}, None, {"a": None, "b": None}],
        [{"a": "0x78", "b": {"c": None}}, None, {"a": None, "b": None}],
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1)], None, [], [("b", None), ("c", 3)]],
        [[{"key": "a", "value": 1}], None, [], [{"key": "b", "value": None}, {"key": "c", "value": 3}]],
    ),
]


@pytest.mark.parametrize(("type_", "values", "expected"), VALUES, ids=[str(type_) for type_, _, _ in VALUES])
def test_each_type_has_one_form(type_: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    if type_ == pa.float16():
        numpy = pytest.importorskip("numpy")
        values = [None if value is None else numpy.float16(value) for value in values]
    array = pa.array(values, type_)
    assert json_values(array) == expected
    assert json_values(array.slice(1)) == expected[1:]
    assert json_values(pa.concat_arrays([array, array]).slice(len(array) - 1)) == [expected[-1], *expected]
    json.dumps(json_values(array), allow_nan=False)


def test_uuids_and_other_extension_types() -> None:
    value = uuid.UUID(int=7)
    storage = pa.array([value.bytes, None], pa.binary(16))
    assert json_values(pa.ExtensionArray.from_storage(pa.uuid(), storage)) == [str(value), None]
    stored = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}']))
    assert json_values(stored) == ['{"a": 1}']


def test_text_that_is_not_utf8_is_shown_with_replacements() -> None:
    raw = pa.array([b"a\xff", b"b"], pa.binary())
    strings = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    assert json_values(strings) == ["a\N{REPLACEMENT CHARACTER}", "b"]


def test_rows_have_names_that_differ() -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "a", "a_2"])
    assert json_objects(batch).to_pylist() == ['{"a": 1, "a_2": 2, "a_2_2": 3}']
    assert json_objects(batch.select([])).to_pylist() == ["{}"]
    assert unique_names(["x", "y"]) == ["x", "y"]


@pytest.mark.parametrize(("type_", "values", "expected"), VALUES, ids=[str(type_) for type_, _, _ in VALUES])
def test_objects_are_what_json_writes(type_: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    if type_ == pa.float16():
        pytest.skip("as above")
    column = pa.array(values, type_)
    batch = pa.record_batch([column, column], ["a", 'quoted "b"'])
    dumped = [json.dumps({"a": value, 'quoted "b"': value}, ensure_ascii=False) for value in expected]
    assert json_objects(batch).to_pylist() == dumped
    assert json_objects(batch.slice(1), "<{", "}>").to_pylist() == [f"<{text}>" for text in dumped[1:]]


@given(st.lists(st.one_of(st.none(), st.text(), st.text('"\\\\\n\x00\x1f\x7f\u2028a'))))
def test_texts_are_escaped_as_json_does(texts: list[str | None]) -> None:
    texts = [None if text is None else text.encode("utf-8", "ignore").decode() for text in texts]
    batch = pa.record_batch([pa.array(texts, pa.string())], ["s"])
    assert [json.loads(text) for text in json_objects(batch).to_pylist()] == [{"s": text} for text in texts]


@pytest.mark.parametrize("column", [pa.array([0.5] * 100_000), pa.array(['"'] * 100_000)], ids=["floats", "escaped"])
def test_work_in_a_thread_can_stop_or_pause_between_slices(column: pa.Array) -> None:
    reached: list[bool] = []
    thread = threading.get_ident()
    checkpoints.checks[thread] = lambda: reached.append(True)
    try:
        texts = json_objects(pa.RecordBatch.from_arrays([column], ["a"]))
    finally:
        del checkpoints.checks[thread]
    assert len(texts) == 100_000
    assert len(reached) >= column.nbytes >> 14  # once in 16 KiB of Arrow's bytes
