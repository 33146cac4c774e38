"""Rows are matched with keys as the filter compares them."""

from __future__ import annotations

import datetime as dt
import math
import tracemalloc
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError, InvalidOptionError
from asyncpq.scan.keys import key_value, matches
from asyncpq.scan.request import LookupKeys

pytestmark = pytest.mark.property

NAN = float("nan")
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int32(): [0, 1, -5, 2**31 - 1],
    pa.uint64(): [0, 1, 2**64 - 1],
    pa.float64(): [0.0, -0.0, 1.5, NAN],
    pa.float32(): [0.0, -0.0, 1.5, NAN],
    pa.string(): ["", "a", "é"],
    pa.string_view(): ["", "a", "é"],
    pa.large_binary(): [b"", b"a", b"\xff"],
    pa.binary(2): [b"ab", b"cd"],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b", ""],
    pa.bool_(): [True, False],
    pa.decimal128(5, 2): [Decimal("1.50"), Decimal("0.00")],
    pa.date32(): [dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
    pa.timestamp("us", "UTC"): [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
    pa.struct([("x", pa.int64())]): [{"x": 1}],
}
KEYS = [0, 1, -5, 2**31 - 1, 2**64 - 1, 2**70, 0.0, -0.0, 1.0, 1.5, NAN, "", "a", "é", b"", b"a", b"ab", True, None]
KEYS += [Decimal("1.5"), Decimal("1.501"), dt.date(2024, 2, 29), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]


@st.composite
def lookups(draw: st.DrawFn) -> tuple[pa.Table, dict[str, list[Any]]]:
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    num_rows, num_keys = draw(st.integers(0, 6)), draw(st.integers(1, 6))
    columns, keys = {}, {}
    for name in names:
        kind = draw(st.sampled_from([known for known in VALUES if not pa.types.is_struct(known)]))
        values = draw(st.lists(st.sampled_from([*VALUES[kind], None]), min_size=num_rows, max_size=num_rows))
        columns[name] = pa.chunked_array([pa.array(values[:2], kind), pa.array(values[2:], kind)])
        own = [value for value in KEYS if type(value) is type(VALUES[kind][0])] + [None]
        keys[name] = draw(st.lists(st.sampled_from(own + VALUES[kind]), min_size=num_keys, max_size=num_keys))
    return pa.table(columns), keys


@given(lookups())
def test_hash_tables_find_what_the_filter_finds(lookup: tuple[pa.Table, dict[str, list[Any]]]) -> None:
    table, keys = lookup
    wanted = LookupKeys(keys)
    expected = wanted._compared(table.columns, table.num_rows)
    found = matches(list(keys.values()), table.columns)
    if found is None:  # of literals that pyarrow's engine casts
        kinds = [VALUES[column.type] for column in table.columns]
        assert any(key not in [*known, None] for known, own in zip(kinds, keys.values(), strict=True) for key in own)
        return
    assert [array.to_pylist() for array in found] == [array.to_pylist() for array in expected]


def test_other_comparisons_are_the_filters() -> None:
    assert matches([[0.5]], [pa.chunked_array([pa.array([Decimal("0.5")])])]) is None
    assert matches([[1]], [pa.chunked_array([pa.array([None], pa.struct([("x", pa.int64())]))])]) is None


def test_a_million_keys_and_rows_become_no_objects() -> None:
    """Each pair is a number in an array: no step makes Python objects of all rows."""
    count = 200_000
    keys = LookupKeys({"id": list(range(count))})
    table = pa.table({"v": pa.array(range(count)), "id": pa.array(range(count))})
    keys.finish(table.slice(0, 10), True)
    tracemalloc.start()
    try:
        found = keys.finish(table, True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.column("key_position").to_pylist() == list(range(count))
    assert peak < 24 * count  # pairs alone took 64 bytes each


SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.dictionary(pa.int32(), pa.string()),
        "a": pa.struct({"b": pa.struct({"c": pa.binary()})}),
        "at": pa.timestamp("us", "Europe/Paris"),
        "uuid": pa.uuid(),
        "ratio": pa.float32(),
        "price": pa.float64(),
    }
)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("id", "-42", -42),
        ("name", "42", "42"),
        ("a.b.c", "0x00ff", b"\x00\xff"),
        ("at", "2024-02-29T12:00:00", dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)),
        ("uuid", str(uuid.UUID(int=1)), uuid.UUID(int=1)),
        ("ratio", "0.1", pa.scalar(0.1, pa.float32()).as_py()),
        ("ratio", "-1e39", -1e39),  # as lookup takes it: no float32 equals it, -inf included
        ("ratio", "-inf", -math.inf),
        ("price", " Infinity", math.inf),
    ],
)
def test_text_becomes_a_value_of_the_column(name: str, text: str, value: Any) -> None:
    key = key_value(name, text, SCHEMA)
    assert (key.as_py() if isinstance(key, pa.Scalar) else key) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("id", "1.5"),
        ("id", "9e99"),
        ("at", "noon"),
        ("uuid", "1"),
        ("a.b.c", "0x0"),
        ("a", "1"),
        ("ratio", "1e400"),
        ("price", "-1e400"),  # no infinity
    ],
)
def test_text_of_no_value_names_the_column(name: str, text: str) -> None:
    with pytest.raises(InvalidOptionError, match="is not a value of type") as raised:
        key_value(name, text, SCHEMA)
    assert raised.value.column == name


_C_AND_D = pa.struct({"a": pa.struct({"b.c": pa.int32()}), "a.b": pa.struct({"d": pa.date32()})})
BESIDE = {
    "st.a.b": pa.schema({"st.a": pa.struct({"x": pa.string()}), "st": pa.struct({"a.b": pa.int32()})}),
    "st.a.b.c": pa.schema({"st": _C_AND_D}),
    "st.a.b.d": pa.schema({"st": _C_AND_D}),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_path_means_the_field_that_exists(name: str) -> None:
    """Beside it lies a struct whose name the path begins with, too."""
    text, value = ("2024-02-29", dt.date(2024, 2, 29)) if name.endswith("d") else ("4", 4)
    assert key_value(name, text, BESIDE[name]).as_py() == value
    for unknown in (f"{name}.e", f"{name}.", "st.a.e", "st."):
        with pytest.raises(ColumnNotFoundError) as raised:
            key_value(unknown, "4", BESIDE[name])
        assert raised.value.column == unknown


def test_a_path_of_two_fields_is_an_error() -> None:
    inside = pa.struct({"b": pa.int32()})
    with pytest.raises(AmbiguousColumnError, match="2 fields have this path"):
        key_value("st.a.b", "4", pa.schema({"st.a": inside, "st": pa.struct({"a": inside})}))


def test_an_unknown_column_has_the_nearest_in_its_hint() -> None:
    with pytest.raises(ColumnNotFoundError, match="Did you mean 'name'"):
        key_value("nmae", "1", SCHEMA)
