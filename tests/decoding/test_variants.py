"""Parts of VARIANT columns are Spark's: its own casts, paths in values of any shape, shredded or not."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.filter import compile_filter
from asyncpq.decoding.variants import part_type, reading_parts
from asyncpq.errors import AsyncpqError, CorruptFileError, PredicateTypeError, UnsupportedFeatureError
from asyncpq.expressions import VariantTest, col
from asyncpq.expressions.tree import variant_type
from tests.variants import MISSING, PLAIN, SPARK_CASTS, SPARK_TYPES, encode, metadata, names_of, plain, shredded

# Not done as Spark: texts of objects and arrays, and of bytes that are no text; times of today.
REFUSED = {("X'ff'", "string"), ("array(1,2)", "string"), ("named_struct('a',1,'b','x')", "string")}
REFUSED |= {("'12:30'", "timestamp"), ("'12:30'", "timestamp_ntz")}


def part(array: pa.Array, path: str, kind: str) -> pa.Array:
    (test,) = [col("v").variant_get(path, kind).is_null()]
    assert isinstance(test, VariantTest)
    return reading_parts(array.type, test)(array)


def as_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(" ")
        return text.rstrip("0") if "." in text else text
    return repr(value) if isinstance(value, float) else str(value)


@pytest.mark.parametrize("row", SPARK_CASTS, ids=lambda row: row["sql"])
def test_casts_are_sparks(row: dict[str, Any]) -> None:
    given_value = {"metadata": bytes.fromhex(row["metadata"]), "value": bytes.fromhex(row["value"])}
    array = pa.array([given_value, None], PLAIN)
    for kind, expected in zip(SPARK_TYPES, row["parts"], strict=True):
        if (row["sql"], kind) in REFUSED:
            with pytest.raises(UnsupportedFeatureError):
                part(array, "$", kind)
            continue
        found = part(array, "$", kind)
        assert found.type == part_type(variant_type(kind))
        assert [as_text(one) for one in found.to_pylist()] == [expected, None], kind


_NAMES = st.sampled_from(["a", "b", "a b", "é"])
_SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, "x", "7", ""])
VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4), max_leaves=8
)
PATHS = st.lists(_NAMES | st.integers(0, 2), max_size=3)


def text_of(path: list[str | int]) -> str:
    return "$" + "".join([f"[{step}]" if isinstance(step, int) else f"['{step}']" for step in path])


def at(value: Any, path: list[str | int]) -> Any:
    for step in path:
        is_there = step in value if isinstance(value, dict) and isinstance(step, str) else False
        if isinstance(value, list) and isinstance(step, int):
            is_there = step < len(value)
        if not is_there:
            return None
        value = value[step]
    return value


def whole(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if value == "7" else None
    return None if value is None or isinstance(value, (list, dict)) else int(value)


@given(st.lists(VALUES | st.just(MISSING), max_size=5), PATHS)
def test_paths(values: list[Any], path: list[str | int]) -> None:
    expected = [None if value is MISSING else whole(at(value, path)) for value in values]
    for array in (plain(values), shredded(values)):
        assert part(array, text_of(path), "bigint").to_pylist() == expected
        mask = compile_filter(col("v").variant_get(text_of(path), "int64") > 0, {"v": array.type})
        chunks = pa.chunked_array([array.slice(0, 1), array.slice(1)])
        assert mask.mask({"v": chunks}, len(values)).to_pylist() == [
            None if one is None else one > 0 for one in expected
        ]


@given(VALUES, st.data())
def test_damaged_values_give_a_typed_error_or_a_part(value: Any, data: st.DataObject) -> None:
    raw = {"metadata": bytearray(metadata(names_of(value))), "value": bytearray(encode(value, names_of(value)))}
    for name in data.draw(st.lists(st.sampled_from(["metadata", "value"]), max_size=3)):
        raw[name][data.draw(st.integers(0, len(raw[name]) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw["value"][: data.draw(st.integers(0, len(raw["value"])))])
    array = pa.array([{"metadata": bytes(raw["metadata"]), "value": cut}], PLAIN)
    with contextlib.suppress(AsyncpqError):
        part(array, text_of(data.draw(PATHS)), "bigint")


def test_what_is_no_variant() -> None:
    test = col("v").variant_get("$.a", "int64") == 1
    for type_ in (
        pa.int64(),
        pa.struct([("value", pa.binary())]),
        pa.struct([("metadata", pa.int8()), ("value", pa.int8())]),
    ):
        with pytest.raises(PredicateTypeError):
            compile_filter(test, {"v": type_})
    with pytest.raises(CorruptFileError):
        part(pa.array([{"metadata": b"\x01\0\0", "value": None}], PLAIN), "$", "int64")
