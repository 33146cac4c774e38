"""Shredded VARIANT: values taken apart by any schema are themselves again; against Spark: spark/types/test_types.py."""

from __future__ import annotations

import contextlib
import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.types import VariantVal

from asyncpq.decoding.shredded_variant import restoring
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from tests.example_counts import examples

_NAMES = st.sampled_from(["a", "b", "ab", "", "ü", "\U0001f600", "\uffff", *(f"n{n}" for n in range(5))])
_INSTANT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
#: What stands in ``typed_value``, by its type there.
_SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.string(): st.text(max_size=5) | st.text("xü", min_size=60, max_size=300),
    pa.binary(): st.binary(max_size=300),
    pa.date32(): st.dates(),
    pa.decimal128(9, 2): st.decimals(-(10**6), 10**6, places=2),
    pa.decimal128(18, 0): st.decimals(-(10**17), 10**17, places=0),
    pa.decimal128(38, 9): st.decimals(-(10**18), 10**18, places=9),  # pyspark decodes 28 digits
}
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.one_of(*_SCALARS.values()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=12,
)
#: A scalar type, the schema of a list's elements, those of an object's fields, or None: not typed.
_Shredding = Any
_SCHEMAS: st.SearchStrategy[_Shredding] = st.recursive(
    st.none() | st.sampled_from([*_SCALARS]),
    lambda inner: st.tuples(inner) | st.dictionaries(_NAMES, inner, min_size=1, max_size=4),
    max_leaves=8,
)


def _group_type(schema: _Shredding) -> pa.DataType:
    fields = [pa.field("value", pa.binary())]
    if isinstance(schema, tuple):
        fields.append(pa.field("typed_value", pa.list_(_group_type(schema[0]))))
    elif isinstance(schema, dict):
        inner = [pa.field(name, _group_type(one)) for name, one in schema.items()]
        fields.append(pa.field("typed_value", pa.struct(inner)))
    elif schema is not None:
        fields.append(pa.field("typed_value", schema))
    return pa.struct(fields)


def _column_type(schema: _Shredding) -> pa.DataType:
    return pa.struct([pa.field("metadata", pa.binary()), *_group_type(schema)])


def _encode(value: Any, names: list[str]) -> bytes:
    """Wide, with four bytes for each number: another form than that of what is tested."""
    if isinstance(value, (list, dict)):
        inner = [*value.values()] if isinstance(value, dict) else value
        parts = [_encode(one, names) for one in inner]
        begins = [sum(map(len, parts[:at])) for at in range(len(parts) + 1)]
        head, ids = bytes([3 | 3 << 2 | 1 << 4]), []
        if isinstance(value, dict):
            head = bytes([2 | 3 << 2 | 3 << 4 | 1 << 6])
            order = sorted(range(len(inner)), key=lambda at: [*value][at].encode("utf-16-be"))
            ids = [names.index([*value][at]) for at in order]
            begins = [*(begins[at] for at in order), begins[-1]]  # values lie in another order than fields
        numbers = struct.pack(f"<{1 + len(ids) + len(begins)}I", len(inner), *ids, *begins)
        return head + numbers + b"".join(parts)
    if value is None or isinstance(value, bool):
        return bytes([(0 if value is None else 1 if value else 2) << 2])
    if isinstance(value, int):
        return struct.pack("<Bq", 6 << 2, value)
    if isinstance(value, float):
        return struct.pack("<Bd", 7 << 2, value)
    if isinstance(value, Decimal):
        places = -int(value.as_tuple().exponent)
        return bytes([10 << 2, places]) + int(value.scaleb(places)).to_bytes(16, "little", signed=True)
    if isinstance(value, dt.date):
        return struct.pack("<Bi", 11 << 2, (value - dt.date(1970, 1, 1)).days)
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<BI", (16 if isinstance(value, str) else 15) << 2, len(content)) + bytes(content)


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether it is a value of the type, and comes back as it is."""
    if type(value) is float and not pa.types.is_floating(kind):
        return False
    try:
        made = pa.scalar(value, kind).as_py()
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False
    return repr(made) == repr(value)


def _shred(value: Any, schema: _Shredding, names: list[str]) -> dict[str, Any]:
    if isinstance(schema, tuple) and isinstance(value, list):
        return {"typed_value": [_shred(one, schema[0], names) for one in value]}
    if isinstance(schema, dict) and isinstance(value, dict):
        typed = {name: _shred(value[name], one, names) if name in value else {} for name, one in schema.items()}
        rest = {name: one for name, one in value.items() if name not in schema}
        return {"typed_value": typed, "value": _encode(rest, names) if rest else None}
    if isinstance(schema, pa.DataType) and value is not None and _fits(value, schema):
        return {"typed_value": value}
    return {"value": _encode(value, names)}


def _keys(value: Any) -> set[str]:
    inner = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return {*(value if isinstance(value, dict) else ())}.union(*map(_keys, inner))


def _metadata(names: list[str]) -> bytes:
    texts = [name.encode() for name in names]
    ends = [sum(map(len, texts[:at])) for at in range(len(texts) + 1)]
    return bytes([1 | 3 << 6]) + struct.pack(f"<{1 + len(ends)}I", len(texts), *ends) + b"".join(texts)


def _restored(column: pa.Array) -> list[Any]:
    values, metadata = (part.to_pylist() for part in restoring(column.type)(column))
    return [VariantVal(value, names).toPython() for value, names in zip(values, metadata, strict=True)]


def _same(value: Any) -> str:
    """In words, in which objects have an order and -0.0 a sign."""
    if isinstance(value, dict):
        return f"{{{[(name, _same(value[name])) for name in sorted(value)]}}}"
    return f"[{[*map(_same, value)]}]" if isinstance(value, list) else repr(value)


@given(st.lists(_VALUES, max_size=5), _SCHEMAS, st.data())
def test_values_are_themselves_again(values: list[Any], schema: _Shredding, data: st.DataObject) -> None:
    rows = []
    for value in values:
        names = data.draw(st.permutations(sorted(_keys(value))))
        rows.append({"metadata": _metadata(names), **_shred(value, schema, names)})
    column = pa.array(rows, _column_type(schema))
    assert [*map(_same, _restored(column))] == [*map(_same, values)]
    if rows:  # of a slice, and beside nulls
        nulled = pa.concat_arrays([pa.nulls(2, column.type), column, pa.nulls(1, column.type)])
        found, metadata = restoring(column.type)(nulled[1:])
        assert [found[0].as_py(), metadata[0].as_py(), found[-1].as_py()] == [b""] * 3
        last = VariantVal(found[-2].as_py(), metadata[-2].as_py()).toPython()
        assert _same(last) == _same(values[-1])


def test_many_of_each() -> None:
    """Numbers of two and four bytes: of elements, of fields, of bytes."""
    values = [
        [n % 100 for n in range(300)],
        {f"field {n}": n for n in range(300)},
        ["x" * 40] * 2000,
        {"a": "x" * 70_000, "b": ["y"] * 256},
    ]
    object_of_all: _Shredding = {f"field {n}": pa.int64() for n in range(300)}
    for value, schema in zip(values, [(pa.int64(),), object_of_all, (pa.string(),), {"a": pa.string()}], strict=True):
        names = sorted(_keys(value))
        row = {"metadata": _metadata(names), **_shred(value, schema, names)}
        assert _restored(pa.array([row], _column_type(schema))) == [value]


def test_names_that_the_metadata_lacks() -> None:
    names = ["b"]
    row = {"metadata": _metadata(names), **_shred({"a": 1, "b": None}, {"a": pa.int64()}, names)}
    assert _restored(pa.array([row, row], _column_type({"a": pa.int64()}))) == [{"a": 1, "b": None}] * 2


def test_numbers_take_few_bytes() -> None:
    numbers = [0, 127, -128, 128, -129, 32_768, -(2**31), 2**31]
    rows = [{"metadata": _metadata([]), "typed_value": number} for number in numbers]
    column = pa.array(rows, _column_type(pa.int64()))
    values = restoring(column.type)(column)[0].to_pylist()
    assert [len(value) for value in values] == [2, 2, 2, 3, 3, 5, 5, 9]
    assert _restored(column) == numbers


def test_timestamps() -> None:
    for kind, expected in ((_INSTANT, dt.UTC), (_LOCAL, None)):
        row = {"metadata": _metadata([]), "typed_value": pa.scalar(1, kind).as_py()}
        (found,) = _restored(pa.array([row], _column_type(kind)))
        assert found == dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=expected)


_A: _Shredding = {"a": pa.int64()}


@pytest.mark.parametrize(
    ("row", "schema", "said"),
    [
        ({}, pa.int64(), "a value is missing"),
        ({"typed_value": [{}]}, (pa.int64(),), "element of an array"),
        ({"typed_value": {"a": {"typed_value": 1}}, "value": b"\x0c\x01"}, _A, "other value is not an object"),
        ({"typed_value": {"a": {"typed_value": 1}}, "value": _encode({"a": 2}, ["a"])}, _A, "also among the object"),
        ({"typed_value": {"a": {}}, "value": _encode({"a": 2}, ["a"])}, _A, "also among the object"),
        ({"typed_value": {"a": {"typed_value": 1}}, "value": _encode({"b": 2}, ["a", "b"])}, _A, "outside"),
        ({"typed_value": {"a": {"typed_value": 1}}, "value": b"\x02"}, _A, "end inside a value"),
        ({"metadata": b"", "typed_value": 1}, pa.int64(), "version 0"),
        ({"metadata": b"\x02\0\0", "typed_value": 1}, pa.int64(), "version 2"),
        ({"metadata": b"\x01\x01\0\x09", "typed_value": 1}, pa.int64(), "outside"),
        ({"metadata": b"\x01\x01\0\x01\xff", "typed_value": 1}, pa.int64(), "UTF-8"),
    ],
)
def test_what_is_malformed_is_refused(row: dict[str, Any], schema: _Shredding, said: str) -> None:
    column = pa.array([{"metadata": _metadata(["a"]), **row}], _column_type(schema))
    with pytest.raises(CorruptFileError, match=said):
        restoring(column.type)(column)


@pytest.mark.parametrize(
    "kind",
    [pa.uint8(), pa.time64("us"), pa.timestamp("ns"), pa.binary(16), pa.map_(pa.string(), _group_type(None))],
    ids=str,
)
def test_what_spark_does_not_shred_is_refused(kind: pa.DataType) -> None:
    for typed in (kind, pa.list_(pa.struct([("value", pa.binary()), ("typed_value", kind)]))):
        column = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", typed)])
        with pytest.raises(UnsupportedFeatureError, match="not shredded into"):
            restoring(column)


@settings(max_examples=examples(120, thorough=500))
@given(_VALUES, _SCHEMAS, st.data())
def test_damage_is_told_or_harmless(value: Any, schema: _Shredding, data: st.DataObject) -> None:
    """Bytes that another process wrote never end in an error of Python's own."""
    names = sorted(_keys(value))
    row = {"metadata": _metadata(names), **_shred(value, schema, names)}
    for part in ("metadata", "value"):
        if row.get(part):
            content = bytearray(row[part])
            for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
                content[at] = data.draw(st.integers(0, 255))
            row[part] = bytes(content[: data.draw(st.integers(0, len(content)))])
    column = pa.array([row], _column_type(schema))
    with contextlib.suppress(CorruptFileError):
        restoring(column.type)(column)
