"""Digests of rows: the same however rows are divided and stored, others for other rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.writing.row_digest import RowDigest

_INTS = st.integers(-100, 100)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), _INTS),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=5)),
    "large binary": (pa.large_binary(), st.binary(max_size=5)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes().map(lambda time: time.replace(tzinfo=dt.UTC))),
    "decimal": (pa.decimal128(10, 2), _INTS.map(Decimal)),
    "decimal32": (pa.decimal32(5, 2), _INTS.map(Decimal)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=2)),
    "list": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=2), max_size=3)),
    "pairs": (pa.list_(pa.int64(), 2), st.lists(st.none() | _INTS, min_size=2, max_size=2)),
    "struct": (pa.struct([("x", pa.int64())]), st.fixed_dictionaries({"x": st.none() | _INTS})),
    "map": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=2), _INTS), max_size=2)),
}


def digest(schema: pa.Schema, *batches: pa.RecordBatch) -> str:
    digest = RowDigest(schema)
    for batch in batches:
        digest.update(batch)
    assert digest.rows == sum(batch.num_rows for batch in batches)
    return digest.hexdigest()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_equal_rows_have_equal_digests_and_others_have_others(name: str, data: st.DataObject) -> None:
    dtype, value = TYPES[name]
    schema = pa.schema([("c", dtype)])
    ones = data.draw(st.lists(st.none() | value, min_size=1, max_size=20))
    others = data.draw(st.lists(st.none() | value, min_size=1, max_size=20))
    first, second = (pa.record_batch([pa.array(values, dtype)], schema=schema) for values in (ones, others))
    cut = data.draw(st.integers(0, len(ones)))
    assert digest(schema, first) == digest(schema, first.slice(0, cut), first.slice(cut))
    assert (digest(schema, first) == digest(schema, second)) == (first.to_pylist() == second.to_pylist())


def test_rows_of_many_blocks() -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    ids = pa.array(range(200_000))
    batch = pa.record_batch([ids, ids.cast(pa.string())], schema=schema)
    whole = digest(schema, batch)
    assert digest(schema, *[batch.slice(start, 999) for start in range(0, 200_000, 999)]) == whole
    swapped = pa.array([1, 0, *range(2, 200_000)])
    assert digest(schema, batch.take(swapped)) != whole


def test_nulls_hide_what_is_behind_them() -> None:
    schema = pa.schema([("c", pa.int64())])
    values = pa.array([1, 2, 3])
    masked = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), values.buffers()[1]])
    ones = pa.record_batch([masked], schema=schema)
    others = pa.record_batch([pa.array([1, None, 3])], schema=schema)
    assert digest(schema, ones) == digest(schema, others)
