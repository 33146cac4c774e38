"""Values of every type have one form in JSON, which docs/cli.md lists."""

from __future__ import annotations

import datetime as dt
import json
import threading
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq import checkpoints
from asyncpq.reports.json_values import json_objects, json_values, unique_names

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
