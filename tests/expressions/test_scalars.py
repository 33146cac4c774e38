"""Scalars of every Arrow type, and of numpy and pandas, survive as literals and as keys, to the nanosecond."""

from __future__ import annotations

import asyncio
import datetime as dt
import operator
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # it has no stubs here
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import ExpressionError, PredicateTypeError, col
from asyncpq.expressions import Expression
from asyncpq.expressions.scalars import (
    NANOSECONDS,
    Duration,
    TimeOfDay,
    Timestamp,
    as_scalar,
    as_scalars,
    exact_decimal,
    unscaled_decimal,
)
from asyncpq.indexing import Bounds, Keys
from tests.parquet_bytes import parquet_bytes
from tests.predicates import oracle
from tests.reads import ask

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
DAY = 86_400 * NANOSECONDS["s"]
NOW = 1_709_164_800_123_456_789
UNITS = ("s", "ms", "us", "ns")


def _moments() -> dict[str, pa.Array]:
    found: dict[str, pa.Array] = {}
    for unit in UNITS:
        step = NANOSECONDS[unit]
        points = [-1, 0, 1, NOW // step, NOW // step + 1]
        for zone in (None, "UTC", "Europe/Paris"):
            found[f"timestamp[{unit},{zone}]"] = pa.array(points, pa.timestamp(unit, zone))
        found[f"duration[{unit}]"] = pa.array(points, pa.duration(unit))
        times = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        found[f"time[{unit}]"] = pa.array([0, 1, 1001, DAY // step - 1], times)
    far = [-(2**63), -(2**63) + 1, 0, 2**63 - 2, 2**63 - 1]
    found |= {f"far {kind}": pa.array(far, kind) for kind in (pa.timestamp("us"), pa.timestamp("ns", "UTC"))}
    return found | {f"far {kind}": pa.array(far, kind) for kind in (pa.duration("us"), pa.duration("ns"))}


def _columns() -> dict[str, pa.Array]:
    """Ascending values of every type that pyarrow compares, by name."""
    integers = [getattr(pa, f"{sign}int{width}")() for sign in ("", "u") for width in (8, 16, 32, 64)]
    found = {
        str(kind): pa.array(
            [0, 1, 3, (1 << kind.bit_width - 1) - 1] + [(1 << kind.bit_width) - 1] * pa.types.is_unsigned_integer(kind),
            kind,
        )
        for kind in integers
    }
    found |= {
        str(kind): pa.array([Decimal("-1.50"), Decimal(0), Decimal("0.01"), Decimal("9.99")], kind)
        for kind in (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(38, 2), pa.decimal256(70, 2))
    }
    texts, blobs = ["", "a", "ab", "é" * 40], [b"", b"a", b"ab", b"\xff" * 70]
    found |= {str(kind): pa.array(texts, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())}
    found |= {str(kind): pa.array(blobs, kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())}
    found |= {
        "float32": pa.array([-1.5, 0.0, 0.1, 3.0], pa.float32()),
        "float64": pa.array([-1.5, 0.0, 0.1, 1e300], pa.float64()),
        "bool": pa.array([False, True]),
        "date32": pa.array([-1, 0, 19_000], pa.date32()),
        "date64": pa.array([-86_400_000, 0, 86_400_000 * 19_000], pa.date64()),
        "fixed": pa.array([b"aa", b"ab", b"\xff\xff"], pa.binary(2)),
        "uuid": pa.array([uuid.UUID(int=n).bytes for n in (0, 1, 1 << 127)], pa.uuid()),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[]", "{}"])),
        "dictionary": pa.array(["a", "b"]).dictionary_encode(),
        "dictionary of times": pa.array([1, 2001], pa.time64("ns")).dictionary_encode(),
    }
    return found | _moments()


COLUMNS = _columns()


def exact(scalar: pa.Scalar) -> Any:
    """What orders values, without loss."""
    while isinstance(scalar, (pa.DictionaryScalar, pa.RunEndEncodedScalar, pa.ExtensionScalar)):
        scalar = scalar.value
    if pa.types.is_temporal(scalar.type) and not pa.types.is_date(scalar.type):
        return scalar.value * NANOSECONDS[scalar.type.unit]
    return scalar.as_py()


def literals_of(column: pa.Array) -> list[Any]:
    """The column's own values as scalars, also in a dictionary, and those between where its unit is coarse."""
    own = list(column)
    found = [*own]
    kind = column.type
    if not isinstance(kind, (pa.DictionaryType, pa.BaseExtensionType)):
        try:
            found += list(column.dictionary_encode())
        except pa.ArrowNotImplementedError:  # decimals of 32 and 64 bits
            found += [pa.scalar(own[0].as_py(), kind)]
        found.append(pa.RunEndEncodedArray.from_arrays([len(own)], column.slice(1, 1))[0])
    if pa.types.is_timestamp(kind):
        found += [pa.scalar(NOW + at, pa.timestamp("ns", kind.tz)) for at in (-1, 0, 1)]
        found += [pa.scalar(value, pa.timestamp("s", kind.tz)) for value in (2**62, -(2**62))]
    elif pa.types.is_time(kind):
        found += [pa.scalar(at, pa.time64("ns")) for at in (1, 999, 1001, DAY - 1)] + [pa.scalar(1, pa.time32("s"))]
    elif pa.types.is_duration(kind):
        found += [pa.scalar(at, pa.duration("ns")) for at in (-1, 1, 1001, NOW)]
        found += [pa.scalar(value, pa.duration("s")) for value in (2**62, -(2**62))]
    return found


def _predicates(literal: Any, values: list[Any]) -> list[tuple[Any, list[int]]]:
    """Predicates in each form, and the rows that Python finds."""
    key = exact(literal)
    rows = {op: [row for row, value in enumerate(values) if compare(value, key)] for op, compare in OPS.items()}
    found: list[tuple[Any, list[int]]] = [([("x", op, literal)], wanted) for op, wanted in rows.items()]
    found += [(col("x") == literal, rows["=="]), (col("x") < literal, rows["<"]), (col("x") >= literal, rows[">="])]
    found += [(col("x").is_in([literal, None]), [*rows["=="], len(values)])]
    found += [(col("x").between(literal, literal), rows["=="]), ([("x", "in", [literal])], rows["=="])]
    return found


def _written(name: str) -> tuple[bytes, list[Any]]:
    """A file of small pages with the column, a null at its end, and the values that pyarrow reads from it."""
    column = COLUMNS[name]
    column = pa.concat_arrays([column, pa.nulls(1, column.type)])
    table = pa.table({"x": column, "n": pa.array(range(len(column)))})
    data = parquet_bytes(table, max_rows_per_page=2, write_batch_size=1, row_group_size=3, write_page_index=True)
    read = pq.read_table(pa.BufferReader(data))["x"]
    return data, [exact(value) for value in read if value.is_valid]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COLUMNS)
def test_scalars_as_literals_and_keys_of_a_file(name: str) -> None:
    data, values = _written(name)

    async def question(file: asyncpq.File) -> None:
        for literal in literals_of(COLUMNS[name]):
            for predicate, wanted in _predicates(literal, values):
                found = (await file.read(["n"], predicate))["n"].to_pylist()
                assert found == wanted, (str(predicate), repr(literal))
                assert await file.count(predicate) == len(wanted)
            wanted = [row for row, value in enumerate(values) if value == exact(literal)]
            assert (await file.lookup({"x": literal}, columns=["n"]))["n"].to_pylist() == wanted, repr(literal)
            several = [literal, literal]
            keyed = await file.lookup({"x": several, "n": [0, 1]}, columns=["n"], with_keys=True)
            assert keyed["n"].to_pylist() == [row for row in wanted if row < 2]
        every = COLUMNS[name]
        assert (await file.lookup({"x": every}, columns=["n"])).num_rows == len(values)

    ask(data, question)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COLUMNS)
def test_scalars_as_literals_and_keys_of_an_index(name: str, tmp_path: Path) -> None:
    data, values = _written(name)
    (tmp_path / "a.parquet").write_bytes(data)

    async def run() -> None:
        async with asyncpq.Session() as session:
            await session.build_index(str(tmp_path), [Bounds("x"), Keys("x")])
            async with await session.open_dataset(str(tmp_path)) as dataset:
                for literal in literals_of(COLUMNS[name]):
                    for predicate, wanted in _predicates(literal, values)[6:]:
                        found = (await dataset.read(["n"], predicate))["n"].to_pylist()
                        assert found == wanted, (str(predicate), repr(literal))
                    wanted = [row for row, value in enumerate(values) if value == exact(literal)]
                    found = await dataset.lookup({"x": [literal]}, columns=["n"])
                    assert found["n"].to_pylist() == wanted

    asyncio.run(run())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COLUMNS)
def test_scalars_in_pyarrow_expressions(name: str) -> None:
    """Understood exactly, or refused with a typed error."""
    data, values = _written(name)

    async def question(file: asyncpq.File) -> None:
        for literal in literals_of(COLUMNS[name]):
            key = exact(literal)
            field = pc.field("x")
            for op, compare in OPS.items():
                try:
                    predicate = compare(field, literal)
                except (pa.ArrowException, NotImplementedError, TypeError):
                    continue
                try:
                    found = (await file.read(["n"], predicate))["n"].to_pylist()
                except ExpressionError:
                    continue
                wanted = [row for row, value in enumerate(values) if compare(value, key)]
                assert found == wanted, (op, repr(literal))

    ask(data, question)


@pytest.mark.parametrize("name", ["time[s]", "time[ms]", "time[us]", "time[ns]", "dictionary of times"])
def test_times_of_day_in_pyarrow_expressions_are_understood(name: str) -> None:
    data, values = _written(name)

    async def question(file: asyncpq.File) -> None:
        for number in (0, 1, 1_000, 1_001, DAY - 1):
            literal = pa.scalar(number, pa.time64("ns"))
            for op, compare in OPS.items():
                found = (await file.read(["n"], compare(pc.field("x"), literal)))["n"].to_pylist()
                assert found == [row for row, value in enumerate(values) if compare(value, number)], (op, number)
            found = (await file.read(["n"], pc.field("x").isin(pa.array([literal, None]))))["n"].to_pylist()
            assert found == [
                row for row, value in enumerate([*values, number]) if value == number or row == len(values)
            ]

    ask(data, question)


@pytest.mark.parametrize(
    ("value", "scalar"),
    [
        (np.datetime64(1, "ns"), Timestamp(1)),
        (np.datetime64(1_000, "ns"), dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
        (np.datetime64(1, ("us", 25)), dt.datetime(1970, 1, 1, 0, 0, 0, 25)),
        (np.datetime64(2**60, "s"), Timestamp(2**60 * 10**9)),
        (np.datetime64("2024-02-29"), dt.date(2024, 2, 29)),
        (np.datetime64("NaT", "s"), None),
        (np.timedelta64(1, "ns"), Duration(1)),
        (np.timedelta64(3, "h"), dt.timedelta(hours=3)),
        (np.timedelta64(2**60, "s"), Duration(2**60 * 10**9)),
        (np.timedelta64("NaT", "s"), None),
        (np.float16(1.5), 1.5),
        (np.int8(-3), -3),
        (np.str_("é"), "é"),
        (np.bytes_(b"\xff"), b"\xff"),
        (np.array(7), 7),
        (pd.Timestamp(1), Timestamp(1)),
        (pd.Timestamp(1, tz="Europe/Paris"), Timestamp(1, "Europe/Paris")),
        (pd.Timestamp("2024-02-29 01:02:03.000004"), dt.datetime(2024, 2, 29, 1, 2, 3, 4)),
        (pd.Timedelta(1), Duration(1)),
        (pd.Timedelta(-1), Duration(-1)),
        (pd.Timedelta(days=-1, microseconds=1), dt.timedelta(days=-1, microseconds=1)),
        (pd.NaT, None),
        (pd.NA, None),
        (Decimal("1.50"), Decimal("1.50")),
        (uuid.UUID(int=1), uuid.UUID(int=1)),
        (pa.scalar(None), None),
        (pa.scalar(None, pa.time64("ns")), None),
        (pa.scalar(1.5, pa.float16()), 1.5),
        (pa.scalar(1, pa.bool8()), True),
        (pa.scalar(1, pa.time64("ns")), TimeOfDay(1)),
        (pa.scalar(1, pa.duration("ns")), Duration(1)),
        (pa.scalar(1, pa.timestamp("ns", "UTC")), Timestamp(1, "UTC")),
        (pa.scalar(1, pa.opaque(pa.time64("ns"), "a", "b")), TimeOfDay(1)),
    ],
    ids=repr,
)
def test_exactly_this_scalar(value: Any, scalar: Any) -> None:
    found = as_scalar(value)
    assert type(found) is type(scalar)
    assert found == scalar


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(5, pa.date64()),
        pa.scalar((1, 2, 3), pa.month_day_nano_interval()),
        pa.scalar([1], pa.list_(pa.int8())),
        pa.scalar({"a": 1}),
        np.datetime64(1, "as"),
        np.timedelta64(1, "M"),
        np.longdouble("1.1"),
        np.array([1]),
        pd.Series([1]),
        pd.Period("2024-01"),
        Fraction(1, 3),
        1j,
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_literal_says_what_to_write(value: Any) -> None:
    with pytest.raises(ExpressionError) as caught:
        as_scalar(value)
    assert caught.value.hint
    with pytest.raises(ExpressionError):
        col("x") == value  # noqa: B015 - it is not made
    with pytest.raises(ExpressionError):
        as_scalars([value])


def test_a_long_value_is_cut_in_the_error() -> None:
    with pytest.raises(ExpressionError) as caught:
        as_scalar(list(range(10_000)))
    assert str(caught.value).startswith("[0, 1, 2")
    assert len(caught.value.message) < 400


def test_a_time_of_day_with_a_zone_is_refused() -> None:
    async def question(file: asyncpq.File) -> None:
        for predicate in (col("x") == dt.time(1, tzinfo=dt.UTC), col("x").is_in([dt.time(1, tzinfo=dt.UTC)])):
            with pytest.raises(PredicateTypeError, match="have no zone"):
                await file.read(where=predicate)

    ask(_written("time[us]")[0], question)


@pytest.mark.parametrize(
    ("text", "exact"),
    [("1.5", "1.50"), ("1.500", "1.50"), ("-0.05", "-0.05"), ("1e6", "1000000.00"), ("0e-100000000", "0.00")],
)
def test_exact_decimals(text: str, exact: str) -> None:
    assert str(exact_decimal(Decimal(text), 9, 2)) == exact


@pytest.mark.parametrize("text", ["1.505", "1e7", "1e-100000000", "1e100000000", "NaN", "Infinity", "9" * 100_000])
def test_decimals_that_a_type_does_not_have(text: str) -> None:
    with pytest.raises(ArithmeticError):
        exact_decimal(Decimal(text), 9, 2)


def test_decimals_far_from_all_values_take_no_time() -> None:
    for text in ("1e-100000000", "1e100000000", "-1e-999999999", "-1e999999999"):
        number: Any = unscaled_decimal(Decimal(text), 38)
        assert (number > 0) is not text.startswith("-")
        assert (abs(number) < Fraction(1, 10**76)) is ("e-" in text)
        assert 0 < abs(number) < Fraction(1, 10**76) or abs(number) > 10**400
    assert unscaled_decimal(Decimal("1e-10000"), 0) == Fraction(1, 10**10000)


PREDICATES: dict[str, Expression] = {
    f"{name} {value}": expression
    for value in (0.1, 0.5, 1e-45, -0.1)
    for name, expression in {
        "is_in": col("x").is_in([value]),
        "is not in": ~col("x").is_in([value]),
        "is_in and more": col("x").is_in([value]) & (col("x") > value),
        "equals": col("x") == value,
        "differs": col("x") != value,
        "above": col("x") > value,
    }.items()
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("predicate", PREDICATES)
@pytest.mark.parametrize("values", [[0.1] * 3, [0.1, 0.5], [1e-45, 1e-45]])
async def test_equals_pyarrow(tmp_path: Path, values: list[float], predicate: str) -> None:
    """All-rows proofs, statistics, bloom filters; then what a dataset has learnt."""
    table = pa.table({"x": pa.array(values, pa.float32())})
    filters = {"x": {"ndv": 10, "fpp": 0.01}}
    pq.write_table(table, tmp_path / "0.parquet", write_page_index=True, bloom_filter_options=filters)
    wanted = table.filter(oracle(PREDICATES[predicate])).num_rows
    async with asyncpq.Session() as session:
        file = await session.open_file(tmp_path / "0.parquet")
        dataset = await session.open_dataset(tmp_path)
        for opened in (file, dataset, dataset):
            assert await opened.count(PREDICATES[predicate]) == wanted
            assert (await opened.read(where=PREDICATES[predicate])).num_rows == wanted
