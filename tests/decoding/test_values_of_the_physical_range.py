"""Filters on values of the whole range of their physical type give the rows that pyarrow gives on the whole file."""

from __future__ import annotations

import datetime as dt
import operator
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.expressions.scalars import Day, as_scalar, day, days_of
from asyncpq.indexing import Bounds, Footers, Keys
from tests.parquet_files import EditedFile

pytestmark = pytest.mark.sampled(4)

I31, I63 = 1 << 31, 1 << 63
DAY_MS = 86_400_000
FIRST, LAST = -719162, 2932896  # days of datetime.date
TYPES: list[tuple[pa.DataType, list[int]]] = [
    (pa.date32(), [0, -I31, I31 - 1, FIRST - 1, FIRST, LAST, LAST + 1]),
    (pa.date64(), [0, (FIRST - 1) * DAY_MS, (LAST + 1) * DAY_MS, LAST * DAY_MS]),
    (pa.time32("s"), [0, 86_399, 86_400, -1, I31 // 1000 - 1, -I31 // 1000 + 1]),
    (pa.time32("ms"), [0, DAY_MS - 1, DAY_MS, -1, I31 - 1, -I31]),
    (pa.time64("us"), [0, DAY_MS * 1000, -1, I63 - 1, -I63]),
    (pa.time64("ns"), [0, DAY_MS * 1_000_000, -1, I63 - 1, -I63]),
    *(
        (pa.timestamp(unit, zone), [0, -1, I63 - 1, -I63, I63 - 2, 10**18, -(10**17)])
        for unit in ("ms", "us", "ns")
        for zone in (None, "UTC")
    ),
    (pa.uint32(), [0, I31 - 1, I31, 2 * I31 - 1]),
    (pa.uint64(), [0, I63 - 1, I63, 2 * I63 - 1]),
    (pa.int32(), [0, -I31, I31 - 1]),
    (pa.int64(), [0, -I63, I63 - 1]),
]
TESTS: list[tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = [
    (operator.eq, pc.equal),
    (operator.ne, pc.not_equal),
    (operator.lt, pc.less),
    (operator.le, pc.less_equal),
    (operator.gt, pc.greater),
    (operator.ge, pc.greater_equal),
    (lambda column, value: column.is_in([value]), pc.equal),
    (lambda column, value: ~column.is_in([value]), pc.not_equal),
    (lambda column, value: column.between(value, value), pc.equal),
]


def stored(values: list[int], type_: Any) -> pa.Array:
    bits = type_.bit_width
    held = array(
        "i" if bits == 32 else "q", [(value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for value in values]
    )
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(held)])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize(("type_", "values"), TYPES, ids=[f"{type_}" for type_, _ in TYPES])
async def test_filters_agree_with_pyarrow(
    type_: pa.DataType, values: list[int], dictionary: bool, trust: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": stored(values, type_), "id": range(len(values))}), path, use_dictionary=dictionary)
    whole = pq.read_table(path)
    (written,) = whole["x"].chunks
    async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=trust)) as session:
        file = await session.open_file(str(path))
        dataset = await session.open_dataset(str(tmp_path))
        for literal in written:
            for make, test in TESTS:
                expected = whole.filter(test(written, literal))["id"].to_pylist()
                where = make(col("x"), literal)
                assert (await file.read(["id"], where))["id"].to_pylist() == expected, where
                assert (await dataset.read(["id"], where))["id"].to_pylist() == expected, where
            equal = whole.filter(pc.equal(written, literal))["id"].to_pylist()
            assert (await file.read(["id"], [("x", "in", [literal])]))["id"].to_pylist() == equal
            assert (await file.lookup({"x": [literal]}, columns=["id"]))["id"].to_pylist() == equal
            assert (await dataset.lookup({"x": [literal]}, columns=["id"]))["id"].to_pylist() == equal
            value_set = written.filter(pc.equal(written, literal))
            for where in (pc.field("x") == literal, pc.field("x").isin(value_set), col("x").is_in(value_set)):
                assert (await file.read(["id"], where))["id"].to_pylist() == equal, where
            less = whole.filter(pc.less_equal(written, literal))["id"].to_pylist()
            assert (await file.read(["id"], pc.field("x") <= literal))["id"].to_pylist() == less


@pytest.mark.parametrize(
    ("type_", "bits", "values"),
    [
        (pa.int8(), 8, [0, 127, -128, 128, -129, 1 << 20]),
        (pa.int16(), 16, [0, 32767, -32768, 32768, 1 << 20, -(1 << 20)]),
        (pa.uint8(), 8, [0, 255, 256, -1, 1 << 20]),
        (pa.uint16(), 16, [0, 65535, 65536, -1, 1 << 20]),
    ],
    ids=str,
)
@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("dictionary", [True, False])
async def test_small_integers_with_more_bits_than_their_type(
    type_: pa.DataType, bits: int, values: list[int], dictionary: bool, trust: bool, tmp_path: Path
) -> None:
    """The file holds 32 bits in each value, with statistics of these; Arrow keeps the low bits of each."""
    edited = EditedFile.of(
        pa.table({"x": pa.array(values, pa.int32()), "id": range(len(values))}),
        store_schema=False,
        use_dictionary=dictionary,
    )
    small = EditedFile.of(pa.table({"x": pa.array([0], type_)}))
    element = edited.element(0)
    for number in (6, 10):
        element[number] = small.element(0)[number]
    path = tmp_path / "a.parquet"
    path.write_bytes(edited.data())
    whole = pq.read_table(path)
    read = whole["x"].to_pylist()
    async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=trust)) as session:
        file = await session.open_file(str(path))
        assert (await file.read())["x"].to_pylist() == read
        dataset = await session.open_dataset(str(tmp_path))
        for literal in {*read, *values}:
            for make, test in TESTS:
                wide = whole["x"].cast(pa.int64())
                expected = whole.filter(test(wide, literal))["id"].to_pylist()
                where = make(col("x"), literal)
                assert (await file.read(["id"], where))["id"].to_pylist() == expected, where
                assert (await dataset.read(["id"], where))["id"].to_pylist() == expected, where
            equal = [number for number, value in enumerate(read) if value == literal]
            assert (await file.lookup({"x": [literal]}, columns=["id"]))["id"].to_pylist() == equal


@pytest.mark.heavy
@pytest.mark.parametrize("trust", [True, False])
async def test_dates_outside_of_datetimes_years(trust: bool, tmp_path: Path) -> None:
    texts = ["-0001-01-01", "0000-12-31", "0001-01-01", "2024-02-29", "9999-12-31", "10000-01-01", "+20000-02-29"]
    held = [FIRST - 731, FIRST - 1, FIRST, 19782, LAST, LAST + 1, days_of(20000, 2, 29)]
    seconds = pa.array([value * 86_400 for value in held], pa.timestamp("s"))
    table = pa.table({"x": pa.array(held, pa.date32()), "t": seconds.cast(pa.timestamp("us")), "id": range(len(held))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    pq.write_table(table, tmp_path / "b.parquet")
    async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=trust)) as session:
        dataset = await session.open_dataset(str(tmp_path))
        file = await session.open_file(str(tmp_path / "a.parquet"))
        await session.build_index(str(tmp_path), [Bounds("x"), Keys("x"), Footers()])
        indexed = await session.open_dataset(str(tmp_path))
        for at, (text, days) in enumerate(zip(texts, held, strict=True)):
            scalar = pa.scalar(days, pa.date32())
            same: list[Any] = [f"x = DATE '{text}'", f"x = '{text}'", col("x") == scalar, [("x", "in", [scalar])]]
            same += [f"t = TIMESTAMP '{text} 00:00:00'", f"t = '{text}'", col("t") == scalar, pc.field("x") == scalar]
            same += [col("x") == np.datetime64(days, "D"), f"x BETWEEN '{text}' AND '{text}'", f"x IN ('{text}')"]
            for where in same:
                assert (await file.read(["id"], where))["id"].to_pylist() == [at], where
                assert (await dataset.read(["id"], where))["id"].to_pylist() == [at, at], where
            for where in (
                f"x < DATE '{text}'",
                col("x") < scalar,
                ~(col("x") >= scalar),
                f"t < TIMESTAMP '{text} 00:00:00'",
            ):
                assert (await file.read(["id"], where))["id"].to_pylist() == [*range(at)], where
            assert await dataset.count(where=col("x").is_in([scalar, None, dt.date(2024, 2, 29)])) == 2 * len({at, 3})
            for table_ in (dataset, indexed):
                assert (await table_.lookup({"x": [scalar]}, columns=["id"]))["id"].to_pylist() == [at, at]
        everything = "x > DATE '-9999999-01-01' AND x < DATE '9999999-01-01'"  # neither fits into 32 bits of days
        assert await file.count(where=everything) == len(held)
        assert await file.count(where="x = DATE '9999999-01-01'") == 0


def test_days_are_ordered_among_dates() -> None:
    far = [Day(FIRST - 1), Day(LAST + 1), Day(-I31)]
    days: list[Any] = [dt.date(2024, 1, 1), *far]
    assert sorted(days) == [far[2], far[0], dt.date(2024, 1, 1), far[1]]
    assert [str(value) for value in far] == ["0000-12-31", "10000-01-01", "-5877641-06-23"]
    assert day(19782) == dt.date(2024, 2, 29)
    assert as_scalar(pa.scalar(LAST + 1, pa.date32())) == Day(LAST + 1)
    assert far[0] != dt.date(1, 1, 1)
