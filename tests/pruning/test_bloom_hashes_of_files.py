"""Bloom filters as pyarrow writes them: no row that matches is ever ruled out, whatever its type.

The filter is asked alone (files without statistics), for every value that is there and for predicates of every
form; the rows are pyarrow's.
"""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.expressions import Comparison, Expression, In, KeyIn
from asyncpq.expressions.scalars import Scalar
from tests.parquet_files import row_groups_left, write
from tests.predicates import COLUMNS, array, expressions
from tests.reads import ask, by_pyarrow, values

KINDS = [kind for kind in COLUMNS if kind != "bool"]  # which have no filters
_MOMENTS = st.datetimes(dt.datetime(1680, 1, 1), dt.datetime(2260, 1, 1))
_FLOATS = st.floats(width=32)

# Values of the whole domain of each type; those of tests.predicates stand beside them.
WIDE: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 2**8 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": _FLOATS,
    "float64": st.floats(),
    "string": st.text(),
    "large_string": st.text(min_size=20),
    "binary": st.binary(max_size=100),
    "fixed": st.binary(min_size=2, max_size=2),
    "date32": st.dates(),
    "timestamp_ms": _MOMENTS.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    "timestamp_us": _MOMENTS,
    "timestamp_utc": _MOMENTS.map(lambda t: t.replace(tzinfo=dt.UTC)),
    "timestamp_zone": _MOMENTS.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000, tzinfo=dt.UTC)),
    "time32": st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    "time64": st.times(),
    "decimal": st.integers(-(10**7) + 1, 10**7 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "uuid": st.uuids(),
    "dictionary": st.text(),
}


def _is_asked(value: Scalar) -> bool:
    """Whether a filter is asked about a value: not about null, NaN and zero of floats."""
    return value is not None and not (isinstance(value, float) and (value != value or value == 0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_no_value_that_is_there_is_ruled_out(kind: str, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.none() | WIDE.get(kind, COLUMNS[kind][1]) | COLUMNS[kind][1], min_size=1))
    table = pa.table({"c": array(kind, drawn)})
    rows = data.draw(st.integers(1, 10))
    options: dict[str, Any] = {
        "data_page_version": data.draw(st.sampled_from(["1.0", "2.0"])),
        "use_dictionary": data.draw(st.booleans()),
    }
    file = write(table, ["c"], rows_per_group=rows, ndv=data.draw(st.sampled_from([1, 10, 1000])), **options)
    for row, value in enumerate(drawn):
        if value is not None:
            questions: list[Expression] = [In("c", (value,)), In("c", (value, None))]
            if value == value:  # nothing equals NaN
                questions += [Comparison("c", "==", value), KeyIn("c", (value,))]
            for where in questions:
                assert row // rows in row_groups_left(file, where)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "duration"])
def test_values_that_are_not_there_are_mostly_ruled_out(kind: str) -> None:
    many = sorted({value for value in _samples(kind) if _is_asked(value)}, key=repr)
    present, absent = many[::2], many[1::2]
    file = write(pa.table({"c": array(kind, present)}), ["c"], rows_per_group=1000, ndv=1000)
    left = [value for value in absent if row_groups_left(file, Comparison("c", "==", value))]
    assert len(left) * 10 < len(absent)
    assert all(row_groups_left(file, Comparison("c", "==", value)) for value in present)
    assert not row_groups_left(file, In("c", tuple(value for value in absent if value not in left)))
    assert row_groups_left(file, KeyIn("c", (*absent, present[0])))


def _samples(kind: str) -> list[Any]:
    """Some hundred values of a type, fewer of small types."""
    day = dt.datetime(2024, 2, 29)
    numbers = range(-50, 50) if kind == "int8" else range(100) if kind == "uint8" else range(400)
    type_ = COLUMNS[kind][0]
    if pa.types.is_integer(type_):
        return list(numbers)
    if pa.types.is_floating(type_):
        return [struct.unpack("<f", struct.pack("<f", n / 7))[0] for n in numbers]
    if pa.types.is_timestamp(type_):
        return [(day + dt.timedelta(milliseconds=n)).replace(tzinfo=type_.tz and dt.UTC) for n in numbers]
    if pa.types.is_time(type_):
        return [(day + dt.timedelta(milliseconds=n)).time() for n in numbers]
    if pa.types.is_decimal(type_):
        return [Decimal(n - 200) / 4 for n in numbers]
    makers: dict[str, Callable[[int], Any]] = {
        "date32": lambda n: (day + dt.timedelta(n)).date(),
        "uuid": lambda n: uuid.UUID(int=n << 110 | n),
        "fixed": lambda n: n.to_bytes(2, "big"),
        "binary": lambda n: n.to_bytes(2, "big") * (n % 20),
    }
    make = makers.get(kind)
    return [f"{n}-" * (n % 20 + 1) if make is None else make(n) for n in numbers]


async def _rows(file: asyncpq.File, where: Expression) -> list[str] | type[Exception]:
    try:
        return values(await file.read(where=where))
    except asyncpq.QueryError as error:
        return type(error)


@given(data=st.data())
def test_rows_are_those_without_filters_and_pyarrows(data: st.DataObject) -> None:
    kinds = {name: data.draw(st.sampled_from(KINDS)) for name in ("a", "b")}
    num_rows = data.draw(st.integers(1, 12))
    columns = {
        name: array(kind, data.draw(st.lists(st.none() | COLUMNS[kind][1], min_size=num_rows, max_size=num_rows)))
        for name, kind in kinds.items()
    }
    file = write(
        pa.table(columns),
        ["a", "b"],
        rows_per_group=data.draw(st.sampled_from([1, 2, 5])),
        use_dictionary=data.draw(st.booleans()),
        store_decimal_as_integer=data.draw(st.booleans()),
    )
    where = data.draw(expressions(kinds))
    found, plain = (
        ask(file, lambda opened: _rows(opened, where), requests=asyncpq.RequestOptions(bloom_filters=use))
        for use in ("always", "never")
    )
    assert found == plain
    if isinstance(found, list):
        try:
            wanted = values(by_pyarrow(file, where))
        except (pa.ArrowException, TypeError):
            return  # asyncpq answers where pyarrow's casts give up
        assert found == wanted


@pytest.mark.parametrize(("precision", "as_integer"), [(7, True), (16, True), (7, False), (16, False), (30, False)])
def test_decimals_in_every_layout_of_pyarrow(precision: int, as_integer: bool) -> None:
    numbers = [Decimal(n) / 100 for n in range(-300, 300, 2)]
    absent = [number + Decimal("0.01") for number in numbers]
    table = pa.table({"c": pa.array(numbers, pa.decimal128(precision, 2))})
    file = write(table, ["c"], rows_per_group=1000, ndv=1000, store_decimal_as_integer=as_integer)
    assert all(row_groups_left(file, Comparison("c", "==", number)) for number in numbers)
    assert sum(bool(row_groups_left(file, Comparison("c", "==", number))) for number in absent) < 30
