"""Partition values of the smallest and largest values: the arithmetic of writers wraps there.

Partition values are computed as Java's implementation computes them, with arithmetic of 32 and 64 bits.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
)
from pyiceberg.utils.decimal import decimal_to_unscaled

import asyncpq
from asyncpq.distributed import plan_scan
from asyncpq.expressions import Expression, col
from asyncpq.indexing import Bounds
from asyncpq.tables.iceberg.manifests import PartitionFilter
from tests.example_counts import examples
from tests.iceberg_tables import add_files, edited_metadata, make_table, tagged, written_file
from tests.predicates import oracle

_HOUR = 3_600_000_000  # microseconds
_EPOCH = dt.datetime(1970, 1, 1)
_COMPARISONS: list[Callable[[Any, Any], Any]] = [
    operator.lt,
    operator.le,
    operator.eq,
    operator.ne,
    operator.ge,
    operator.gt,
]


def _wrapped(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def _remainder(value: int, width: int) -> int:
    """Java's ``%``: its sign is that of ``value``."""
    return int(math.copysign(1, value)) * (abs(value) % width)


def _java_truncated(value: int, width: int, bits: int) -> int:
    positive = _remainder(_wrapped(_remainder(value, width) + width, bits), width)
    return _wrapped(value - positive, bits)


def _floored(value: int, width: int, bits: int) -> int:
    """As pyiceberg-core and Trino truncate: only the result wraps."""
    return _wrapped(value - value % width, bits)


def test_the_arithmetic_of_java() -> None:
    assert _java_truncated(-(2**31), 10, 32) == 2147483646
    assert _java_truncated(-(2**63), 10, 64) == 9223372036854775806
    assert [_java_truncated(value, 10, 32) for value in (-11, -10, -1, 0, 9, 10)] == [-20, -10, -10, 0, 0, 10]
    assert _java_truncated(5, 2**31 - 1, 32) == -(2**31) + 1  # the sum of remainder and width wraps


def _integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    near = st.integers(0, 40)
    return st.one_of(
        near.map(lambda step: low + step),
        near.map(lambda step: high - step),
        st.integers(-20, 20),
        st.integers(low, high),
    )


_WIDTHS = st.one_of(
    st.integers(1, 100), st.integers(0, 30).map(lambda power: 1 << power), st.integers(1, 2**31 - 1)
) | st.integers(2**31 - 20, 2**31 - 1)


def _predicates(value: Any, literals: list[Any]) -> list[Expression]:
    """Predicates on ``v`` that are true for ``value``."""
    pairs = [(compare, literal) for compare in _COMPARISONS for literal in literals]
    matching: list[Expression] = [
        compare(col("v"), literal) if compare(value, literal) else ~compare(col("v"), literal)
        for compare, literal in pairs
    ]
    matching += [col("v").is_in([value]), col("v").is_in([*literals, value]), col("v").is_valid()]
    matching += [~col("v").is_in([literal]) for literal in literals if literal != value]
    matching += [col("v").between(low, high) for low in literals for high in literals if low <= value <= high]
    return matching


def _check(source: PrimitiveType, transform: Transform[Any, Any], partition: Any, matching: list[Expression]) -> None:
    """Each predicate of ``matching`` keeps a file and a manifest of the partition."""
    schema = Schema(NestedField(1, "v", source))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "part"))
    result = transform.result_type(source)
    assert isinstance(result, PrimitiveType)
    bound = to_bytes(result, partition)
    summary = PartitionFieldSummary(False, False, bound, bound)
    manifest = ManifestFile.from_args(manifest_path="m", partition_spec_id=0, partitions=[summary])
    for where in matching:
        partitions = PartitionFilter(where, schema, {"v": schema.find_field(1)})
        assert partitions.keeps_partition([partition], spec, "x"), where
        assert partitions.keeps_manifest(manifest, spec), where


@pytest.mark.heavy
@settings(max_examples=examples(40, thorough=3000))
@given(value=_integers(32), literals=st.lists(_integers(32), min_size=2, max_size=3), width=_WIDTHS)
@example(value=-(2**31), literals=[0, -(2**31)], width=10)
@example(value=5, literals=[0, 100], width=2**31 - 1)
def test_truncated_ints(value: int, literals: list[int], width: int) -> None:
    for partition in {_java_truncated(value, width, 32), _floored(value, width, 32)}:
        for source in (IntegerType(), LongType()):  # a column of longs may have been one of ints
            _check(source, TruncateTransform(width), partition, _predicates(value, [*literals, value]))


@pytest.mark.heavy
@settings(max_examples=examples(40, thorough=3000))
@given(value=_integers(64), literals=st.lists(_integers(64), min_size=2, max_size=3), width=_WIDTHS)
@example(value=-(2**63), literals=[0, -(2**63)], width=10)
def test_truncated_longs(value: int, literals: list[int], width: int) -> None:
    for partition in {_java_truncated(value, width, 64), _floored(value, width, 64)}:
        _check(LongType(), TruncateTransform(width), partition, _predicates(value, [*literals, value]))


@st.composite
def _decimals(draw: st.DrawFn) -> tuple[DecimalType, list[Decimal]]:
    precision = draw(st.sampled_from([1, 2, 4, 9, 18, 19, 38]))
    scale = draw(st.integers(0, precision))
    largest = 10**precision - 1
    near = st.integers(0, min(20, largest))
    unscaled = st.one_of(
        near.map(lambda step: step - largest), near.map(lambda step: largest - step), st.integers(-largest, largest)
    )
    values = draw(st.lists(unscaled, min_size=3, max_size=4))
    return DecimalType(precision, scale), [_decimal(value, scale) for value in values]


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


@pytest.mark.sampled(2)
@settings(max_examples=examples(30, thorough=2000))
@given(column=_decimals(), width=_WIDTHS)
def test_truncated_decimals(column: tuple[DecimalType, list[Decimal]], width: int) -> None:
    """Unscaled values are truncated without wrapping; a value past the precision is no partition value for Java."""
    source, values = column
    value = values[0]
    unscaled = decimal_to_unscaled(value)
    truncated = unscaled - unscaled % width
    partition = _decimal(truncated, source.scale)
    try:
        to_bytes(source, partition)
    except (OverflowError, ValueError):  # nor for pyiceberg
        return
    _check(source, TruncateTransform(width), partition, _predicates(value, values))


_MICROSECOND = dt.timedelta(microseconds=1)
_MOMENTS = [dt.datetime.min, dt.datetime(1969, 12, 31, 23), _EPOCH, dt.datetime(2024, 2, 29), dt.datetime.max]
_TIMES: list[tuple[Transform[Any, Any], int]] = [(DayTransform(), 24 * _HOUR), (HourTransform(), _HOUR)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("transform", "unit"), _TIMES, ids=["day", "hour"])
@pytest.mark.parametrize(("source", "fraction"), [(TimestampType(), 1), (TimestampNanoType(), 1000)], ids=["us", "ns"])
@settings(max_examples=examples(30, thorough=2000))
@given(number=_integers(64), literal=st.sampled_from(_MOMENTS))
@example(number=2**63 - 1, literal=_EPOCH)
@example(number=-(2**63), literal=_EPOCH)
def test_the_first_and_last_times(
    source: PrimitiveType, fraction: int, transform: Transform[Any, Any], unit: int, number: int, literal: dt.datetime
) -> None:
    """Far beyond Python's years, hours since 1970 take more than 32 bits: they wrap."""
    other = (literal - _EPOCH) // _MICROSECOND * fraction
    matching: list[Expression] = [
        compare(col("v"), literal) if compare(number, other) else ~compare(col("v"), literal)
        for compare in _COMPARISONS
    ]
    _check(source, transform, _wrapped(number // (unit * fraction), 32), matching)


_INTS, _LONGS = ([-(1 << bits), 1 - (1 << bits), -11, -1, 0, 9, 10, (1 << bits) - 1] for bits in (31, 63))
_DATES = [dt.date.min, dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date.max]
_DECIMALS = [Decimal("-9990.00"), Decimal("-0.01"), Decimal("0.00"), Decimal("12.34"), Decimal("9999.99")]
_MICROS = [-(2**63), *((moment - _EPOCH) // _MICROSECOND for moment in _MOMENTS), 2**63 - 1]
_TRUNCATED: list[Transform[Any, Any]] = [TruncateTransform(10), TruncateTransform(2**31 - 1)]
_WRITTEN: dict[str, tuple[pa.DataType, list[Any], list[Any], list[Transform[Any, Any]]]] = {
    "int": (pa.int32(), _INTS, [_INTS[0], 0, _INTS[-1]], [*_TRUNCATED, BucketTransform(3)]),
    "long": (pa.int64(), _LONGS, [_LONGS[0], 0, _LONGS[-1]], [*_TRUNCATED, BucketTransform(3)]),
    "decimal": (pa.decimal128(6, 2), _DECIMALS, _DECIMALS[::2], [TruncateTransform(1000), BucketTransform(3)]),
    "date": (pa.date32(), _DATES, _DATES[::2], [YearTransform(), MonthTransform(), DayTransform(), BucketTransform(3)]),
    "time": (pa.timestamp("us"), _MICROS, _MOMENTS[::2], [DayTransform(), HourTransform(), BucketTransform(3)]),
    "early time": (pa.timestamp("us"), _MICROS[1:-1], _MOMENTS[::2], [YearTransform(), MonthTransform()]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", list(_WRITTEN))
async def test_equal_to_pyarrow(tmp_path: Path, name: str) -> None:
    """On tables whose partition values pyiceberg computes, in Rust."""
    arrow_type, values, literals, transforms = _WRITTEN[name]
    rows = pa.table({"v": pa.array(values, arrow_type), "k": range(len(values))})
    for number, transform in enumerate(transforms):
        table = make_table(tmp_path / str(number), rows.schema)
        with table.update_spec() as update:
            update.add_field("v", transform, "part")
        numbers = transform.pyarrow_transform(table.schema().find_field("v").field_type)(rows["v"].combine_chunks())
        files = []
        for key, partition in enumerate(numbers.to_pylist()):
            row = tagged(rows.slice(key, 1), table.schema())
            part = (partition - _EPOCH.date()).days if isinstance(partition, dt.date) else partition
            files.append(written_file(table, row, Record(part)))
        add_files(table, files, ManifestContent.DATA)
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(table)
            for where in _questions(literals):
                expected = rows.filter(oracle(where))["k"].to_pylist()
                found = await dataset.read(where=where, columns=["k"])
                assert sorted(found["k"].to_pylist()) == expected, (str(transform), where)


def _questions(literals: list[Any]) -> list[Expression]:
    pairs = [(compare, literal) for compare in _COMPARISONS for literal in literals]
    questions: list[Expression] = [compare(col("v"), literal) for compare, literal in pairs]
    questions += [~question for question in questions]
    questions += [col("v").is_in([literals[0], literals[-1]]), col("v").is_valid(), col("v").is_null()]
    return [*questions, col("v").between(literals[0], literals[1]), col("v").between(literals[1], literals[-1])]


#: Values and the partitions that ClickHouse 26.9 puts them in, which other writers call by other numbers.
_CLICKHOUSE: dict[str, tuple[pa.DataType, Transform[Any, Any], list[Any], list[int]]] = {
    "days of dates": (
        pa.date32(),
        DayTransform(),
        [dt.date(1900, 1, 1), dt.date(1969, 12, 31), dt.date(2149, 6, 6), dt.date(2299, 12, 31)],
        [0, 0, 65535, 65535],
    ),
    "days": (
        pa.timestamp("us"),
        DayTransform(),
        [_EPOCH - dt.timedelta.resolution, dt.datetime(2299, 12, 31)],
        [0, 65535],
    ),
    "hours": (
        pa.timestamp("us"),
        HourTransform(),
        [dt.datetime(1900, 1, 1), _EPOCH - dt.timedelta.resolution, _EPOCH, dt.datetime(2299, 12, 31)],
        [0, 23, 0, 2892696],
    ),
    "months": (pa.date32(), MonthTransform(), [dt.date(1900, 1, 1), dt.date(2299, 12, 31)], [0, 3959]),
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
async def test_zeros_of_partitions_are_what_the_files_have(tmp_path: Path, kind: pa.DataType) -> None:
    """Trino 483 gives infinity the partition 0.0, and -0.0 as well."""
    values = [math.inf, -math.inf, -0.0, 0.0, 1.5, math.nan, None, 0.0, -0.0]
    rows = pa.table({"v": pa.array(values, kind), "k": range(len(values))})
    table = make_table(tmp_path, rows.schema)
    with table.update_spec() as update:
        update.add_field("v", IdentityTransform(), "part")
    files = []
    for row, value in enumerate([0.0] * 4 + values[4:]):
        content = tagged(rows.slice(row, 1), table.schema())
        files.append(written_file(table, content.drop_columns("v") if row >= 7 else content, Record(value)))
    add_files(table, files, ManifestContent.DATA)
    async with asyncpq.Session() as session:
        await session.build_index(table, [Bounds("v")], at=str(tmp_path / "index"))
        for index in (False, str(tmp_path / "index")):
            dataset = await session.open_dataset(table, index=index)
            assert repr((await dataset.read()).sort_by("k").to_pylist()) == repr(rows.to_pylist())
            tasks = [await asyncio.to_thread(task.to_table) for task in await plan_scan(dataset)]
            assert repr(pa.concat_tables(tasks).sort_by("k").to_pylist()) == repr(rows.to_pylist())
            for where in _questions([value for value in values if value == value]):
                expected = rows.filter(oracle(where))["k"].to_pylist()
                assert sorted((await dataset.read(["k"], where=where))["k"].to_pylist()) == expected, where
                assert await dataset.count(where) == len(expected), where


@pytest.mark.parametrize("name", list(_CLICKHOUSE))
async def test_partitions_of_clickhouse(tmp_path: Path, name: str) -> None:
    arrow_type, transform, values, partitions = _CLICKHOUSE[name]
    rows = pa.table({"v": pa.array(values, arrow_type), "k": range(len(values))})
    table = make_table(tmp_path, rows.schema)
    with table.update_spec() as update:
        update.add_field("v", transform, "part")
    files = [
        written_file(table, tagged(rows.slice(key, 1), table.schema()), Record(partition))
        for key, partition in enumerate(partitions)
    ]
    add_files(table, files, ManifestContent.DATA)
    async with asyncpq.open_dataset(table) as dataset:
        for where in _questions(values):
            expected = rows.filter(oracle(where))["k"].to_pylist()
            assert sorted((await dataset.read(["k"], where=where))["k"].to_pylist()) == expected, where


def test_truncated_values_below_the_type() -> None:
    """ClickHouse 26.9 writes them as longs; its summaries have 8 bytes, so they rule out nothing."""
    schema = Schema(NestedField(1, "v", IntegerType()))
    spec = PartitionSpec(PartitionField(1, 1000, TruncateTransform[Any](10), "part"))
    least = -(2**31)
    partition = [least - 2]
    for value in (least, least + 7):
        for where in _predicates(value, [least, value, least + 20, 0, 7]):
            assert PartitionFilter(where, schema, {"v": schema.find_field(1)}).keeps_partition(partition, spec, "x")
    assert not PartitionFilter(col("v") == 5, schema, {"v": schema.find_field(1)}).keeps_partition(partition, spec, "x")


async def test_an_unknown_transform_rules_out_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path, pa.schema([("v", pa.int32())]))
    with table.update_spec() as update:
        update.add_field("v", IdentityTransform(), "part")
    rows = pa.table({"v": pa.array([1, 2, 3], pa.int32())})
    table.append(rows)

    def edit(document: dict[str, Any]) -> None:
        for spec in document["partition-specs"]:
            for part in spec["fields"]:
                part["transform"] = "zorder[3]"

    async with asyncpq.open_dataset(edited_metadata(table, edit), format="iceberg") as dataset:
        for where in (col("v") == 2, col("v") < 3, col("v").is_in([2, 7]), ~col("v").is_null()):
            assert await dataset.count(where) == rows.filter(oracle(where)).num_rows


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")], ids=str)
@pytest.mark.parametrize("in_files", [True, False], ids=["in files", "in partitions alone"])
async def test_partitions_before_year_1_and_after_9999(tmp_path: Path, kind: pa.DataType, in_files: bool) -> None:
    days = [-735_525, -719_162, 0, 2_932_896, 2_932_897]  # in the year -44, the first and last of Python, in 10000
    numbers = days if kind == pa.date32() else [day * 24 * _HOUR for day in days]
    values = pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    rows = pa.table({"v": values, "k": range(5)})
    table = make_table(tmp_path, rows.schema)
    with table.update_spec() as update:
        update.add_field("v", IdentityTransform(), "part")
    files = []
    for row, number in enumerate(numbers):
        content = tagged(rows.slice(row, 1), table.schema())
        files.append(written_file(table, content if in_files else content.drop_columns("v"), Record(number)))
    add_files(table, files, ManifestContent.DATA)
    literals = rows["v"].slice(1, 3).to_pylist()
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(table)
        assert (await dataset.read()).sort_by("k").cast(rows.schema).equals(rows)
        for where in _questions(literals):
            expected = rows.filter(oracle(where))["k"].to_pylist()
            assert sorted((await dataset.read(["k"], where=where))["k"].to_pylist()) == expected, where


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC")], ids=str)
@pytest.mark.parametrize("in_files", [True, False], ids=["in files", "in partitions alone"])
async def test_partitions_of_nanoseconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: pa.DataType, in_files: bool
) -> None:
    numbers = [-(2**63), -1, 0, 1_709_168_523_000_004_005, 2**63 - 1, None]
    rows = pa.table({"v": pa.array(numbers, pa.int64()).cast(kind), "k": range(len(numbers))})
    table = make_table(tmp_path, pa.schema([("v", pa.timestamp("us", kind.tz)), ("k", pa.int64())]))
    with table.update_spec() as update:
        update.add_field("v", IdentityTransform(), "part")
    moment = TimestamptzNanoType() if kind.tz else TimestampNanoType()
    schema = Schema(NestedField(1, "v", moment, required=False), NestedField(2, "k", LongType(), required=False))
    monkeypatch.setattr(table, "schema", lambda: schema)  # for the manifests: pyiceberg 0.12 writes no format 3
    files = []
    for row, number in enumerate(numbers):
        content = tagged(rows.slice(row, 1), schema)
        files.append(written_file(table, content if in_files else content.drop_columns("v"), Record(number)))
    add_files(table, files, ManifestContent.DATA)

    def edit(document: dict[str, Any]) -> None:
        document.update({"format-version": 3, "next-row-id": len(numbers)})
        document["schemas"][0]["fields"][0]["type"] = str(moment)

    async with asyncpq.open_dataset(edited_metadata(table, edit), format="iceberg") as dataset:
        assert (await dataset.read()).sort_by("k").cast(rows.schema).equals(rows)
        for literal in rows["v"].slice(0, 5):
            for compare in _COMPARISONS:
                where = compare(col("v"), literal)
                expected = rows.filter(oracle(where))["k"].to_pylist()
                assert sorted((await dataset.read(["k"], where=where))["k"].to_pylist()) == expected, where
